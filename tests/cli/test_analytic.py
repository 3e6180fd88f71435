"""``slotgrid explain`` and ``slotgrid propose`` as their users type them."""

from __future__ import annotations

import json

import pytest

from slotgrid.cli.main import INTERRUPTED, run
from tests.conftest import Command, assert_one_line_error

EXPLAIN = ("explain", "--profile", "rbln-ca25-qwen3-4b", "--workload", "tracelab-multi-turn", "--seeds", "1")
PROPOSE = ("propose", "--profile", "rbln-ca25-qwen3-4b", "--workload", "tracelab-two-turn", "--baseline", "1,2,4,8")


def test_explain(slotgrid: Command) -> None:
    process = slotgrid(
        *EXPLAIN,
        *("--blocks", "0", "--sessions", "14", "--max-running", 16, "--simulate"),
        *("--buckets", "1,4,6,8,10,16", "--buckets", "1,2,4,8,16"),
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    text = process.stdout
    assert "the analytic view holds for N from 1 to 16" in text
    assert "Cheapest set for the analytic occupancy:" in text
    assert "Cheapest set for the simulated occupancy:" in text
    for bucket in (1, 4, 6, 8, 10):
        assert f"  {bucket} is there for steps with " in text


def test_explain_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*EXPLAIN, "--blocks", "0", "--sessions", "6", "--max-running", "8", "--slots", "9", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["slots"], data["max_running"], data["range"], data["found"]) == (9, 8, [1, 8], True)
    assert 0.7 < data["analytic"][0]["reuse"] < 1
    assert data["views"][0]["optimal"]["buckets"] == data["buckets"]


def test_explain_outside_its_range(slotgrid: Command) -> None:
    process = slotgrid(*EXPLAIN, "--sessions", "8,12", "--max-running", 8)
    assert_one_line_error(process, "sessions: 12", "holds for 1 to max_running = 8", "simulate instead")


def test_propose(slotgrid: Command) -> None:
    process = slotgrid(
        *(*PROPOSE, "--sessions", "4,8", "--batch", "8,12", "--max-buckets", 4, "--blocks", "0"),
        *("--explore-seeds", "1", "--eval-seeds", "2", "--check", "--json"),
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    data = json.loads(process.stdout)
    assert data["space_size"] == data["checked"]["enumerated"] == 78
    assert data["candidates"] < 78
    assert [way["max_running"] for way in data["ways"]] == [8, 12]
    assert data["best"]["ratio"] == data["checked"]["best"]["ratio"] + data["checked"]["gap"]


def test_propose_refuses_to_check_too_much(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PROPOSE, "--sessions", "8", "--batch", "32", "--max-buckets", "10", "--check"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "check: the space holds" in shown.err
    assert "at most 50,000 are enumerated" in shown.err


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from slotgrid.search import finder

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(finder, "simulated_load", interrupt)
    assert run([*PROPOSE, "--sessions", "4", "--batch", "8", "--blocks", "0"]) == INTERRUPTED
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "slotgrid: interrupted\n")

"""Event logs read back as runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from slotgrid.run.readers.event_log import run_from_events

START = {
    "event": "start",
    "t_ns": 1_000,
    "pid": 7,
    "format": "slotgrid-events/1",
    "writer": "slotgrid-serve 0",
    "clock": "monotonic",
    "versions": {"jax": "1"},
    "config": {"buckets": [1, 2], "slots": 2, "max_running": 2},
    "rules": "real",
    "block_tokens": 4,
}
MS = 1_000_000


def at(t_ms: int, event: str, **fields: Any) -> dict[str, Any]:
    return {"event": event, "t_ns": t_ms * MS, "pid": 7, **fields}


def allocation(t_ms: int, request: str, slot: int, prompt: int, arrival_ms: int, **more: Any) -> dict[str, Any]:
    arrival_ns = arrival_ms * MS
    return at(t_ms, "allocation", request=request, slot=slot, prompt_tokens=prompt, arrival_ns=arrival_ns, **more)


def step(
    number: int, start_ms: int, end_ms: int, kind: str, running: int, *done: str, **more: Any
) -> list[dict[str, Any]]:
    """A step that ends the requests in ``done``, each with two output tokens."""
    end = at(end_ms, "step_end", step=number)
    if done:
        end["finished"] = [{"request": name, "output_tokens": 2, "reason": "length"} for name in done]
    return [at(start_ms, "step_start", step=number, kind=kind, running=running, **more), end]


EVENTS = [
    START,
    allocation(100, "a", 0, 10, 100, prefix="x"),
    *step(0, 100, 130, "prefill", 0, request="a", computed_tokens=10),
    *step(1, 130, 140, "decode", 1, "a", bucket=1),
    at(140, "release", request="a", slot=0),
    allocation(150, "b", 1, 3, 150),
    *step(2, 150, 170, "prefill", 0, request="b", computed_tokens=3),
    allocation(170, "a2", 2, 13, 160, prefix="x"),
    at(170, "hit", request="a2", slot=0, cached_tokens=8),
    *step(3, 170, 200, "prefill", 1, request="a2", computed_tokens=5),
    *step(4, 200, 212, "decode", 2, "b", "a2", bucket=2),
    at(220, "eviction", slot=1, request="b", cause="padding"),
]


def write(path: Path, events: list[dict[str, Any]], tail: str = "") -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events) + tail)
    return path


def test_a_log_becomes_a_run(tmp_path: Path) -> None:
    run = run_from_events(write(tmp_path / "events.jsonl", EVENTS))
    columns = ("session", "turn", "prompt_tokens", "cached_tokens", "computed_tokens", "output_tokens")
    assert run.requests.select(columns).rows() == [(0, 0, 10, 0, 10, 2), (0, 1, 13, 8, 5, 2), (1, 0, 3, 0, 3, 2)]
    times = run.requests.filter(run.requests["request_id"] == "a2").select(
        "arrival_s", "admit_s", "first_token_s", "finish_s"
    )
    assert times.row(0) == pytest.approx((0.06, 0.07, 0.1, 0.112))
    assert run.steps["kind"].to_list() == ["prefill", "decode", "prefill", "prefill", "decode"]
    assert run.steps["bucket"].to_list() == [None, 1, None, None, 2]
    assert run.steps["session"].to_list() == [0, None, 1, 0, None]
    assert run.steps["duration_s"].to_list() == pytest.approx([0.03, 0.01, 0.02, 0.03, 0.012])
    assert run.evictions.rows() == [(pytest.approx(0.12), 1, "padding")]
    assert run.config == sg.ServingConfig((1, 2), slots=2)
    assert (run.rules, run.source, run.device_time_s) == ("real", "measured", None)
    assert run.stall_session_s == pytest.approx(0.03)
    assert run.wall_s == pytest.approx(0.12)
    assert (run.returns, run.reused, run.decode_steps) == (1, 1, 2)
    assert run.notes == ("the log states no sessions: requests with the same first prompt block count as one session",)


def test_it_is_saved_and_loaded_like_any_run(tmp_path: Path) -> None:
    run = run_from_events(write(tmp_path / "events.jsonl", EVENTS))
    sg.save_run(run, tmp_path / "run")
    assert sg.load_run(tmp_path / "run").to_dict() == run.to_dict()


def test_stated_sessions_are_taken(tmp_path: Path) -> None:
    events = [{**event, "session": 5, "turn": 2} if event["event"] == "allocation" else event for event in EVENTS[:7]]
    run = run_from_events(write(tmp_path / "events.jsonl", events))
    assert run.requests.select("session", "turn").rows() == [(5, 2)]
    assert run.notes == ()


def test_what_did_not_finish_is_left_out_and_said(tmp_path: Path) -> None:
    run = run_from_events(write(tmp_path / "events.jsonl", EVENTS[:11], tail='{"event": "step_e'))
    assert run.requests["request_id"].to_list() == ["a"]
    assert "2 of 3 requests did not finish and are left out" in run.notes
    assert "the last line of the event log is cut off and was left out" in run.notes


@pytest.mark.parametrize(
    ("events", "tail", "words"),
    [
        ([], "", "no start event"),
        (EVENTS[1:], "", "no start event"),
        ([START, START], "", "line 2: start: a second one"),
        ([{**START, "format": "slotgrid-events/9"}], "", "line 1: start: format is 'slotgrid-events/9'"),
        ([{**START, "config": {}}], "", "line 1: start: buckets is missing"),
        ([START, at(1, "allocation", request="a")], "", "line 2: allocation: prompt_tokens is missing"),
        ([START, at(1, "hit", request="a", cached_tokens=1)], "", "request 'a' has no allocation before it"),
        ([START, at(1, "step_end", step=4)], "", "line 2: step_end: step 4 was not started"),
        ([START, at(1, "step_start", step=0, kind="draft")], "", "allowed: prefill, decode"),
        ([START], "nonsense\n", "line 2: not an event"),
        ([START, at(1, "party")], "", "line 2: not an event"),
        ([START, {"event": "hit"}], "", "line 2: not an event"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, events: list[dict[str, Any]], tail: str, words: str) -> None:
    with pytest.raises(sg.InputError, match=words) as caught:
        run_from_events(write(tmp_path / "events.jsonl", events, tail))
    assert "events.jsonl" in str(caught.value)
    assert "\n" not in str(caught.value)

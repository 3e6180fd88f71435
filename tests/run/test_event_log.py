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
    "source": "slotgrid-serve",
    "clock": "monotonic",
    "versions": {"jax": "1"},
    "config": {"buckets": [1, 2], "slots": 2, "max_running": 2},
    "rules": "real",
    "block_tokens": 4,
}
MS = 1_000_000


def arrival(t_ms: int, request: str, prompt: int, **more: Any) -> dict[str, Any]:
    return {"event": "arrival", "t_ns": t_ms * MS, "request": request, "prompt_tokens": prompt, **more}


def step(number: int, start_ms: int, end_ms: int, kind: str, running: int, **more: Any) -> list[dict[str, Any]]:
    begin = {"event": "step_start", "t_ns": start_ms * MS, "step": number, "kind": kind, "running": running, **more}
    return [begin, {"event": "step_end", "t_ns": end_ms * MS, "step": number, "kind": kind}]


def finish(t_ms: int, request: str, output: int, reason: str = "length") -> dict[str, Any]:
    return {"event": "finish", "t_ns": t_ms * MS, "request": request, "output_tokens": output, "reason": reason}


EVENTS = [
    START,
    arrival(100, "a", 10, prefix="x"),
    {"event": "allocate", "t_ns": 100 * MS, "request": "a", "slot": 0},
    *step(0, 100, 130, "prefill", 0, request="a", computed_tokens=10),
    *step(1, 130, 140, "decode", 1, bucket=1),
    finish(140, "a", 2),
    {"event": "release", "t_ns": 140 * MS, "request": "a", "slot": 0},
    arrival(150, "b", 3, prefix=None),
    *step(2, 150, 170, "prefill", 0, request="b", computed_tokens=3),
    arrival(160, "a2", 13, prefix="x"),
    {"event": "hit", "t_ns": 170 * MS, "request": "a2", "from_slot": 0, "cached_tokens": 8},
    *step(3, 170, 200, "prefill", 1, request="a2", computed_tokens=5),
    *step(4, 200, 212, "decode", 2, bucket=2),
    finish(212, "a2", 2),
    finish(212, "b", 2),
    {"event": "evict", "t_ns": 220 * MS, "slot": 1, "request": "b", "cause": "padding"},
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
    events = [{**event, "session": 5, "turn": 2} if event["event"] == "arrival" else event for event in EVENTS[:8]]
    run = run_from_events(write(tmp_path / "events.jsonl", events))
    assert run.requests.select("session", "turn").rows() == [(5, 2)]
    assert run.notes == ()


def test_what_did_not_finish_is_left_out_and_said(tmp_path: Path) -> None:
    cut = [event for event in EVENTS if event.get("event") != "finish" or event["request"] == "a"]
    run = run_from_events(write(tmp_path / "events.jsonl", cut, tail='{"event": "fin'))
    assert run.requests.height == 1
    assert "2 requests were not served to their end and are left out" in run.notes
    assert "the last line of the event log is cut off and was left out" in run.notes


def test_a_cancelled_request_is_said(tmp_path: Path) -> None:
    run = run_from_events(write(tmp_path / "e", [*EVENTS[:5], finish(140, "a", 1, "cancelled")]))
    assert "1 requests were cancelled while they ran" in run.notes


@pytest.mark.parametrize(
    ("events", "tail", "words"),
    [
        ([], "", "no start event"),
        (EVENTS[1:], "", "no start event"),
        ([START, {"event": "arrival", "t_ns": 1, "request": "a"}], "", "line 2: arrival: prompt_tokens is missing"),
        ([START, {"event": "step_end", "t_ns": 1, "step": 4}], "", "line 2: step_end: step 4 was not started"),
        ([START, {"event": "step_start", "t_ns": 1, "step": 0, "kind": "draft"}], "", "allowed: prefill, decode"),
        ([{**START, "config": {}}], "", "config has no 'buckets'"),
        ([START], "nonsense\n", "line 2: not a JSON object"),
        ([START, {"event": "party", "t_ns": 1}], "", "line 2: not a JSON object with an event and t_ns"),
        ([START, {"event": "finish"}], "", "line 2: not a JSON object with an event and t_ns"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, events: list[dict[str, Any]], tail: str, words: str) -> None:
    with pytest.raises(sg.InputError, match=words) as caught:
        run_from_events(write(tmp_path / "events.jsonl", events, tail))
    assert "events.jsonl" in str(caught.value)
    assert "\n" not in str(caught.value)

"""Plans: JSON in and out, validation that names the place, hashes, transformations."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.plan import plan_from_json, published_content_sha256

GOOD = [[[1200, 100, 2.5], [8, 60, 0.0]], [[900, 40, 0.1], [8, 200, 0.0]]]

turn = st.tuples(st.integers(1, 500), st.integers(1, 50), st.floats(0, 60, allow_nan=False))
sessions = st.lists(st.lists(turn, min_size=1, max_size=4), min_size=1, max_size=5)


@given(sessions)
def test_json_round_trip(drawn: list[list[tuple[int, int, float]]]) -> None:
    turns = [[(n, o, w if i < len(s) - 1 else 0.0) for i, (n, o, w) in enumerate(s)] for s in drawn]
    plan = sg.InputPlan.from_turns(turns, max_seq_len=8192)
    again = plan_from_json(json.loads(json.dumps(plan.to_dict())), "memory")
    assert again == plan
    assert again.content_sha256 == plan.content_sha256


def test_save_and_load(tmp_path: Path) -> None:
    plan = sg.InputPlan.from_turns(GOOD, turnaround_s=0.001)
    plan.save(tmp_path / "deep" / "plan.json")
    assert sg.load_plan(tmp_path / "deep" / "plan.json") == plan


def test_hash_is_that_of_the_compact_key_sorted_json() -> None:
    plan = sg.InputPlan.from_turns([[[5, 2, 0.0]]], plan_id="p")
    text = (
        '{"clients":[{"sessions":[{"id":"s0","turns":[{"new_tokens":5,"output_tokens":2,"tool_wait_s":0.0}]}],'
        '"start_s":0.0}],"format":"slotgrid-plan/1","max_seq_len":null,"plan_id":"p"}'
    )
    assert plan.content_sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_counts() -> None:
    plan = sg.InputPlan.from_turns(GOOD)
    assert (plan.session_count, plan.turn_count) == (2, 4)
    assert plan.longest_context_tokens == 1368
    assert plan.total_wait_s == pytest.approx(2.6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((0, 1, (8, 0, 0.0)), r"client 0, session 0 \(s0\), turn 1: output_tokens is 0; a whole number of at least 1"),
        ((1, 0, (0, 40, 0.1)), r"client 1, session 0 \(s1\), turn 0: new_tokens is 0"),
        ((1, 0, (2.5, 40, 0.1)), r"turn 0: new_tokens is 2.5; a whole number"),
        ((1, 0, (True, 40, 0.1)), r"turn 0: new_tokens is True"),
        ((0, 0, (10, 4, -1.0)), r"client 0, session 0 \(s0\), turn 0: tool_wait_s is -1.0; seconds of at least 0"),
        ((0, 0, (10, 4, float("nan"))), r"turn 0: tool_wait_s is nan"),
        ((0, 1, (10, 4, 1.0)), r"turn 1: tool_wait_s is 1.0 on the session's last turn; it must be 0"),
        ((0, 1, (10, 4)), r"client 0, session 0, turn 1: .* is not \[new_tokens, output_tokens, tool_wait_s\]"),
    ],
)
def test_bad_turns_are_named(change: tuple[int, int, tuple[Any, ...]], message: str) -> None:
    turns: list[list[Any]] = [[list(t) for t in s] for s in GOOD]
    session, index, value = change
    turns[session][index] = list(value)
    with pytest.raises(sg.InputError, match=message):
        sg.InputPlan.from_turns(turns)


def test_empty_plans_are_refused() -> None:
    with pytest.raises(sg.InputError, match="no clients"):
        sg.InputPlan.from_turns([])
    with pytest.raises(sg.InputError, match=r"client 0, session 0 \(s0\): no turns"):
        sg.InputPlan.from_turns([[]])
    with pytest.raises(sg.InputError, match="client 0: no sessions"):
        sg.InputPlan("p", (sg.Client(0.0, ()),))
    with pytest.raises(sg.InputError, match="client 0: start_s is -1"):
        sg.InputPlan("p", (sg.Client(-1, (sg.Session("s", (sg.Turn(1, 1),)),)),))


def test_context_against_max_seq_len() -> None:
    sg.InputPlan.from_turns(GOOD, max_seq_len=1368)
    with pytest.raises(sg.InputError, match=r"client 0, session 0 \(s0\), turn 1: .* exceed max_seq_len 1367"):
        sg.InputPlan.from_turns(GOOD, max_seq_len=1367)


def test_transformations_keep_everything_else() -> None:
    plan = sg.InputPlan.from_turns([*GOOD, [[5, 5, 0.0]]])
    without = plan.without_waits()
    assert without.total_wait_s == 0
    mean = plan.with_mean_waits()
    assert mean.total_wait_s == pytest.approx(plan.total_wait_s, rel=1e-15)
    assert {t.tool_wait_s for _, s in mean.sessions() for t in s.turns[:-1]} == {1.3}
    arrivals = plan.with_arrivals([0, 1, 2, 3, 4])
    assert [t.arrival_s for _, s in arrivals.sessions() for t in s.turns] == [0, 1, 2, 3, 4]
    for other in (without, mean, arrivals):
        tokens = [(t.new_tokens, t.output_tokens) for _, s in other.sessions() for t in s.turns]
        assert tokens == [(t.new_tokens, t.output_tokens) for _, s in plan.sessions() for t in s.turns]
        assert [s.id for _, s in other.sessions()] == [s.id for _, s in plan.sessions()]
        assert other.content_sha256 != plan.content_sha256
    assert plan_from_json(arrivals.to_dict(), "memory") == arrivals
    with pytest.raises(sg.InputError, match="4 arrival times for 5 turns"):
        plan.with_arrivals([0, 1, 2, 3])


def published() -> dict[str, Any]:
    turns = [
        {"index": 0, "new_segment_tokens": 900, "generation_tokens": 40, "gap_after_s": 0.25, "text_seed": 1},
        {"index": 1, "new_segment_tokens": 8, "generation_tokens": 50, "gap_after_s": 0.0, "text_seed": 2},
    ]
    data: dict[str, Any] = {
        "plan_id": "main-n1-r0",
        "base_seed": 1,
        "n_slots": 1,
        "turns": 2,
        "stagger_s": 6.0,
        "spec": {"max_seq_len": 8192},
        "slots": [{"slot": 0, "start_s": 0.0, "sessions": [{"session_id": "main-n1-r0/slot0/g0", "turns": turns}]}],
    }
    data["_sha256"] = published_content_sha256(data)
    return data


def test_published_multi_turn_plans_are_read() -> None:
    plan = plan_from_json(published(), "p.json")
    assert plan.plan_id == "main-n1-r0"
    assert plan.max_seq_len == 8192
    assert plan.clients[0].sessions[0].turns == (sg.Turn(900, 40, 0.25), sg.Turn(8, 50, 0.0))
    changed = published()
    changed["slots"][0]["start_s"] = 1.0
    with pytest.raises(sg.InputError, match=r"p\.json: _sha256 does not match"):
        plan_from_json(changed, "p.json")


def test_published_two_turn_samples_are_read() -> None:
    data = {"plan": GOOD, "seed": 1, "block": "n2b0", "slots": 8, "buckets": [1, 8], "turnaround_s": 0.0008}
    plan = plan_from_json(data, "p.json")
    assert (plan.plan_id, plan.turnaround_s, plan.turn_count) == ("n2b0", 0.0008, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty; expected JSON"),
        ("{", "line 1, column 2"),
        ("[1]", "not a plan; expected a JSON object"),
        ("{}", "not a plan; expected"),
        ('{"format": "slotgrid-plan/9"}', "format is 'slotgrid-plan/9'; this version reads 'slotgrid-plan/1'"),
        ('{"format": "slotgrid-plan/1", "plan_id": "x"}', "clients is missing"),
        ('{"format": "slotgrid-plan/1", "plan_id": "x", "clients": 3}', "clients is not a list of objects"),
        ('{"format": "slotgrid-plan/1", "plan_id": "x", "clients": [], "colour": 1}', "unknown key 'colour'; allowed"),
        ('{"format": "slotgrid-plan/1", "plan_id": "x", "clients": []}', "no clients"),
        (
            '{"format": "slotgrid-plan/1", "plan_id": "x", "clients": [{"start_s": NaN, "sessions": []}]}',
            r"clients[0].start_s is NaN, which is not a JSON number",
        ),
        (
            '{"format": "slotgrid-plan/1", "plan_id": "x", "clients": [{"start_s": 0, "sessions": '
            '[{"id": "a", "turns": [{"new_tokens": 5, "tool_wait_s": 0}]}]}]}',
            "client 0, session 0, turn 0: output_tokens is missing",
        ),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(sg.InputError) as caught:
        sg.load_plan(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(sg.InputError, match=r"none\.json: No such file"):
        sg.load_plan(tmp_path / "none.json")
    with pytest.raises(sg.InputError, match="Is a directory"):
        sg.load_plan(tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(sg.InputError, match="not UTF-8"):
        sg.load_plan(tmp_path / "binary.json")

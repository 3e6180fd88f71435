"""The engine agrees with every golden case, compiled and as plain Python."""

from __future__ import annotations

from typing import Any

import pytest

import slotgrid as sg

TOLERANCE_S = 1e-9


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_golden_cases(profile: sg.StackProfile, golden_cases: list[dict[str, Any]], compiled: bool) -> None:
    assert len(golden_cases) == 90
    for case in golden_cases:
        run = sg.simulate(
            profile,
            sg.ServingConfig(case["buckets"], slots=case["slots"], max_running=case["max_running"]),
            sg.InputPlan.from_turns(case["plan"]),
            rules=case["rules"],
            turnaround_s=case["turnaround_s"],
            compiled=compiled,
        )
        expected = case["expected"]
        columns = ("session", "turn", "prompt_tokens", "cached_tokens", "arrival_s", "admit_s", "finish_s")
        rows = run.requests.select(columns).rows()
        assert [list(row[:4]) for row in rows] == [row[:4] for row in expected["requests"]], case["id"]
        for row, wanted in zip(rows, expected["requests"], strict=True):
            assert row[4:] == pytest.approx(wanted[4:], rel=0, abs=TOLERANCE_S), case["id"]
        assert [list(row) for row in run.histogram.rows()] == expected["histogram"], case["id"]
        assert run.decode_steps == expected["decode_steps"]
        for name in ("decode_s", "prefill_s", "stall_session_s", "wall_s"):
            assert getattr(run, name) == pytest.approx(expected[name], rel=0, abs=TOLERANCE_S), (case["id"], name)

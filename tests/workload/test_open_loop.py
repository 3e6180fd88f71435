"""Open-loop arrivals: Poisson and recorded times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import slotgrid as sg
from slotgrid.engine.steady import simulate_steady
from slotgrid.workload.open_loop import draw_open, poisson_starts, read_starts

BASE = sg.ServingConfig((1, 2, 4, 8))


def test_poisson_times_have_the_rate_and_no_memory() -> None:
    starts = np.array(poisson_starts(rate_per_s=0.5, sessions=4_000, seed=7))
    gaps = np.diff(np.concatenate([[0.0], starts]))
    assert gaps.mean() == pytest.approx(2.0, rel=0.05)
    assert gaps.std() == pytest.approx(2.0, rel=0.06)
    assert poisson_starts(rate_per_s=0.5, sessions=10, seed=7) == tuple(starts[:10])
    assert poisson_starts(rate_per_s=0.5, sessions=10, seed=8) != tuple(starts[:10])


def test_sessions_start_when_told_and_are_whole(profile: sg.StackProfile) -> None:
    workload = sg.load_workload("tracelab-multi-turn")
    plan = draw_open(workload, [0.0, 3.0, 3.5], seed=1)
    assert plan.open_loop
    assert [client.start_s for client in plan.clients] == [0.0, 3.0, 3.5]
    assert all(len(session.turns) == 8 for _, session in plan.sessions())
    run = sg.simulate(profile, BASE, plan)
    first = run.requests.filter(run.requests["turn"] == 0)
    assert first["arrival_s"].to_list() == [0.0, 3.0, 3.5]


def test_an_open_window_needs_a_warm_up_and_enough_sessions(profile: sg.StackProfile) -> None:
    workload = sg.load_workload("tracelab-multi-turn")
    plan = draw_open(workload, poisson_starts(rate_per_s=0.2, sessions=40, seed=2), seed=2)
    with pytest.raises(sg.InputError, match=r"open loop\); give its seconds"):
        simulate_steady(profile, BASE, plan, evaluation_s=60.0)
    with pytest.raises(sg.InputError, match="sessions are needed, the plan has 40"):
        simulate_steady(profile, BASE, plan, evaluation_s=600.0, warmup_s=30.0)
    steady = simulate_steady(profile, BASE, plan, evaluation_s=60.0, warmup_s=30.0)
    assert (steady.window.start_s, steady.window.end_s) == (30.0, 90.0)
    assert steady.requests > 0


def test_recorded_times_are_read(tmp_path: Path) -> None:
    path = tmp_path / "starts.txt"
    path.write_text("# unix seconds\n100.5\n\n101\n107.25 # late\n")
    assert read_starts(path) == (0.0, 0.5, 6.75)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no start times"),
        ("1\nnext\n", "line 2: 'next'"),
        ("5\n4\n", "line 2: 4 after 5"),
        ("nan\n", "line 1: 'nan'"),
    ],
)
def test_bad_times_are_named(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "starts.txt"
    path.write_text(text)
    with pytest.raises(sg.InputError, match=part):
        read_starts(path)


def test_bad_rates_are_named() -> None:
    for rate in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(sg.InputError, match="arrivals per second"):
            poisson_starts(rate_per_s=rate, sessions=3, seed=0)
    with pytest.raises(sg.InputError, match="sessions: 0"):
        poisson_starts(rate_per_s=1.0, sessions=0, seed=0)

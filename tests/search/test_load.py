"""Simulated occupancy: what is counted, and the steady part."""

from __future__ import annotations

import numpy as np
import pytest

import slotgrid as sg
from slotgrid.engine.rules import REAL
from slotgrid.search.load import simulated_load, steady_part

CONFIG = sg.ServingConfig((1, 2, 4, 8))


def test_a_burst_counts_whole(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    plans = [two_turn.draw(clients=6, seed=seed) for seed in (1, 2)]
    load = simulated_load(profile, CONFIG, plans, rules=REAL, turnaround_s=0.0008)
    runs = [sg.simulate(profile, CONFIG, plan, rules="real", turnaround_s=0.0008) for plan in plans]
    counts = np.zeros(9)
    for run in runs:
        for running, _, steps in run.histogram.iter_rows():
            counts[running] += steps
    assert load.steps == pytest.approx(counts / counts.sum())
    assert load.decode_steps == pytest.approx(counts.sum() / 2)
    assert (load.reused, load.returns) == (sum(run.reused for run in runs), 12)
    assert load.reuse == load.reused / 12


def test_renewing_clients_count_while_all_are_there(profile: sg.StackProfile) -> None:
    plan = sg.load_workload("tracelab-multi-turn").draw(clients=4, seed=1, sessions_per_client=4)
    run = sg.simulate(profile, CONFIG, plan, rules="real", turnaround_s=0.0008)
    part = steady_part(run, plan)
    last_s = [
        max(
            finish
            for finish, session in zip(run.requests["finish_s"], run.requests["session"], strict=True)
            if session // 4 == client
        )
        for client in range(4)
    ]
    assert part.end_s == min(last_s)
    assert part.start_s >= 3 * 6.0
    load = simulated_load(profile, CONFIG, [plan], rules=REAL, turnaround_s=0.0008)
    assert load.returns < run.returns
    assert load.steps.sum() == pytest.approx(1)


def test_nothing_to_decode(profile: sg.StackProfile) -> None:
    plan = sg.InputPlan.from_turns([[(100, 1, 0.0)]])
    with pytest.raises(sg.InputError, match="occupancy: every turn generates one token"):
        simulated_load(profile, CONFIG, [plan], rules=REAL, turnaround_s=0.0008)


def test_a_plan_without_a_steady_part_counts_whole(profile: sg.StackProfile) -> None:
    plan = sg.InputPlan(
        "short",
        tuple(
            sg.Client(start_s, tuple(sg.Session(f"{start_s}/{s}", (sg.Turn(100, 5),)) for s in range(2)))
            for start_s in (0.0, 1.0)
        ),
    )
    run = sg.simulate(profile, CONFIG, plan)
    part = steady_part(run, plan)
    assert part.start_s == 0
    assert part.end_s > run.requests["finish_s"].max()

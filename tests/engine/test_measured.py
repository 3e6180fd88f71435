"""The engine against step utilization measured on hardware (waits are whole seconds, not the tool mix)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import mean

import slotgrid as sg
from slotgrid.workload.distributions import Uniform
from tests.conftest import read_csv

WHOLE_SECONDS = Uniform(1, 5)


def test_runs_without_waits_are_reproduced(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    workload = replace(two_turn, tool_wait_s=WHOLE_SECONDS)
    errors = []
    for row in read_csv("measured_step_utilization.csv"):
        if row["arm"] != "NOWAIT":
            continue
        n, block = int(row["n_sessions"]), row["block_id"]
        plan = workload.draw(clients=n, seed=int(row["base_seed"]), plan_id=block).without_waits()
        config = sg.ServingConfig([int(size) for size in row["buckets"].split()], slots=int(row["slots"]))
        run = sg.simulate(profile, config, plan, rules="real")
        assert run.padding_ratio is not None
        errors.append(abs(1 - run.padding_ratio - float(row["utilization"])))
    assert len(errors) == 21
    assert mean(errors) <= 0.0001


def test_step_histograms_without_waits_are_exact(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    workload = replace(two_turn, tool_wait_s=WHOLE_SECONDS)
    config = sg.ServingConfig((1, 2, 4, 6, 8))
    for n in (6, 8):
        steps: Counter[int] = Counter()
        for r in range(3):
            plan = workload.draw(clients=n, seed=20260954, plan_id=f"task54-n{n}-r{r}").without_waits()
            run = sg.simulate(profile, config, plan, rules="real")
            for running, _, count in run.histogram.iter_rows():
                steps[running] += count
        published = {
            int(row["active_requests"]): int(row["steps"])
            for row in read_csv("t14_padding_drop_decomposition.csv")
            if int(row["n_sessions"]) == n and row["active_requests"] != "total"
        }
        assert dict(steps) == published

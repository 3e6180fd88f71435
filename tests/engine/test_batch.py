"""Batches: serial, parallel, plain Python and single simulations give the same numbers."""

from __future__ import annotations

import numpy as np

import slotgrid as sg
from slotgrid.engine.batch import Jobs, StepTables, simulate_jobs, simulate_jobs_parallel
from slotgrid.engine.prepare import flatten, lay_out


def test_batch_equals_single_runs(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    plans = [two_turn.draw(clients=n, seed=20260910, block=b) for n in (3, 9) for b in range(4)]
    configs = [sg.ServingConfig((1, 2, 4, 8)), sg.ServingConfig((1, 6, 10)), sg.ServingConfig((1, 4), slots=6)]
    tables = np.zeros((len(configs), 11))
    for i, config in enumerate(configs):
        tables[i, : config.max_running + 1] = profile.price.decode.step_s(config)
    jobs = Jobs(
        plan=np.tile(np.arange(len(plans)), len(configs)),
        table=np.repeat(np.arange(len(configs)), len(plans)),
        capacity=np.repeat([config.slots for config in configs], len(plans)),
        max_running=np.repeat([config.max_running for config in configs], len(plans)),
        padding=np.ones(len(plans) * len(configs), np.bool_),
    )
    batch = lay_out([flatten(plan, profile, 0.0008, False) for plan in plans])
    steps = StepTables(tables, tables, 0.0, 0.0)
    serial = simulate_jobs(batch, steps, jobs, release_at_once=True)
    parallel = simulate_jobs_parallel(batch, steps, jobs, release_at_once=True, threads=3)
    plain = simulate_jobs(batch, steps, jobs, release_at_once=True, compiled=False)
    for other in (parallel, plain):
        assert serial.floats.tobytes() == other.floats.tobytes()
        assert serial.ints.tobytes() == other.ints.tobytes()
    singles = [sg.simulate(profile, config, plan, rules="real").device_time_s for config in configs for plan in plans]
    assert serial.device_time_s.tolist() == singles

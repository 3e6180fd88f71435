"""What a run does inside its window."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import slotgrid as sg
from slotgrid.engine.steady import measure_window, simulate_steady
from slotgrid.run.steady import Spread, find_window
from slotgrid.workload.open_loop import draw_open, poisson_starts
from tests.conftest import DATA, read_csv

CELLS = json.loads((DATA / "steady_state.json").read_text())["cells"]
BASE = sg.ServingConfig((1, 2, 4, 8))


@pytest.fixture(scope="module")
def multi_turn() -> sg.Workload:
    return sg.load_workload("tracelab-multi-turn")


@pytest.fixture(scope="module")
def plan(multi_turn: sg.Workload) -> sg.InputPlan:
    return multi_turn.draw(clients=6, seed=3, cycle_s=5.0)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell['plan_id']}-{cell['config']}-{cell['clock']}")
def test_golden_windows_are_exact(cell: dict, profile: sg.StackProfile, multi_turn: sg.Workload) -> None:
    drawn = next(row for row in read_csv("plan_index.csv") if row["plan_id"] == cell["plan_id"])
    plan = multi_turn.draw(
        clients=int(drawn["n_slots"]),
        seed=int(drawn["base_seed"]),
        plan_id=drawn["plan_id_inside_file"],
        cycle_s=float(drawn["cycle_s"]),
    )
    without = ("excess",) if cell["clock"] == "operating" else ()
    config = sg.ServingConfig(cell["buckets"], slots=cell["slots"])
    steady = simulate_steady(profile, config, plan, turnaround_s=0.0008, clock=cell["clock"], without=without)
    assert steady.device_time_s == pytest.approx(cell["device_time_s"], abs=1e-9)
    assert (steady.requests, steady.later_turns, steady.reused) == (
        cell["requests"],
        cell["later_turns"],
        cell["reused"],
    )
    assert steady.histogram is not None
    assert [[running, steps] for running, _, steps in steady.histogram] == cell["histogram"]


def test_against_counting_by_hand(profile: sg.StackProfile, plan: sg.InputPlan) -> None:
    run = sg.simulate(profile, BASE, plan)
    steady = measure_window(run, plan, profile, evaluation_s=60.0)
    a, b = steady.window.start_s, steady.window.end_s
    rows = [row for row in run.requests.iter_rows(named=True) if a <= row["arrival_s"] < b]
    ttft = sorted(row["first_token_s"] - row["arrival_s"] for row in rows)
    assert steady.requests == len(rows)
    assert steady.ttft is not None
    assert steady.ttft.p95_s == ttft[int(np.ceil(0.95 * len(ttft))) - 1]
    # every gap between tokens, request by request
    decode = run.steps.filter(pl.col("kind") == "decode")
    ends = (decode["start_s"] + decode["duration_s"]).to_numpy()
    starts = decode["start_s"].to_numpy()
    gaps = []
    for row in run.requests.iter_rows(named=True):
        first = int(np.searchsorted(starts, row["first_token_s"] - 1e-12))
        own = ends[first : first + row["output_tokens"] - 1]
        times = np.concatenate([[row["first_token_s"]], own])
        gaps += [gap for gap, at in zip(np.diff(times), own, strict=True) if a <= at < b]
    gaps.sort()
    assert steady.inter_token is not None
    assert steady.inter_token.count == len(gaps)
    assert steady.inter_token.p50_s == pytest.approx(gaps[int(np.ceil(0.5 * len(gaps))) - 1])
    assert steady.inter_token.p99_s == pytest.approx(gaps[int(np.ceil(0.99 * len(gaps))) - 1])
    # a queue on a fine grid of times
    grid = np.linspace(a, b, 20_001)
    arrival, admit = run.requests["arrival_s"].to_numpy(), run.requests["admit_s"].to_numpy()
    waiting = [((arrival <= t) & (admit > t)).sum() for t in grid]
    assert steady.queue_mean == pytest.approx(np.mean(waiting), abs=2e-3)
    assert steady.queue_share == pytest.approx(np.mean(np.array(waiting) > 0), abs=2e-3)
    assert steady.queue == tuple(int(np.sort(waiting)[int(q * len(waiting))]) for q in (0.5, 0.95, 0.99))
    assert steady.keeps_up
    prefills = run.steps.filter((pl.col("kind") == "prefill") & pl.col("start_s").is_between(a, b, closed="left"))
    assert steady.stall_session_s == pytest.approx((prefills["duration_s"] * prefills["running"]).sum())
    assert sum(steady.occupancy.values()) == pytest.approx(1)


def test_context_priced_steps_add_up(profile: sg.StackProfile, plan: sg.InputPlan) -> None:
    # price and clock with a context term: the window's decode seconds are its step durations
    operating = profile.clocked("operating", BASE, without=["excess"])
    same = replace(operating, price=operating.clock)
    run = sg.simulate(same, BASE, plan)
    steady = measure_window(run, plan, same, evaluation_s=60.0)
    inside = run.steps.filter(
        (pl.col("kind") == "decode") & pl.col("start_s").is_between(*_ends(steady), closed="left")
    )
    assert steady.decode_s == pytest.approx(inside["duration_s"].sum(), rel=1e-12)


def _ends(steady: object) -> tuple[float, float]:
    return steady.window.start_s, steady.window.end_s  # type: ignore[attr-defined]


def test_unobserved_stays_unobserved(profile: sg.StackProfile, plan: sg.InputPlan) -> None:
    run = sg.simulate(profile, BASE, plan)
    hidden = replace(
        run,
        steps=None,
        requests=run.requests.with_columns(
            pl.lit(None, pl.Int64).alias("cached_tokens"), pl.lit(None, pl.Float64).alias("admit_s")
        ),
    )
    steady = measure_window(hidden, plan, profile, evaluation_s=60.0)
    assert steady.reused is None
    assert steady.histogram is None
    assert steady.decode_s is None
    assert steady.queue_mean is None
    assert steady.device_time_per_turn_s is None
    assert steady.ttft is not None
    endless = replace(run, requests=run.requests.with_columns(pl.lit(None, pl.Float64).alias("finish_s")))
    with pytest.raises(sg.InputError, match="finish times"):
        find_window(endless, plan)


def test_steps_without_a_clock_belong_by_their_order(profile: sg.StackProfile, plan: sg.InputPlan) -> None:
    run = sg.simulate(profile, BASE, plan)
    steps = run.steps.with_row_index("order").with_columns(pl.col("order").cast(pl.Int64))
    prefills = steps.filter(pl.col("kind") == "prefill").select("session", "turn", "order")
    order = {(session, turn): at for session, turn, at in prefills.iter_rows()}
    admitted = [order[row["session"], row["turn"]] for row in run.requests.iter_rows(named=True)]
    measured = replace(
        run,
        steps=steps.with_columns(pl.lit(None, pl.Float64).alias("start_s"), pl.lit(1).alias("repeats")),
        requests=run.requests.with_columns(pl.Series("admit_order", admitted)),
    )
    by_time, by_order = (measure_window(r, plan, profile, evaluation_s=60.0) for r in (run, measured))
    assert by_order.stall_session_s is None
    steps_by_time, steps_by_order = (sum(row[2] for row in s.histogram) for s in (by_time, by_order))
    # the first request is admitted a little after the window opens, the last before it closes
    assert 0 <= steps_by_time - steps_by_order < 0.05 * steps_by_time
    assert by_order.decode_s is not None
    # a price with a context term cannot be summed without knowing who ran when
    dear = profile.clocked("operating", BASE, without=["excess"])
    assert measure_window(measured, plan, replace(dear, price=dear.clock), evaluation_s=60.0).decode_s is None


def test_bad_windows_are_named(profile: sg.StackProfile, plan: sg.InputPlan, two_turn: sg.Workload) -> None:
    run = sg.simulate(profile, BASE, plan)
    with pytest.raises(sg.InputError, match="sessions per client are needed, the plan has 16"):
        find_window(run, plan, evaluation_s=3_000.0)
    with pytest.raises(sg.InputError, match="window: 0"):
        find_window(run, plan, evaluation_s=0.0)
    with pytest.raises(sg.InputError, match="warm-up: nan"):
        find_window(run, plan, warmup_s=float("nan"))
    burst = two_turn.draw(clients=4, seed=1)
    with pytest.raises(sg.InputError, match="one session"):
        find_window(sg.simulate(profile, BASE, burst), burst)
    with pytest.raises(sg.InputError, match="no steady load"):
        find_window(sg.simulate(profile, BASE, burst), burst, warmup_s=1.0)
    with pytest.raises(sg.InputError, match="give one of both"):
        find_window(run, plan, warmup_s=1.0, cycle_s=5.0)
    with pytest.raises(sg.InputError, match="the plan only 6 sessions"):
        find_window(run, sg.load_workload("tracelab-multi-turn").draw(clients=2, seed=1, sessions_per_client=3))
    slow = sg.Session("s", (sg.Turn(8, 4, 0.0), sg.Turn(8, 4, 90.0), sg.Turn(8, 4, 0.0)))
    idle = sg.InputPlan("idle", (sg.Client(0.0, (slow, slow)),))
    with pytest.raises(sg.InputError, match="no request arrives"):
        measure_window(sg.simulate(profile, BASE, idle), idle, profile, evaluation_s=30.0, cycle_s=1.0)


def test_a_run_that_stopped_at_the_end_of_its_window_is_the_same(profile: sg.StackProfile, plan: sg.InputPlan) -> None:
    run = sg.simulate(profile, BASE, plan)
    whole = measure_window(run, plan, profile, evaluation_s=60.0)
    end = whole.window.end_s
    # nothing sent after the end; what is in flight then has no finish, as when a client goes away
    sent = run.requests.filter(pl.col("arrival_s") < end)
    in_flight = pl.col("finish_s") >= end
    cut = replace(
        run,
        requests=sent.with_columns(pl.when(in_flight).then(None).otherwise(pl.col("finish_s")).alias("finish_s")),
        steps=run.steps.filter(pl.col("start_s") < end),
    )
    assert cut.requests["finish_s"].has_nulls()
    assert measure_window(cut, plan, profile, evaluation_s=60.0).to_dict() == whole.to_dict()


def test_overload_is_no_steady_state(profile: sg.StackProfile) -> None:
    workload = sg.load_workload("tracelab-multi-turn")
    crowd = draw_open(workload, poisson_starts(rate_per_s=1.0, sessions=140, seed=1), seed=1)
    run = sg.simulate(profile, BASE, crowd)
    steady = measure_window(run, crowd, profile, evaluation_s=60.0, warmup_s=30.0)
    assert steady.keeps_up is False
    inside = run.requests.filter(pl.col("finish_s").is_between(30.0, 90.0, closed="left"))
    assert steady.finished == inside.height
    assert steady.turns_per_s == pytest.approx(inside.height / 60)
    decode = run.steps.filter((pl.col("kind") == "decode") & pl.col("start_s").is_between(30.0, 90.0, closed="left"))
    first = run.requests["first_token_s"].is_between(30.0, 90.0, closed="left").sum()
    assert steady.generated_tokens == decode["running"].sum() + first
    assert steady.queue is not None
    assert steady.queue[0] <= steady.queue[1] <= steady.queue[2]
    assert steady.queue[2] > 5


def test_percentiles_are_values_that_occurred() -> None:
    spread = Spread.of(np.array([3.0, 1.0, 2.0]), np.array([1, 98, 1]))
    assert spread is not None
    assert (spread.p50_s, spread.p95_s, spread.p99_s, spread.count) == (1.0, 1.0, 2.0, 100)
    assert [spread.within(limit) for limit in (0.5, 1.0, 2.5, 3.0)] == [0, 98, 99, 100]
    assert Spread.of(np.array([])) is None

"""The numbered invariants of ``slotgrid.engine``, on random plans, configurations and rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.engine import PAPER, REAL

turns = st.tuples(
    st.integers(1, 900), st.sampled_from([1, 1, 2, 3, 17, 60]), st.sampled_from([0.0, 0.0, 0.011171, 0.5, 2.0])
)


@st.composite
def plans(draw: st.DrawFn) -> sg.InputPlan:
    clients = []
    for c in range(draw(st.integers(1, 9))):
        sessions = []
        for s in range(draw(st.integers(1, 3))):
            drawn = draw(st.lists(turns, min_size=1, max_size=4))
            built = [sg.Turn(new, out, wait if t < len(drawn) - 1 else 0.0) for t, (new, out, wait) in enumerate(drawn)]
            sessions.append(sg.Session(f"c{c}s{s}", tuple(built)))
        clients.append(sg.Client(draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])), tuple(sessions)))
    return sg.InputPlan("random", tuple(clients))


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    top = draw(st.integers(1, 9))
    between = draw(st.sets(st.integers(1, top), max_size=3))
    running = draw(st.integers(max(1, top - 2), top))
    slots = draw(st.integers(1 if running == 1 else 2, 12))
    return {
        "config": sg.ServingConfig(sorted({*between, top}), slots=slots, max_running=running),
        "plan": draw(plans()),
        "rules": draw(st.sampled_from([REAL, PAPER, REAL.but(padding="none"), PAPER.but(padding="evict")])),
        "turnaround_s": draw(st.sampled_from([None, 0.0, 0.0008])),
    }


def run_of(profile: sg.StackProfile, case: dict[str, Any], *, compiled: bool = True) -> sg.Run:
    return sg.simulate(
        profile,
        case["config"],
        case["plan"],
        rules=case["rules"],
        turnaround_s=case["turnaround_s"],
        compiled=compiled,
    )


@given(case=cases())
def test_invariants(profile: sg.StackProfile, case: dict[str, Any]) -> None:
    run, plan, config = run_of(profile, case), case["plan"], case["config"]
    requests = run.requests

    # 1. every request finishes once, and its tokens are those of the plan
    assert requests.height == plan.turn_count
    assert (requests["finish_s"] > 0).all()
    assert requests["output_tokens"].to_list() == [t.output_tokens for _, s in plan.sessions() for t in s.turns]
    assert run.steps.filter(pl.col("kind") == "prefill").height == requests.height
    decoded = run.steps.filter(pl.col("kind") == "decode")["running"].sum()
    assert decoded == (requests["output_tokens"] - 1).sum()

    # 2. slots in use never exceed the usable slots, running never the limit
    usable = case["rules"].usable_slots(config.slots, config.max_running)
    starts, ends = requests["admit_s"].to_numpy(), requests["finish_s"].to_numpy()
    in_use = [int(((starts <= at) & (ends > at)).sum()) for at in starts]
    assert max(in_use) <= min(usable, config.max_running)
    # allocations - evictions are the slots taken
    assert requests.height - run.evictions.height <= usable

    # 3. time never goes back
    for before, after in (("arrival_s", "admit_s"), ("first_token_s", "finish_s")):
        assert (requests[before] <= requests[after] + 1e-12).all()
    assert (requests["admit_s"] < requests["first_token_s"]).all()
    step_start, step_s = run.steps["start_s"].to_numpy(), run.steps["duration_s"].to_numpy()
    assert (step_start[1:] >= step_start[:-1] + step_s[:-1] - 1e-9).all()
    assert (run.evictions["time_s"].diff().drop_nulls() >= 0).all()

    # 4. cached + computed = prompt, at least one token is computed
    assert (requests["cached_tokens"] + requests["computed_tokens"] == requests["prompt_tokens"]).all()
    assert (requests["computed_tokens"] >= 1).all()
    assert (requests.filter(pl.col("turn") == 0)["cached_tokens"] == 0).all()
    assert (requests["cached_tokens"] % profile.kv.block_tokens == 0).all()

    # 5. device time is the sum over the priced steps (the price is this profile's clock)
    assert run.device_time_s == pytest.approx(step_s.sum(), abs=1e-9)
    prefills = run.steps.filter(pl.col("kind") == "prefill")
    assert run.stall_session_s == pytest.approx((prefills["running"] * prefills["duration_s"]).sum(), abs=1e-9)

    # 7. the same input gives the same bytes, compiled or as plain Python
    plain = run_of(profile, case, compiled=False)
    for name in ("steps", "requests", "evictions"):
        assert getattr(run, name).equals(getattr(plain, name))
    assert run.to_dict() == plain.to_dict()


@given(case=cases())
def test_enough_slots_evict_nothing(profile: sg.StackProfile, case: dict[str, Any]) -> None:
    config = case["config"]
    # 6. a slot for every request and one for padding
    slots = max(case["plan"].turn_count + 1, config.max_running)
    case["config"] = sg.ServingConfig(config.buckets, slots=slots, max_running=config.max_running)
    run = run_of(profile, case)
    assert run.evictions.is_empty()
    returns = run.requests.filter(pl.col("turn") > 0)
    previous = run.requests.filter(pl.col("turn").shift(-1) > 0)["prompt_tokens"].to_numpy()
    expected = np.minimum(previous, returns["prompt_tokens"].to_numpy() - 1) // 128 * 128
    assert returns["cached_tokens"].to_list() == expected.tolist()


@given(plan=plans())
def test_paper_equals_real_while_running_stays_below_the_limit(profile: sg.StackProfile, plan: sg.InputPlan) -> None:
    config = sg.ServingConfig((1, 4, 10), slots=10)  # nine clients at most
    paper = sg.simulate(profile, config, plan, rules="paper", turnaround_s=0.0)
    real = sg.simulate(profile, config, plan, rules="real", turnaround_s=0.0)
    assert paper.requests.equals(real.requests)

"""Ensembles: what they perturb, that they repeat, and that their intervals mean what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.engine.ensemble import draw_members, prediction_interval
from slotgrid.engine.setup import set_up
from slotgrid.engine.steady import simulate_steady_ensemble
from slotgrid.profile import Range

BASE = sg.ServingConfig((1, 2, 4, 8))


@pytest.fixture(scope="module")
def plan() -> sg.InputPlan:
    return sg.load_workload("tracelab-two-turn").draw(clients=8, seed=20261000)


def test_without_scatter_every_member_is_the_single_run(profile: sg.StackProfile, plan: sg.InputPlan) -> None:
    nothing = replace(
        profile.scatter,
        start_spread_s=Range(0.0, 0.0),
        turnaround_s=Range(0.0008, 0.0008),
        step_s=(),
        step_other_s=replace(profile.scatter.step_other_s, value=0.0),
        prefill_share=replace(profile.scatter.prefill_share, value=0.0),
    )
    run = sg.simulate(profile, BASE, plan)
    ensemble = sg.simulate(profile, BASE, plan, ensemble=3, scatter=nothing)
    assert ensemble.device_time_s.tolist() == [run.device_time_s] * 3
    assert ensemble.wall_s.tolist() == [run.wall_s] * 3
    assert ensemble.reused.tolist() == [run.reused] * 3
    assert 1 - ensemble.utilization[0] == run.padding_ratio
    assert set(ensemble.reuse["probability"]) <= {0.0, 1.0}


def test_a_seed_gives_the_same_ensemble_and_another_one_not(profile: sg.StackProfile, plan: sg.InputPlan) -> None:
    first, again, other = (sg.simulate(profile, BASE, plan, ensemble=50, seed=seed) for seed in (4, 4, 5))
    assert first.device_time_s.tobytes() == again.device_time_s.tobytes()
    assert first.device_time_s.tobytes() != other.device_time_s.tobytes()
    plain = sg.simulate(profile, BASE, plan, ensemble=5, seed=4, compiled=False)
    compiled = sg.simulate(profile, BASE, plan, ensemble=5, seed=4, compiled=True)
    assert plain.device_time_s.tobytes() == compiled.device_time_s.tobytes()
    assert plain.reuse.equals(compiled.reuse)


def test_members_run_alone_as_they_do_together(profile: sg.StackProfile, plan: sg.InputPlan) -> None:
    from slotgrid.engine.single import record

    setup = set_up(profile, BASE, plan, None, None, "operating", ())
    (drawn,) = draw_members(setup, members=4, seed=1, scatter=None)
    ensemble = sg.simulate(profile, BASE, plan, clock="operating", ensemble=4, seed=1)
    for m in range(4):
        run = record(setup, drawn.flat(m), drawn.step_s[m])
        assert run.device_time_s == ensemble.device_time_s[m]
        assert run.reused == ensemble.reused[m]
        assert run.wall_s == ensemble.wall_s[m]


def test_perturbations_stay_inside_their_sizes(profile: sg.StackProfile, plan: sg.InputPlan) -> None:
    setup = set_up(profile, BASE, plan, None, None, None, ())
    (drawn,) = draw_members(setup, members=400, seed=2, scatter=None)
    assert drawn.first_arrival_s.min() >= 0
    width = drawn.first_arrival_s.max(axis=1)
    assert width.max() <= 0.012
    assert width.max() > 0.010
    assert np.all(np.diff(drawn.first_arrival_s, axis=1) >= 0)
    # every order of starts is possible: each client is first about equally often
    first = np.bincount(drawn.first_requests[:, 0] // 2, minlength=8)
    assert first.min() > 20
    turnaround = drawn.gap_s - setup.flat.gap_s + setup.gap_s
    assert turnaround.min() >= 0.0005 - 1e-12
    assert turnaround.max() <= 0.0056 + 1e-12
    assert drawn.prefill.std() == pytest.approx(0.016, rel=0.05)
    assert (drawn.step_s[:, 8] - setup.step_s[8]).std() == pytest.approx(0.022e-3, rel=0.15)
    # 3 and 4 running share a bucket, so they are off by the same
    assert drawn.step_s[:, 3] - setup.step_s[3] == pytest.approx(drawn.step_s[:, 4] - setup.step_s[4])


def test_a_given_turnaround_is_not_perturbed(profile: sg.StackProfile, plan: sg.InputPlan) -> None:
    setup = set_up(profile, BASE, plan, None, 0.002, None, ())
    (drawn,) = draw_members(setup, members=3, seed=2, scatter=None)
    assert np.array_equal(drawn.gap_s, np.tile(setup.flat.gap_s, (3, 1)))


def test_plans_add_up_and_arms_draw_independently(profile: sg.StackProfile, plan: sg.InputPlan) -> None:
    other = sg.load_workload("tracelab-two-turn").draw(clients=8, seed=20261000, block=1)
    a, b = (sg.simulate(profile, BASE, p, ensemble=100) for p in (plan, other))
    both = a + b
    assert both.device_time_s == pytest.approx(a.device_time_s + b.device_time_s)
    assert both.returns == 16
    assert both.plan_ids == (plan.plan_id, other.plan_id)
    tuned = sg.simulate(profile, sg.ServingConfig((1, 4, 8)), plan, ensemble=100)
    assert abs(np.corrcoef(a.wall_s, tuned.wall_s)[0, 1]) < 0.4
    ratio = tuned.ratio(a)
    assert ratio.shape == (100,)
    with pytest.raises(sg.InputError, match="one configuration"):
        a + tuned
    data = both.to_dict()
    assert data["device_time_s"]["low"] < data["device_time_s"]["mean"] < data["device_time_s"]["high"]
    assert len(data["reuse_probability"]) == 16


@given(st.integers(39, 400), st.integers(0, 2**32 - 1))
def test_a_new_draw_falls_into_the_interval_as_often_as_stated(members: int, seed: int) -> None:
    # the rank of a new draw among M samples is uniform: count the ranks inside
    samples = np.random.default_rng(seed).permutation(members).astype(float)
    low, high = prediction_interval(samples)
    inside = int(high - low)
    assert 0.95 <= inside / (members + 1) < 0.95 + 2 / (members + 1)


def test_too_few_members_give_no_interval(profile: sg.StackProfile, plan: sg.InputPlan) -> None:
    ensemble = sg.simulate(profile, BASE, plan, ensemble=38)
    with pytest.raises(sg.InputError, match="38 members give no 95% interval; at least 39"):
        ensemble.interval()
    assert ensemble.to_dict()["device_time_s"]["low"] is None
    with pytest.raises(sg.InputError, match="level"):
        ensemble.interval(1.5)


@pytest.mark.parametrize("members", [0, 1, -3, True, 2.5, 10**9])
def test_too_small_ensembles_are_refused(profile: sg.StackProfile, plan: sg.InputPlan, members: object) -> None:
    with pytest.raises(sg.InputError, match=r"ensemble: .* at least 2"):
        sg.simulate(profile, BASE, plan, ensemble=members)  # type: ignore[call-overload]


def test_what_cannot_be_perturbed_is_said(profile: sg.StackProfile, plan: sg.InputPlan) -> None:
    with pytest.raises(sg.UnmeasuredError, match="scatter"):
        sg.simulate(replace(profile, scatter=None), BASE, plan, ensemble=10)
    fixed = plan.with_arrivals([0.1 * i for i in range(plan.turn_count)])
    with pytest.raises(sg.InputError, match="closed_loop"):
        sg.simulate(profile, BASE, fixed, ensemble=10)
    with pytest.raises(sg.InputError, match="seed"):
        sg.simulate(profile, BASE, plan, ensemble=10, seed=-1)


def test_steady_ensemble_has_a_window_per_member(profile: sg.StackProfile) -> None:
    plan = sg.load_workload("tracelab-multi-turn").draw(clients=4, seed=1, cycle_s=5.0)
    ensemble = simulate_steady_ensemble(profile, BASE, plan, ensemble=3, evaluation_s=60.0)
    assert len({member.window.start_s for member in ensemble.members}) == 3
    data = ensemble.to_dict()
    assert data["reuse_rate"]["mean"] == pytest.approx(np.mean([m.reuse_rate for m in ensemble.members]))
    assert data["reuse_rate"]["low"] is None

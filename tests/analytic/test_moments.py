"""Moments: by hand, against the engine's own arrays, and what has none."""

from __future__ import annotations

import numpy as np
import pytest

import slotgrid as sg
from slotgrid.analytic import moments_of
from slotgrid.engine.prepare import flatten


def test_by_hand(profile: sg.StackProfile) -> None:
    plan = sg.InputPlan.from_turns([[(1000, 101, 2.0), (28, 51, 0.0)], [(500, 1, 0.0)]])
    found = moments_of([plan], profile, turnaround_s=0.5)
    assert found.turns == 3
    assert found.first_share == pytest.approx(2 / 3)
    # the zeros of last turns count, and every turn has a turnaround
    assert found.think_s == pytest.approx((2.0 + 0 + 0) / 3 + 0.5)
    assert found.waits_s.tolist() == [2.5]
    assert found.decode_steps == 50
    # 100 steps see 1001 to 1100 tokens, 50 see 1130 to 1179
    assert found.context_tokens == pytest.approx((sum(range(1001, 1101)) + sum(range(1130, 1180))) / 150)
    seconds = profile.price.prefill.seconds
    assert found.prefill_price.first_s == pytest.approx(seconds(np.array([1000, 500])).mean())
    # 896 of the first prompt's 1,000 tokens are whole blocks
    assert found.prefill_price.hit_s == pytest.approx(seconds(np.array([1129 - 896]))[0])
    assert found.prefill_price.miss_s == pytest.approx(seconds(np.array([1129]))[0])
    assert not found.renews
    assert found.to_dict()["waits"] == 1


def test_the_same_turns_as_the_engine(profile: sg.StackProfile) -> None:
    slow = profile.clocked("operating")
    plan = sg.load_workload("tracelab-multi-turn").draw(clients=3, seed=5)
    found, flat = moments_of([plan], slow), flatten(plan, slow, 0.0, False)
    later = flat.continues
    assert found.renews
    assert found.think_s == pytest.approx(flat.gap_s.mean())
    for means, miss_s, hit_s in (
        (found.prefill_clock, flat.prefill_miss_s, flat.prefill_hit_s),
        (found.prefill_price, flat.price_miss_s, flat.price_hit_s),
    ):
        assert means.first_s == pytest.approx(miss_s[~later].mean())
        assert means.hit_s == pytest.approx(hit_s[later].mean())
        assert means.miss_s == pytest.approx(miss_s[later].mean())
        assert means.mean_s(0.25, 0.5) == pytest.approx(0.25 * means.first_s + 0.75 * (means.hit_s + means.miss_s) / 2)


def test_what_has_no_moments(profile: sg.StackProfile) -> None:
    waits = sg.InputPlan.from_turns([[(10, 5, 1.0), (8, 5, 0.0)], [(10, 5, 0.0)]])
    with pytest.raises(sg.InputError, match="sessions arrive by themselves"):
        moments_of([waits.with_arrivals([0.0, 2.0, 1.0])], profile)
    with pytest.raises(sg.InputError, match="needs a mean think time above 0 s"):
        moments_of([waits.without_waits()], profile)
    assert moments_of([waits.without_waits()], profile, turnaround_s=0.001).think_s == pytest.approx(0.001)
    with pytest.raises(sg.InputError, match="nothing is ever decoded"):
        moments_of([sg.InputPlan.from_turns([[(10, 1, 1.0), (8, 1, 0.0)]])], profile)
    with pytest.raises(sg.InputError, match="exceed the slot length"):
        moments_of([sg.InputPlan.from_turns([[(9000, 5, 1.0), (8, 5, 0.0)]])], profile)

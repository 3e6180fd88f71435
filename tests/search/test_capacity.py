"""Capacity: the largest number of agents within latency limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

import slotgrid as sg
from slotgrid.engine.steady import simulate_steady
from slotgrid.search.capacity import Limits, capacity

BASE = sg.ServingConfig((1, 2, 4))


@pytest.fixture(scope="module")
def multi_turn() -> sg.Workload:
    return sg.load_workload("tracelab-multi-turn")


def test_the_largest_number_whose_windows_keep_the_limit(profile: sg.StackProfile, multi_turn: sg.Workload) -> None:
    # nothing random: every level can be recomputed from single simulations
    calm = replace(profile, scatter=None)
    seeds = (0, 1, 2)
    (found,) = capacity(calm, [BASE], multi_turn, Limits(ttft_p95_s=0.5), most_agents=12, seeds=seeds, evaluation_s=60)

    def share(agents: int) -> float:
        within = total = 0
        for seed in seeds:
            plan = multi_turn.draw(clients=agents, seed=seed)
            ttft = simulate_steady(calm, BASE, plan, evaluation_s=60, cycle_s=6.0).ttft
            assert ttft is not None
            within, total = within + ttft.within(0.5), total + ttft.count
        return within / total

    assert 0 < found.agents < 12
    assert share(found.agents) >= 0.95
    assert share(found.agents + 1) < 0.95
    assert found.next_broken == ("TTFT p95",)
    assert found.low <= found.agents <= found.high
    assert found.ttft_p95_s is not None
    assert found.ttft_p95_s <= 0.5
    assert found.sentence.startswith(f"{found.agents} agents at TTFT p95 < 500 ms, ± ")
    again = capacity(calm, [BASE], multi_turn, Limits(ttft_p95_s=0.5), most_agents=12, seeds=seeds, evaluation_s=60)
    assert again == [found]


def test_a_stricter_limit_never_serves_more(profile: sg.StackProfile, multi_turn: sg.Workload) -> None:
    agents = [
        capacity(profile, [BASE], multi_turn, limits, most_agents=8, seeds=(0, 1), evaluation_s=60)[0].agents
        for limits in (
            Limits(ttft_p95_s=2.0),
            Limits(ttft_p95_s=0.4),
            Limits(ttft_p95_s=0.4, inter_token_p95_s=0.0118),
        )
    ]
    assert agents == sorted(agents, reverse=True)
    assert agents[0] > agents[-1]


def test_the_ends_of_the_range_are_said(profile: sg.StackProfile, multi_turn: sg.Workload) -> None:
    options = {"seeds": (0, 1), "evaluation_s": 60.0}
    (top,) = capacity(profile, [BASE], multi_turn, Limits(ttft_p95_s=60.0), most_agents=2, **options)
    assert top.at_top
    assert top.sentence.startswith("at least 2 agents")
    assert top.next_broken == ()
    (none,) = capacity(profile, [BASE], multi_turn, Limits(ttft_p95_s=0.001), most_agents=2, **options)
    assert none.agents == none.low == none.high == 0
    assert none.ttft_p95_s is None
    assert none.windows_within == 0
    # a plan of six sessions does not last for a long window: more are drawn
    (long,) = capacity(
        profile, [BASE], multi_turn, Limits(ttft_p95_s=60.0), most_agents=1, seeds=(0,), evaluation_s=600
    )
    assert long.agents == 1


def test_bad_arguments_are_named(profile: sg.StackProfile, multi_turn: sg.Workload) -> None:
    with pytest.raises(sg.InputError, match="limits: none given"):
        Limits()
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(sg.InputError, match="finite time above 0"):
            Limits(ttft_p95_s=wrong)
    limits = Limits(ttft_p95_s=1.0)
    with pytest.raises(sg.InputError, match="agents: 0"):
        capacity(profile, [BASE], multi_turn, limits, most_agents=0)
    with pytest.raises(sg.InputError, match="no configuration"):
        capacity(profile, [], multi_turn, limits)
    with pytest.raises(sg.InputError, match="seeds"):
        capacity(profile, [BASE], multi_turn, limits, seeds=(1, 1))

"""Capacity: the largest number of agents within latency limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

import slotgrid as sg
from slotgrid.engine.steady import simulate_steady
from slotgrid.search.capacity import Limits, capacity
from slotgrid.workload.distributions import Fixed

BASE = sg.ServingConfig((1, 2, 4))


@pytest.fixture(scope="module")
def multi_turn() -> sg.Workload:
    return sg.load_workload("tracelab-multi-turn")


def test_the_largest_number_whose_windows_keep_the_limit(profile: sg.StackProfile, multi_turn: sg.Workload) -> None:
    # nothing random: every level can be recomputed from single simulations
    calm = replace(profile, scatter=None)
    seeds = (0, 1, 2, 3, 4)
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
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.agents <= found.high
    assert found.ttft_p95_s is not None
    assert found.ttft_p95_s <= 0.5
    assert found.sentence.startswith(f"{found.agents} agents at TTFT p95 < 500 ms")
    assert f"{found.low} to {found.high}" in found.sentence or "±" in found.sentence
    assert not found.repeated
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
    assert none.agents == 0
    # two replicates give no interval
    assert none.low is None
    assert "no interval from 2 replicates" in none.sentence
    assert none.ttft_p95_s is None
    assert none.windows_within == 0
    # a plan of six sessions does not last for a long window: more are drawn
    (long,) = capacity(
        profile, [BASE], multi_turn, Limits(ttft_p95_s=60.0), most_agents=1, seeds=(0,), evaluation_s=600
    )
    assert long.agents == 1


def test_the_interval_holds_most_other_replicates(profile: sg.StackProfile, multi_turn: sg.Workload) -> None:
    limits = Limits(ttft_p95_s=0.5)
    options = {"most_agents": 12, "evaluation_s": 40.0}
    (first,) = capacity(profile, [BASE], multi_turn, limits, seeds=range(8), **options)
    others = [
        capacity(profile, [BASE], multi_turn, limits, seeds=range(start, start + 8), **options)[0].agents
        for start in (8, 16, 24)
    ]
    assert first.low is not None
    assert first.high is not None
    assert sum(first.low - 1 <= agents <= first.high + 1 for agents in others) >= 2


def test_what_cannot_be_seen_or_does_not_fit_is_said(profile: sg.StackProfile, multi_turn: sg.Workload) -> None:
    single = replace(multi_turn, output_tokens=Fixed(1))
    with pytest.raises(sg.InputError, match="inter-token p95 cannot be seen"):
        capacity(profile, [BASE], single, Limits(inter_token_p95_s=0.05), seeds=(0,), most_agents=2)
    big = sg.ServingConfig((1, 2, 4, 64))
    (found,) = capacity(profile, [big], multi_turn, Limits(ttft_p95_s=9.0), seeds=(0,), most_agents=1, evaluation_s=40)
    assert found.fits is False
    assert "does not fit: 20.6 GiB of 15.7 GiB a device" in found.sentence


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
    for seeds in ((1, 1), (), (-1, 0), (0.5,)):
        with pytest.raises(sg.InputError, match="seeds"):
            capacity(profile, [BASE], multi_turn, limits, seeds=seeds)  # type: ignore[arg-type]
    with pytest.raises(sg.InputError, match="choose clock operating"):
        capacity(profile, [BASE], multi_turn, limits, without=["context"])
    with pytest.raises(sg.InputError, match="sessions of every agent"):
        capacity(profile, [BASE], multi_turn, limits, most_agents=1, seeds=(0,), evaluation_s=1e7)

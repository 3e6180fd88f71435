"""Rules: each can be switched alone, and precedence of the turnaround."""

from __future__ import annotations

import pytest

import slotgrid as sg
from slotgrid.engine import PAPER, REAL, find_rules
from slotgrid.engine.rules import pick_turnaround


def test_turnaround_precedence() -> None:
    assert pick_turnaround(REAL, 0.1, 0.2, 0.3) == 0.1
    assert pick_turnaround(REAL, None, 0.2, 0.3) == 0.2
    assert pick_turnaround(REAL, None, None, 0.3) == 0.3
    assert pick_turnaround(REAL, None, None, None) == 0.0008
    assert pick_turnaround(PAPER, None, None, None) == 0.0
    with pytest.raises(sg.InputError, match="turnaround_s: nan"):
        pick_turnaround(REAL, float("nan"), None, None)


def test_plan_turnaround_is_used(profile: sg.StackProfile) -> None:
    turns = [[[100, 2, 0.5], [8, 1, 0.0]]]
    config = sg.ServingConfig((1, 2))
    quick = sg.simulate(profile, config, sg.InputPlan.from_turns(turns, turnaround_s=0.0))
    slow = sg.simulate(profile, config, sg.InputPlan.from_turns(turns, turnaround_s=0.25))
    told = sg.simulate(profile, config, sg.InputPlan.from_turns(turns, turnaround_s=0.25), turnaround_s=0.0)
    assert slow.requests["arrival_s"][1] - quick.requests["arrival_s"][1] == pytest.approx(0.25, abs=1e-12)
    assert told.requests.equals(quick.requests)


def test_one_rule_at_a_time(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    """The four combinations of release and padding differ, and "at once" without padding is told apart by name."""
    plans = [two_turn.draw(clients=10, seed=20261000, block=b) for b in range(10)]
    config = sg.ServingConfig((1, 2, 4, 8))
    reused = {}
    for release in ("at_once", "next_admission"):
        for padding in ("none", "evict"):
            rules = REAL.but(release=release, padding=padding)  # type: ignore[arg-type]
            runs = [sg.simulate(profile, config, plan, rules=rules, turnaround_s=0.0) for plan in plans]
            reused[rules.name] = sum(run.reused for run in runs)
            if padding == "none":
                assert sum(run.evicted("padding") for run in runs) == 0
    assert set(reused) == {
        "real",
        "real+padding=none",
        "real+release=next_admission",
        "real+release=next_admission,padding=none",
    }
    assert len(set(reused.values())) > 1
    # at once without a padding slot is the combination furthest from the real one
    assert max(reused, key=lambda name: abs(reused[name] - reused["real"])) == "real+padding=none"


def test_padding_evicts_before_the_step_and_leaves_a_free_slot(profile: sg.StackProfile) -> None:
    # two slots: a short session ends, a long one decodes on; the padded step takes the idle slot
    plan = sg.InputPlan.from_turns([[[300, 2, 1.0], [8, 1, 0.0]], [[300, 200, 0.0]]])
    run = sg.simulate(profile, sg.ServingConfig((1, 2)), plan, rules="real")
    # once when it is alone after the short one's first turn, once more after its second
    assert run.evictions["cause"].to_list() == ["padding", "padding"]
    assert run.evictions["session"].to_list() == [0, 0]
    assert run.reused == 0
    paper = sg.simulate(profile, sg.ServingConfig((1, 2)), plan, rules="paper")
    assert paper.reused == 0
    assert paper.evictions["cause"].to_list() == ["admission"]


def test_fewer_slots_than_running_keeps_one_back(profile: sg.StackProfile) -> None:
    plan = sg.InputPlan.from_turns([[[300, 50, 0.0]]] * 4)
    run = sg.simulate(profile, sg.ServingConfig((1, 2, 4), slots=3, max_running=4), plan, rules="real")
    assert run.histogram["running"].max() == 2
    paper = sg.simulate(profile, sg.ServingConfig((1, 2, 4), slots=3, max_running=4), plan, rules="paper")
    assert paper.histogram["running"].max() == 3
    with pytest.raises(sg.InputError, match="no usable slot"):
        sg.simulate(profile, sg.ServingConfig((1, 2), slots=1, max_running=2), plan, rules="real")


def test_fixed_arrivals(profile: sg.StackProfile) -> None:
    plan = sg.InputPlan.from_turns([[[300, 20, 5.0], [8, 20, 0.0]], [[300, 20, 0.0]]])
    fixed = plan.with_arrivals([0.0, 0.001, 2.0])
    config = sg.ServingConfig((1, 2))
    run = sg.simulate(profile, config, fixed)
    finish = run.requests["finish_s"]
    # a turn is not sent before the answer it builds on
    assert run.requests["arrival_s"].to_list() == [0.0, finish[0], 2.0]
    assert any("1 fixed arrivals came before the answer" in note for note in run.notes)
    free = sg.simulate(profile, config, fixed, rules=find_rules("real").but(arrivals="closed_loop"))
    assert free.requests["arrival_s"][1] == pytest.approx(free.requests["finish_s"][0] + 5.0008)
    with pytest.raises(sg.InputError, match="no arrival_s"):
        sg.simulate(profile, config, plan, rules=find_rules("real").but(arrivals="fixed"))


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(sg.InputError, match="rules: 'fast'; allowed: real, paper"):
        find_rules("fast")
    with pytest.raises(sg.InputError, match="release: 'never'; allowed: at_once, next_admission"):
        REAL.but(release="never")  # type: ignore[arg-type]
    with pytest.raises(sg.InputError, match="padding: 'some'; allowed: none, evict"):
        REAL.but(padding="some")  # type: ignore[arg-type]

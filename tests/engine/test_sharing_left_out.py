"""A shared prefix that a simulation does not share is said."""

from __future__ import annotations

from dataclasses import replace

import slotgrid as sg


def plan(prefix_tokens: int) -> sg.InputPlan:
    turns = (sg.Turn(300, 4, 0.1), sg.Turn(20, 4))
    return sg.InputPlan(
        "p",
        tuple(sg.Client(float(c), (sg.Session(f"s{c}", turns, "system", prefix_tokens),)) for c in range(3)),
    )


def test_a_profile_without_inner_blocks_says_so(profile: sg.StackProfile) -> None:
    config = sg.ServingConfig((1, 2, 4))
    without = replace(profile, kv=replace(profile.kv, inner_blocks=False))
    run = sg.simulate(without, config, plan(256))
    assert run.requests.filter(turn=0)["cached_tokens"].sum() == 0
    (note,) = run.notes
    assert note.startswith("shared prefixes were not simulated: 3 sessions begin with one")
    assert sg.simulate(without, config, plan(256), ensemble=20).notes == (note,)
    # less than a block is shared by nobody
    assert sg.simulate(without, config, plan(127)).notes == ()
    shared = sg.simulate(profile, config, plan(256))
    assert shared.notes == ("shared prefixes mattered: 2 requests reused the prefix of another session",)

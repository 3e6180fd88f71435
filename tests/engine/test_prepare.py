"""From plans to arrays."""

from __future__ import annotations

import pytest

import slotgrid as sg
from slotgrid.engine.prepare import flatten


def test_flatten(profile: sg.StackProfile) -> None:
    clients = (
        sg.Client(1.0, (sg.Session("a", (sg.Turn(500, 20, 2.0), sg.Turn(8, 10))), sg.Session("b", (sg.Turn(40, 3),)))),
        sg.Client(0.5, (sg.Session("c", (sg.Turn(700, 1),)),)),
    )
    flat = flatten(sg.InputPlan("p", clients), profile, 0.25, False)
    assert flat.session.tolist() == [0, 0, 1, 2]
    assert flat.turn.tolist() == [0, 1, 0, 0]
    assert flat.prompt_tokens.tolist() == [500, 528, 40, 700]
    assert flat.hit_tokens.tolist() == [0, 384, 0, 0]  # floor(500 / 128) * 128: generated tokens are not reusable
    assert flat.gap_s.tolist() == [2.25, 0.25, 0.25, 0.25]
    assert flat.has_next.tolist() == [True, True, False, False]
    assert flat.continues.tolist() == [False, True, False, False]
    # clients in order of their start
    assert flat.first_requests.tolist() == [3, 0]
    assert flat.first_arrival_s.tolist() == [0.5, 1.0]
    assert flat.prefill_hit_s[1] == pytest.approx(2 * (0.021206 + 6.399e-7 * 144))


def test_a_context_longer_than_the_slot_is_named(profile: sg.StackProfile) -> None:
    plan = sg.InputPlan.from_turns([[[100, 5, 0.0]], [[4000, 100, 0.0], [4000, 93, 0.0]]])
    with pytest.raises(sg.InputError, match=r"client 1, session 0 \(s1\), turn 1: .*exceed the slot length .* 8192"):
        flatten(plan, profile, 0.0, False)

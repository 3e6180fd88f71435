"""The window rule: warm-up, evaluation, plans that do not last."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.run.window import Window, check_lasting, warmup_end_s


def test_warmup_waits_for_three_cycles_and_two_turns_of_everyone() -> None:
    client = np.array([0, 1, 0, 1, 1])
    finish = np.array([1.0, 2.0, 5.0, 9.0, 12.0])
    assert warmup_end_s(client, finish, 2, 1.0) == 9.0
    assert warmup_end_s(client, finish, 2, 4.0) == 12.0
    # a third client has finished nothing yet: ask again later
    assert warmup_end_s(client, finish, 3, 4.0) is None
    assert warmup_end_s(client[:3], finish[:3], 2, 1.0) is None


@given(st.permutations(list(range(8))))
def test_order_of_the_finishes_does_not_matter(order: list[int]) -> None:
    client = np.array([0, 0, 1, 1, 1, 2, 2, 2])
    finish = np.array([1.0, 6.0, 2.0, 3.0, 4.0, 1.5, 2.5, 9.0])
    assert warmup_end_s(client[order], finish[order], 3, 0.1) == 6.0


def test_the_window_is_open_at_its_end() -> None:
    window = Window(1.0, 3.0)
    assert window.seconds == 2.0
    assert window.covers(np.array([0.9, 1.0, 2.9, 3.0])).tolist() == [False, True, True, False]


def test_a_plan_that_ends_early_says_how_many_sessions_it_needs() -> None:
    with pytest.raises(sg.InputError, match=r"client 1 runs out of sessions at 50\.0 s.* about 9 sessions per client"):
        check_lasting(Window(80.0, 200.0), np.array([300.0, 50.0]), 2)
    check_lasting(Window(80.0, 200.0), np.array([300.0, 200.0]), 2)

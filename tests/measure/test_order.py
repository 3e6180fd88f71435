"""The order of arms: balanced over places and predecessors, the same for the same seed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from slotgrid.measure.order import balanced_order


@given(st.integers(1, 7), st.integers(1, 30), st.integers(0, 2**32))
def test_each_arm_stands_in_each_place_equally_often(count: int, replicates: int, seed: int) -> None:
    arms = [f"arm{i}" for i in range(count)]
    order = balanced_order(arms, replicates, seed)
    assert len(order) == replicates
    assert all(sorted(row) == arms for row in order)
    for begin in range(0, replicates - count + 1, count):
        for place in range(count):
            assert sorted(row[place] for row in order[begin : begin + count]) == arms
    assert order == balanced_order(arms, replicates, seed)


@given(st.integers(2, 7), st.integers(0, 2**32))
def test_over_a_whole_design_each_arm_follows_each_other_equally_often(count: int, seed: int) -> None:
    arms = [f"arm{i}" for i in range(count)]
    rows = count if count % 2 == 0 else 2 * count
    pairs = Counter(pair for row in balanced_order(arms, rows, seed) for pair in pairwise(row))
    assert set(pairs.values()) == {1 if count % 2 == 0 else 2}
    assert len(pairs) == count * (count - 1)


def test_seeds_give_different_orders() -> None:
    assert len({str(balanced_order(["A", "B", "C"], 3, seed)) for seed in range(20)}) > 5

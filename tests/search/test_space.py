"""The space of candidates."""

from __future__ import annotations

import pytest

import slotgrid as sg
from slotgrid.search import SearchSpace


def test_published_space() -> None:
    space = SearchSpace((8, 10, 12, 16), max_buckets=6)
    configs = list(space)
    assert len(space) == len(configs) == len(set(configs)) == 2077
    assert configs[0] == sg.ServingConfig((1, 8))
    assert all(c.buckets[0] == 1 and c.buckets[-1] == c.slots == c.max_running for c in configs)
    # by batch, number of intermediate sizes, lexicographic
    order = [(c.max_running, len(c.buckets), c.buckets) for c in configs]
    assert order == sorted(order)


def test_restricted_and_extra_slots() -> None:
    space = SearchSpace((4, 8), max_buckets=3, intermediate=(2, 4, 6), extra_slots=(0, 1))
    labels = [config.label for config in space]
    assert labels == [
        *("1,4", "1,4@5", "1,2,4", "1,2,4@5"),
        *("1,8", "1,8@9", "1,2,8", "1,2,8@9", "1,4,8", "1,4,8@9", "1,6,8", "1,6,8@9"),
    ]
    assert len(space) == len(labels)
    assert [config.buckets for config in SearchSpace((1,), max_buckets=1)] == [(1,)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((), 6), "batch: empty"),
        (((0, 8), 6), "batch: 0; allowed: at least 1"),
        (((8,), 1), "max-buckets: 1; allowed: at least 2"),
        (((8,), 4, (1, 2)), "intermediate: 1; allowed: at least 2"),
        (((8,), 4, None, (-1,)), "slots: -1"),
        (((64,), 12), "candidates, at most 2,000,000 are enumerated"),
    ],
)
def test_bad_spaces_are_named(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(sg.InputError, match=message):
        SearchSpace(*arguments)  # type: ignore[arg-type]

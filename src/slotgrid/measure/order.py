"""Which arm is measured when: balanced over places and predecessors, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence


def balanced_order(arms: Sequence[str], replicates: int, seed: int) -> list[list[str]]:
    """The order of the arms in each replicate.

    Rows of a Williams design with the arms shuffled: in every run of ``len(arms)`` replicates each arm stands in each
    place once, and over a whole design (that many replicates, twice as many for an odd number of arms) each arm
    follows each other arm equally often. Between whole designs the seed draws anew.
    """
    count = len(arms)
    draw = random.Random(seed)
    order: list[list[str]] = []
    while len(order) < replicates:
        names = list(arms)
        draw.shuffle(names)
        for square in _squares(count):
            draw.shuffle(square)
            order += [[names[i] for i in row] for row in square]
    return order[:replicates]


def _squares(count: int) -> list[list[list[int]]]:
    """Latin squares that together balance predecessors: one for an even count, its mirror too for an odd one."""
    first, low, high = [0], 1, count - 1
    while len(first) < count:
        first.append(low if len(first) % 2 else high)
        low, high = (low + 1, high) if len(first) % 2 == 0 else (low, high - 1)
    square = [[(value + shift) % count for value in first] for shift in range(count)]
    return [square] if count % 2 == 0 or count == 1 else [square, [row[::-1] for row in square]]

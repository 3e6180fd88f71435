"""Lists of whole numbers that name seeds, blocks and session counts."""

from __future__ import annotations

from collections.abc import Sequence

from slotgrid.errors import InputError


def distinct(values: Sequence[int], name: str, least: int) -> tuple[int, ...]:
    """The values as a tuple. Raises InputError when there are none, one is no whole number of at least ``least``, or
    one appears twice."""
    if not values:
        raise InputError(f"{name}: empty; give at least one whole number")
    for value in values:
        if not isinstance(value, int) or value < least:
            raise InputError(f"{name}: {value}; allowed: whole numbers of at least {least}")
    if len(set(values)) != len(values):
        raise InputError(f"{name}: a value appears twice")
    return tuple(values)

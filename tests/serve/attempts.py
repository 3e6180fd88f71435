"""Tests of real times on shared machines."""

from __future__ import annotations

from collections.abc import Callable

ATTEMPTS = 3


def in_one_of_three(check: Callable[[], None]) -> None:
    """Run ``check`` until it passes, three times at most. A neighbour on the machine can spoil a measurement; an engine
    that breaks the rule by a factor fails all of them."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return check()
        except AssertionError:
            if attempt == ATTEMPTS:
                raise

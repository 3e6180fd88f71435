"""Best response: it stops at a fixed point, in a circle, and after enough rounds."""

from __future__ import annotations

import numpy as np

from slotgrid.analytic import best_response


def chain(steps: np.ndarray) -> tuple[int, ...]:
    return (1, int(steps[0]))


def test_fixed_point() -> None:
    found = best_response((1, 9), lambda buckets: np.array([max(buckets[1] - 2, 4)]), chain)
    assert found.path == ((1, 9), (1, 7), (1, 5), (1, 4))
    assert found.fixed
    assert found.buckets == (1, 4)


def test_circle() -> None:
    following = {2: 3, 3: 5, 5: 3}
    found = best_response((1, 2), lambda buckets: np.array([following[buckets[1]]]), chain)
    assert found.path == ((1, 2), (1, 3), (1, 5))
    assert not found.fixed


def test_no_end() -> None:
    found = best_response((1, 2), lambda buckets: np.array([buckets[1] + 1]), chain)
    assert len(found.path) == 21
    assert not found.fixed

"""Bucket set and occupancy answer each other: a set makes an occupancy, the occupancy has a cheapest set, and so on.

A set that is the cheapest for its own occupancy is a fixed point. The answers may also go round in a circle; then every
set of it is a candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Buckets = tuple[int, ...]

_MOST_ROUNDS = 20


@dataclass(frozen=True)
class Response:
    """path: the sets in order, the start first. fixed: the last one is the cheapest for its own occupancy."""

    path: tuple[Buckets, ...]
    fixed: bool

    @property
    def buckets(self) -> Buckets:
        """The last set."""
        return self.path[-1]


def best_response(
    start: Buckets, occupancy: Callable[[Buckets], Floats], cheapest: Callable[[Floats], Buckets]
) -> Response:
    """Iterate until a set comes back (or twenty rounds are done).

    occupancy: steps by running count under a set. cheapest: the best set for such steps.
    """
    path = [start]
    for _ in range(_MOST_ROUNDS):
        answer = cheapest(occupancy(path[-1]))
        if answer == path[-1]:
            return Response(tuple(path), True)
        if answer in path:
            return Response(tuple(path), False)
        path.append(answer)
    return Response(tuple(path), False)

"""Percentile bootstrap of a median, the same numbers on every machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slotgrid.errors import InputError

LEVEL = 0.95
# with fewer values the interval is about their range, which need not cover the median 95 times in 100
LEAST_VALUES = 5


@dataclass(frozen=True)
class Interval:
    """A point estimate with its lower and upper end."""

    point: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """high - low."""
        return self.high - self.low

    def contains(self, value: float) -> bool:
        """Whether the value lies in the interval, ends included."""
        return self.low <= value <= self.high

    def to_dict(self) -> dict[str, float]:
        """JSON values."""
        return {"point": self.point, "low": self.low, "high": self.high}

    def __str__(self) -> str:
        return f"{self.point:.4f} [{self.low:.4f}, {self.high:.4f}]"


def median_interval(values: Sequence[float], *, resamples: int, seed: int, level: float = LEVEL) -> Interval:
    """Median of the values with the percentile bootstrap interval of ``resamples`` resamplings.

    The ends are the sorted medians at index (1 - level) / 2 * resamples and its mirror (250 and 9,749 of 10,000).
    Drawn with Python's own generator, whose stream is guaranteed to stay. Raises InputError without values.
    """
    if not values:
        raise InputError("bootstrap: no values; at least one is needed")
    if resamples < 1:
        raise InputError(f"bootstrap: {resamples} resamples; at least 1 is needed")
    data = np.asarray(values, float)
    if not np.isfinite(data).all():
        raise InputError("bootstrap: a value is not a finite number")
    draws = random.Random(seed).choices(range(len(data)), k=len(data) * resamples)
    medians = np.sort(np.median(data[np.asarray(draws).reshape(resamples, len(data))], axis=1))
    # half an interval cut off at each side; rounded, since 0.025 * 10,000 is 250.00000000000023
    low = min(round((1 - level) / 2 * resamples), (resamples - 1) // 2)
    return Interval(float(np.median(data)), float(medians[low]), float(medians[resamples - 1 - low]))

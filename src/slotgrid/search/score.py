"""Scores: device time of candidates over the baseline's, on the same plans."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from slotgrid.errors import InputError

Score = Literal["sum", "mean"]
SCORES: tuple[Score, ...] = ("sum", "mean")
Floats = npt.NDArray[np.float64]


def ratios(device_s: Floats, baseline_s: Floats, score: Score) -> Floats:
    """Ratio per candidate, float64[K].

    device_s: float64[K, N] seconds per candidate and session count, baseline_s: float64[N].
    sum: sum of seconds over the baseline's sum. mean: mean of the ratios per session count.
    """
    if score not in SCORES:
        raise InputError(f"score: {score!r}; allowed: {', '.join(SCORES)}")
    if score == "sum":
        total: Floats = device_s.sum(axis=1) / baseline_s.sum()
        return total
    mean: Floats = (device_s / baseline_s).mean(axis=1)
    return mean

"""Which candidate is best when repeats differ: probabilities over the repeats of a search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slotgrid.engine.ensemble import prediction_interval
from slotgrid.errors import InputError
from slotgrid.search.score import Score, ratios

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Candidates further behind the best mean ratio than this, or beyond this many, are never the best of a repeat.
_REACH = 0.03
_MOST_CONTENDERS = 500
# A candidate that is at least as good as the best in this share of the repeats is a near-tie.
LIKELY = 0.05


@dataclass(frozen=True)
class Standing:
    """Of the contenders (rows of the ledger, int64[C]), float64[C] each: share of the repeats in which a candidate has
    the smallest ratio (equal ones share it), share in which its ratio is at most that of the best mean, and the 95 %
    prediction interval of its ratio, NaN where the repeats are too few."""

    rows: Ints
    best: Floats
    not_behind: Floats
    low: Floats
    high: Floats


def contenders(ratio: Floats) -> Ints:
    """Rows that can be the best of a repeat: mean ratio within 0.03 of the smallest, at most 500, by ratio."""
    order = np.argsort(ratio, kind="stable")
    near: Ints = order[ratio[order] - ratio[order[0]] <= _REACH][:_MOST_CONTENDERS]
    return near


def standing(rows: Ints, samples_s: Floats, baseline_s: Floats, score: Score) -> Standing:
    """From samples float64[C, N, M] and the baseline's float64[N, M], C contenders by mean ratio."""
    members = samples_s.shape[2]
    each = np.stack([ratios(samples_s[:, :, m], baseline_s[:, m], score) for m in range(members)], axis=1)
    smallest = each == each.min(axis=0)
    try:
        spans = np.array([prediction_interval(row) for row in each])
    except InputError:
        spans = np.full((len(rows), 2), np.nan)
    return Standing(
        rows,
        (smallest / smallest.sum(axis=0)).mean(axis=1),
        (each <= each[0]).mean(axis=1),
        spans[:, 0],
        spans[:, 1],
    )

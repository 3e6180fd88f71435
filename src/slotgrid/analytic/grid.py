"""The cheapest bucket set for an occupancy: a dynamic programme, exact.

A decode step with n running costs F(smallest bucket that holds n); the rest of its cost does not depend on buckets.
For steps h(n) the programme minimises sum h(n) F(b(n)) over the sets that hold 1 and the top and at most
``max_buckets`` sizes. With best[j][b] the cheapest way to run all n <= b with j sizes, b the largest:

    best[j][b] = min over b' < b of best[j - 1][b'] + F(b) * (steps with b' < n <= b)

Sums are whole numbers (floats times a power of two), so that equal costs are equal; of equals the lexicographically
smallest set is taken.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.errors import InputError

Floats = npt.NDArray[np.float64]
Cost = Callable[[int], float]


@dataclass(frozen=True)
class GridChoice:
    """buckets: ascending sizes. seconds: sum of the bucket parts of all steps."""

    buckets: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class BucketReason:
    """Why a bucket is in a set: without it, steps with ``lowest`` to ``bucket`` running would run in ``next_bucket``.

    share: their share of all steps. saved_per_step_s: what each of them saves. saved_share: all of it over the bucket
    parts of all steps.
    """

    bucket: int
    lowest: int
    next_bucket: int
    share: float
    saved_per_step_s: float
    saved_share: float

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {
            "bucket": self.bucket,
            "running": [self.lowest, self.bucket],
            "next_bucket": self.next_bucket,
            "share_of_steps": self.share,
            "saved_per_step_s": self.saved_per_step_s,
            "saved_share": self.saved_share,
        }

    @property
    def sentence(self) -> str:
        """One sentence for people."""
        word = {0: "", 1: f"{self.lowest} or "}.get(self.bucket - self.lowest, f"{self.lowest} to ")
        ran = f"{word}{self.bucket}"
        if self.share == 0:
            return f"{self.bucket} is never used: no step runs {ran}; it can be left out"
        change = "saves" if self.saved_per_step_s >= 0 else "costs"
        return (
            f"{self.bucket} is there for steps with {ran} running ({self.share:.1%} of the steps): each {change} "
            f"{abs(self.saved_per_step_s) * 1000:.3f} ms against bucket {self.next_bucket}, "
            f"{abs(self.saved_share):.2%} of the bucket part of all steps"
        )


def optimal_buckets(
    steps: Floats,
    cost: Cost,
    *,
    top: int,
    max_buckets: int,
    intermediate: Sequence[int] | None = None,
) -> GridChoice:
    """The set of at most ``max_buckets`` sizes with 1 and ``top`` that is cheapest for ``steps``.

    steps: float64[K], steps (or shares of them) by running count; index 0 is not used, K - 1 <= top. cost: seconds of
    a bucket. intermediate: sizes allowed between 1 and the top; None allows all.
    Raises InputError when the steps do not fit or fewer than two sizes are allowed.
    """
    _check(steps, top)
    least = 1 if top == 1 else 2
    if max_buckets < least:
        raise InputError(f"max-buckets: {max_buckets}; allowed: at least {least} (1 and the top bucket)")
    between = range(2, top) if intermediate is None else sorted({b for b in intermediate if 1 < b < top})
    sizes = (1, *between, top) if top > 1 else (1,)
    upto, step_unit = _cumulative(steps, top)
    prices, price_unit = _whole([cost(size) for size in sizes])
    price = dict(zip(sizes, prices, strict=True))
    # by largest size: cost and sizes, with exactly j sizes
    best: dict[int, tuple[int, tuple[int, ...]]] = {1: (price[1] * upto[1], (1,))}
    finished = [best[top]] if top in best else []
    for _ in range(1, max_buckets):
        extended: dict[int, tuple[int, tuple[int, ...]]] = {}
        for size in sizes[1:]:
            options = [
                (seconds + price[size] * (upto[size] - upto[below]), (*chosen, size))
                for below, (seconds, chosen) in best.items()
                if below < size
            ]
            if options:
                extended[size] = min(options)
        best = extended
        if top in best:
            finished.append(best[top])
    total, buckets = min(finished)
    return GridChoice(buckets, float(Fraction(total, step_unit * price_unit)))


def grid_seconds(steps: Floats, cost: Cost, buckets: Sequence[int]) -> float:
    """Seconds of the bucket parts of all steps on a set (ascending, reaching every count that runs)."""
    _check(steps, buckets[-1])
    upto, step_unit = _cumulative(steps, buckets[-1])
    prices, price_unit = _whole([cost(size) for size in buckets])
    counts = [upto[b] - upto[a] for a, b in itertools.pairwise((0, *buckets))]
    return float(Fraction(sum(map(operator.mul, prices, counts)), step_unit * price_unit))


def used_buckets(steps: Floats, buckets: Sequence[int]) -> tuple[int, ...]:
    """The sizes that some step runs in, with the smallest and the largest: what a set is worth compiling for."""
    counts = [n for n in range(1, len(steps)) if steps[n] > 0]
    used = {buckets[bisect_left(buckets, n)] for n in counts}
    return tuple(size for size in buckets if size in used or size in (buckets[0], buckets[-1]))


def bucket_reasons(steps: Floats, cost: Cost, buckets: Sequence[int]) -> tuple[BucketReason, ...]:
    """What each size but the top saves, the others left as they are; in ascending order."""
    _check(steps, buckets[-1])
    upto, unit = _cumulative(steps, buckets[-1])
    total_s = grid_seconds(steps, cost, buckets)
    reasons = []
    for below, size, above in zip((0, *buckets[:-2]), buckets[:-1], buckets[1:], strict=True):
        count = upto[size] - upto[below]
        saved_s = cost(above) - cost(size)
        reasons.append(
            BucketReason(
                bucket=size,
                lowest=below + 1,
                next_bucket=above,
                share=count / upto[-1],
                saved_per_step_s=saved_s,
                saved_share=count / unit * saved_s / total_s,
            )
        )
    return tuple(reasons)


def _check(steps: Floats, top: int) -> None:
    most = max((n for n in range(1, len(steps)) if steps[n] > 0), default=0)
    if most > top:
        raise InputError(f"buckets: up to {most} requests run at once, the top bucket is {top}")
    if most == 0:
        raise InputError("occupancy: no decode steps at all")


def _cumulative(steps: Floats, top: int) -> tuple[list[int], int]:
    """Steps with at most n running, n = 0 to top, in whole numbers of one over the unit."""
    counts, unit = _whole([float(steps[n]) if 0 < n < len(steps) else 0.0 for n in range(top + 1)])
    return list(itertools.accumulate(counts)), unit


def _whole(values: Sequence[float]) -> tuple[list[int], int]:
    """The values times the smallest power of two that makes all of them whole, and that power: nothing is rounded."""
    ratios = [value.as_integer_ratio() for value in values]
    unit = max(denominator for _, denominator in ratios)
    return [numerator * (unit // denominator) for numerator, denominator in ratios], unit

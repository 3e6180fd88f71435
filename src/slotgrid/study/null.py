"""What untreated repeats say: how far channels and ratios differ when nothing was changed.

For a pair of runs i < j of the same plan on the same configuration the channel difference is |A_i / A_j - B_i / B_j|.
A tolerance covers the data when the 95th percentile of the differences (sorted, index floor(0.95 x pairs)) does not
exceed it. Classes: C1 covered by 0.02, C2 by tau_null = max(0.02, median of r / B), C3 by neither. With fewer than 20
pairs, 7 runs, that percentile would only be the largest difference there is: then no class is given.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slotgrid.errors import InputError

LEAST_TOLERANCE = 0.02
# what a 95th percentile needs to be another than the largest
LEAST_PAIRS = 20
UNDECIDED = "undecided"
# sums of k of n runs: more pairs than this take too long and say nothing more
MOST_PAIRS = 1_000_000


@dataclass(frozen=True)
class Repeat:
    """One untreated run: device time rebuilt (A) and seen by the clients (B), seconds. source: "measured" or
    "simulated", None where nobody says."""

    name: str
    channel_a_s: float
    channel_b_s: float
    source: str | None = None


@dataclass(frozen=True)
class Spread:
    """Median, 95th percentile, largest and smallest of the pairs."""

    median: float
    q95: float
    largest: float
    smallest: float


@dataclass(frozen=True)
class NullDistribution:
    """runs_per_sum: runs summed on each side of a pair, as a verdict sums replicates.

    difference: of the channels. ratio_a, ratio_b: |ratio - 1| of the pairs in each channel. cv_*: coefficient of
    variation of the single runs. tolerance: what ``klass`` says the data supports; None for C3 (``difference.q95`` is
    then the smallest that would cover) and where it is undecided. source: of the runs; simulated ones say nothing
    about hardware.
    """

    label: str
    runs: int
    runs_per_sum: int
    pairs: int
    difference: Spread
    ratio_a: Spread
    ratio_b: Spread
    cv_a: float
    cv_b: float
    residual_median_s: float
    residual_share_median: float
    tau_null: float
    klass: str
    tolerance: float | None
    rule: str
    source: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values; the class stands under "class"."""
        data = asdict(self)
        data["class"] = data.pop("klass")
        return data


def null_distribution(repeats: Sequence[Repeat], *, label: str = "", runs_per_sum: int = 1) -> NullDistribution:
    """Judge the repeats of one plan on one configuration.

    Raises InputError with too few runs, a channel of 0 or NaN, or a name that is there twice.
    """
    where = f"null {label}".strip()
    _check(repeats, runs_per_sum, where)
    sums = {
        chosen: (sum(repeats[i].channel_a_s for i in chosen), sum(repeats[i].channel_b_s for i in chosen))
        for chosen in itertools.combinations(range(len(repeats)), runs_per_sum)
    }
    ratios = [
        (a_i / a_j, b_i / b_j)
        for (i, (a_i, b_i)), (j, (a_j, b_j)) in itertools.combinations(sums.items(), 2)
        if not set(i) & set(j)
    ]
    difference = _spread([abs(a - b) for a, b in ratios])
    shares = [(r.channel_b_s - r.channel_a_s) / r.channel_b_s for r in repeats]
    tau = max(LEAST_TOLERANCE, statistics.median(shares))
    q95 = f"95th percentile {difference.q95:.4f} of {len(ratios):,} channel differences"
    klass: str
    tolerance: float | None
    if len(ratios) < LEAST_PAIRS:
        klass, tolerance = UNDECIDED, None
        rule = f"{len(ratios)} pairs; a 95th percentile needs at least {LEAST_PAIRS}"
    elif difference.q95 <= LEAST_TOLERANCE:
        klass, tolerance, rule = "C1", LEAST_TOLERANCE, f"{q95} <= {LEAST_TOLERANCE:g}"
    elif difference.q95 <= tau:
        klass, tolerance, rule = "C2", tau, f"{q95} > {LEAST_TOLERANCE:g}, <= tau_null {tau:.4f}"
    else:
        klass, tolerance, rule = "C3", None, f"{q95} > tau_null {tau:.4f}"
    return NullDistribution(
        label=label,
        runs=len(repeats),
        runs_per_sum=runs_per_sum,
        pairs=len(ratios),
        difference=difference,
        ratio_a=_spread([abs(a - 1) for a, _ in ratios]),
        ratio_b=_spread([abs(b - 1) for _, b in ratios]),
        cv_a=_variation([r.channel_a_s for r in repeats]),
        cv_b=_variation([r.channel_b_s for r in repeats]),
        residual_median_s=statistics.median(r.channel_b_s - r.channel_a_s for r in repeats),
        residual_share_median=statistics.median(shares),
        tau_null=tau,
        klass=klass,
        tolerance=tolerance,
        rule=rule,
        source=repeats[0].source,
    )


def _check(repeats: Sequence[Repeat], runs_per_sum: int, where: str) -> None:
    if runs_per_sum < 1:
        raise InputError(f"{where}: sums of {runs_per_sum} runs; at least 1 is needed")
    if len(repeats) < 2 * runs_per_sum or len(repeats) < 3:
        needed = max(3, 2 * runs_per_sum)
        raise InputError(f"{where}: {len(repeats)} runs; at least {needed} repeats of the same plan are needed")
    count = math.comb(len(repeats), runs_per_sum)
    if count * count > 2 * MOST_PAIRS:
        raise InputError(f"{where}: sums of {runs_per_sum} of {len(repeats)} runs make too many pairs; sum fewer")
    seen = set()
    for repeat in repeats:
        if repeat.source != repeats[0].source:
            kinds = f"{repeats[0].source or 'of no stated source'} and {repeat.source or 'of no stated source'}"
            raise InputError(f"{where}: runs {repeats[0].name} and {repeat.name} are {kinds}; repeats are of one kind")
        if repeat.name in seen:
            raise InputError(f"{where}: run {repeat.name} is there twice")
        seen.add(repeat.name)
        for channel in ("channel_a_s", "channel_b_s"):
            value = getattr(repeat, channel)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{where}: run {repeat.name}: {channel} is {value!r}; allowed: finite, above 0")


def _spread(values: list[float]) -> Spread:
    ordered = sorted(values)
    return Spread(statistics.median(ordered), ordered[int(0.95 * len(ordered))], ordered[-1], ordered[0])


def _variation(values: list[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)

"""Batch alignment: how well the compiled decode buckets fit the running counts, and what other buckets would change."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slotgrid.diagnose.shapley import shapley_drops
from slotgrid.errors import InputError

# (running, bucket) -> decode steps
Histogram = Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class Alignment:
    """Sums over decode steps: requests run, rows computed (bucket sizes), steps."""

    steps: int
    running_sum: int
    bucket_sum: int

    @property
    def padding_ratio(self) -> float | None:
        """1 - (sum of running) / (sum of buckets); None without a step."""
        return None if self.bucket_sum == 0 else 1 - self.running_sum / self.bucket_sum

    @property
    def utilization(self) -> float | None:
        """Running rows over computed rows; None without a decode step."""
        return None if self.bucket_sum == 0 else self.running_sum / self.bucket_sum


@dataclass(frozen=True)
class PaddingChange:
    """One running count under another bucket list: padded rows before and after over all its steps, and its part of
    the drop in padding ratio (exact Shapley value over running counts; the parts add up to the whole drop)."""

    running: int
    steps: int
    padded_before: int
    padded_after: int
    shapley_drop: float

    @property
    def removed(self) -> int:
        """Padded rows that the other buckets take away."""
        return self.padded_before - self.padded_after


def align(histogram: Histogram) -> Alignment:
    """Totals of a step histogram."""
    return Alignment(
        sum(histogram.values()),
        sum(running * steps for (running, _), steps in histogram.items()),
        sum(bucket * steps for (_, bucket), steps in histogram.items()),
    )


def rebucket(histogram: Histogram, buckets: Sequence[int]) -> dict[tuple[int, int], int]:
    """The same steps on another bucket list. Raises InputError when a running count has no bucket that holds it."""
    result: dict[tuple[int, int], int] = {}
    most = max((running for running, _ in histogram), default=0)
    if most > buckets[-1]:
        raise InputError(
            f"buckets: {most} requests ran at once, above the top bucket {buckets[-1]}; "
            f"allowed: a list that reaches {most}"
        )
    for (running, _), steps in sorted(histogram.items()):
        key = (running, buckets[bisect_left(buckets, running)])
        result[key] = result.get(key, 0) + steps
    return result


def padding_changes(histogram: Histogram, buckets: Sequence[int]) -> list[PaddingChange]:
    """What the bucket list would do to the padding of the same steps, attributed to each running count."""
    before: dict[int, list[int]] = {}
    for (running, bucket), steps in histogram.items():
        entry = before.setdefault(running, [0, 0])
        entry[0] += steps
        entry[1] += (bucket - running) * steps
    after: dict[int, int] = {}
    for (running, bucket), steps in rebucket(histogram, buckets).items():
        after[running] = after.get(running, 0) + (bucket - running) * steps
    counts = sorted(before)
    total = align(histogram)
    drops = shapley_drops(
        total.running_sum, total.bucket_sum, [before[running][1] - after[running] for running in counts]
    )
    return [
        PaddingChange(running, before[running][0], before[running][1], after[running], drop)
        for running, drop in zip(counts, drops, strict=True)
    ]


def fit_buckets(
    steps_by_running: Mapping[int, int], count: int, top: int, seconds: Callable[[int], float] | None = None
) -> tuple[int, ...]:
    """The bucket list of at most ``count`` sizes up to ``top`` that is cheapest for these running counts.

    Exact: dynamic programme over the sizes that occur. The cost of a step is ``seconds(bucket)``, or the bucket itself
    (rows computed) when None. Ties go to fewer sizes, then to the lexicographically smallest list. ``top`` is always
    in the list: the server may run that many.
    """
    if count < 1:
        raise InputError(f"buckets: {count} sizes; at least 1 is needed")
    sizes = sorted({n for n, steps in steps_by_running.items() if steps > 0} | {top})
    if sizes[-1] > top:
        raise InputError(f"buckets: {sizes[-1]} requests ran at once, above the top {top}")
    weight = [steps_by_running.get(n, 0) for n in sizes]
    price = [float(n) if seconds is None else seconds(n) for n in sizes]
    before = [0, *itertools.accumulate(weight)]
    # best[i]: (cost, number of sizes, list) of covering sizes[..i] with sizes[i] as the largest bucket
    best: list[tuple[float, int, tuple[int, ...]] | None] = [
        (price[i] * before[i + 1], 1, (sizes[i],)) for i in range(len(sizes))
    ]
    overall = best[-1]
    for _ in range(1, count):
        extended: list[tuple[float, int, tuple[int, ...]] | None] = [None] * len(sizes)
        for i in range(1, len(sizes)):
            options = [
                (lower[0] + price[i] * (before[i + 1] - before[j + 1]), lower[1] + 1, (*lower[2], sizes[i]))
                for j in range(i)
                if (lower := best[j]) is not None
            ]
            extended[i] = min(options, default=None)
        best = extended
        if best[-1] is not None and (overall is None or best[-1][0] < overall[0]):
            overall = best[-1]
    assert overall is not None
    return overall[2]

"""Buckets from the steps in the times: cost rises where a wider graph takes over, and hardly in between."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slotgrid.measure.calibrate.statistics import Refusal

Floats = npt.NDArray[np.float64]

# what one more bucket must explain, in squared standard errors: about one wrong edge in two thousand
_PER_BUCKET = 12.0
# further evidence on either side of that before an edge is there, or is not
_CLEAR = 6.0
# differences below this share of a step are nobody's bucket
_FLOOR = 0.004
# a smaller edge may go unseen; where larger ones would, nothing is concluded from not seeing one
_LARGEST_UNSEEN = 0.3
# what a further request adds inside a bucket, as a share of a step: the host's part, for a graph computes its whole
# width. A steeper rise is taken as buckets; without this a slope and an edge could not be told apart at few counts.
_SLOPE_RANGE = (-0.01, 0.03)
_SLOPES = 9
_ROUNDS = 4
_MOST_REPEATS = 1000


@dataclass(frozen=True)
class Buckets:
    """buckets: as the times show them, the top one included. open_edges: n after which a bucket may or may not end.

    smallest_step: relative rise between two running counts that would have been seen at this spread.
    """

    buckets: tuple[int, ...]
    smallest_step: float
    open_edges: tuple[int, ...] = ()
    more_repeats: int | None = None

    @property
    def decided(self) -> bool:
        return not self.open_edges


def detect(steps: Mapping[int, Sequence[float]]) -> Buckets | Refusal:
    """Buckets from step seconds by running count (every count from 1 to the top, at least two repeats each).

    Least squares with one constant a bucket and a common slope; a further bucket must pay for itself. Edges that the
    spread of the repeats leaves open are named, with the repeats that would settle them.
    """
    top = max(steps, default=0)
    if sorted(steps) != list(range(1, top + 1)):
        missing = sorted(set(range(1, top + 1)) - set(steps))
        return Refusal(
            f"no step time for {', '.join(map(str, missing))} running" if missing else "nothing was measured"
        )
    fewest = min(map(len, steps.values()))
    if fewest < 2:
        return Refusal("one repeat shows no spread", fewest, 2)
    mean = np.array([np.mean(steps[n]) for n in range(1, top + 1)])
    # one relative spread for all counts: a few repeats of one tell little
    spread = math.sqrt(float(np.mean([np.var(steps[n], ddof=1) for n in steps] / mean**2)))
    relative = math.sqrt(spread**2 / fewest + _FLOOR**2)
    sigma = mean * relative
    # the difference of two counts, each with this error, that explains enough to be an edge
    smallest = math.sqrt(2 * (_PER_BUCKET + _CLEAR)) * relative
    best, edges = _best(mean, sigma, {})
    open_edges, evidence = [], []
    for n in range(1, top):
        other, _ = _best(mean, sigma, {n: n not in edges})
        margin = other - best
        if margin < _CLEAR:
            open_edges.append(n)
            # what an edge explains here, without its price
            evidence.append(margin + _PER_BUCKET if n in edges else _PER_BUCKET - margin)
        elif n not in edges and smallest > _LARGEST_UNSEEN:
            open_edges.append(n)
            evidence.append((_PER_BUCKET + _CLEAR) * (_LARGEST_UNSEEN / smallest) ** 2)
    more = None
    # where not the spread but the form is the limit, repeats do not help
    if open_edges and spread / math.sqrt(fewest) > _FLOOR:
        worst = min(evidence)
        needed = _MOST_REPEATS if worst <= 0 else math.ceil(fewest * (_PER_BUCKET + _CLEAR) / worst)
        more = max(1, min(needed, _MOST_REPEATS) - fewest)
    return Buckets((*sorted(edges), top), smallest, tuple(open_edges), more)


def _best(mean: Floats, sigma: Floats, forced: Mapping[int, bool]) -> tuple[float, set[int]]:
    """The smallest objective over all slopes and edges; ``forced`` edges must (not) be there.

    From each slope of a grid, and from the slope that suits the required edges alone: the best edges for the slope,
    then the best slope for the edges, until neither changes.
    """
    n = np.arange(1, len(mean) + 1, dtype=float)
    starts = [float(slope) for slope in np.linspace(*_SLOPE_RANGE, _SLOPES) * mean.mean()]
    starts.append(_with_best_slope(mean, sigma, {edge for edge, there in forced.items() if there})[1])
    smallest, found = math.inf, set[int]()
    for start in starts:
        slope = start
        for _ in range(_ROUNDS):
            _, edges = _segments(mean - slope * n, sigma, forced)
            value, better = _with_best_slope(mean, sigma, edges)
            if value < smallest - 1e-9:
                smallest, found = value, edges
            if abs(better - slope) < 1e-9 * float(mean.mean()):
                break
            slope = better
    return smallest, found


def _segments(level: Floats, sigma: Floats, forced: Mapping[int, bool]) -> tuple[float, set[int]]:
    """Constants by segment at a given slope: dynamic programme over where the last segment begins."""
    count = len(level)
    weight = 1 / sigma**2
    w, wx, wxx = (np.concatenate(([0.0], np.cumsum(weight * level**k))) for k in range(3))
    cost = np.full(count + 1, math.inf)
    cost[0] = 0.0
    came = np.zeros(count + 1, int)
    # no segment may begin after a forbidden edge, or reach over a required one
    barred = np.array([forced.get(n) is False for n in range(count)])
    for end in range(1, count + 1):
        first = max((n for n in range(1, end) if forced.get(n)), default=0)
        total, sum_x, sum_xx = (series[end] - series[first:end] for series in (w, wx, wxx))
        value = cost[first:end] + sum_xx - sum_x**2 / total + _PER_BUCKET
        value[barred[first:end]] = math.inf
        best = int(np.argmin(value))
        cost[end], came[end] = value[best], first + best
    edges, at = set[int](), count
    while at > 0:
        at = int(came[at])
        if at:
            edges.add(at)
    return float(cost[count]), edges


def _with_best_slope(mean: Floats, sigma: Floats, edges: set[int]) -> tuple[float, float]:
    """(objective, slope) of given edges with the slope that suits them best, within the allowed range."""
    n = np.arange(1, len(mean) + 1, dtype=float)
    segment = np.searchsorted(np.array(sorted(edges)), n, side="left")
    weight = 1 / sigma**2
    centred = []
    for values in (n, mean):
        sums = np.bincount(segment, weight * values) / np.bincount(segment, weight)
        centred.append(values - sums[segment])
    x, y = centred
    spread = float((weight * x * x).sum())
    slope = float((weight * x * y).sum()) / spread if spread > 0 else 0.0
    low, high = (end * float(mean.mean()) for end in _SLOPE_RANGE)
    slope = min(max(slope, low), high)
    return float((weight * (y - slope * x) ** 2).sum()) + _PER_BUCKET * (len(edges) + 1), slope

"""Intervals of what was measured a few times. Replays are the independent units, never steps inside one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
FEWEST_REPEATS = 3
_MOST_SENSIBLE_REPEATS = 1000
# robust fitting: weights fall beyond this many standard deviations, estimated from the median
_HUBER = 1.345
_TO_SIGMA = 1.4826
_EXACT = 1e-12
_ROUNDS = 20


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval and the number of independent measurements behind it."""

    value: float
    low: float
    high: float
    samples: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def relative(self) -> float:
        """Half the interval over the value; infinite for a value of 0."""
        return self.half_width / abs(self.value) if self.value else math.inf

    def scaled(self, factor: float) -> Estimate:
        """The same in another unit (factor above 0)."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor, self.samples)


@dataclass(frozen=True)
class Refusal:
    """Why there is no answer. more_repeats: how many more would likely give one; None when repeating does not help."""

    reason: str
    samples: int = 0
    more_repeats: int | None = None

    def __str__(self) -> str:
        if self.more_repeats is None:
            return self.reason
        return f"{self.reason}; about {self.more_repeats} more repeat{'s' * (self.more_repeats != 1)} would decide it"


def t_factor(degrees: int) -> float:
    """Two-sided Student factor of the 95 % interval."""
    from scipy.stats import t

    return float(t.ppf(0.5 + CONFIDENCE / 2, degrees))


def mean_estimate(values: Sequence[float], *, within: float | None = None) -> Estimate | Refusal:
    """The mean of independent values with its Student interval.

    within: the half width, relative to the mean, that is still an answer. Refuses fewer than three values and wider
    intervals, and says how many more repeats are needed at the spread that was seen.
    """
    count = len(values)
    if count < FEWEST_REPEATS:
        return Refusal(
            f"{count} measurement{'s' * (count != 1)}, at least {FEWEST_REPEATS} are needed",
            count,
            FEWEST_REPEATS - count,
        )
    data = np.asarray(values, float)
    mean, spread = float(data.mean()), float(data.std(ddof=1))
    half = t_factor(count - 1) * spread / math.sqrt(count)
    if within is not None and half > within * abs(mean):
        needed = repeats_needed(spread, within * abs(mean))
        return Refusal(
            f"the interval is {half / abs(mean) if mean else math.inf:.0%} either way, allowed is {within:.0%}",
            count,
            max(1, needed - count),
        )
    return Estimate(mean, mean - half, mean + half, count)


def repeats_needed(spread: float, half_width: float) -> int:
    """Repeats until the Student interval of a mean is at most this wide (half), at this standard deviation."""
    if spread <= 0:
        return FEWEST_REPEATS
    if half_width <= 0:
        return _MOST_SENSIBLE_REPEATS
    count = FEWEST_REPEATS
    while count < _MOST_SENSIBLE_REPEATS and t_factor(count - 1) * spread / math.sqrt(count) > half_width:
        count += 1
    return count


def trimmed_mean(values: Floats | Sequence[float]) -> float:
    """The mean without the tenth at either end: sums like a mean, but a few strange steps do not move it."""
    from scipy.stats import trim_mean

    return float(trim_mean(np.asarray(values, float), 0.1))


@dataclass(frozen=True)
class Line:
    """A weighted linear fit. parameters: one Estimate a column. worst: largest relative residual. rms: of the same.

    covariance: float64[P, P] of the parameters; degrees: of freedom.
    """

    parameters: tuple[Estimate, ...]
    worst: float
    rms: float
    covariance: Floats
    degrees: int

    def half_width(self, row: Floats) -> float:
        """Half the 95 % interval of the fitted value at a row of the columns, float64[P]."""
        return t_factor(self.degrees) * math.sqrt(float(row @ self.covariance @ row))


def linear_fit(columns: Floats, values: Floats) -> Line | Refusal:
    """Least squares of relative residuals, where single replays that a busy moment hit count less (Huber weights).

    columns: float64[N, P]. values: float64[N], all positive. Residuals are relative to the fitted values: relative to
    the measured ones, slow replays would count less than fast ones and everything would come out too low (by twice the
    squared spread). Refuses when a column is a combination of the others, or when there are not more values than
    columns.
    """
    count, width = columns.shape
    if count <= width:
        return Refusal(f"{count} measurements for {width} unknowns", count, None)
    # columns differ by many orders of magnitude
    size = np.sqrt(((columns / values[:, None]) ** 2).sum(0))
    if np.any(size == 0):
        return Refusal("a term was never varied", count, None)
    if np.linalg.matrix_rank(columns / values[:, None] / size) < width:
        return Refusal("the terms were not varied apart from each other", count, None)
    scaled = columns / size
    trust = np.ones(count)
    fitted = values
    for _ in range(_ROUNDS):
        weight = np.sqrt(trust) / fitted
        found, *_ = np.linalg.lstsq(scaled * weight[:, None], values * weight, rcond=None)
        # a fit may cross zero on its way; no measurement is worth more than ten times its share
        fitted = np.maximum(scaled @ found, values / 10)
        residual = (values - scaled @ found) / fitted
        usual = _TO_SIGMA * float(np.median(np.abs(residual)))
        if usual <= _EXACT:
            break
        trust = np.minimum(1.0, _HUBER * usual / np.maximum(np.abs(residual), _EXACT))
    degrees = count - width
    # Huber's estimate: the spread of the clipped residuals, over the squared share of those that are not clipped
    clipped = trust * residual
    whole = max(float((trust == 1.0).mean()), 0.5)
    spread = float(clipped @ clipped) / degrees / whole**2
    relative = scaled / fitted[:, None]
    covariance = np.linalg.inv(relative.T @ relative) * spread / np.outer(size, size)
    half = t_factor(degrees) * np.sqrt(np.diag(covariance))
    parameters = tuple(
        Estimate(float(v), float(v - h), float(v + h), count) for v, h in zip(found / size, half, strict=True)
    )
    return Line(parameters, float(np.abs(residual).max()), float(np.sqrt((residual**2).mean())), covariance, degrees)

"""The decision on device time: channels first, then the error, then the side of 1. Pure functions on numbers.

Per N and arm, on sums over replicates, against the baseline arm:

1. exploratory N: errors, no decision;
2. channel agreement: |ratio A - ratio B| <= tolerance, else the decision is withheld (neither passed nor failed);
3. |e| <= largest error, with e = prediction - ratio A;
4. prediction and ratio A on the same side of 1, or both inside the band that counts as equal.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from slotgrid.diagnose.cost import agreement
from slotgrid.engine.ensemble import prediction_interval
from slotgrid.errors import InputError
from slotgrid.study.notes import merge_notes
from slotgrid.study.outcome import Outcome, Outcomes, ratio, total
from slotgrid.study.resample import LEVEL, Interval

PASSED, FAILED, WITHHELD, EXPLORATORY = "passed", "failed", "withheld", "exploratory"
TOLERANCES = ("fixed", "residual")


@dataclass(frozen=True)
class DeviceTimeCriteria:
    """tolerance: "fixed" is channel_difference alone, "residual" max(channel_difference, r_base / B_base).

    largest_error: of the predicted ratio. equal_band: ratios inside count as equal to 1.
    """

    tolerance: str = "fixed"
    channel_difference: float = 0.02
    largest_error: float = 0.03
    equal_band: tuple[float, float] = (0.98, 1.02)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "equal_band": list(self.equal_band)}


@dataclass(frozen=True)
class ReplicateRatios:
    """One replicate of a comparison."""

    replicate: str
    ratio_a: float
    ratio_b: float | None
    predicted: float


@dataclass(frozen=True)
class Comparison:
    """One arm against the baseline at one N, on sums over replicates.

    error: predicted - ratio_a. decision and the rule with its numbers that gave it. *_parts: (decode, prefill) ratios;
    None where a part is not known or the baseline's is 0. steps, reuse: of the arm, then of the baseline.
    extrapolated: what of the observed seconds of both was priced outside the profile's measured range.
    """

    sessions: int
    arm: str
    ratio_a: float
    ratio_b: float | None
    difference: float | None
    tolerance: float | None
    predicted: float
    interval: Interval | None
    error: float
    decision: str
    rule: str
    observed_parts: tuple[float | None, float | None]
    predicted_parts: tuple[float | None, float | None]
    decode_steps: tuple[int | None, int | None]
    reused: tuple[int | None, int | None]
    reused_predicted: tuple[int | None, int | None]
    later_turns: int | None
    device_s: tuple[float, float]
    replicates: tuple[ReplicateRatios, ...]
    extrapolated: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        data = asdict(self)
        data["interval"] = None if self.interval is None else self.interval.to_dict()
        return data


def compare_all(
    predictions: Sequence[Outcome],
    observations: Sequence[Outcome],
    *,
    arms: Sequence[str],
    exploratory: Collection[int],
    criteria: DeviceTimeCriteria,
) -> list[Comparison]:
    """Every arm but the first (the baseline) at every N, in that order.

    Raises InputError naming the run, replicate or channel that is missing, and for a baseline of zero.
    """
    predicted, observed = Outcomes(predictions, "prediction"), Outcomes(observations, "run")
    made = []
    for n in predicted.session_counts():
        replicates = predicted.replicates(n)
        for arm in arms[1:]:
            made.append(
                _compare(
                    predicted.arm(n, arm, replicates),
                    predicted.arm(n, arms[0], replicates),
                    observed.arm(n, arm, replicates),
                    observed.arm(n, arms[0], replicates),
                    n in exploratory,
                    criteria,
                )
            )
    known = {(row.sessions, row.replicate, row.arm) for row in predicted}
    for row in observed:
        if (row.sessions, row.replicate, row.arm) not in known:
            raise InputError(f"{row.place}: a run without a prediction; only what was registered is judged")
    return made


def mean_absolute_error(comparisons: Sequence[Comparison]) -> float | None:
    """Mean |e| over all comparisons, exploratory and withheld ones included; None without any."""
    return sum(abs(c.error) for c in comparisons) / len(comparisons) if comparisons else None


def _compare(
    predicted: list[Outcome],
    predicted_base: list[Outcome],
    observed: list[Outcome],
    observed_base: list[Outcome],
    exploratory: bool,
    criteria: DeviceTimeCriteria,
) -> Comparison:
    first = observed[0]
    what = f"N = {first.sessions}, arm {first.arm}"
    a_s, base_a_s = total(observed, "device_s"), total(observed_base, "device_s")
    ratio_a = ratio(a_s, base_a_s, f"{what}, channel A")
    expected, interval = predicted_ratio(predicted, predicted_base)
    b_s, base_b_s = _channel_b_s(observed), _channel_b_s(observed_base)
    agreed = agreement(a_s, b_s, base_a_s, base_b_s)
    if agreed is None:
        raise InputError(f"{what}, channel B: the baseline is {base_b_s:g} s; a ratio needs a baseline above 0")
    tolerance = criteria.channel_difference
    if criteria.tolerance == "residual":
        tolerance = max(tolerance, (base_b_s - base_a_s) / base_b_s)
    error = expected - ratio_a
    decision, rule = _decide(expected, ratio_a, agreed.ratio_b, tolerance, exploratory, criteria)
    replicates = tuple(
        ReplicateRatios(
            o.replicate,
            ratio(o.device_s, ob.device_s, f"{o.place}, channel A"),
            None if not ob.channel_b_s or o.channel_b_s is None else o.channel_b_s / ob.channel_b_s,
            ratio(p.device_s, pb.device_s, f"{o.place}, prediction"),
        )
        for o, ob, p, pb in zip(observed, observed_base, predicted, predicted_base, strict=True)
    )
    return Comparison(
        sessions=first.sessions,
        arm=first.arm,
        ratio_a=ratio_a,
        ratio_b=agreed.ratio_b,
        difference=agreed.difference,
        tolerance=tolerance,
        predicted=expected,
        interval=interval,
        error=error,
        decision=decision,
        rule=rule,
        observed_parts=_parts(observed, observed_base),
        predicted_parts=_parts(predicted, predicted_base),
        decode_steps=(total(observed, "decode_steps"), total(observed_base, "decode_steps")),
        reused=(total(observed, "reused"), total(observed_base, "reused")),
        reused_predicted=(total(predicted, "reused"), total(predicted_base, "reused")),
        later_turns=total(observed, "later_turns"),
        device_s=(a_s, base_a_s),
        replicates=replicates,
        extrapolated=merge_notes([text for row in (*observed, *observed_base) for text in row.extrapolated]),
    )


def _decide(
    predicted: float,
    ratio_a: float,
    ratio_b: float,
    tolerance: float,
    exploratory: bool,
    criteria: DeviceTimeCriteria,
) -> tuple[str, str]:
    """The decision and the sentence that gives rule and numbers."""
    difference = abs(ratio_a - ratio_b)
    error = abs(predicted - ratio_a)
    channels = f"|A {ratio_a:.4f} - B {ratio_b:.4f}| = {difference:.4f}"
    limit = f"{tolerance:.4f} ({criteria.tolerance} tolerance)"
    if exploratory:
        sign = "<=" if difference <= tolerance else ">"
        return EXPLORATORY, f"exploratory N: no decision; channels {channels} {sign} {limit}; |e| = {error:.4f}"
    if difference > tolerance:
        return WITHHELD, f"channel agreement: {channels} > {limit}; no decision on |e| = {error:.4f}"
    agreed = f"channels {channels} <= {limit}"
    if error > criteria.largest_error:
        return FAILED, f"error: |e| = {error:.4f} > {criteria.largest_error:g}; {agreed}"
    within = f"|e| = {error:.4f} <= {criteria.largest_error:g}"
    low, high = criteria.equal_band
    both = f"predicted {predicted:.4f}, observed {ratio_a:.4f}"
    if (predicted - 1) * (ratio_a - 1) > 0:
        return PASSED, f"{agreed}; {within}; same side of 1: {both}"
    if low <= predicted <= high and low <= ratio_a <= high:
        return PASSED, f"{agreed}; {within}; both inside [{low:g}, {high:g}]: {both}"
    return FAILED, f"direction: {both} on different sides of 1 and not both inside [{low:g}, {high:g}]; {within}"


def _channel_b_s(rows: Sequence[Outcome]) -> float:
    for row in rows:
        if row.channel_b_s is None:
            raise InputError(f"{row.place}: channel B is missing; it needs sent and done times of every request")
    value: float = total(rows, "channel_b_s")
    return value


def _parts(rows: Sequence[Outcome], base: Sequence[Outcome]) -> tuple[float | None, float | None]:
    found = []
    for name in ("decode_s", "prefill_s"):
        mine, other = total(rows, name), total(base, name)
        found.append(None if mine is None or not other else mine / other)
    return found[0], found[1]


def predicted_ratio(
    rows: Sequence[Outcome], base: Sequence[Outcome], *, per_turn: bool = False
) -> tuple[float, Interval | None]:
    """Predicted ratio on sums over replicates (of seconds per turn with ``per_turn``), and its interval where there are
    ensembles: member by member, summed over replicates."""
    what = f"N = {base[0].sessions}, arm {rows[0].arm}, prediction"
    point = ratio(total(rows, "device_s"), total(base, "device_s"), what)
    scale = 1.0
    if per_turn:
        scale = ratio(total(base, "turns") or 0, total(rows, "turns") or 0, f"{what}, turns")
    members = min(len(row.samples_s) for row in (*rows, *base))
    if not members:
        return scale * point, None
    samples = [
        scale * sum(row.samples_s[m] for row in rows) / sum(row.samples_s[m] for row in base) for m in range(members)
    ]
    return scale * point, Interval(scale * point, *prediction_interval(np.array(samples), LEVEL))

"""The criteria for steady load: reuse, cost ratio, ranking and occupancy, each with skill against a null predictor.

In steady load channel B tends to wall time and cannot tell configurations apart, so the second channel is replaced by
replicates: cells are (N, arm), a cell's observation is the median over replicate pairs with a paired bootstrap, and a
criterion that passes without beating its null predictor is "not confirmed" (docs/study.md names the source of each
number).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from slotgrid.errors import InputError
from slotgrid.study.notes import merge_notes
from slotgrid.study.outcome import Outcome, Outcomes, ratio, total
from slotgrid.study.resample import LEAST_VALUES, Interval, median_interval

PASSED, FAILED, NOT_CONFIRMED, UNRESOLVED, NOT_JUDGED = "passed", "failed", "not confirmed", "unresolved", "not judged"
COST_RATIO = "cost ratio"
NO_CELL = "no arm at a confirmatory N"


@dataclass(frozen=True)
class SteadyCriteria:
    """Limits of the four criteria.

    null_reuse: the reuse rate a predictor without knowledge would name, from earlier data; None leaves the skill of the
    reuse criterion untested. reuse_share: of cells within reuse_error (rounded up). strong_misses: cells that may miss
    the strong form. skill: largest part of the null predictor's error that ours may make.
    """

    reuse_error: float = 0.10
    reuse_share: float = 0.9
    reuse_mean_error: float = 0.05
    null_reuse: float | None = None
    cost_error: float = 0.03
    cost_margin: float = 0.01
    strong_misses: int = 1
    skill: float = 0.5
    informative_reuse_range: float = 0.10
    informative_null_error: float = 0.05
    informative_effect: float = 0.01
    occupancy_median: float = 0.10
    occupancy_largest: float = 0.20
    occupancy_null_factor: float = 1.0
    resamples: int = 10_000
    seed: int = 20261420

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Cell:
    """One arm at one N. reuse: rates pooled over replicates. cost: median of the replicate ratios to the baseline with
    its interval, None for the baseline itself. occupancy_distance: total variation distance of predicted and observed
    shares of decode steps by running count; null_distance: of a uniform guess. extrapolated: what of the observed
    seconds, and the baseline's, was priced outside the measured range."""

    sessions: int
    arm: str
    exploratory: bool
    reuse_predicted: float | None
    reuse: float | None
    cost_predicted: float | None
    cost: Interval | None
    occupancy_distance: float | None
    null_distance: float | None
    extrapolated: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        data = asdict(self)
        data["cost"] = None if self.cost is None else self.cost.to_dict()
        return data


@dataclass(frozen=True)
class Pair:
    """Two arms at one N: median of replicate ratios x / y; resolved when the interval excludes 1 and rests on at least
    five replicates."""

    sessions: int
    x: str
    y: str
    ratio: Interval
    predicted: float
    replicates: int = LEAST_VALUES

    @property
    def resolved(self) -> bool:
        """Whether the data tell which arm is cheaper."""
        return self.replicates >= LEAST_VALUES and not self.ratio.contains(1.0)

    @property
    def agrees(self) -> bool:
        """Whether the prediction names the same arm as cheaper."""
        return (self.predicted - 1) * (self.ratio.point - 1) > 0

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "ratio": self.ratio.to_dict(), "resolved": self.resolved, "agrees": self.agrees}


@dataclass(frozen=True)
class Finding:
    """One criterion: its verdict and the sentence that gives rule and numbers."""

    criterion: str
    verdict: str
    rule: str
    numbers: Mapping[str, float | int | None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class SteadyVerdict:
    """Findings per criterion, the cells and the pairs they rest on."""

    findings: tuple[Finding, ...]
    cells: tuple[Cell, ...]
    pairs: tuple[Pair, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "findings": [finding.to_dict() for finding in self.findings],
            "cells": [cell.to_dict() for cell in self.cells],
            "pairs": [pair.to_dict() for pair in self.pairs],
        }


def judge_steady(
    predictions: Sequence[Outcome],
    observations: Sequence[Outcome],
    *,
    arms: Sequence[str],
    limits: Mapping[str, int],
    exploratory: Collection[int],
    criteria: SteadyCriteria,
) -> SteadyVerdict:
    """Judge everything registered; exploratory N are shown and not judged.

    limits: running limit of each arm. Raises InputError naming a run that is missing or a baseline of zero.
    """
    predicted, observed = Outcomes(predictions, "prediction"), Outcomes(observations, "run")
    cells, pairs = [], []
    for n in predicted.session_counts():
        replicates = predicted.replicates(n)
        rows = {arm: (predicted.arm(n, arm, replicates), observed.arm(n, arm, replicates)) for arm in arms}
        for arm in arms:
            cells.append(
                _cell(n, arm, rows[arm], rows[arms[0]], arm == arms[0], n in exploratory, limits[arm], criteria)
            )
        pairs += [_pair(n, x, y, rows[x], rows[y], criteria) for x, y in itertools.combinations(arms, 2)]
    judged = [cell for cell in cells if not cell.exploratory]
    costs = cost_finding([(c.cost_predicted, c.cost) for c in judged if c.cost is not None], criteria)
    confirmatory = [n for n in predicted.session_counts() if n not in exploratory]
    few = min((len(predicted.replicates(n)) for n in confirmatory), default=LEAST_VALUES)
    if few < LEAST_VALUES:
        # the intervals it needs do not exist
        costs = replace(costs, verdict=NOT_JUDGED, rule=f"{few} replicates; at least {LEAST_VALUES} needed")
    findings = (
        reuse_finding([(c.reuse_predicted, c.reuse) for c in judged], criteria),
        costs,
        ranking_finding([pair for pair in pairs if pair.sessions not in exploratory]),
        occupancy_finding([(c.occupancy_distance, c.null_distance) for c in judged], criteria),
    )
    return SteadyVerdict(findings, tuple(cells), tuple(pairs))


# --- the criteria on numbers ------------------------------------------------------------------------------------


def reuse_finding(cells: Sequence[tuple[float | None, float | None]], criteria: SteadyCriteria) -> Finding:
    """Reuse rates (predicted, observed) of the cells."""
    if not cells:
        return Finding("reuse", NOT_JUDGED, NO_CELL)
    known = [(p, m) for p, m in cells if p is not None and m is not None]
    if not known or len(known) < len(cells):
        return Finding("reuse", NOT_JUDGED, f"reuse is observed in {len(known)} of {len(cells)} cells; all are needed")
    errors = [p - m for p, m in known]
    mean = statistics.fmean(errors)
    mae = statistics.fmean(abs(e) for e in errors)
    within = sum(abs(e) <= criteria.reuse_error + 1e-12 for e in errors)
    # the least whole number of cells that is the share; a hair less, so that 0.9 x 10 is 9
    needed = -int(-(criteria.reuse_share * len(errors) - 1e-9) // 1)
    numbers: dict[str, float | int | None] = {"cells": len(errors), "within": within, "mean_error": mean, "mae": mae}
    base = f"|e| <= {criteria.reuse_error:g} in {within} of {len(errors)} cells ({needed} needed); "
    base += f"|mean e| {abs(mean):.4f} (<= {criteria.reuse_mean_error:g})"
    passed = within >= needed and abs(mean) <= criteria.reuse_mean_error
    if criteria.null_reuse is None:
        skill, shown = "skill not tested: no null_reuse was registered", False
    else:
        null = statistics.fmean(abs(criteria.null_reuse - m) for _, m in known)
        numbers["null_mae"] = null
        seen = [m for _, m in known]
        if max(seen) - min(seen) < criteria.informative_reuse_range:
            span = max(seen) - min(seen)
            skill, shown = (
                f"skill not informative: observed range {span:.3f} < {criteria.informative_reuse_range:g}",
                False,
            )
        elif null < criteria.informative_null_error:
            limit = criteria.informative_null_error
            skill, shown = f"skill not informative: MAE of the null {null:.4f} < {limit:g}", False
        else:
            shown = mae <= criteria.skill * null
            skill = f"skill: MAE {mae:.4f} {_sign(shown)} {criteria.skill:g} x {null:.4f} "
            skill += f"(constant {criteria.null_reuse:g})"
    return Finding("reuse", _confirmed(passed, shown), f"{base}; {skill}", numbers)


def cost_finding(cells: Sequence[tuple[float | None, Interval]], criteria: SteadyCriteria) -> Finding:
    """Cost ratios: (predicted, median of the replicate ratios with its interval) of the cells."""
    if not cells:
        return Finding(COST_RATIO, NOT_JUDGED, "no arm but the baseline at a confirmatory N")
    basic = strong = 0
    ours = nulls = 0.0
    for predicted, found in cells:
        assert predicted is not None
        m = found.point
        sided = abs(predicted - 1) <= criteria.cost_error if found.contains(1.0) else (predicted - 1) * (m - 1) > 0
        basic += abs(predicted - m) <= criteria.cost_error and sided
        strong += found.low - criteria.cost_margin <= predicted <= found.high + criteria.cost_margin
        ours += abs(predicted - m)
        nulls += abs(1 - m)
    count = len(cells)
    needed = max(count - criteria.strong_misses, 1)
    text = (
        f"basic (|p - m| <= {criteria.cost_error:g} and side of 1) in {basic} of {count} cells (all needed); strong "
        f"(p in the interval +- {criteria.cost_margin:g}) in {strong} ({needed} needed)"
    )
    if nulls / count < criteria.informative_effect:
        shown = False
        skill = f"skill not informative: mean |1 - m| {nulls / count:.4f} < {criteria.informative_effect:g}"
    else:
        shown = ours <= criteria.skill * nulls
        skill = f"skill: sum |p - m| {ours:.4f} {_sign(shown)} {criteria.skill:g} x sum |1 - m| {nulls:.4f}"
    numbers = {"cells": count, "basic": basic, "strong": strong, "sum_error": ours, "null_sum_error": nulls}
    return Finding(COST_RATIO, _confirmed(basic == count and strong >= needed, shown), f"{text}; {skill}", numbers)


def ranking_finding(pairs: Sequence[Pair]) -> Finding:
    """Every resolved pair must be ranked as observed."""
    if not pairs:
        return Finding("ranking", UNRESOLVED, "no two arms at a confirmatory N")
    resolved = [pair for pair in pairs if pair.resolved]
    agreed = sum(pair.agrees for pair in resolved)
    numbers = {"pairs": len(pairs), "resolved": len(resolved), "agree": agreed}
    few = min((pair.replicates for pair in pairs), default=LEAST_VALUES)
    if not resolved and few < LEAST_VALUES:
        text = f"{few} replicates; at least {LEAST_VALUES} needed"
        return Finding("ranking", UNRESOLVED, text, numbers)
    if not resolved:
        return Finding("ranking", UNRESOLVED, f"the intervals of all {len(pairs)} pairs contain 1", numbers)
    text = f"{agreed} of {len(resolved)} resolved pairs agree (all needed; {len(pairs)} pairs)"
    wrong = [pair for pair in resolved if not pair.agrees]
    if wrong:
        text += f"; first wrong: N = {wrong[0].sessions}, {wrong[0].x}/{wrong[0].y} {wrong[0].ratio}, "
        text += f"predicted {wrong[0].predicted:.4f}"
    return Finding("ranking", FAILED if wrong else PASSED, text, numbers)


def occupancy_finding(cells: Sequence[tuple[float | None, float | None]], criteria: SteadyCriteria) -> Finding:
    """Total variation distances (prediction, null) of the cells."""
    if not cells:
        return Finding("occupancy", NOT_JUDGED, NO_CELL)
    known = [(d, null) for d, null in cells if d is not None and null is not None]
    if not known or len(known) < len(cells):
        text = f"decode steps are observed in {len(known)} of {len(cells)} cells; all are needed"
        return Finding("occupancy", NOT_JUDGED, text)
    distances = [d for d, _ in known]
    median, largest = statistics.median(distances), max(distances)
    null = statistics.median(n for _, n in known)
    shown = median < criteria.occupancy_null_factor * null
    passed = median <= criteria.occupancy_median and largest <= criteria.occupancy_largest
    text = (
        f"distance: median {median:.3f} (<= {criteria.occupancy_median:g}), largest {largest:.3f} "
        f"(<= {criteria.occupancy_largest:g}); skill: median {'<' if shown else '>='} "
        f"{criteria.occupancy_null_factor:g} x {null:.3f} of a uniform guess"
    )
    numbers = {"cells": len(known), "median": median, "largest": largest, "null_median": null}
    return Finding("occupancy", _confirmed(passed, shown), text, numbers)


def occupancy_distance(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    """Total variation distance of two distributions over running counts: half the sum of absolute differences."""
    return sum(abs(a.get(n, 0.0) - b.get(n, 0.0)) for n in set(a) | set(b)) / 2


def pool_occupancy(rows: Sequence[Outcome]) -> dict[int, float] | None:
    """Shares of decode steps by running count over replicates, weighted by their steps; None when not observed."""
    pooled: dict[int, float] = {}
    steps = total(rows, "decode_steps")
    if not steps:
        return None
    for row in rows:
        if row.occupancy is None or row.decode_steps is None:
            return None
        for n, share in row.occupancy.items():
            pooled[n] = pooled.get(n, 0.0) + share * row.decode_steps / steps
    return pooled


# --- from outcomes to cells and pairs -----------------------------------------------------------------------------

_Rows = tuple[list[Outcome], list[Outcome]]


def _cell(
    n: int,
    arm: str,
    rows: _Rows,
    base: _Rows,
    is_base: bool,
    exploratory: bool,
    limit: int,
    criteria: SteadyCriteria,
) -> Cell:
    predicted, observed = rows
    mine, seen = pool_occupancy(predicted), pool_occupancy(observed)
    top = min(n, limit)
    uniform = dict.fromkeys(range(1, top + 1), 1 / top)
    return Cell(
        sessions=n,
        arm=arm,
        exploratory=exploratory,
        reuse_predicted=_rate(predicted),
        reuse=_rate(observed),
        cost_predicted=None if is_base else _pooled_ratio(predicted, base[0]),
        cost=None if is_base else _paired(observed, base[1], criteria),
        occupancy_distance=None if mine is None or seen is None else occupancy_distance(mine, seen),
        null_distance=None if seen is None else occupancy_distance(uniform, seen),
        extrapolated=merge_notes([text for row in (*observed, *base[1]) for text in row.extrapolated]),
    )


def _pair(n: int, x: str, y: str, x_rows: _Rows, y_rows: _Rows, criteria: SteadyCriteria) -> Pair:
    return Pair(n, x, y, _paired(x_rows[1], y_rows[1], criteria), _pooled_ratio(x_rows[0], y_rows[0]), len(x_rows[1]))


def _rate(rows: Sequence[Outcome]) -> float | None:
    reused, returns = total(rows, "reused"), total(rows, "later_turns")
    return None if reused is None or not returns else reused / returns


def _pooled_ratio(rows: Sequence[Outcome], base: Sequence[Outcome]) -> float:
    """Ratio of device seconds per turn, sums over replicates first."""
    what = f"N = {base[0].sessions}, arm {base[0].arm}, prediction"
    turns, base_turns = total(rows, "turns"), total(base, "turns")
    if not turns or not base_turns:
        raise InputError(f"{what}: no turns are known")
    return ratio(total(rows, "device_s") / turns, total(base, "device_s") / base_turns, what)


def _paired(rows: Sequence[Outcome], base: Sequence[Outcome], criteria: SteadyCriteria) -> Interval:
    """Median of the replicate ratios of device seconds per turn, with the bootstrap over replicates."""
    values = [ratio(a.per_turn_s, b.per_turn_s, b.place) for a, b in zip(rows, base, strict=True)]
    return median_interval(values, resamples=criteria.resamples, seed=criteria.seed)


def _confirmed(passed: bool, skill: bool) -> str:
    if not passed:
        return FAILED
    return PASSED if skill else NOT_CONFIRMED


def _sign(shown: bool) -> str:
    return "<=" if shown else ">"

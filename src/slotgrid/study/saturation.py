"""Where more slots stop paying: adjacent pairs of slot counts over cells (N x replicate).

A pair's ratio in a cell is the device time with more slots over that with fewer. The median over cells has a 95 %
percentile bootstrap interval: saturated if it contains 1 and is at most 0.04 wide, gaining if it lies below 1, losing
if above, else undecided; with fewer than five cells always undecided.

More slots stop paying at the smallest slot count after which every step is saturated or losing. Where the step into it
is undecided that is "at the latest". While the last step is gaining or undecided nothing stops: a saturated or losing
step with a gain after it is no end.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotgrid.errors import InputError
from slotgrid.study.outcome import ratio
from slotgrid.study.resample import LEAST_VALUES, Interval, median_interval

SATURATED, GAINING, LOSING, UNDECIDED = "saturated", "still gaining", "losing", "undecided"
RESAMPLES, SEED, WIDEST = 4_000, 20261200, 0.04
Cell = tuple[int, str]


@dataclass(frozen=True)
class Step:
    """From ``fewer`` to ``more`` (labels of arms, in order of their slots): the ratio over ``cells`` cells.

    controlled: every running count has the same bucket in both arms, so that nothing but the slots differs; None when
    the configurations are not known.
    """

    fewer: str
    more: str
    ratio: Interval
    cells: int
    decision: str
    rule: str
    controlled: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "fewer": self.fewer,
            "more": self.more,
            "median_ratio": self.ratio.point,
            "low": self.ratio.low,
            "high": self.ratio.high,
            "width": self.ratio.width,
            "cells": self.cells,
            "decision": self.decision,
            "rule": self.rule,
            "controlled": self.controlled,
        }


@dataclass(frozen=True)
class Saturation:
    """steps: adjacent pairs in order of slots. left_out: exploratory N that are not among the cells."""

    steps: tuple[Step, ...]
    left_out: tuple[int, ...] = ()

    @property
    def enough(self) -> str | None:
        """The arm after which every step is saturated or losing; None where the last step is neither."""
        return self.steps[self._end].fewer if self._end < len(self.steps) else None

    @property
    def at_latest(self) -> bool:
        """Whether the step to :attr:`enough` is undecided, so that fewer slots may be enough as well."""
        return self.enough is not None and self._end > 0 and self.steps[self._end - 1].decision == UNDECIDED

    def conclusion(self, detail: str = "") -> str:
        """One sentence; ``detail`` (what the slots cost) stands behind the arm that is enough."""
        last = self.steps[-1]
        step, reached = f"the last step, {last.fewer} to {last.more},", last.more
        if self.enough is not None:
            before = self.steps[self._end - 1]
            text = f"More slots stop paying{' at the latest' if self.at_latest else ''} at {self.enough}{detail}"
            text += f"; {before.fewer} to {before.more} is undecided" if self.at_latest else ""
            losing = [s for s in self.steps[self._end :] if s.decision == LOSING]
            text += "".join(f"; {s.fewer} to {s.more} is losing" for s in losing)
            reached = self.enough
        elif last.decision == GAINING:
            text = f"More slots may still pay: {step} is still gaining"
        else:
            text = f"The data do not tell where more slots stop paying: {step} is undecided"
        for s in self.steps[: self._end]:
            if s.decision == LOSING:
                # what came after may not have made up for it
                text += f"; {s.fewer} to {s.more} is losing, so compare {reached} with {s.fewer} too"
        return text

    @property
    def _end(self) -> int:
        """Index of the first of the steps at the end that are saturated or losing."""
        end = len(self.steps)
        while end and self.steps[end - 1].decision in (SATURATED, LOSING):
            end -= 1
        return end

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "pairs": [step.to_dict() for step in self.steps],
            "enough": self.enough,
            "at_latest": self.at_latest,
            "conclusion": self.conclusion(),
            "exploratory_left_out": list(self.left_out),
        }


def find_saturation(
    device_s: Mapping[str, Mapping[Cell, float]],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    widest: float = WIDEST,
    controlled: Mapping[tuple[str, str], bool] | None = None,
) -> Saturation:
    """Judge each adjacent pair.

    device_s: per arm (in order of slots) its device seconds, or its ratios to a common baseline, by cell. Raises
    InputError when there is one arm only, cells differ between arms, or a value is not above 0.
    """
    if len(device_s) < 2:
        raise InputError(f"saturation: {len(device_s)} slot count; at least two are needed to compare")
    steps = []
    for (fewer, before), (more, after) in itertools.pairwise(device_s.items()):
        missing = set(before) ^ set(after)
        if missing:
            n, replicate = min(missing)
            arm = more if (n, replicate) in before else fewer
            raise InputError(
                f"saturation: N = {n}, replicate {replicate} is missing for {arm}; pairs need the same cells"
            )
        for cell, seconds in after.items():
            if not seconds > 0:
                raise InputError(
                    f"saturation: N = {cell[0]}, replicate {cell[1]}, {more}: {seconds:g} s; allowed: above 0"
                )
        values = [ratio(after[cell], before[cell], f"N = {cell[0]}, replicate {cell[1]}, {fewer}") for cell in before]
        found = median_interval(values, resamples=resamples, seed=seed)
        decision, rule = _judge(found, widest)
        if len(values) < LEAST_VALUES:
            decision, rule = UNDECIDED, f"{len(values)} cells; at least {LEAST_VALUES} needed"
        same = None if controlled is None else controlled.get((fewer, more))
        steps.append(Step(fewer, more, found, len(values), decision, rule, same))
    return Saturation(tuple(steps))


def slot_order(slots: Mapping[str, int]) -> list[str]:
    """Arms in ascending order of slots. Raises InputError when two have the same number."""
    ordered = sorted(slots, key=lambda arm: slots[arm])
    for a, b in itertools.pairwise(ordered):
        if slots[a] == slots[b]:
            raise InputError(f"saturation: {a} and {b} both have {slots[a]} slots; choose one with --arms")
    return ordered


def _judge(found: Interval, widest: float) -> tuple[str, str]:
    place = f"median {found.point:.4f} [{found.low:.4f}, {found.high:.4f}], width {found.width:.4f}"
    if found.contains(1.0):
        if found.width <= widest:
            return SATURATED, f"{place}: contains 1 and is at most {widest:g} wide"
        return UNDECIDED, f"{place}: contains 1 but is wider than {widest:g}"
    if found.high < 1.0:
        return GAINING, f"{place}: below 1"
    return LOSING, f"{place}: above 1"


def cells_of(rows: Sequence[tuple[str, int, str, float]]) -> dict[str, dict[Cell, float]]:
    """Device seconds by arm and cell from (arm, sessions, replicate, seconds) rows; a row twice is an error."""
    found: dict[str, dict[Cell, float]] = {}
    for arm, sessions, replicate, seconds in rows:
        cells = found.setdefault(arm, {})
        if (sessions, replicate) in cells:
            raise InputError(f"saturation: N = {sessions}, replicate {replicate}, {arm} is there twice")
        cells[sessions, replicate] = seconds
    return found

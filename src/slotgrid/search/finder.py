"""Bucket sets for one batch size and number of slots, without enumerating.

Best response: a set makes an occupancy in simulation, the dynamic programme gives the cheapest set for it, and so on.
The analytic view gives the first guess, where it holds. Every set met on the way is a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.analytic import Moments, best_response, moments_of, optimal_buckets, predict, used_buckets
from slotgrid.config import ServingConfig
from slotgrid.engine.rules import RuleSet
from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.profile import StackProfile
from slotgrid.search.inputs import pooled_loads, pooled_steps
from slotgrid.search.load import Load, simulated_load

Floats = npt.NDArray[np.float64]
Buckets = tuple[int, ...]


@dataclass(frozen=True)
class Proposed:
    """The way to the buckets of one batch size and number of slots.

    analytic_sessions: the session counts the analytic view gave the first guess for (none: a bucket for every running
    count was the start). path: sets in the order they were met. fixed: the last is the cheapest for the occupancy it
    makes.
    """

    max_running: int
    slots: int
    analytic_sessions: tuple[int, ...]
    path: tuple[Buckets, ...]
    fixed: bool

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {
            "max_running": self.max_running,
            "slots": self.slots,
            "analytic_sessions": list(self.analytic_sessions),
            "path": [list(buckets) for buckets in self.path],
            "fixed": self.fixed,
        }


class Finder:
    """Best response for one batch size and number of slots."""

    def __init__(
        self,
        profile: StackProfile,
        plans: dict[int, list[InputPlan]],
        rules: RuleSet,
        turnaround_s: float,
        top: int,
        slots: int,
        max_buckets: int,
        intermediate: Sequence[int] | None,
    ) -> None:
        self.profile = profile
        self.plans = plans
        self.rules = rules
        self.turnaround_s = turnaround_s
        self.top = top
        self.slots = slots
        self.max_buckets = max_buckets
        self.intermediate = intermediate
        self._loads: dict[Buckets, dict[int, Load]] = {}

    def find(self) -> Proposed:
        """From the first guess to the last answer."""
        every = tuple(range(1, self.top + 1))
        moments = self._moments()
        start = best_response(every, self._analytic(moments), self._cheapest).buckets if moments else every
        response = best_response(start, lambda buckets: pooled_loads(self._simulated(buckets)), self._cheapest)
        # a bucket for every count is no candidate unless it is an answer
        path = response.path if moments else response.path[1:] or response.path
        return Proposed(self.top, self.slots, tuple(moments), path, response.fixed)

    def candidates(self, way: Proposed) -> list[ServingConfig]:
        """Every set on the way; for the last occupancy the cheapest sets of fewer sizes, which compile faster, and for
        each session count alone. Of each also the set without the sizes that no step uses."""
        last = self._simulated(way.path[-1])
        found = []
        alone = [self._cheapest(load.steps) for load in last.values()]
        steps = pooled_loads(last)
        fewer = [self._cheapest(steps, count) for count in range(2, self.max_buckets)]
        for buckets in (*way.path, *alone, *fewer):
            found += [self._config(buckets), self._config(used_buckets(steps, buckets))]
        return list(dict.fromkeys(found))

    def _config(self, buckets: Buckets) -> ServingConfig:
        return ServingConfig(buckets, slots=self.slots, max_running=self.top)

    def _cheapest(self, steps: Floats, max_buckets: int | None = None) -> Buckets:
        found = optimal_buckets(
            steps,
            self.profile.price.decode.fixed,
            top=self.top,
            max_buckets=self.max_buckets if max_buckets is None else max_buckets,
            intermediate=self.intermediate,
        )
        return found.buckets

    def _simulated(self, buckets: Buckets) -> dict[int, Load]:
        if buckets not in self._loads:
            config = self._config(buckets)
            self._loads[buckets] = {
                n: simulated_load(self.profile, config, plans, rules=self.rules, turnaround_s=self.turnaround_s)
                for n, plans in self.plans.items()
            }
        return self._loads[buckets]

    def _moments(self) -> dict[int, Moments]:
        """What the analytic view needs, for the session counts in its range; none where it does not hold at all."""
        usable = self.rules.usable_slots(self.slots, self.top)
        try:
            return {
                # one plan says enough for a first guess
                n: moments_of(plans[:1], self.profile, turnaround_s=self.turnaround_s)
                for n, plans in self.plans.items()
                if n <= min(self.top, usable)
            }
        except InputError:
            return {}

    def _analytic(self, moments: dict[int, Moments]) -> Callable[[Buckets], Floats]:
        usable = self.rules.usable_slots(self.slots, self.top)

        def occupancy(buckets: Buckets) -> Floats:
            config = self._config(buckets)
            figures = {n: predict(self.profile, config, moments[n], clients=n, usable_slots=usable) for n in moments}
            return pooled_steps(figures, moments, self.top)

        return occupancy

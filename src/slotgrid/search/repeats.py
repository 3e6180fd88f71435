"""Repeats of a search: every candidate meets the same perturbed plans, so that differences are the candidates'."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slotgrid.config import ServingConfig
from slotgrid.engine.perturb import copy_of, off_by, perturb_plan, step_deviation_s
from slotgrid.engine.prepare import FlatPlan, Floats
from slotgrid.plan import InputPlan
from slotgrid.profile import Scatter, StackProfile


@dataclass(frozen=True)
class Repeats:
    """``members`` repeats drawn from ``seed``; turnaround_given: an argument fixes the client turnaround."""

    members: int
    seed: int
    scatter: Scatter
    turnaround_given: bool

    def of(self, plan: InputPlan, flat: FlatPlan, turnaround_s: float) -> list[FlatPlan]:
        """The perturbed copies of one plan; the same for the same plan, whatever else is searched."""
        rng = np.random.default_rng([self.seed, int(plan.content_sha256[:16], 16)])
        first, start_s, gap_s, prefill = perturb_plan(
            flat, turnaround_s, self.turnaround_given, self.scatter, self.members, rng
        )
        return [copy_of(flat, first[m], start_s[m], gap_s[m], prefill[m]) for m in range(self.members)]

    def steps(self, step_s: Floats, config: ServingConfig, profile: StackProfile) -> Floats:
        """Step seconds of every repeat, float64[members, N + 1]; a bucket is off by the same in every candidate."""
        deviation = step_deviation_s(profile, self.scatter, config.buckets)
        off = [np.random.default_rng([self.seed, size]).standard_normal(self.members) for size in config.buckets]
        return off_by(step_s, np.stack(off, axis=1) * deviation, config)

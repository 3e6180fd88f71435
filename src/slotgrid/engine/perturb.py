"""Members of an ensemble: copies of one plan that differ by what is random on a real server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slotgrid.config import ServingConfig
from slotgrid.engine.prepare import FlatPlan, Floats, Ints, PlanBatch
from slotgrid.engine.setup import Setup
from slotgrid.errors import InputError
from slotgrid.profile import Scatter, StackProfile

MOST_MEMBERS = 100_000


@dataclass(frozen=True)
class Members:
    """M perturbed copies of a plan with R requests and C clients.

    first_requests: int64[M, C], first_arrival_s: float64[M, C], sorted by start. gap_s, prefill: float64[M, R], prefill
    as a factor on clock seconds. step_s: float64[M, N + 1], clock seconds of a decode step.
    """

    setup: Setup
    first_requests: Ints
    first_arrival_s: Floats
    gap_s: Floats
    prefill: Floats
    step_s: Floats

    def __len__(self) -> int:
        return len(self.gap_s)

    def flat(self, member: int) -> FlatPlan:
        """One member as a plan of its own."""
        drawn = (self.first_requests, self.first_arrival_s, self.gap_s, self.prefill)
        return copy_of(self.setup.flat, *(array[member] for array in drawn))

    def batch(self) -> PlanBatch:
        """All members laid end to end for the batch kernel."""
        flat, count = self.setup.flat, len(self)
        pool = flat.pool
        if pool is not None:
            pool = pool._replace(
                session_key=np.tile(pool.session_key, count),
                shared_key=np.tile(pool.shared_key, count),
                shared_blocks=np.tile(pool.shared_blocks, count),
                prompt_tokens=np.tile(pool.prompt_tokens, count),
            )
        return PlanBatch(
            request_offset=np.arange(count + 1) * flat.requests,
            client_offset=np.arange(count + 1) * flat.clients,
            first_requests=self.first_requests.ravel(),
            first_arrival_s=self.first_arrival_s.ravel(),
            decode_steps=np.tile(flat.output_tokens - 1, count),
            context_tokens=np.tile(flat.prompt_tokens, count),
            gap_s=self.gap_s.ravel(),
            has_next=np.tile(flat.has_next, count),
            continues=np.tile(flat.continues, count),
            hit_tokens=np.tile(flat.hit_tokens, count),
            prefill_miss_s=(flat.prefill_miss_s * self.prefill).ravel(),
            prefill_hit_s=(flat.prefill_hit_s * self.prefill).ravel(),
            price_miss_s=np.tile(flat.price_miss_s, count),
            price_hit_s=np.tile(flat.price_hit_s, count),
            pooled=np.full(count, pool is not None),
            pool=pool,
            pool_keys=flat.pool_keys,
        )


def check_members(members: int, seed: int) -> None:
    """Raise InputError for fewer than two members, more than 100,000, or a seed below 0."""
    if isinstance(members, bool) or not isinstance(members, int) or not 2 <= members <= MOST_MEMBERS:
        raise InputError(
            f"ensemble: {members!r} members; allowed: whole numbers of at least 2, at most {MOST_MEMBERS:,}"
        )
    if not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed: {seed!r}; allowed: whole numbers of at least 0")


def copy_of(flat: FlatPlan, first_requests: Ints, first_arrival_s: Floats, gap_s: Floats, prefill: Floats) -> FlatPlan:
    """One perturbed copy of a plan from its arrays (:class:`Members`, without the first axis)."""
    return replace(
        flat,
        first_requests=first_requests,
        first_arrival_s=first_arrival_s,
        gap_s=gap_s,
        prefill_miss_s=flat.prefill_miss_s * prefill,
        prefill_hit_s=flat.prefill_hit_s * prefill,
    )


def perturbed(setup: Setup, scatter: Scatter, members: int, rng: np.random.Generator) -> Members:
    """Draw the members of one plan on one configuration."""
    config = setup.config
    first, start_s, gap_s, prefill = perturb_plan(
        setup.flat, setup.gap_s, setup.turnaround_given, scatter, members, rng
    )
    deviation = step_deviation_s(setup.profile, scatter, config.buckets)
    offset_s = deviation * rng.standard_normal((members, len(config.buckets)))
    return Members(setup, first, start_s, gap_s, prefill, off_by(setup.step_s, offset_s, config))


def perturb_plan(
    flat: FlatPlan, gap_s: float, turnaround_given: bool, scatter: Scatter, members: int, rng: np.random.Generator
) -> tuple[Ints, Floats, Floats, Floats]:
    """What of the members does not depend on the configuration: first_requests, first_arrival_s, gap_s and prefill of
    :class:`Members`. gap_s: the turnaround inside the flat plan, kept when ``turnaround_given``.

    The prefill factors do not reach a plan that feels the blocks inside the slots: its prefills come from one table by
    computed tokens. Draws come in a fixed order, so that a size of 0 changes nothing else.
    """
    # in plan order: the flat plan has them by start time
    by_client = np.argsort(flat.first_requests)
    start_s, first = flat.first_arrival_s[by_client], flat.first_requests[by_client]
    width_s = rng.uniform(scatter.start_spread_s.low, scatter.start_spread_s.high, (members, 1))
    starts = start_s + width_s * rng.random((members, flat.clients))
    order = np.argsort(starts, axis=1, kind="stable")

    turnaround_s = rng.uniform(scatter.turnaround_s.low, scatter.turnaround_s.high, (members, flat.requests))
    gaps = np.tile(flat.gap_s, (members, 1)) if turnaround_given else flat.gap_s - gap_s + turnaround_s
    # a negative factor would let time go back
    prefill = np.maximum(1 + scatter.prefill_share.value * rng.standard_normal((members, flat.requests)), 0.0)
    return first[order], np.take_along_axis(starts, order, axis=1), gaps, prefill


def step_deviation_s(profile: StackProfile, scatter: Scatter, buckets: Sequence[int]) -> Floats:
    """Standard deviation by which the steps of each bucket are off in one repeat, float64[buckets]: between runs of
    one artifact, and between the form of the clock and what was measured."""
    residual = profile.clock.decode.residual_s
    off_form_s = 0.0 if residual is None else residual.value
    return np.array([math.hypot(scatter.step(size), off_form_s) for size in buckets])


def off_by(step_s: Floats, offset_s: Floats, config: ServingConfig) -> Floats:
    """Step seconds of every member, float64[M, N + 1]: step_s float64[N + 1] plus the offset of the bucket in use.

    offset_s: float64[M, buckets]. Times stay positive.
    """
    most = min(len(step_s) - 1, config.max_running)
    column = np.searchsorted(config.buckets, np.arange(1, most + 1))
    steps = np.tile(step_s, (len(offset_s), 1))
    steps[:, 1 : most + 1] = np.maximum(steps[:, 1 : most + 1] + offset_s[:, column], 1e-6)
    return steps

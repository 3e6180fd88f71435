"""Members of an ensemble: copies of one plan that differ by what is random on a real server."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from slotgrid.engine.prepare import FlatPlan, Floats, Ints, PlanBatch
from slotgrid.engine.setup import Setup
from slotgrid.profile import Scatter


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
        flat = self.setup.flat
        return replace(
            flat,
            first_requests=self.first_requests[member],
            first_arrival_s=self.first_arrival_s[member],
            gap_s=self.gap_s[member],
            prefill_miss_s=flat.prefill_miss_s * self.prefill[member],
            prefill_hit_s=flat.prefill_hit_s * self.prefill[member],
        )

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


def perturbed(setup: Setup, scatter: Scatter, members: int, rng: np.random.Generator) -> Members:
    """Draw the members: starts, turnarounds, prefill times and step times.

    The prefill factors reach a plan that feels the blocks inside the slots only as 1: its prefills are priced from one
    table by computed tokens. Draws come in a fixed order, so that a size of 0 changes nothing else.
    """
    flat, config = setup.flat, setup.config
    requests, clients = flat.requests, flat.clients

    # in plan order: the flat plan has them by start time
    by_client = np.argsort(flat.first_requests)
    start_s, first = flat.first_arrival_s[by_client], flat.first_requests[by_client]
    width_s = rng.uniform(scatter.start_spread_s.low, scatter.start_spread_s.high, (members, 1))
    starts = start_s + width_s * rng.random((members, clients))
    order = np.argsort(starts, axis=1, kind="stable")

    turnaround_s = rng.uniform(scatter.turnaround_s.low, scatter.turnaround_s.high, (members, requests))
    gap_s = np.tile(flat.gap_s, (members, 1)) if setup.turnaround_given else flat.gap_s - setup.gap_s + turnaround_s
    # a negative factor would let time go back
    prefill = np.maximum(1 + scatter.prefill_share.value * rng.standard_normal((members, requests)), 0.0)

    sizes = {size: i for i, size in enumerate(config.buckets)}
    # between runs of one artifact, and between the cost's form and what was measured
    residual = setup.profile.clock.decode.residual_s
    off_form_s = 0.0 if residual is None else residual.value
    deviation = np.array([math.hypot(scatter.step(size), off_form_s) for size in config.buckets])
    offset_s = deviation * rng.standard_normal((members, len(sizes)))
    step_s = np.tile(setup.step_s, (members, 1))
    for n in range(1, setup.most + 1):
        step_s[:, n] = np.maximum(step_s[:, n] + offset_s[:, sizes[config.bucket_for(n)]], 1e-6)
    return Members(setup, first[order], np.take_along_axis(starts, order, axis=1), gap_s, prefill, step_s)

"""Ensembles: the same plan many times, each repeat off by what is random on a real server.

The result is a distribution: mean, prediction interval and the samples. What is perturbed and by how much stands in
the profile's ``[scatter]`` with its sources (docs/fidelity.md, "Ensembles").
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from slotgrid.config import ServingConfig
from slotgrid.engine.batch import Jobs, StepTables, simulate_jobs
from slotgrid.engine.kernel import F_DECODE_S, F_PREFILL_S, F_STALL_SESSION_S, F_WALL_S, I_FINISHED, I_REUSED
from slotgrid.engine.outside import Outside
from slotgrid.engine.perturb import Members, check_members, perturbed
from slotgrid.engine.prepare import sharing_left_out
from slotgrid.engine.setup import Setup
from slotgrid.errors import InputError
from slotgrid.profile import Scatter

if TYPE_CHECKING:
    import polars as pl

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Requests of all members that are simulated together; more are done in parts.
_REQUESTS_AT_ONCE = 1_000_000


def prediction_interval(samples: Floats, level: float = 0.95) -> tuple[float, float]:
    """Between which values a new repeat falls with probability ``level``, from samples of its distribution.

    Order statistics k and M + 1 - k with k = floor((M + 1)(1 - level) / 2): exact for any distribution.
    Raises InputError when M samples cannot give that level.
    """
    if not 0 < level < 1:
        raise InputError(f"level: {level!r}; allowed: above 0 and below 1")
    count = len(samples)
    rank = math.floor((count + 1) * (1 - level) / 2 + 1e-9)
    if rank < 1:
        needed = math.ceil(2 / (1 - level) - 1e-9) - 1
        raise InputError(f"ensemble: {count} members give no {level:.0%} interval; at least {needed} are needed")
    ordered = np.sort(samples)
    return float(ordered[rank - 1]), float(ordered[count - rank])


def summary(samples: npt.NDArray[Any], level: float) -> dict[str, float | None]:
    """Mean and prediction interval of samples [M] as JSON values; the interval is null where M is too small."""
    low: float | None
    high: float | None
    try:
        low, high = prediction_interval(samples.astype(float), level)
    except InputError:
        low = high = None
    return {"mean": float(samples.mean()), "low": low, "high": high}


@dataclass(frozen=True, eq=False)
class Ensemble:
    """M repeats of a plan (or of several, summed) on one configuration: float64[M] or int64[M] each.

    extrapolated: what they ask of the profile outside its measured ranges; notes: what else to know.
    reuse: per plan, session and turn of every return the share of members that reused something.
    """

    config: ServingConfig
    plan_ids: tuple[str, ...]
    seed: int
    clock: str
    decode_s: Floats
    prefill_s: Floats
    stall_session_s: Floats
    wall_s: Floats
    reused: Ints
    running_sum: Ints
    bucket_sum: Ints
    decode_steps: Ints
    returns: int
    reuse: pl.DataFrame
    extrapolated: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def members(self) -> int:
        """M."""
        return len(self.decode_s)

    @property
    def device_time_s(self) -> Floats:
        """Priced decode plus priced prefill of each member."""
        total: Floats = self.decode_s + self.prefill_s
        return total

    @property
    def utilization(self) -> Floats:
        """(Sum of running) / (sum of buckets) of each member, 1 - padding ratio; NaN without decode steps."""
        with np.errstate(invalid="ignore"):
            share: Floats = self.running_sum / self.bucket_sum
        return share

    @property
    def mean_s(self) -> float:
        """Mean device time."""
        return float(self.device_time_s.mean())

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Prediction interval of the device time of one more repeat (:func:`prediction_interval`)."""
        return prediction_interval(self.device_time_s, level)

    def ratio(self, baseline: Ensemble) -> Floats:
        """Device time over the baseline's, member by member, float64[M]. Raises InputError for other plans."""
        if baseline.members != self.members:
            raise InputError(f"ensemble: {self.members} members over {baseline.members}; equal numbers are needed")
        if baseline.plan_ids != self.plan_ids:
            raise InputError(
                f"ensemble: plans {', '.join(self.plan_ids)} over {', '.join(baseline.plan_ids)}; the same are needed"
            )
        ratio: Floats = self.device_time_s / baseline.device_time_s
        return ratio

    def __add__(self, other: Ensemble) -> Ensemble:
        """Two plans one after the other on the same configuration: seconds and counts add up member by member."""
        same = ("config", "members", "clock", "seed")
        if any(getattr(other, name) != getattr(self, name) for name in same):
            raise InputError("ensemble: only ensembles of one configuration, size, clock and seed can be added")
        import polars as pl

        return Ensemble(
            self.config,
            self.plan_ids + other.plan_ids,
            self.seed,
            self.clock,
            self.decode_s + other.decode_s,
            self.prefill_s + other.prefill_s,
            self.stall_session_s + other.stall_session_s,
            self.wall_s + other.wall_s,
            self.reused + other.reused,
            self.running_sum + other.running_sum,
            self.bucket_sum + other.bucket_sum,
            self.decode_steps + other.decode_steps,
            self.returns + other.returns,
            pl.concat([self.reuse, other.reuse]),
            tuple(dict.fromkeys(self.extrapolated + other.extrapolated)),
            tuple(dict.fromkeys(self.notes + other.notes)),
        )

    def to_dict(self, *, level: float = 0.95) -> dict[str, Any]:
        """Means and intervals as JSON values; an interval is null where the members are too few."""

        utilization = self.utilization
        return {
            "members": self.members,
            "seed": self.seed,
            "level": level,
            "config": self.config.to_dict(),
            "plan_ids": list(self.plan_ids),
            "clock": self.clock,
            "device_time_s": summary(self.device_time_s, level),
            "decode_s": summary(self.decode_s, level),
            "prefill_s": summary(self.prefill_s, level),
            "stall_session_s": summary(self.stall_session_s, level),
            "wall_s": summary(self.wall_s, level),
            "decode_steps": summary(self.decode_steps, level),
            "padding_ratio": None if np.isnan(utilization).any() else summary(1 - utilization, level),
            "returns": self.returns,
            "reused": summary(self.reused, level),
            "reuse_probability": [
                {"plan": plan, "session": session, "turn": turn, "probability": probability}
                for plan, session, turn, probability in self.reuse.iter_rows()
            ],
            "extrapolated": list(self.extrapolated),
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        spread = f"{self.device_time_s.std(ddof=1):.3f}"
        return (
            f"Ensemble({self.members} members, {self.config.label}: device time {self.mean_s:.3f} s "
            f"(standard deviation {spread}), reused {self.reused.mean():.2f} of {self.returns})"
        )


def draw_members(setup: Setup, *, members: int, seed: int, scatter: Scatter | None) -> Iterator[Members]:
    """Perturbed copies for one plan on one configuration, in parts that fit in memory; other plans and configurations
    draw independently. Raises InputError for too few members or a plan that fixes its arrivals."""
    check_members(members, seed)
    scatter = setup.profile.needed_scatter() if scatter is None else scatter
    if setup.flat.fixed_arrival_s.size:
        raise InputError(
            f"plan {setup.plan.plan_id}: an ensemble perturbs when requests are sent, the plan fixes it; "
            "choose arrivals closed_loop"
        )
    own = hashlib.sha256(f"{setup.config.label}:{setup.plan.content_sha256}".encode()).digest()
    rng = np.random.default_rng([seed, int.from_bytes(own[:8], "big")])
    size = max(1, _REQUESTS_AT_ONCE // setup.flat.requests)
    return (perturbed(setup, scatter, min(size, members - done), rng) for done in range(0, members, size))


def ensemble_notes(setup: Setup) -> tuple[str, ...]:
    """What to know about the repeats of a plan."""
    if setup.flat.pool is None:
        return sharing_left_out(setup.plan, setup.profile, setup.flat)
    return ("prefill times are not perturbed: the plan feels the blocks inside the slots",)


def simulate_ensemble(
    setup: Setup, *, members: int, seed: int = 0, scatter: Scatter | None = None, compiled: bool | None = None
) -> Ensemble:
    """Run the members and keep totals and the reuse of every return (see :func:`engine.simulate`)."""
    import polars as pl

    flat, config = setup.flat, setup.config
    clock, price = setup.profile.clock, setup.profile.price
    later = np.flatnonzero(flat.continues)
    outside = Outside(setup.profile, config)
    hits = np.zeros(flat.requests, np.int64)
    floats, ints, steps = [], [], []
    for drawn in draw_members(setup, members=members, seed=seed, scatter=scatter):
        count = len(drawn)
        every = np.arange(count)
        jobs = Jobs(
            plan=every,
            table=every,
            capacity=np.full(count, setup.capacity),
            max_running=np.full(count, config.max_running),
            padding=np.full(count, setup.pads_by_eviction),
        )
        tables = StepTables(
            drawn.step_s, np.tile(setup.price_s, (count, 1)), clock.decode.context_s, price.decode.context_s
        )
        totals = simulate_jobs(
            drawn.batch(),
            tables,
            jobs,
            release_at_once=setup.releases_at_once,
            per_request=True,
            compiled=compiled,
        )
        if np.any(totals.ints[:, I_FINISHED] != flat.requests):
            raise InputError(f"plan {setup.plan.plan_id}: not every request could be served with {config.label}")
        cached = totals.cached.reshape(count, flat.requests)
        hits += (cached > 0).sum(axis=0)
        used = np.flatnonzero(totals.steps.any(axis=0))
        outside.add(used, np.unique(flat.prompt_tokens - cached), setup.plan.longest_context_tokens)
        floats.append(totals.floats)
        ints.append(totals.ints)
        steps.append(totals.steps)
    all_floats, all_ints, all_steps = np.concatenate(floats), np.concatenate(ints), np.concatenate(steps)
    counts = np.arange(setup.most + 1)
    buckets = np.array([0] + [config.bucket_for(n) for n in counts[1:]])
    return Ensemble(
        config=config,
        plan_ids=(setup.plan.plan_id,),
        seed=seed,
        clock=setup.profile.clock_text or ("price" if clock is price else "profile"),
        decode_s=all_floats[:, F_DECODE_S].copy(),
        prefill_s=all_floats[:, F_PREFILL_S].copy(),
        stall_session_s=all_floats[:, F_STALL_SESSION_S].copy(),
        wall_s=all_floats[:, F_WALL_S].copy(),
        reused=all_ints[:, I_REUSED].copy(),
        running_sum=all_steps @ counts,
        bucket_sum=all_steps @ buckets,
        decode_steps=all_steps.sum(axis=1),
        returns=len(later),
        reuse=pl.DataFrame(
            {
                "plan": [setup.plan.plan_id] * len(later),
                "session": flat.session[later],
                "turn": flat.turn[later],
                "probability": hits[later] / members,
            }
        ),
        extrapolated=outside.texts(),
        notes=ensemble_notes(setup),
    )

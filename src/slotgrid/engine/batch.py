"""Many simulations at once: totals only, serial or in threads.

The two entry points are separate functions. The parallel one runs the serial kernel on slices of the jobs in
threads (the kernel holds no interpreter lock), so both give the same bytes and share one compiled function.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from slotgrid.engine.backend import kernel
from slotgrid.engine.inner_pool import new_pool
from slotgrid.engine.prepare import Bools, Floats, Ints, PlanBatch


@dataclass(frozen=True)
class Jobs:
    """J simulations: plan index, step table index, usable slots, running limit, padding rule (arrays of length J)."""

    plan: Ints
    table: Ints
    capacity: Ints
    max_running: Ints
    padding: Bools

    def __len__(self) -> int:
        return len(self.plan)

    def part(self, start: int, stop: int) -> Jobs:
        """The jobs from ``start`` to ``stop``."""
        return Jobs(
            self.plan[start:stop],
            self.table[start:stop],
            self.capacity[start:stop],
            self.max_running[start:stop],
            self.padding[start:stop],
        )


@dataclass(frozen=True)
class StepTables:
    """Seconds of a decode step by running count, one row per distinct set of costs.

    clock_s, price_s: float64[K, N + 1]. context_s, context_price_s: seconds per context token and step.
    """

    clock_s: Floats
    price_s: Floats
    context_s: float
    context_price_s: float


@dataclass(frozen=True)
class Totals:
    """Results per job; columns as named in ``engine.kernel``: floats float64[J, 4], ints int64[J, 15].

    With ``per_request``, else empty: cached int64[all requests], tokens each request reused, and steps
    int64[J, N + 1], decode steps by running count.
    """

    floats: Floats
    ints: Ints
    cached: Ints
    steps: Ints

    @property
    def device_time_s(self) -> Floats:
        """Priced decode plus prefill seconds, float64[J]."""
        k = kernel()
        total: Floats = self.floats[:, k.F_DECODE_S] + self.floats[:, k.F_PREFILL_S]
        return total


def simulate_jobs(
    plans: PlanBatch,
    tables: StepTables,
    jobs: Jobs,
    *,
    release_at_once: bool,
    per_request: bool = False,
    compiled: bool | None = None,
) -> Totals:
    """Simulate the jobs one after another on this thread. per_request: one job per plan, in order of the plans."""
    k = kernel(compiled=compiled)
    totals = _totals(k, len(jobs), plans, tables, per_request=per_request)
    _run(k, plans, tables, jobs, release_at_once, totals, 0, len(jobs))
    return totals


def simulate_jobs_parallel(
    plans: PlanBatch, tables: StepTables, jobs: Jobs, *, release_at_once: bool, threads: int
) -> Totals:
    """Simulate the jobs on ``threads`` threads; the same bytes as :func:`simulate_jobs`."""
    k = kernel()
    totals = _totals(k, len(jobs), plans, tables, per_request=False)
    # a few parts per thread, since jobs of one configuration take alike
    edges = np.linspace(0, len(jobs), 4 * threads + 1).astype(int)
    with ThreadPoolExecutor(threads) as pool:
        parts = [
            pool.submit(_run, k, plans, tables, jobs.part(a, b), release_at_once, totals, a, b)
            for a, b in itertools.pairwise(edges)
            if b > a
        ]
        for part in parts:
            part.result()
    return totals


def _totals(k: ModuleType, jobs: int, plans: PlanBatch, tables: StepTables, *, per_request: bool) -> Totals:
    return Totals(
        np.zeros((jobs, k.FLOAT_RESULTS)),
        np.zeros((jobs, k.INT_RESULTS), np.int64),
        np.zeros(int(plans.request_offset[-1]) if per_request else 0, np.int64),
        np.zeros((jobs if per_request else 0, tables.clock_s.shape[1]), np.int64),
    )


def _run(
    k: ModuleType,
    plans: PlanBatch,
    tables: StepTables,
    jobs: Jobs,
    release_at_once: bool,
    totals: Totals,
    a: int,
    b: int,
) -> None:
    pool = None
    if plans.pool is not None:
        # scratch of this call alone: parts run in threads
        requests = int(np.diff(plans.request_offset).max())
        pool = new_pool(int(jobs.capacity.max()), plans.pool.slot_blocks, plans.pool_keys, requests)
    k.simulate_jobs(
        *plans.arrays(),
        pool,
        tables.clock_s,
        tables.price_s,
        tables.context_s,
        tables.context_price_s,
        jobs.plan,
        jobs.table,
        jobs.capacity,
        jobs.max_running,
        jobs.padding,
        release_at_once,
        totals.floats[a:b],
        totals.ints[a:b],
        totals.cached,
        totals.steps,
    )

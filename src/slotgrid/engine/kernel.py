"""The event loop: one server, one plan, on flat arrays.

Numba compiles these functions; plain Python runs them with the same result, bit for bit. They see only
numbers: per running count the seconds of a decode step, per request the seconds of its prefill with and
without a reusable prefix, its decode steps and the wait after it. Buckets, chunks and blocks were turned into
those numbers before (``engine.prepare``), which is why configurations with equal numbers share a simulation.

How one simulation goes (rules: docs/fidelity.md):

1. requests that have arrived join the waiting queue;
2. if one waits and fewer than ``max_running`` run, exactly one is admitted: a slot is found (evicting the
   idle slot allocated longest ago), then the prefix is looked up, then its prefill runs alone;
3. otherwise, if something runs, decode steps follow until the next event: a finish, or an arrival that could
   be admitted. Time accumulates step by step, never ``t += k * dt``: the rounding is part of the result;
4. otherwise time jumps to the next arrival.

State, all integers but the times: ``free`` slots; ``alive[r]`` = the slot request r allocated has not been
evicted; a heap of idle slots keyed by allocation order; a heap of running requests keyed by the decode step
at which they finish; a heap of future arrivals; a queue of waiting requests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.engine._jit import jit
from slotgrid.engine.expand import expand_steps as expand_steps
from slotgrid.engine.heaps import (
    REQUEST_BITS,
    REQUEST_MASK,
    future_pop,
    future_push,
    heap_pop,
    heap_push,
    waiting_insert,
)
from slotgrid.engine.inner_pool import (
    OWNER,
    InnerPool,
    PoolPlan,
    pool_admit,
    pool_evict,
    pool_grow,
    pool_release,
    pool_start,
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
# array elements and counters: a NumPy scalar interpreted, a machine integer compiled
Scalar = Any

# An arrival this close after now has happened (seconds).
ARRIVAL_TOLERANCE_S = 1e-12

# Columns of the float results.
F_DECODE_S = 0
F_PREFILL_S = 1
F_STALL_SESSION_S = 2
F_WALL_S = 3
FLOAT_RESULTS = 4
# Columns of the integer results.
I_DECODE_STEPS = 0
I_REUSED = 1
I_CACHED_TOKENS = 2
I_EVICTED_BY_ADMISSION = 3
I_EVICTED_BY_PADDING = 4
I_RUNNING_SUM = 5
I_SEGMENTS = 6
I_EVICTIONS = 7
I_DELAYED_ARRIVALS = 8
I_CONTEXT_SUM = 9
I_FINISHED = 10
# Requests that reused less than their surviving slot held because its blocks were taken again, and those tokens;
# requests that reused another session's prefix; requests whose own prefix was hidden by a newer holder that is gone.
I_RECYCLED = 11
I_RECYCLED_TOKENS = 12
I_SHARED = 13
I_HIDDEN = 14
INT_RESULTS = 15

CAUSE_ADMISSION = 0
CAUSE_PADDING = 1


@jit
def simulate_one(
    # the plan: requests in plan order; a client's requests follow one another
    first_requests: Ints,  # int64[C]: each client's first request, sorted by start, then request
    first_arrival_s: Floats,  # float64[C]: matching start times
    decode_steps: Ints,  # int64[R]: output tokens - 1
    context_tokens: Ints,  # int64[R]: prompt tokens (for the context term)
    gap_s: Floats,  # float64[R]: seconds between this answer and the next request of the client
    has_next: Bools,  # bool[R]: the client sends another request afterwards
    continues: Bools,  # bool[R]: same session as the request before it
    hit_tokens: Ints,  # int64[R]: tokens reused if the previous turn's slot survives
    fixed_arrival_s: Floats,  # float64[R] or float64[0]: arrivals given from outside
    # costs
    prefill_miss_s: Floats,  # float64[R]: clock seconds of the prefill without reuse
    prefill_hit_s: Floats,  # float64[R]: with reuse
    price_miss_s: Floats,  # float64[R]: the same as prices
    price_hit_s: Floats,  # float64[R]
    step_s: Floats,  # float64[>=n+1]: clock seconds of a decode step by running count
    step_price_s: Floats,  # float64[>=n+1]
    context_s: Scalar,  # float: clock seconds per context token and step
    context_price_s: Scalar,  # float
    # configuration and rules
    capacity: Scalar,  # usable slots
    max_running: Scalar,
    padding: Scalar,  # bool: evict ahead of a padded step that finds no free slot
    release_at_once: Scalar,  # bool: a finished slot is evictable at once, else after the next admission
    # inner blocks (engine.inner_pool); with None for the last two, compiled code has no trace of them
    pooled: Scalar,  # bool: some sequence is longer than half a slot, or prefixes are shared
    pool_base: Scalar,  # where this plan begins in the arrays of pool_plan
    pool_plan: PoolPlan,  # None, like `pool`, when there is no pool
    pool: InnerPool | None,
    # scratch
    future_times: Floats,
    future_requests: Ints,
    waiting_keys: Ints,
    waiting_requests: Ints,
    running_heap: Ints,
    idle_heap: Ints,
    pending: Ints,
    alive: Bools,
    allocation: Ints,
    leaving_keys: Ints,
    steps_by_running: Ints,
    # results
    out_float: Floats,
    out_int: Ints,
    record: Scalar,  # bool: also fill the tables below
    cached_tokens: Ints,  # int64[R], or int64[0] when not wanted
    arrival_s: Floats,
    admit_s: Floats,
    first_token_s: Floats,
    finish_s: Floats,
    segment_start_s: Floats,
    segment_running: Ints,
    segment_steps: Ints,
    segment_context: Ints,
    eviction_s: Floats,
    eviction_request: Ints,
    eviction_cause: Ints,
) -> None:
    """Simulate one plan on one server; fills ``out_float``, ``out_int``, ``steps_by_running`` and, with
    ``record``, the per-request, per-segment and per-eviction arrays. Raises nothing: inputs are checked before."""
    requests = decode_steps.shape[0]
    clients = first_requests.shape[0]
    fixed = fixed_arrival_s.shape[0] > 0
    # With a slot for every request (and one for padding) nothing can be evicted: no bookkeeping then.
    tracked = pooled or capacity <= requests

    now = 0.0
    step = 0
    running = 0
    context = 0
    free = capacity
    idle_count = 0
    pending_count = 0
    allocations = 0
    next_first = 0
    future_count = 0
    head = 0
    tail = 0

    decode_steps_total = 0
    running_sum = 0
    context_sum = 0
    reused = 0
    cached_sum = 0
    by_admission = 0
    by_padding = 0
    segments = 0
    evictions = 0
    delayed = 0
    finished = 0
    recycled = 0
    recycled_tokens = 0
    shared = 0
    hidden = 0
    stall = 0.0
    prefill_price = 0.0

    # a client has one request at a time
    most_running = min(max_running, clients)
    for n in range(most_running + 1):
        steps_by_running[n] = 0

    if pool is not None:
        slot_blocks = pool_plan.slot_blocks
        block_tokens = pool_plan.block_tokens
        if pooled:
            pool_start(pool, capacity, slot_blocks)

    while True:
        # 1. what has arrived joins the queue
        while next_first < clients and first_arrival_s[next_first] <= now + ARRIVAL_TOLERANCE_S:
            r = first_requests[next_first]
            waiting_insert(waiting_keys, waiting_requests, head, tail, first_arrival_s[next_first], r)
            if record:
                arrival_s[r] = first_arrival_s[next_first]
            tail += 1
            next_first += 1
        while future_count > 0 and future_times[0] <= now + ARRIVAL_TOLERANCE_S:
            r = future_requests[0]
            waiting_insert(waiting_keys, waiting_requests, head, tail, future_times[0], r)
            if record:
                arrival_s[r] = future_times[0]
            future_pop(future_times, future_requests, future_count)
            future_count -= 1
            tail += 1

        # 2. admit the head of the queue, or find that it cannot be
        if head < tail and running < max_running:
            victim = -1
            if tracked:
                if pool is not None and pooled:
                    pool_grow(pool, step, capacity, slot_blocks, block_tokens)
                if free == 0 and idle_count > 0:
                    victim = heap_pop(idle_heap, idle_count) & REQUEST_MASK
                    idle_count -= 1
                    alive[victim] = False
                    if pool is not None and pooled:
                        pool_evict(pool, victim, slot_blocks)
                    free = 1
                    by_admission += 1
                    if record:
                        eviction_s[evictions] = now
                        eviction_request[evictions] = victim
                        eviction_cause[evictions] = CAUSE_ADMISSION
                    evictions += 1
                # the victim is chosen, or none was to be had: what finished before is evictable from now on
                for i in range(pending_count):
                    heap_push(idle_heap, idle_count, pending[i])
                    idle_count += 1
                pending_count = 0
            if free > 0:
                r = waiting_requests[head]
                head += 1
                if tracked:
                    free -= 1
                    alive[r] = True
                    allocation[r] = allocations
                    allocations += 1
                prefill = prefill_miss_s[r]
                price = price_miss_s[r]
                tokens = 0
                if continues[r] and (not tracked or alive[r - 1]) and hit_tokens[r] > 0:
                    tokens = hit_tokens[r]
                    prefill = prefill_hit_s[r]
                    price = price_hit_s[r]
                    if pool is None or not pooled:
                        reused += 1
                        cached_sum += tokens
                if pool is not None and pooled:
                    held = tokens
                    tokens = pool_admit(pool, pool_plan, r, pool_base, allocation[r], step, decode_steps[r], capacity)
                    own = pool.state[OWNER] == pool_plan.session_key[pool_base + r]
                    if tokens > 0 and not own:
                        shared += 1
                    if tokens < held:
                        if own or pool.state[OWNER] < 0:
                            recycled += 1
                            recycled_tokens += held - tokens
                        else:
                            hidden += 1
                    if tokens > 0 and continues[r]:
                        reused += 1
                    cached_sum += tokens
                    if tokens > 0:
                        prefill = pool_plan.prefill_cached_clock_s[context_tokens[r] - tokens]
                    else:
                        prefill = pool_plan.prefill_clock_s[context_tokens[r]]
                    price = pool_plan.prefill_price_s[context_tokens[r] - tokens]
                if cached_tokens.shape[0] > 0:
                    cached_tokens[r] = tokens
                if record:
                    admit_s[r] = now
                stall += prefill * running
                prefill_price += price
                now += prefill
                if record:
                    first_token_s[r] = now
                if decode_steps[r] > 0:
                    heap_push(running_heap, running, ((step + decode_steps[r]) << REQUEST_BITS) | r)
                    running += 1
                    context += context_tokens[r] + 1
                    continue
                # a single output token: finished by its prefill
                finishing = r
            else:
                finishing = -1
        else:
            finishing = -1

        if finishing < 0:
            if running > 0:
                # 3. decode until something changes
                if padding and tracked and free == 0 and running < max_running and idle_count > 0:
                    victim = heap_pop(idle_heap, idle_count) & REQUEST_MASK
                    idle_count -= 1
                    alive[victim] = False
                    if pool is not None and pooled:
                        # the step's own blocks are taken before its padding slot is found
                        pool_grow(pool, step + 1, capacity, slot_blocks, block_tokens)
                        pool_evict(pool, victim, slot_blocks)
                    free = 1
                    by_padding += 1
                    if record:
                        eviction_s[evictions] = now
                        eviction_request[evictions] = victim
                        eviction_cause[evictions] = CAUSE_PADDING
                    evictions += 1
                most = (running_heap[0] >> REQUEST_BITS) - step
                until = np.inf
                if running < max_running:
                    if head < tail:
                        # the head was refused; it is tried again after one step if a slot became evictable
                        if idle_count > 0 or free > 0:
                            most = 1
                    else:
                        if next_first < clients:
                            until = first_arrival_s[next_first]
                        if future_count > 0 and future_times[0] < until:
                            until = future_times[0]
                if record:
                    segment_start_s[segments] = now
                    segment_running[segments] = running
                    segment_context[segments] = context
                done = 0
                dt = step_s[running]
                if context_s == 0.0:
                    if until == np.inf:
                        while done < most:
                            now += dt
                            done += 1
                    else:
                        while done < most:
                            now += dt
                            done += 1
                            if until <= now + ARRIVAL_TOLERANCE_S:
                                break
                else:
                    tokens = context
                    while done < most:
                        now += dt + context_s * tokens
                        tokens += running
                        done += 1
                        if until <= now + ARRIVAL_TOLERANCE_S:
                            break
                if record:
                    segment_steps[segments] = done
                segments += 1
                step += done
                steps_by_running[running] += done
                decode_steps_total += done
                running_sum += running * done
                context_sum += done * context + running * (done * (done - 1) // 2)
                context += running * done
            elif head < tail:
                # the refused admission has just made finished slots evictable: decide again
                continue
            else:
                # 4. nothing to do until the next arrival
                until = np.inf
                if next_first < clients:
                    until = first_arrival_s[next_first]
                if future_count > 0 and future_times[0] < until:
                    until = future_times[0]
                if until == np.inf:
                    break
                now = until
                continue

        # requests that finish now
        leaving = 0
        if pool is not None and pooled:
            pool_grow(pool, step, capacity, slot_blocks, block_tokens)
        while True:
            if finishing >= 0:
                r = finishing
                finishing = -1
            elif running > 0 and (running_heap[0] >> REQUEST_BITS) == step:
                r = heap_pop(running_heap, running) & REQUEST_MASK
                running -= 1
                context -= context_tokens[r] + decode_steps[r] + 1
            else:
                break
            finished += 1
            if record:
                finish_s[r] = now
            if tracked:
                key = (allocation[r] << REQUEST_BITS) | r
                if pool is not None and pooled:
                    # blocks go back in the order of admission; `leaving_keys` is small and already nearly sorted
                    i = leaving
                    while i > 0 and leaving_keys[i - 1] > key:
                        leaving_keys[i] = leaving_keys[i - 1]
                        i -= 1
                    leaving_keys[i] = key
                    leaving += 1
                if release_at_once:
                    heap_push(idle_heap, idle_count, key)
                    idle_count += 1
                else:
                    pending[pending_count] = key
                    pending_count += 1
            if has_next[r]:
                if fixed:
                    arrival = fixed_arrival_s[r + 1]
                    if arrival < now:
                        arrival = now
                        delayed += 1
                else:
                    arrival = now + gap_s[r]
                future_push(future_times, future_requests, future_count, arrival, r + 1)
                future_count += 1
        if pool is not None and pooled:
            for i in range(leaving):
                pool_release(pool, leaving_keys[i] & REQUEST_MASK, capacity, slot_blocks)

    decode_price = 0.0
    for n in range(1, most_running + 1):
        decode_price += steps_by_running[n] * step_price_s[n]
    out_float[F_DECODE_S] = decode_price + context_price_s * context_sum
    out_float[F_PREFILL_S] = prefill_price
    out_float[F_STALL_SESSION_S] = stall
    out_float[F_WALL_S] = now
    out_int[I_DECODE_STEPS] = decode_steps_total
    out_int[I_REUSED] = reused
    out_int[I_CACHED_TOKENS] = cached_sum
    out_int[I_EVICTED_BY_ADMISSION] = by_admission
    out_int[I_EVICTED_BY_PADDING] = by_padding
    out_int[I_RUNNING_SUM] = running_sum
    out_int[I_SEGMENTS] = segments
    out_int[I_EVICTIONS] = evictions
    out_int[I_DELAYED_ARRIVALS] = delayed
    out_int[I_CONTEXT_SUM] = context_sum
    out_int[I_FINISHED] = finished
    out_int[I_RECYCLED] = recycled
    out_int[I_RECYCLED_TOKENS] = recycled_tokens
    out_int[I_SHARED] = shared
    out_int[I_HIDDEN] = hidden


@jit
def simulate_jobs(
    # plans laid end to end
    request_offset: Ints,  # int64[P+1]
    client_offset: Ints,  # int64[P+1]
    first_requests: Ints,
    first_arrival_s: Floats,
    decode_steps: Ints,
    context_tokens: Ints,
    gap_s: Floats,
    has_next: Bools,
    continues: Bools,
    hit_tokens: Ints,
    prefill_miss_s: Floats,
    prefill_hit_s: Floats,
    price_miss_s: Floats,
    price_hit_s: Floats,
    plan_pooled: Bools,  # bool[P]
    pool_plan: PoolPlan,  # arrays over all requests; None, like `pool`, when no plan is pooled
    pool: InnerPool | None,  # scratch, None when no plan is pooled
    # step tables, one row each: clock and price seconds by running count
    step_tables: Floats,  # float64[K, N+1]
    price_tables: Floats,  # float64[K, N+1]
    context_s: Scalar,
    context_price_s: Scalar,
    # jobs
    job_plan: Ints,  # int64[J]
    job_table: Ints,
    job_capacity: Ints,
    job_max_running: Ints,
    job_padding: Bools,  # bool[J]
    release_at_once: Scalar,
    out_float: Floats,  # float64[J, FLOAT_RESULTS]
    out_int: Ints,  # int64[J, INT_RESULTS]
    # with one job per plan, for ensembles; else empty
    out_cached: Ints,  # int64[all requests]: tokens each request reused
    out_steps: Ints,  # int64[J, N+1]: decode steps by running count
) -> None:
    """Simulate every job one after another, summaries only. The parallel entry point is
    ``engine.batch.simulate_jobs_parallel``, which runs this one on slices of the jobs in threads."""
    jobs = job_plan.shape[0]
    most_requests = 1
    most_clients = 1
    for j in range(jobs):
        p = job_plan[j]
        most_requests = max(most_requests, request_offset[p + 1] - request_offset[p])
        most_clients = max(most_clients, client_offset[p + 1] - client_offset[p])
    most_running = step_tables.shape[1]

    future_times = np.empty(most_clients + 1, np.float64)
    future_requests = np.empty(most_clients + 1, np.int64)
    waiting_keys = np.empty(most_requests + 1, np.int64)
    waiting_requests = np.empty(most_requests + 1, np.int64)
    running_heap = np.empty(most_requests + 1, np.int64)
    idle_heap = np.empty(most_requests + 1, np.int64)
    pending = np.empty(most_requests + 1, np.int64)
    alive = np.empty(most_requests + 1, np.bool_)
    allocation = np.empty(most_requests + 1, np.int64)
    leaving_keys = np.empty(most_clients + 1, np.int64)
    steps_by_running = np.empty(most_running, np.int64)
    no_float = np.empty(0, np.float64)
    no_int = np.empty(0, np.int64)

    for j in range(jobs):
        p = job_plan[j]
        a = request_offset[p]
        b = request_offset[p + 1]
        c = client_offset[p]
        d = client_offset[p + 1]
        k = job_table[j]
        # out_cached is empty when not wanted, and so is its slice
        cached = out_cached[a:b]
        simulate_one(
            first_requests[c:d],
            first_arrival_s[c:d],
            decode_steps[a:b],
            context_tokens[a:b],
            gap_s[a:b],
            has_next[a:b],
            continues[a:b],
            hit_tokens[a:b],
            no_float,
            prefill_miss_s[a:b],
            prefill_hit_s[a:b],
            price_miss_s[a:b],
            price_hit_s[a:b],
            step_tables[k],
            price_tables[k],
            context_s,
            context_price_s,
            job_capacity[j],
            job_max_running[j],
            job_padding[j],
            release_at_once,
            plan_pooled[p],
            a,
            pool_plan,
            pool,
            future_times,
            future_requests,
            waiting_keys,
            waiting_requests,
            running_heap,
            idle_heap,
            pending,
            alive,
            allocation,
            leaving_keys,
            steps_by_running,
            out_float[j],
            out_int[j],
            False,
            cached,
            no_float,
            no_float,
            no_float,
            no_float,
            no_float,
            no_int,
            no_int,
            no_int,
            no_float,
            no_int,
            no_int,
        )
        if out_steps.shape[0] > 0:
            for n in range(min(job_max_running[j], d - c) + 1):
                out_steps[j, n] = steps_by_running[n]

"""From plans and profiles to the numbers the kernel sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slotgrid.engine.inner_pool import PoolPlan
from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.profile import StackProfile

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class FlatPlan:
    """One plan as arrays over its requests in plan order (R requests, C clients).

    session, turn: int64[R]. prompt_tokens, output_tokens: int64[R]. gap_s: float64[R], tool wait plus turnaround
    before the client's next request. has_next: bool[R]. continues: bool[R], same session as the request before.
    hit_tokens: int64[R], tokens reused if the previous turn's slot survives.
    first_requests: int64[C], first_arrival_s: float64[C], both sorted by start time.
    fixed_arrival_s: float64[R], or float64[0] when clients are a closed loop.
    pool: what the inner blocks need, or None where the plan cannot feel them; pool_keys: distinct block hashes.
    """

    session: Ints
    turn: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    gap_s: Floats
    has_next: Bools
    continues: Bools
    hit_tokens: Ints
    first_requests: Ints
    first_arrival_s: Floats
    fixed_arrival_s: Floats
    prefill_miss_s: Floats
    prefill_hit_s: Floats
    price_miss_s: Floats
    price_hit_s: Floats
    pool: PoolPlan | None = None
    pool_keys: int = 0

    @property
    def requests(self) -> int:
        """How many requests the plan has."""
        return len(self.session)

    @property
    def clients(self) -> int:
        """How many clients the plan has."""
        return len(self.first_requests)


def flatten(
    plan: InputPlan,
    profile: StackProfile,
    turnaround_s: float,
    fixed_arrivals: bool,
    *,
    inner_blocks: bool = False,
) -> FlatPlan:
    """Arrays of one plan with the prefill costs of the profile.

    inner_blocks: simulate the blocks inside the slots if the stack has them and this plan can feel them.

    Raises InputError when a context exceeds the slot, or fixed arrivals are asked of a plan without any.
    """
    if plan.longest_context_tokens > profile.kv.slot_tokens:
        plan.check_context(profile.kv.slot_tokens, f"the slot length of profile {profile.id},")
    if fixed_arrivals and not plan.has_arrivals:
        raise InputError(f"plan {plan.plan_id}: fixed arrivals are asked for, but its turns have no arrival_s")

    counts = [len(session.turns) for _, session in plan.sessions()]
    rows = [turn for _, session in plan.sessions() for turn in session.turns]
    total = len(rows)
    new_tokens = np.fromiter((turn.new_tokens for turn in rows), np.int64, total)
    output_tokens = np.fromiter((turn.output_tokens for turn in rows), np.int64, total)
    wait_s = np.fromiter((turn.tool_wait_s for turn in rows), np.float64, total)

    sizes = np.array(counts, np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    session = np.repeat(np.arange(len(sizes)), sizes)
    turn = np.arange(total) - np.repeat(starts, sizes)
    continues = turn > 0
    grown = np.cumsum(new_tokens + output_tokens)
    before_session = np.repeat(np.concatenate(([0], grown))[starts], sizes)
    prompt_tokens = grown - output_tokens - before_session

    client_sizes = np.array([sum(len(s.turns) for s in client.sessions) for client in plan.clients], np.int64)
    client_ends = np.cumsum(client_sizes)
    has_next = np.ones(total, np.bool_)
    has_next[client_ends - 1] = False

    hit_tokens = np.zeros(total, np.int64)
    later = np.flatnonzero(continues)
    hit_tokens[later] = profile.kv.reusable_tokens(
        prompt_tokens[later], prompt_tokens[later - 1], output_tokens[later - 1]
    )

    if fixed_arrivals:
        fixed = np.fromiter((t.arrival_s or 0.0 for t in rows), np.float64, total)
        start_s = fixed[client_ends - client_sizes]
    else:
        fixed = np.empty(0, np.float64)
        start_s = np.array([client.start_s for client in plan.clients], np.float64)
    order = np.argsort(start_s, kind="stable")
    pool, pool_keys = None, 0
    if inner_blocks and profile.kv.inner_blocks and _feels_inner_blocks(plan, profile):
        pool, pool_keys = _pool_plan(plan, profile, prompt_tokens, sizes)

    return FlatPlan(
        session=session,
        turn=turn,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        gap_s=wait_s + turnaround_s,
        has_next=has_next,
        continues=continues,
        hit_tokens=hit_tokens,
        first_requests=(client_ends - client_sizes)[order],
        first_arrival_s=start_s[order],
        fixed_arrival_s=fixed,
        prefill_miss_s=profile.clock.prefill.seconds(prompt_tokens),
        prefill_hit_s=profile.clock.prefill.seconds(prompt_tokens - hit_tokens, cached=True),
        price_miss_s=profile.price.prefill.seconds(prompt_tokens),
        price_hit_s=profile.price.prefill.seconds(prompt_tokens - hit_tokens),
        pool=pool,
        pool_keys=pool_keys,
    )


def _feels_inner_blocks(plan: InputPlan, profile: StackProfile) -> bool:
    """A sequence takes more than half the blocks of a slot, or sessions share a prefix of at least one block."""
    block = profile.kv.block_tokens
    # the last generated token is never written
    longest = -(-(plan.longest_context_tokens - 1) // block)
    return 2 * longest > profile.kv.slot_tokens // block or any(
        session.prefix_tokens >= block for _, session in plan.sessions()
    )


def sharing_left_out(plan: InputPlan, profile: StackProfile, flat: FlatPlan) -> tuple[str, ...]:
    """Said where sessions share a prefix of at least one block and this simulation gives each its own."""
    if flat.pool is not None:
        return ()
    block = profile.kv.block_tokens
    names = Counter(s.prefix_id for _, s in plan.sessions() if s.prefix_id is not None and s.prefix_tokens >= block)
    count = sum(number for number in names.values() if number > 1)
    if not count:
        return ()
    return (
        f"shared prefixes were not simulated: {count} sessions begin with one, and each computes it itself here "
        "(shared only with real rules and a profile with inner_blocks)",
    )


def _pool_plan(plan: InputPlan, profile: StackProfile, prompt_tokens: Ints, sizes: Ints) -> tuple[PoolPlan, int]:
    block = profile.kv.block_tokens
    last = np.cumsum(sizes) - 1
    keys_per_session = prompt_tokens[last] // block + 1
    first_key = np.concatenate(([0], np.cumsum(keys_per_session)))
    keys = int(first_key[-1])
    shared_first: dict[str, int] = {}
    shared_most: dict[str, int] = {}
    sessions = [session for _, session in plan.sessions()]
    for session in sessions:
        if session.prefix_id is not None:
            shared_most[session.prefix_id] = max(shared_most.get(session.prefix_id, 0), session.prefix_tokens // block)
    for name, count in shared_most.items():
        shared_first[name] = keys
        keys += count
    shared_key = [0 if s.prefix_id is None else shared_first[s.prefix_id] for s in sessions]
    shared_blocks = [s.prefix_tokens // block for s in sessions]
    computed = np.arange(profile.kv.slot_tokens + 1)
    return PoolPlan(
        session_key=np.repeat(first_key[:-1], sizes),
        shared_key=np.repeat(np.array(shared_key, np.int64), sizes),
        shared_blocks=np.repeat(np.array(shared_blocks, np.int64), sizes),
        prompt_tokens=prompt_tokens,
        prefill_clock_s=profile.clock.prefill.seconds(computed),
        prefill_cached_clock_s=profile.clock.prefill.seconds(computed, cached=True),
        prefill_price_s=profile.price.prefill.seconds(computed),
        block_tokens=block,
        slot_blocks=profile.kv.slot_tokens // block,
    ), keys


@dataclass(frozen=True)
class PlanBatch:
    """Many plans laid end to end for the batch kernel (P plans): offsets int64[P+1], the rest concatenated."""

    request_offset: Ints
    client_offset: Ints
    first_requests: Ints
    first_arrival_s: Floats
    decode_steps: Ints
    context_tokens: Ints
    gap_s: Floats
    has_next: Bools
    continues: Bools
    hit_tokens: Ints
    prefill_miss_s: Floats
    prefill_hit_s: Floats
    price_miss_s: Floats
    price_hit_s: Floats
    pooled: Bools
    pool: PoolPlan | None
    pool_keys: int

    @property
    def plans(self) -> int:
        """How many plans are packed here."""
        return len(self.request_offset) - 1

    def arrays(self) -> tuple[object, ...]:
        """The leading arguments of ``kernel.simulate_jobs`` in order."""
        return (
            self.request_offset,
            self.client_offset,
            self.first_requests,
            self.first_arrival_s,
            self.decode_steps,
            self.context_tokens,
            self.gap_s,
            self.has_next,
            self.continues,
            self.hit_tokens,
            self.prefill_miss_s,
            self.prefill_hit_s,
            self.price_miss_s,
            self.price_hit_s,
            self.pooled,
            self.pool,
        )


def lay_out(plans: Sequence[FlatPlan]) -> PlanBatch:
    """Concatenate flat plans (closed-loop only; at least one)."""

    def ends(sizes: list[int]) -> Ints:
        return np.concatenate(([0], np.cumsum(np.array(sizes, np.int64))))

    return PlanBatch(
        request_offset=ends([plan.requests for plan in plans]),
        client_offset=ends([plan.clients for plan in plans]),
        first_requests=np.concatenate([plan.first_requests for plan in plans]),
        first_arrival_s=np.concatenate([plan.first_arrival_s for plan in plans]),
        decode_steps=np.concatenate([plan.output_tokens - 1 for plan in plans]),
        context_tokens=np.concatenate([plan.prompt_tokens for plan in plans]),
        gap_s=np.concatenate([plan.gap_s for plan in plans]),
        has_next=np.concatenate([plan.has_next for plan in plans]),
        continues=np.concatenate([plan.continues for plan in plans]),
        hit_tokens=np.concatenate([plan.hit_tokens for plan in plans]),
        prefill_miss_s=np.concatenate([plan.prefill_miss_s for plan in plans]),
        prefill_hit_s=np.concatenate([plan.prefill_hit_s for plan in plans]),
        price_miss_s=np.concatenate([plan.price_miss_s for plan in plans]),
        price_hit_s=np.concatenate([plan.price_hit_s for plan in plans]),
        pooled=np.array([plan.pool is not None for plan in plans]),
        pool=_lay_out_pools(plans),
        pool_keys=max(plan.pool_keys for plan in plans),
    )


def _lay_out_pools(plans: Sequence[FlatPlan]) -> PoolPlan | None:
    """Pool arrays over all requests, zero where a plan needs none; None when no plan needs any."""
    known = next((plan.pool for plan in plans if plan.pool is not None), None)
    if known is None:
        return None

    def joined(name: str) -> Ints:
        parts = [np.zeros(plan.requests, np.int64) if plan.pool is None else getattr(plan.pool, name) for plan in plans]
        return np.concatenate(parts)

    return known._replace(
        session_key=joined("session_key"),
        shared_key=joined("shared_key"),
        shared_blocks=joined("shared_blocks"),
        prompt_tokens=joined("prompt_tokens"),
    )

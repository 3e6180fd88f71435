"""The inner blocks of a slot server: where a long sequence loses reuse although its slot survives.

Each slot is divided into blocks (128 tokens on RBLN) that come from one queue for the whole server: taken from its
front, returned to its back when their request finishes, last block first. A block keeps the hash of what a prefill
left in it until it is taken again. Slots and blocks are lost independently of each other: a slot when it is evicted,
a hash when its block is taken again. As long as no sequence is longer than half a slot, a slot is always lost
first, and the event loop needs none of this.

A returning request asks, block by block, for the newest other block with the same hash; the slot of the first one
answers, with as many blocks as it still lists in the same order. Sessions that share a prefix share hashes, so only
the newest holder is asked, whoever it is. Source: the prefix-cache manager of vllm-rbln 0.11.1 and the block pool of
vLLM 0.22 (docs/fidelity.md).

Blocks of running requests are taken lazily: growth waits in a heap, by step and admission order, until something
reads or changes the pool.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from slotgrid.engine._jit import jit
from slotgrid.engine.heaps import REQUEST_BITS, REQUEST_MASK, heap_pop, heap_push

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Scalar = Any

# Entries of ``InnerPool.state``.
HEAD = 0  # front of the queue
FREE = 1  # blocks in the queue
GROWTH = 2  # entries of the growth heap
FREE_SLOTS = 3
OWNER = 4  # session key of the slot the last lookup was answered by, -1 for none
STATE = 5


class PoolPlan(NamedTuple):
    """What the pool needs of plans, per request, and prefill seconds by computed tokens (float64[slot tokens + 1]).

    session_key: first hash of the request's session; shared_key: first hash of the prefix it shares, whose leading
    ``shared_blocks`` blocks stand for its own.
    """

    session_key: Ints
    shared_key: Ints
    shared_blocks: Ints
    prompt_tokens: Ints
    prefill_clock_s: Floats
    prefill_cached_clock_s: Floats  # on top of a cached prefix
    prefill_price_s: Floats
    block_tokens: Scalar
    slot_blocks: Scalar


class InnerPool(NamedTuple):
    """Scratch of one simulation: blocks B, hashes K, slots S, requests R; int64 throughout, -1 for none."""

    state: Ints
    queue: Ints  # [B] ring of free blocks
    key_of: Ints  # [B] the hash a block carries
    older: Ints  # [B] the block that got the same hash before
    newer: Ints  # [B] ... and after
    slot_of: Ints  # [B] the slot a block was last listed in
    newest: Ints  # [K] the last block that got this hash
    owner: Ints  # [B] session key of the request that filled a block
    listed: Ints  # [S * blocks per slot]
    listed_count: Ints  # [S]
    free_slots: Ints  # [S] stack
    slot_of_request: Ints  # [R]
    last_step: Ints  # [R]
    admitted: Ints  # [R] request by allocation order
    growth: Ints  # [R] heap of (step, allocation)


def new_pool(slots: int, slot_blocks: int, keys: int, requests: int) -> InnerPool:
    """Scratch for simulations of up to ``slots`` slots, ``keys`` hashes and ``requests`` requests."""

    def ints(count: int) -> Ints:
        return np.empty(count, np.int64)

    blocks = slots * slot_blocks
    return InnerPool(
        state=ints(STATE),
        queue=ints(blocks),
        key_of=ints(blocks),
        older=ints(blocks),
        newer=ints(blocks),
        slot_of=ints(blocks),
        newest=ints(keys),
        owner=ints(blocks),
        listed=ints(blocks),
        listed_count=ints(slots),
        free_slots=ints(slots),
        slot_of_request=ints(requests),
        last_step=ints(requests),
        admitted=ints(requests),
        growth=ints(requests + 1),
    )


def inner_block_notes(recycled: int, recycled_tokens: int, shared: int, hidden: int) -> list[str]:
    """What the blocks inside the slots changed, in words."""
    notes = []
    if recycled:
        notes.append(
            f"inner blocks mattered: {recycled} requests reused {recycled_tokens} tokens less than their slot held, "
            "since its blocks had been taken again"
        )
    if shared:
        notes.append(f"shared prefixes mattered: {shared} requests reused the prefix of another session")
    if hidden:
        notes.append(
            f"shared prefixes mattered: {hidden} requests lost their own prefix to a newer holder that was gone"
        )
    return notes


@jit
def pool_start(pool: InnerPool, slots: Scalar, slot_blocks: Scalar) -> None:
    """Every slot and block free, no hash anywhere."""
    blocks = slots * slot_blocks
    for b in range(blocks):
        pool.queue[b] = b
        pool.key_of[b] = -1
        pool.slot_of[b] = -1
    pool.newest[:] = -1
    for s in range(slots):
        pool.free_slots[s] = slots - 1 - s
    pool.state[HEAD] = 0
    pool.state[FREE] = blocks
    pool.state[GROWTH] = 0
    pool.state[FREE_SLOTS] = slots
    pool.state[OWNER] = -1


@jit
def _take(pool: InnerPool, slot: Scalar, slots: Scalar, slot_blocks: Scalar) -> Scalar:
    """The block at the front of the queue, without its hash, listed in ``slot``."""
    blocks = slots * slot_blocks
    head = pool.state[HEAD]
    b = pool.queue[head]
    pool.state[HEAD] = head + 1 if head + 1 < blocks else 0
    pool.state[FREE] -= 1
    key = pool.key_of[b]
    if key >= 0:
        before, after = pool.older[b], pool.newer[b]
        if after >= 0:
            pool.older[after] = before
        else:
            pool.newest[key] = before
        if before >= 0:
            pool.newer[before] = after
        pool.key_of[b] = -1
    pool.slot_of[b] = slot
    pool.listed[slot * slot_blocks + pool.listed_count[slot]] = b
    pool.listed_count[slot] += 1
    return b


@jit
def pool_grow(pool: InnerPool, step: Scalar, slots: Scalar, slot_blocks: Scalar, block_tokens: Scalar) -> None:
    """Take the blocks running requests needed up to and including decode step ``step`` (counted from 1)."""
    while pool.state[GROWTH] > 0 and (pool.growth[0] >> REQUEST_BITS) <= step:
        key = heap_pop(pool.growth, pool.state[GROWTH])
        pool.state[GROWTH] -= 1
        r = pool.admitted[key & REQUEST_MASK]
        _take(pool, pool.slot_of_request[r], slots, slot_blocks)
        again = key + (block_tokens << REQUEST_BITS)
        if (again >> REQUEST_BITS) <= pool.last_step[r]:
            heap_push(pool.growth, pool.state[GROWTH], again)
            pool.state[GROWTH] += 1


@jit
def pool_evict(pool: InnerPool, request: Scalar, slot_blocks: Scalar) -> None:
    """Forget the slot of a finished request. What it lists is no longer found, even where a block has moved on."""
    slot = pool.slot_of_request[request]
    for i in range(pool.listed_count[slot]):
        pool.slot_of[pool.listed[slot * slot_blocks + i]] = -1
    pool.free_slots[pool.state[FREE_SLOTS]] = slot
    pool.state[FREE_SLOTS] += 1


@jit
def pool_admit(
    pool: InnerPool,
    plan: PoolPlan,
    request: Scalar,
    base: Scalar,
    allocation: Scalar,
    step: Scalar,
    decode_steps: Scalar,
    slots: Scalar,
) -> Scalar:
    """Give a slot and blocks to a request (``base`` + ``request`` in the plan arrays) after ``step`` decode steps;
    returns the tokens it reuses and leaves in OWNER the session that the newest first block belongs to."""
    slot_blocks = plan.slot_blocks
    block_tokens = plan.block_tokens
    prompt = plan.prompt_tokens[base + request]
    session_key = plan.session_key[base + request]
    shared_key = plan.shared_key[base + request]
    shared = plan.shared_blocks[base + request]

    pool.state[FREE_SLOTS] -= 1
    slot = pool.free_slots[pool.state[FREE_SLOTS]]
    pool.slot_of_request[request] = slot
    pool.listed_count[slot] = 0
    pool.admitted[allocation] = request
    pool.last_step[request] = step + decode_steps
    for _ in range(-(-prompt // block_tokens)):
        _take(pool, slot, slots, slot_blocks)

    pool.state[OWNER] = -1
    found = 0
    source = -1
    for i in range((prompt - 1) // block_tokens):
        key = shared_key + i if i < shared else session_key + i
        b = pool.newest[key]
        if b < 0:
            break
        if i == 0:
            source = pool.slot_of[b]
            pool.state[OWNER] = pool.owner[b]
            if source < 0:
                break
        if i >= pool.listed_count[source] or pool.listed[source * slot_blocks + i] != b:
            break
        found += 1

    for i in range(prompt // block_tokens):
        key = shared_key + i if i < shared else session_key + i
        b = pool.listed[slot * slot_blocks + i]
        before = pool.newest[key]
        pool.key_of[b] = key
        pool.owner[b] = session_key
        pool.older[b] = before
        pool.newer[b] = -1
        if before >= 0:
            pool.newer[before] = b
        pool.newest[key] = b

    # the step that computes token number n needs a new block where n - 1 fills the last one
    first = step + (-prompt) % block_tokens + 1
    if first <= step + decode_steps:
        heap_push(pool.growth, pool.state[GROWTH], (first << REQUEST_BITS) | allocation)
        pool.state[GROWTH] += 1
    return found * block_tokens


@jit
def pool_release(pool: InnerPool, request: Scalar, slots: Scalar, slot_blocks: Scalar) -> None:
    """Return the blocks of a finished request to the back of the queue, last block first; its slot stays."""
    blocks = slots * slot_blocks
    slot = pool.slot_of_request[request]
    for i in range(pool.listed_count[slot] - 1, -1, -1):
        at = pool.state[HEAD] + pool.state[FREE]
        pool.queue[at - blocks if at >= blocks else at] = pool.listed[slot * slot_blocks + i]
        pool.state[FREE] += 1

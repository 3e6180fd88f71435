"""Who runs next, and in which KV slot: the serving rules as a state machine without I/O, clocks or arrays.

:meth:`Scheduler.schedule` makes one decision: admit and prefill the head of the queue, or decode everything that
runs, or nothing. What it did to the slots comes back as ``changes``, in order. Slots are FIFO by allocation; a hit
refreshes nothing. Rules: docs/fidelity.md; the tests compare every decision with ``slotgrid.simulate``.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from slotgrid.errors import InputError

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class SlotRules:
    """release_at_once: a finished request's slot is evictable at once, else after the next admission has chosen.
    padding: a decode step below max_running needs a slot for its padding rows."""

    name: str
    release_at_once: bool
    padding: bool


RULES = {"real": SlotRules("real", True, True), "paper": SlotRules("paper", False, False)}


@dataclass(frozen=True)
class Allocated:
    request: str
    slot: int


@dataclass(frozen=True)
class Hit:
    request: str
    from_slot: int
    cached_tokens: int


@dataclass(frozen=True)
class Evicted:
    slot: int
    request: str  # whose prefix is lost
    cause: Literal["admission", "padding"]


@dataclass(frozen=True)
class Released:
    """The slot may be evicted from now on; what it holds can still be reused."""

    request: str
    slot: int


Change = Allocated | Hit | Evicted | Released


@dataclass(frozen=True)
class Prefill:
    """Run this request's prompt alone. ``source``: slot to copy the first ``cached_tokens`` from, or None."""

    request: str
    slot: int
    source: int | None
    cached_tokens: int
    running: int  # how many wait for it
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Decode:
    """One token for each of these (request, slot), in the order of their admission."""

    rows: tuple[tuple[str, int], ...]
    changes: tuple[Change, ...]


@dataclass
class _Slot:
    index: int
    request: str = ""
    # what was prefilled; generated tokens are not reusable
    tokens: Tokens = ()
    allocation: int = -1
    held: bool = False


@dataclass(order=True)
class _Waiting:
    order: tuple[Any, ...]
    request: str = field(compare=False)
    tokens: Tokens = field(compare=False)


class Scheduler:
    """The queue, the running set and the slots of one server.

    slots: KV slots, at least 1. max_running: most requests in one decode step. block_tokens: only whole blocks of a
    prompt are reused. Raises InputError for an unknown rule set, or when the padding slot leaves no usable one.
    """

    def __init__(self, *, slots: int, max_running: int, block_tokens: int, rules: str = "real") -> None:
        if rules not in RULES:
            raise InputError(f"rules: {rules!r}; allowed: {', '.join(RULES)}")
        self.rules = RULES[rules]
        self.max_running = max_running
        self.block_tokens = block_tokens
        kept_back = self.rules.padding and slots < max_running
        self.capacity = slots - 1 if kept_back else slots
        if self.capacity < 1:
            raise InputError(
                f"slots: {slots} with max_running {max_running} leaves no usable slot, one is kept back for padding; "
                "allowed: at least 2"
            )
        self._pads = self.rules.padding and not kept_back
        self._slots = [_Slot(i) for i in range(self.capacity)]
        self._free = list(range(self.capacity))
        self._idle: list[tuple[int, int]] = []  # heap of (allocation, slot)
        self._pending: list[int] = []  # finished, evictable after the next admission
        self._waiting: list[_Waiting] = []
        self._running: dict[str, int] = {}
        self._allocations = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def slots_in_use(self) -> int:
        return sum(slot.held for slot in self._slots)

    def add(self, request: str, tokens: Sequence[int], order: tuple[Any, ...]) -> None:
        """Queue a request with its prompt; the queue is sorted by ``order``."""
        insort(self._waiting, _Waiting(order, request, tuple(tokens)))

    def drop(self, request: str) -> bool:
        """Take a request out of the queue; False when it does not wait there."""
        for i, entry in enumerate(self._waiting):
            if entry.request == request:
                del self._waiting[i]
                return True
        return False

    def schedule(self) -> Prefill | Decode | None:
        """The next step, or None when there is nothing to do."""
        changes: list[Change] = []
        while self._waiting and len(self._running) < self.max_running:
            admitted = self._admit(changes)
            if admitted is not None:
                return admitted
            if self._running or not self._idle:
                break
            # the refused admission has just made finished slots evictable: decide again
        if not self._running:
            return None
        if self._pads and not self._free and len(self._running) < self.max_running and self._idle:
            self._evict("padding", changes)
        return Decode(tuple(self._running.items()), tuple(changes))

    def finish(self, request: str) -> tuple[Change, ...]:
        """A running request is done (or was given up); its slot stays until it is evicted."""
        slot = self._slots[self._running.pop(request)]
        slot.held = False
        if self.rules.release_at_once:
            return (self._release(slot),)
        self._pending.append(slot.index)
        return ()

    def _admit(self, changes: list[Change]) -> Prefill | None:
        if not self._free and self._idle:
            self._evict("admission", changes)
        # the victim is chosen, or none was to be had: what finished before is evictable from now on
        changes.extend(self._release(self._slots[index]) for index in self._pending)
        self._pending.clear()
        if not self._free:
            return None
        entry = self._waiting.pop(0)
        # looked up after the eviction: a returning request can lose the prefix it came for
        source, cached = self._lookup(entry.tokens)
        slot = self._slots[self._free.pop(0)]
        slot.request, slot.tokens, slot.held = entry.request, entry.tokens, True
        slot.allocation = self._allocations
        self._allocations += 1
        changes.append(Allocated(entry.request, slot.index))
        if source is not None:
            changes.append(Hit(entry.request, source, cached))
        running = len(self._running)
        self._running[entry.request] = slot.index
        return Prefill(entry.request, slot.index, source, cached, running, tuple(changes))

    def _lookup(self, tokens: Tokens) -> tuple[int | None, int]:
        """The newest slot that begins with the prompt's first block, and how many tokens of it can be reused."""
        block = self.block_tokens
        if len(tokens) <= block:
            return None, 0
        first = tokens[:block]
        holders = [slot for slot in self._slots if slot.allocation >= 0 and slot.tokens[:block] == first]
        if not holders:
            return None, 0
        newest = max(holders, key=lambda slot: slot.allocation)
        limit = min(len(newest.tokens), len(tokens) - 1) // block * block
        cached = block
        while cached < limit and newest.tokens[cached : cached + block] == tokens[cached : cached + block]:
            cached += block
        return newest.index, cached

    def _release(self, slot: _Slot) -> Released:
        heapq.heappush(self._idle, (slot.allocation, slot.index))
        return Released(slot.request, slot.index)

    def _evict(self, cause: Literal["admission", "padding"], changes: list[Change]) -> None:
        slot = self._slots[heapq.heappop(self._idle)[1]]
        changes.append(Evicted(slot.index, slot.request, cause))
        slot.request, slot.tokens, slot.allocation = "", (), -1
        self._free.append(slot.index)

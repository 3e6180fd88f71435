"""Survival of prefixes against the number of slots, by replaying the run's own order of events.

The order of admissions, releases and decode steps is held fixed and only the slots change: eviction takes the slot
admitted longest ago among the idle ones, an admission evicts before it looks up, and a decode step below the running
limit evicts one slot for padding when none is free (below the limit in slots, one is kept back instead). With fewer
slots than the running limit the limit is taken to come down with them, as where both are the batch size. With the
run's own number of slots this must give the reuse that was observed; how well it does is part of the result.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slotgrid.config import ServingConfig
from slotgrid.diagnose.order import ADMIT, FREE, STEP, EventOrder
from slotgrid.diagnose.reuse import Returns
from slotgrid.run import Run

# a point of the curve costs a pass over the events
_POINTS = 24
_POINTS_LARGE = 8
_LARGE_EVENTS = 300_000
_STRETCH = 65_536


@dataclass(frozen=True)
class Survival:
    """slots and kept: the curve (kept returns by number of slots, ascending). returns: how many there are.
    agreement: share of returns whose replayed fate at the run's own slots is the observed one; None when the run's
    reuse is not observable."""

    slots: tuple[int, ...]
    kept: tuple[int, ...]
    returns: int
    own_slots: int
    agreement: float | None

    def kept_at(self, slots: int) -> int | None:
        """Reuses left with so many slots; None where it was not replayed."""
        return dict(zip(self.slots, self.kept, strict=True)).get(slots)

    @property
    def all_kept_at(self) -> int | None:
        """Fewest slots of the curve that keep as many returns as any number does."""
        best = max(self.kept, default=0)
        return next((s for s, kept in zip(self.slots, self.kept, strict=True) if kept == best), None)


def survival_curve(
    run: Run, order: EventOrder | None, returns: Returns | None, config: ServingConfig | None
) -> Survival | None:
    """The curve from the fewest slots that hold what ran to those that lose nothing; None when not observed."""
    if order is None or returns is None or config is None or not (order.admitted >= 0).any():
        return None
    sessions = run.requests["session"].fill_null(-1).to_numpy()
    steps = order.kind == STEP
    most = int(order.request[steps].max(initial=1))
    # what ran together must fit
    floor = most if config.slots >= config.max_running else config.slots
    # with the target, the return and all admissions in between in slots, nothing can be lost
    enough = int(returns.between.max(initial=0)) + 2
    grid = _grid(floor, config.slots, max(enough, config.slots), len(order.kind))
    wanted = returns.row
    curve: list[tuple[int, int]] = []
    own: npt.NDArray[np.bool_] | None = None
    for slots in grid:
        limit = config.max_running if config.slots < config.max_running else min(config.max_running, slots)
        kept = replay(order.kind, order.request, sessions, slots, limit)
        if kept is None:
            continue
        curve.append((slots, int(kept[wanted].sum())))
        if slots == config.slots:
            own = kept[wanted]
    agreement = None
    if own is not None and returns.observable and len(wanted):
        agreement = float((own == (returns.cached_tokens > 0)).mean())
    return Survival(tuple(s for s, _ in curve), tuple(k for _, k in curve), len(wanted), config.slots, agreement)


def _grid(low: int, own: int, high: int, events: int) -> list[int]:
    points = _POINTS_LARGE if events > _LARGE_EVENTS else _POINTS
    if high - low < points:
        values = set(range(low, high + 1))
    else:
        near = range(own, min(own + points // 2, high) + 1)
        spread = np.linspace(low, high, points // 2).round().astype(int).tolist()
        values = {low, high, *near, *spread}
    return sorted(values | {own} if own >= low else values)


def replay(
    kinds: npt.NDArray[np.int8],
    requests: npt.NDArray[np.int32],
    sessions: npt.NDArray[np.integer],
    slots: int,
    max_running: int,
) -> npt.NDArray[np.bool_] | None:
    """Whether each request found a slot of its session: bool array, one entry a request row.

    kinds, requests: the events in order, the latter a request row, or the running count of a step. sessions: session
    by request row, -1 not known. None when what ran does not fit ``slots``.
    """
    found = np.zeros(len(sessions), bool)
    reserved = slots < max_running
    free = slots - 1 if reserved else slots
    # admitted entries, oldest first; value: still running
    entries: OrderedDict[int, bool] = OrderedDict()
    session_of: dict[int, int] = {}
    holders: dict[int, int] = {}
    stranger = -1

    def evict() -> bool:
        for entry, running in entries.items():
            if not running:
                del entries[entry]
                held = session_of.pop(entry, -1)
                if held >= 0:
                    holders[held] -= 1
                    if not holders[held]:
                        del holders[held]
                return True
        return False

    for kind, request, session in _events(kinds, requests, sessions):
        if kind == STEP:
            if free == 0 and not reserved and 0 < request < max_running and evict():
                free += 1
        elif kind == FREE:
            if request in entries:
                entries[request] = False
        elif kind == ADMIT:
            if free == 0:
                if not evict():
                    return None
                free += 1
            free -= 1
            if request < 0:
                # a request without a row: it takes a slot, and when it ends is not known to the rows
                stranger -= 1
                entries[stranger] = False
                continue
            if session >= 0:
                session_of[request] = session
                found[request] = holders.get(session, 0) > 0
                holders[session] = holders.get(session, 0) + 1
            entries[request] = True
    return found


def _events(
    kinds: npt.NDArray[np.int8], requests: npt.NDArray[np.int32], sessions: npt.NDArray[np.integer]
) -> Iterator[tuple[int, int, int]]:
    """The events one by one with the session of an admission (else -1), a stretch at a time: as Python objects all of
    them would need much memory."""
    for begin in range(0, len(kinds), _STRETCH):
        kind, request = kinds[begin : begin + _STRETCH], requests[begin : begin + _STRETCH]
        admitted = (kind == ADMIT) & (request >= 0)
        session = np.full(len(kind), -1, np.int64)
        session[admitted] = sessions[request[admitted]]
        yield from zip(kind.tolist(), request.tolist(), session.tolist(), strict=True)

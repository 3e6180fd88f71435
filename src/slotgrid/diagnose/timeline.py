"""A run on a time axis: prefills, decode steps, the life of every slot.

A simulated run has a clock. A measured log has an order only; its timeline is rebuilt: durations from the profile, and
no admission before its client sent the request. Without a profile the axis counts decode steps and admissions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slotgrid.diagnose.order import ADMIT, EVICT, FREE, STEP, EventOrder
from slotgrid.diagnose.result import Diagnosis

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CLOCK = "clock of the simulation"
REBUILT = "rebuilt: order from the log, durations from the profile, idle time from when clients sent"
ORDER_ONLY = "order of events only: one unit a decode step or admission"


@dataclass(frozen=True)
class Prefill:
    start_s: float
    end_s: float
    request: int
    waiting: int


@dataclass(frozen=True)
class Decode:
    """Equal decode steps, one after another."""

    start_s: float
    end_s: float
    running: int
    bucket: int
    steps: int


@dataclass(frozen=True)
class Held:
    """A slot held by one request: running until ``released_s``, then idle with its prefix until ``end_s``."""

    slot: int
    request: int
    start_s: float
    released_s: float
    end_s: float


@dataclass(frozen=True)
class Evicted:
    """cost_reuse: a return came back for this prefix and had to compute it again."""

    time_s: float
    slot: int
    request: int
    cause: int
    cost_reuse: bool


@dataclass(frozen=True)
class Timeline:
    """basis: what the times are. in_order: they are units, not seconds. requests: how many of the run are on it."""

    basis: str
    in_order: bool
    prefills: tuple[Prefill, ...]
    decodes: tuple[Decode, ...]
    held: tuple[Held, ...]
    evicted: tuple[Evicted, ...]
    end_s: float
    requests: int


def build_timeline(d: Diagnosis, most_requests: int | None = None) -> Timeline | None:
    """The timeline of a diagnosed run, of its first ``most_requests`` admissions when given; None when the order of
    events was not observed."""
    order = d.order
    if order is None:
        return None
    count = len(order.kind)
    if most_requests is not None:
        admissions = np.flatnonzero(order.kind == ADMIT)
        if len(admissions) > most_requests:
            count = int(admissions[most_requests])
    starts, ends, basis = _times(d, order)
    prefills, decodes = _work(d, order, starts, ends, count)
    held, evicted = _slots(d, order, starts, count)
    admitted = int((order.kind[:count] == ADMIT).sum())
    end_s = float(ends[:count].max(initial=0.0))
    return Timeline(basis, basis == ORDER_ONLY, prefills, decodes, held, evicted, end_s, admitted)


def _times(d: Diagnosis, order: EventOrder) -> tuple[Floats, Floats, str]:
    """Start and end of every event (equal for releases and evictions)."""
    steps, admissions = order.kind == STEP, order.kind == ADMIT
    length = np.zeros(len(order.kind))
    if order.time_s is not None:
        assert d.run.steps is not None
        table = d.run.steps.sort("start_s", maintain_order=True)
        length[steps] = table.filter(table["kind"] == "decode")["duration_s"].to_numpy()
        length[admissions] = table.filter(table["kind"] == "prefill")["duration_s"].to_numpy()
        return order.time_s, order.time_s + length, CLOCK
    computed = _computed(d, order)
    seconds = d.bucket_s
    if d.profile is None or seconds is None or d.histogram is None or (computed < 0).any():
        length[steps], length[admissions] = order.repeats[steps], 1.0
        ends = np.cumsum(length)
        return ends - length, ends, ORDER_ONLY
    step = {key: seconds[key] / steps for key, steps in d.histogram.items()}
    keys = zip(order.request[steps].tolist(), order.value[steps].tolist(), strict=True)
    length[steps] = np.array([step[key] for key in keys]) * order.repeats[steps]
    length[admissions] = d.profile.price.prefill.seconds(computed)
    sent = d.run.requests["arrival_s"].to_numpy()
    starts, now = np.zeros(len(length)), 0.0
    for i, (is_admission, request, span) in enumerate(
        zip(admissions.tolist(), order.request.tolist(), length.tolist(), strict=True)
    ):
        if is_admission and request >= 0 and sent[request] > now:
            now = float(sent[request])
        starts[i] = now
        now += span
    return starts, starts + length, REBUILT


def _computed(d: Diagnosis, order: EventOrder) -> Ints:
    """Computed tokens of each admission, -1 not known."""
    computed = d.run.requests["computed_tokens"].fill_null(-1).to_numpy()
    request = order.request[order.kind == ADMIT]
    return np.where(request >= 0, computed[request], -1)


def _work(
    d: Diagnosis, order: EventOrder, starts: Floats, ends: Floats, count: int
) -> tuple[tuple[Prefill, ...], tuple[Decode, ...]]:
    prefills: list[Prefill] = []
    decodes: list[Decode] = []
    in_flight = np.cumsum(np.select([order.kind == ADMIT, order.kind == FREE], [1, -1], 0))
    for i in range(count):
        if order.kind[i] == ADMIT:
            prefills.append(Prefill(starts[i], ends[i], int(order.request[i]), max(int(in_flight[i]) - 1, 0)))
        elif order.kind[i] == STEP:
            n, bucket, steps = int(order.request[i]), int(order.value[i]), int(order.repeats[i])
            last = decodes[-1] if decodes else None
            joined = last is not None and (last.running, last.bucket) == (n, bucket)
            if last is not None and joined and abs(last.end_s - starts[i]) < 1e-9:
                decodes[-1] = Decode(last.start_s, ends[i], n, bucket, last.steps + steps)
            else:
                decodes.append(Decode(starts[i], ends[i], n, bucket, steps))
    return tuple(prefills), tuple(decodes)


def _slots(d: Diagnosis, order: EventOrder, starts: Floats, count: int) -> tuple[tuple[Held, ...], tuple[Evicted, ...]]:
    """Who held which slot when. A simulated run names no slots; they are numbered as they are first taken."""
    missed = set()
    if d.returns is not None:
        missed = set(d.returns.previous[(d.returns.lost_tokens > 0) & (d.returns.cause >= 0)].tolist())
    end_s = float(starts[count - 1]) if count else 0.0
    slot_of: dict[int, int] = {}
    since: dict[int, float] = {}
    released: dict[int, float] = {}
    spare: list[int] = []
    taken = 0
    held: list[Held] = []
    evicted: list[Evicted] = []

    def close(request: int, at: float) -> None:
        start = since.pop(request)
        held.append(Held(slot_of.pop(request), request, start, released.pop(request, at), at))

    for i in range(count):
        kind, request, at = int(order.kind[i]), int(order.request[i]), float(starts[i])
        if kind == ADMIT and request >= 0:
            slot = int(order.value[i])
            if slot < 0:
                slot = spare.pop() if spare else taken
                taken = max(taken, slot + 1)
            slot_of[request], since[request] = slot, at
        elif kind == FREE and request in since:
            released[request] = at
        elif kind == EVICT:
            slot = slot_of.get(request, int(order.value[i]))
            if request in since:
                close(request, at)
                spare.append(slot)
            evicted.append(Evicted(at, slot, request, int(order.cause[i]), request in missed))
    for request in list(since):
        close(request, max(end_s, since[request]))
    return tuple(sorted(held, key=lambda h: (h.slot, h.start_s))), tuple(evicted)

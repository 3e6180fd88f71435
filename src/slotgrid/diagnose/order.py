"""The order of events in a run: admissions, releases, evictions, decode steps. Measured logs state it; for a
simulated run it follows from its times. What the diagnosis says about slots needs the order only, never a clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slotgrid.run import Run

Ints = npt.NDArray[np.int64]

FREE, EVICT, ADMIT, STEP = range(4)


@dataclass(frozen=True)
class EventOrder:
    """Events by position. Arrays of equal length: kind, request (row of run.requests, -1 unknown; running count for a
    step), value (bucket for a step, slot for the others or -1), repeats (steps), cause (0 admission, 1 padding,
    2 unknown; evictions only).

    admitted, released: position by request row, -1 where not seen.
    """

    kind: Ints
    request: Ints
    value: Ints
    repeats: Ints
    cause: Ints
    admitted: Ints
    released: Ints

    @property
    def evictions(self) -> Ints:
        """Positions of the evictions."""
        return np.flatnonzero(self.kind == EVICT)

    def steps_before(self) -> Ints:
        """Decode steps before each position (length events + 1)."""
        counts = np.where(self.kind == STEP, self.repeats, 0)
        return np.concatenate([[0], np.cumsum(counts)])


def event_order(run: Run) -> EventOrder | None:
    """The order of a run's events, or None when it was not observed."""
    if run.steps is None or run.evictions is None:
        return None
    measured = "order" in run.steps.columns
    requests = run.requests
    rows = np.arange(requests.height)
    decode = run.steps.filter(run.steps["kind"] == "decode")
    running, bucket = decode["running"].to_numpy(), decode["bucket"].to_numpy()
    if measured:
        admit = requests["admit_order"].fill_null(-1).to_numpy().astype(float)
        free = requests["finish_order"].fill_null(-1).to_numpy().astype(float)
        slot = requests["slot"].fill_null(-1).to_numpy()
        step_at, repeats = decode["order"].to_numpy().astype(float), decode["repeats"].to_numpy()
        evict_at = run.evictions["order"].to_numpy().astype(float)
        evict_slot = run.evictions["slot"].to_numpy()
        strangers = _unjoined(run)
    else:
        admit, free = requests["admit_s"].to_numpy(), requests["finish_s"].to_numpy()
        slot = np.full(len(rows), -1)
        step_at, repeats = decode["start_s"].to_numpy(), np.ones(decode.height, np.int64)
        evict_at = run.evictions["time_s"].to_numpy()
        evict_slot = np.full(run.evictions.height, -1)
        strangers = np.empty(0)
    victim = _victims(run, measured)
    codes = {"admission": 0, "padding": 1}
    cause = np.array([codes.get(name, 2) for name in run.evictions["cause"]], np.int64)

    seen, ended = admit >= 0, free >= 0
    at = np.concatenate([free[ended], evict_at, admit[seen], strangers, step_at])
    parts = [int(ended.sum()), len(evict_at), int(seen.sum()) + len(strangers), len(step_at)]
    kind = np.repeat([FREE, EVICT, ADMIT, STEP], parts)
    unknown = np.full(len(strangers), -1)
    request = np.concatenate([rows[ended], victim, rows[seen], unknown, running])
    value = np.concatenate([slot[ended], evict_slot, slot[seen], unknown, bucket])
    count = np.concatenate([np.ones(sum(parts[:3]), np.int64), repeats])
    causes = np.concatenate([np.full(parts[0], -1), cause, np.full(parts[2] + parts[3], -1)])
    # equal times: a request ends, then something is evicted, then the next is admitted, then a step runs
    order = np.lexsort((kind, at))
    kind, request = kind[order].astype(np.int64), request[order].astype(np.int64)
    admitted, released = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
    for code, target in ((ADMIT, admitted), (FREE, released)):
        here = np.flatnonzero((kind == code) & (request >= 0))
        target[request[here]] = here
    return EventOrder(
        kind=kind,
        request=request,
        value=value[order].astype(np.int64),
        repeats=count[order].astype(np.int64),
        cause=causes[order].astype(np.int64),
        admitted=admitted,
        released=released,
    )


def _unjoined(run: Run) -> npt.NDArray[np.float64]:
    """Positions of admissions in the log that no request row belongs to; they take slots all the same."""
    assert run.steps is not None
    prefill = run.steps.filter(run.steps["kind"] == "prefill")["order"]
    joined = run.requests["admit_order"].drop_nulls()
    return prefill.filter(~prefill.is_in(joined.implode())).to_numpy().astype(float)


def _victims(run: Run, measured: bool) -> Ints:
    """Request row of each evicted slot, -1 when not known.

    A session's slots are evicted in the order of its turns: each turn takes a new slot, is admitted after the one
    before and is idle before the next begins, and eviction takes the oldest idle slot. So the i-th eviction of a
    session is its turn i, where the table does not say it.
    """
    assert run.evictions is not None
    sessions, turns = run.requests["session"].to_list(), run.requests["turn"].to_list()
    row_of = {(s, t): i for i, (s, t) in enumerate(zip(sessions, turns, strict=True)) if s is not None}
    if measured:
        keys = zip(run.evictions["session"].to_list(), run.evictions["turn"].to_list(), strict=True)
        return np.array([row_of.get(key, -1) for key in keys], np.int64)
    evicted = run.evictions["session"].to_list()
    seen: dict[int, int] = {}
    victims = np.full(len(evicted), -1, np.int64)
    for i in np.argsort(run.evictions["time_s"].to_numpy(), kind="stable").tolist():
        turn = seen.get(evicted[i], 0)
        seen[evicted[i]] = turn + 1
        victims[i] = row_of.get((evicted[i], turn), -1)
    return victims

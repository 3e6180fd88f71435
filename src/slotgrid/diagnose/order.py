"""The order of events in a run: admissions, releases, evictions, decode steps. Measured logs state it; for a
simulated run it follows from its times. What the diagnosis says about slots needs the order only, never a clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.run import Run
from slotgrid.run.memory import give_back

Ints = npt.NDArray[np.int64]

# a long log has millions of events
Narrow = npt.NDArray[np.int32]

FREE, EVICT, ADMIT, STEP = range(4)


@dataclass(frozen=True)
class EventOrder:
    """Events by position. Arrays of equal length: kind, request (row of run.requests, -1 unknown; running count for a
    step), value (bucket for a step, slot for the others or -1), repeats (steps), cause (0 admission, 1 padding,
    2 unknown; evictions only).

    admitted, released: position by request row, -1 where not seen. time_s: when each event happened; None where the
    run has an order but no clock.
    """

    kind: npt.NDArray[np.int8]
    request: Narrow
    value: npt.NDArray[np.signedinteger[Any]]
    repeats: npt.NDArray[np.signedinteger[Any]]
    cause: npt.NDArray[np.int8]
    admitted: Narrow
    released: Narrow
    time_s: npt.NDArray[np.float64] | None

    @property
    def evictions(self) -> Ints:
        """Positions of the evictions."""
        return np.flatnonzero(self.kind == EVICT)

    def steps_before(self) -> Ints:
        """Decode steps before each position (length events + 1)."""
        counts = np.where(self.kind == STEP, self.repeats, np.int16(0))
        before = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=before[1:])
        return before


def event_order(run: Run) -> EventOrder | None:
    """The order of a run's events, or None when it was not observed."""
    if run.steps is None or run.evictions is None:
        return None
    measured = "order" in run.steps.columns
    requests = run.requests
    rows = np.arange(requests.height, dtype=np.int32)
    wanted = ("running", "bucket", *(("order", "repeats") if measured else ("start_s",)))
    decode = run.steps.select("kind", *wanted).filter(run.steps["kind"] == "decode")
    admit: npt.NDArray[Any]
    free: npt.NDArray[Any]
    running, bucket = decode["running"].to_numpy(), decode["bucket"].to_numpy()
    if measured:
        admit = requests["admit_order"].fill_null(-1).to_numpy()
        free = requests["finish_order"].fill_null(-1).to_numpy()
        slot = requests["slot"].fill_null(-1).to_numpy()
        step_at, repeats = decode["order"].to_numpy(), decode["repeats"].to_numpy()
        evict_at = run.evictions["order"].to_numpy()
        evict_slot = run.evictions["slot"].to_numpy()
        strangers = _unjoined(run)
    else:
        admit, free = requests["admit_s"].to_numpy(), requests["finish_s"].to_numpy()
        slot = np.full(len(rows), -1)
        step_at, repeats = decode["start_s"].to_numpy(), np.ones(decode.height, np.int64)
        evict_at = run.evictions["time_s"].to_numpy()
        evict_slot = np.full(run.evictions.height, -1)
        strangers = np.empty(0, np.int32)
    del decode
    victim = _victims(run, measured)
    causes = run.evictions["cause"]
    by_admission, by_padding = ((causes == name).fill_null(False).to_numpy() for name in ("admission", "padding"))
    cause = np.where(by_admission, np.int8(0), np.where(by_padding, np.int8(1), np.int8(2)))
    del by_admission, by_padding

    seen, ended = admit >= 0, free >= 0
    parts = [int(ended.sum()), len(evict_at), int(seen.sum()) + len(strangers), len(step_at)]
    at = np.concatenate([free[ended], evict_at, admit[seen], strangers, step_at])
    kind = np.repeat(np.array([FREE, EVICT, ADMIT, STEP], np.int8), parts)
    # equal times: a request ends, then something is evicted, then the next is admitted, then a step runs
    times = None
    if measured:
        place = _ranks(at)
    else:
        order = np.lexsort((kind, at))
        times = at[order]
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        del order
    del at, admit, free
    give_back()
    unordered, kind = kind, np.empty(len(kind), np.int8)
    kind[place] = unordered

    def column(*values: npt.NDArray[Any] | int) -> Narrow:
        """The parts (releases, evictions, admissions with a row, without one, steps) put where they belong."""
        out = np.empty(len(place), np.int32)
        begin = 0
        for value, length in zip(values, (*parts[:2], int(seen.sum()), len(strangers), parts[3]), strict=True):
            out[place[begin : begin + length]] = value
            begin += length
        return out

    del unordered
    request = column(rows[ended], victim, rows[seen], -1, running)
    admitted, released = np.full(len(rows), -1, np.int32), np.full(len(rows), -1, np.int32)
    for code, target in ((ADMIT, admitted), (FREE, released)):
        here = np.flatnonzero((kind == code) & (request >= 0))
        target[request[here]] = here
    return EventOrder(
        kind=kind,
        request=request,
        value=_small(column(slot[ended], evict_slot, slot[seen], -1, bucket)),
        repeats=_small(column(1, 1, 1, 1, repeats)),
        cause=column(-1, cause, -1, -1, -1).astype(np.int8),
        admitted=admitted,
        released=released,
        time_s=times,
    )


def _small(values: Narrow) -> npt.NDArray[np.signedinteger[Any]]:
    """In two bytes each where they fit."""
    return values.astype(np.int16) if values.max(initial=0) < 2**15 else values


def _ranks(at: npt.NDArray[Any]) -> Narrow:
    """The place of each of these positions (whole numbers from 0) among all of them; equal ones in their order."""
    seen = np.zeros(int(at.max(initial=-1)) + 1, bool)
    seen[at] = True
    if int(seen.sum()) == len(at):
        ranks: Narrow = np.cumsum(seen, dtype=np.int32) - np.int32(1)
        found: Narrow = ranks[at]
        return found
    place = np.empty(len(at), np.int32)
    place[np.argsort(at, kind="stable")] = np.arange(len(at), dtype=np.int32)
    return place


def _unjoined(run: Run) -> npt.NDArray[Any]:
    """Positions of admissions in the log that no request row belongs to; they take slots all the same."""
    assert run.steps is not None
    prefill = run.steps["order"].filter(run.steps["kind"] == "prefill")
    joined = run.requests["admit_order"].drop_nulls()
    return np.setdiff1d(prefill.to_numpy(), joined.to_numpy())


def _victims(run: Run, measured: bool) -> Narrow:
    """Request row of each evicted slot, -1 when not known.

    A session's slots are evicted in the order of its turns: each turn takes a new slot, is admitted after the one
    before and is idle before the next begins, and eviction takes the oldest idle slot. So the i-th eviction of a
    session is its turn i, where the table does not say it.
    """
    assert run.evictions is not None
    session = run.requests["session"].fill_null(-1).to_numpy()
    turn = run.requests["turn"].fill_null(-1).to_numpy()
    evicted = run.evictions["session"].fill_null(-1).to_numpy()
    if measured:
        of_turn = run.evictions["turn"].fill_null(-1).to_numpy()
    else:
        of_turn = np.empty(len(evicted), np.int64)
        order = np.lexsort((run.evictions["time_s"].to_numpy(), evicted))
        grouped = evicted[order]
        of_turn[order] = np.arange(len(order)) - np.searchsorted(grouped, grouped)
    return rows_of(session, turn, evicted, of_turn)


def rows_of(
    session: npt.NDArray[Any], turn: npt.NDArray[Any], wanted_session: npt.NDArray[Any], wanted_turn: npt.NDArray[Any]
) -> Narrow:
    """The request row of each wanted (session, turn), -1 where there is none or the session is not known."""
    if not len(session):
        return np.full(len(wanted_session), -1, np.int32)
    width = int(max(turn.max(initial=0), wanted_turn.max(initial=0))) + 2
    # the tables are narrow, the product need not be
    keys = session.astype(np.int64) * width + turn
    order = np.argsort(keys, kind="stable").astype(np.int32)
    keys.sort()
    wanted = wanted_session.astype(np.int64) * width + wanted_turn
    at = np.minimum(np.searchsorted(keys, wanted), len(order) - 1).astype(np.int32)
    found = (keys[at] == wanted) & (wanted_session >= 0) & (wanted_turn >= 0)
    return np.where(found, order[at], np.int32(-1))

"""From the events of a log to arrays and tables: steps, evictions with their cause, what happened to each request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from slotgrid.run.readers.vllm_rbln_log import (
    ALLOC,
    EVICT,
    EVICT_CAUSES,
    FREE,
    HIT,
    PARTIAL,
    PREEMPT,
    RESTART,
    STEP,
    LogScan,
)

if TYPE_CHECKING:
    import polars as pl

# narrow on purpose: a long log has millions of events
Ints = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]

ADMISSION, PADDING, UNKNOWN = 0, 1, 2


@dataclass
class LogTables:
    """What a log says, by request index of its scan. -1 stands for not seen.

    slot, admit_order, finish_order, cached_tokens: one entry a request; steps_owned: decode steps between its admission
    and its release; admissions: how often it was admitted.
    eviction_*: one entry an eviction: position, victim (request index or -1), slot, cause code.
    work_*: one entry an admission or group of equal decode steps, in order: position, request (-1 for steps), running,
    bucket (-1 for admissions), repeats.
    step_buckets: the buckets that ran, ascending; steps: decode steps; evicted: an occupied slot was ever given up.
    """

    slot: Ints
    admit_order: Ints
    finish_order: Ints
    cached_tokens: Ints
    steps_owned: Ints
    admissions: Ints
    eviction_order: Ints
    eviction_victim: Ints
    eviction_slot: Ints
    eviction_cause: Ints
    work_order: Ints
    work_request: Ints
    work_running: Ints
    work_bucket: Ints
    work_repeats: Ints
    other_running: int
    restarts: int
    step_buckets: list[int]
    steps: int
    evicted: bool

    def forget_events(self) -> None:
        """Free the entries by eviction and by admission or step, once tables were made of them."""
        nothing = np.empty(0, np.int32)
        self.eviction_order = self.eviction_victim = self.eviction_slot = self.eviction_cause = nothing
        self.work_order = self.work_request = self.work_running = self.work_bucket = self.work_repeats = nothing


def log_tables(scan: LogScan) -> LogTables:
    """Arrays of a scan, whose own events are freed. A request without a lookup line has 0 cached tokens: nothing of
    it was looked up."""
    table = np.frombuffer(scan.table, np.int32).reshape(-1, 4) if scan.events else np.empty((0, 4), np.int32)
    kind, first, second, count = table[:, 0].astype(np.int8), table[:, 1], table[:, 2], table[:, 3]
    position = np.arange(scan.events, dtype=np.int32)
    is_step, allocs, frees = kind == STEP, kind == ALLOC, kind == FREE

    change = allocs.astype(np.int32) - (frees | (kind == PREEMPT))
    in_flight = np.cumsum(change, dtype=np.int32)
    for at in position[kind == RESTART]:
        # the requests of the old process never finish
        in_flight[at:] -= in_flight[at]
    other = int(count[is_step & (first != in_flight)].sum(dtype=np.int64))
    del change, in_flight

    def by_request(which: Bools, values: Ints, missing: int = -1) -> Ints:
        out = np.full(len(scan.requests), missing, np.int32)
        # the last entry wins: after a preemption, the admission that led to the answer
        out[first[which]] = values[which]
        return out

    admit_order, finish_order = by_request(allocs, position), by_request(frees, position)
    unit = scan.block_tokens or 128
    cached = by_request(kind == PARTIAL, count, missing=0)
    hits = kind == HIT
    cached[first[hits]] = count[hits] * unit
    steps_before = np.cumsum(np.where(is_step, count, 0), dtype=np.int32)
    owned = np.full(len(scan.requests), -1, np.int32)
    whole = (admit_order >= 0) & (finish_order >= 0)
    owned[whole] = steps_before[finish_order[whole]] - steps_before[admit_order[whole]]
    del steps_before

    evictions = position[kind == EVICT]
    work = is_step | allocs
    step = is_step[work]
    made = LogTables(
        slot=by_request(allocs, second),
        admit_order=admit_order,
        finish_order=finish_order,
        cached_tokens=cached,
        steps_owned=owned,
        admissions=np.bincount(first[allocs], minlength=len(scan.requests)).astype(np.int32),
        eviction_order=evictions,
        eviction_victim=first[evictions],
        eviction_slot=_narrow(second[evictions]),
        eviction_cause=_causes(kind, second, count, evictions, scan.bucket_lines > 0),
        work_order=position[work],
        work_request=np.where(step, np.int32(-1), first[work]),
        # on an admission the count is how many decode meanwhile
        work_running=_narrow(np.where(step, first[work], count[work])),
        work_bucket=_narrow(np.where(step, second[work], np.int32(-1))),
        work_repeats=np.where(step, count[work], np.int32(1)),
        other_running=other,
        restarts=int((kind == RESTART).sum()),
        step_buckets=np.unique(second[is_step]).tolist(),
        steps=int(count[is_step].sum(dtype=np.int64)),
        evicted=bool((first[evictions] >= 0).any()),
    )
    scan.forget_events()
    return made


def _causes(kind: npt.NDArray[np.int8], second: Ints, count: Ints, evictions: Ints, with_steps: bool) -> Ints:
    """The line does not name its caller; its neighbour does: the admission's own ALLOC of the same slot follows at
    once, and the padding slot's decode step follows at once. Without step lines the slot freed for padding and taken
    by the next admission looks the same as the former."""
    causes = np.full(len(evictions), UNKNOWN, np.int8)
    told = (evictions + 1 < len(kind)) & (count[evictions] > 0)
    at = evictions[told]
    own = (kind[at + 1] == ALLOC) & (second[at + 1] == second[at])
    if with_steps:
        causes[told] = np.select([own, kind[at + 1] == STEP], [ADMISSION, PADDING], UNKNOWN)
    else:
        causes[told] = np.where(own, UNKNOWN, PADDING)
    for cause, code in (("admission", ADMISSION), ("padding", PADDING), ("preemption", UNKNOWN)):
        causes[count[evictions] == EVICT_CAUSES[cause]] = code
    return causes


def nullable(values: npt.NDArray[np.generic], known: Bools | None = None) -> pl.Series:
    """A column with nulls where not known; by default where negative (integers) or NaN (seconds)."""
    import polars as pl

    column = pl.Series(values)
    if known is None:
        known = ~np.isnan(values) if values.dtype.kind == "f" else values >= 0  # type: ignore[operator]
    if bool(np.all(known)):
        return column
    return pl.select(pl.when(pl.Series(known)).then(column)).to_series()


def _narrow(values: npt.NDArray[np.int32]) -> Ints:
    """In two bytes each where they fit."""
    return values.astype(np.int16) if values.max(initial=0) < 2**15 else values


def _of(values: Ints, request: Ints) -> Ints:
    """The value of each request, -1 where there is no request."""
    return np.where(request >= 0, values[request], np.int32(-1)) if len(values) else request


def eviction_table(tables: LogTables, session: Ints, turn: Ints) -> pl.DataFrame:
    """The evictions of a run; ``session`` and ``turn`` by request index of the scan, -1 not known."""
    import polars as pl

    victim = tables.eviction_victim
    table = pl.DataFrame(
        {
            "session": nullable(_of(session, victim)),
            "cause": _words(tables.eviction_cause, ("admission", "padding")),
            "order": tables.eviction_order,
            "turn": nullable(_of(turn, victim)),
            "slot": tables.eviction_slot,
        }
    )
    return with_unknown(table, "time_s").select("time_s", *table.columns)


def step_table(tables: LogTables, session: Ints, turn: Ints, computed: Ints) -> pl.DataFrame:
    """Prefills and decode steps of a run in the order of the log; equal steps in a row are one row."""
    import polars as pl

    request = tables.work_request
    table = pl.DataFrame(
        {
            "kind": _words((tables.work_bucket >= 0).astype(np.int32), ("prefill", "decode")),
            "running": tables.work_running,
            "bucket": nullable(tables.work_bucket),
            "session": nullable(_of(session, request)),
            "turn": nullable(_narrow(_of(turn, request))),
            "computed_tokens": nullable(_of(computed, request)),
            "order": tables.work_order,
            "repeats": tables.work_repeats,
        }
    )
    return with_unknown(table, "start_s", "duration_s").select("start_s", "duration_s", *table.columns)


def with_unknown(table: pl.DataFrame, *seconds: str) -> pl.DataFrame:
    """The table with further columns of which nothing is known; such a column takes no memory until it is used."""
    import polars as pl

    return table.with_columns(pl.lit(None, dtype=pl.Float64).alias(name) for name in seconds)


def _words(codes: Ints, words: Sequence[str]) -> pl.Series:
    """A column of words by their code; null for a code that has none."""
    import polars as pl

    return pl.Series([*words, None], dtype=pl.Enum(words)).gather(codes.astype(np.uint32))

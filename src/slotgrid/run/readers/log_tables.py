"""From the events of a log to tables: steps, evictions with their cause, and what happened to each request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from slotgrid.run.readers.vllm_rbln_log import ALLOC, EVICT, FREE, HIT, PARTIAL, PREEMPT, RESTART, STEP, LogScan

if TYPE_CHECKING:
    import polars as pl

Ints = npt.NDArray[np.int64]

ADMISSION, PADDING, UNKNOWN = 0, 1, 2


@dataclass(frozen=True)
class LogTables:
    """What a log says, by request index of its scan. -1 stands for not seen.

    slot, admit_order, finish_order, cached_tokens: int arrays, one entry a request; waiting: how many decode at its
    prefill; steps_owned: decode steps between its admission and its release; admissions: how often it was admitted.
    eviction_*: one entry an eviction: position, victim (request index or -1), slot, cause code.
    step_*: one entry a group of equal decode steps: position, running, bucket, repeats.
    """

    slot: Ints
    admit_order: Ints
    finish_order: Ints
    cached_tokens: Ints
    waiting: Ints
    steps_owned: Ints
    admissions: Ints
    eviction_order: Ints
    eviction_victim: Ints
    eviction_slot: Ints
    eviction_cause: Ints
    step_order: Ints
    step_running: Ints
    step_bucket: Ints
    step_repeats: Ints
    other_running: int
    most_running: int
    restarts: int


def log_tables(scan: LogScan) -> LogTables:
    """Tables of a scan. A request without a lookup line has 0 cached tokens: nothing of it was looked up."""
    kind = np.frombuffer(scan.kind, np.int8) if scan.events else np.empty(0, np.int8)
    first = np.frombuffer(scan.first, np.int32).astype(np.int64) if scan.events else np.empty(0, np.int64)
    second = np.frombuffer(scan.second, np.int32).astype(np.int64) if scan.events else np.empty(0, np.int64)
    count = np.frombuffer(scan.count, np.int64) if scan.events else np.empty(0, np.int64)
    requests = len(scan.requests)
    position = np.arange(scan.events)

    is_step = kind == STEP
    steps_before = np.cumsum(np.where(is_step, count, 0))
    change = np.select([kind == ALLOC, (kind == FREE) | (kind == PREEMPT)], [1, -1], 0)
    in_flight = np.cumsum(change)
    for at in position[kind == RESTART]:
        # the requests of the old process never finish
        in_flight[at:] -= in_flight[at]

    def by_request(which: npt.NDArray[np.bool_], values: Ints, missing: int = -1) -> Ints:
        out = np.full(requests, missing, np.int64)
        # the last entry wins: after a preemption, the admission that led to the answer
        out[first[which]] = values[which]
        return out

    allocs, frees = kind == ALLOC, kind == FREE
    admit_order = by_request(allocs, position)
    finish_order = by_request(frees, position)
    lookups = (kind == HIT) | (kind == PARTIAL)
    unit = scan.block_tokens or 128
    cached = by_request(lookups, np.where(kind == HIT, count * unit, count), missing=0)
    owned = np.full(requests, -1, np.int64)
    whole = (admit_order >= 0) & (finish_order >= 0)
    owned[whole] = steps_before[finish_order[whole]] - steps_before[admit_order[whole]]

    evictions = position[kind == EVICT]
    return LogTables(
        slot=by_request(allocs, second),
        admit_order=admit_order,
        finish_order=finish_order,
        cached_tokens=cached,
        waiting=by_request(allocs, count),
        steps_owned=owned,
        admissions=np.bincount(first[allocs], minlength=requests),
        eviction_order=evictions,
        eviction_victim=first[evictions],
        eviction_slot=second[evictions],
        eviction_cause=_causes(kind, second, count, evictions, scan.bucket_lines > 0),
        step_order=position[is_step],
        step_running=first[is_step],
        step_bucket=second[is_step],
        step_repeats=count[is_step],
        other_running=int(count[is_step][first[is_step] != in_flight[is_step]].sum()),
        most_running=int(max(first[is_step].max(initial=0), in_flight.max(initial=0))),
        restarts=int((kind == RESTART).sum()),
    )


def _causes(kind: npt.NDArray[np.int8], second: Ints, count: Ints, evictions: Ints, with_steps: bool) -> Ints:
    """The line does not name its caller; its neighbour does: the admission's own ALLOC of the same slot follows at
    once, and the padding slot's decode step follows at once. Without step lines the slot freed for padding and taken
    by the next admission looks the same as the former."""
    causes = np.full(len(evictions), UNKNOWN, np.int64)
    for i, at in enumerate(evictions):
        if count[at] == 0 or at + 1 >= len(kind):
            continue
        after = at + 1
        if kind[after] == STEP:
            causes[i] = PADDING
        elif kind[after] == ALLOC and second[after] == second[at]:
            causes[i] = ADMISSION if with_steps else UNKNOWN
        elif not with_steps:
            causes[i] = PADDING
    return causes


def eviction_table(tables: LogTables, session: list[int | None], turn: list[int | None]) -> pl.DataFrame:
    """The evictions of a run; ``session`` and ``turn`` by request index of the scan."""
    import polars as pl

    names = ["admission", "padding", None]
    victims = tables.eviction_victim.tolist()
    return pl.DataFrame(
        {
            "time_s": pl.repeat(None, len(victims), dtype=pl.Float64, eager=True),
            "session": pl.Series([session[v] if v >= 0 else None for v in victims], dtype=pl.Int64),
            "cause": pl.Series([names[c] for c in tables.eviction_cause], dtype=pl.String),
            "order": tables.eviction_order,
            "turn": pl.Series([turn[v] if v >= 0 else None for v in victims], dtype=pl.Int64),
            "slot": tables.eviction_slot,
        }
    )


def step_table(
    tables: LogTables, session: list[int | None], turn: list[int | None], computed: list[int | None]
) -> pl.DataFrame:
    """Prefills and decode steps of a run in the order of the log; equal steps in a row are one row."""
    import polars as pl

    admitted = np.flatnonzero(tables.admit_order >= 0)
    steps, prefills = len(tables.step_order), len(admitted)

    def nothing(length: int, dtype: type[pl.DataType]) -> pl.Series:
        return pl.repeat(None, length, dtype=dtype, eager=True)

    rows = admitted.tolist()
    prefill = pl.DataFrame(
        {
            "start_s": nothing(prefills, pl.Float64),
            "duration_s": nothing(prefills, pl.Float64),
            "kind": pl.repeat("prefill", prefills, eager=True),
            "running": tables.waiting[admitted],
            "bucket": nothing(prefills, pl.Int64),
            "session": pl.Series([session[r] for r in rows], dtype=pl.Int64),
            "turn": pl.Series([turn[r] for r in rows], dtype=pl.Int64),
            "computed_tokens": pl.Series([computed[r] for r in rows], dtype=pl.Int64),
            "order": tables.admit_order[admitted],
            "repeats": pl.repeat(1, prefills, dtype=pl.Int64, eager=True),
        }
    )
    decode = pl.DataFrame(
        {
            "start_s": nothing(steps, pl.Float64),
            "duration_s": nothing(steps, pl.Float64),
            "kind": pl.repeat("decode", steps, eager=True),
            "running": tables.step_running,
            "bucket": tables.step_bucket,
            "session": nothing(steps, pl.Int64),
            "turn": nothing(steps, pl.Int64),
            "computed_tokens": nothing(steps, pl.Int64),
            "order": tables.step_order,
            "repeats": tables.step_repeats,
        }
    )
    return pl.concat([prefill, decode]).sort("order")

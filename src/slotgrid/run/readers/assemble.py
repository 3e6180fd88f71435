"""read_run: everything a run left in a directory, joined into one Run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slotgrid.config import ServingConfig
from slotgrid.errors import InputError
from slotgrid.run.readers import directory
from slotgrid.run.readers.aiperf import AIPERF
from slotgrid.run.readers.directory import Found
from slotgrid.run.readers.guidellm import NAME as GUIDELLM
from slotgrid.run.readers.join import join
from slotgrid.run.readers.log_tables import LogTables, eviction_table, log_tables, step_table
from slotgrid.run.readers.metrics import read_metrics
from slotgrid.run.readers.rows import TWO_TURN, RequestRow
from slotgrid.run.readers.sessions import session_indices
from slotgrid.run.readers.stream import Meter, Progress
from slotgrid.run.readers.vllm_bench import NAME as VLLM_BENCH
from slotgrid.run.readers.vllm_rbln_log import LogScan, order_pieces, scan_log
from slotgrid.run.run import Run
from slotgrid.run.store import load_run

if TYPE_CHECKING:
    import polars as pl

# written on a clock that does not start with the run
_OTHER_ORIGIN = {AIPERF.name, GUIDELLM, VLLM_BENCH}


def read_run(
    folder: str | Path,
    *,
    buckets: Sequence[int] | None = None,
    slots: int | None = None,
    max_running: int | None = None,
    progress: Progress | None = None,
) -> Run:
    """Read a run directory: a run saved by slotgrid, or whatever logs, rows and metrics a server and client left.

    buckets, slots, max_running: the configuration where the files do not state it. progress: called with bytes read
    and bytes in all. What cannot be seen is None or null in the result; what was odd but readable is in its notes.
    Raises InputError naming file, line and key when the files contradict each other or cannot be read.
    """
    found = directory.look(Path(folder))
    given = {"buckets": buckets, "slots": slots, "max_running": max_running}
    if found.run_json is not None:
        saved = load_run(found.folder)
        if saved.source == "simulated" or saved.steps is not None or not found.logs:
            return saved
        return _Assembly(found, given, progress, saved).run()
    return _Assembly(found, given, progress, None).run()


class _Assembly:
    """One directory on its way to a Run; every step leaves its warnings in ``notes``."""

    def __init__(self, found: Found, given: dict[str, Any], progress: Progress | None, saved: Run | None) -> None:
        self.found = found
        self.given = given
        self.saved = saved
        self.notes: list[str] = []
        self.meter = Meter(found.read_bytes, progress)

    def warn(self, text: str) -> None:
        self.notes.append(text)

    def run(self) -> Run:
        found = self.found
        plan, plan_data = None, None
        if found.plan is not None:
            plan, plan_data = directory.read_plan(found.plan)
        scan = self._scan()
        if self.saved is not None:
            rows, kinds = _rows_of(self.saved, str(found.run_json)), ["slotgrid run"]
        else:
            rows, kinds = directory.read_rows(found, self.meter, self.warn)
        metrics, is_difference = read_metrics(found.metrics, self.meter, self.warn) if found.metrics else ({}, False)
        if scan is None and not rows and not metrics:
            raise InputError(f"{found.folder}: nothing in it can be diagnosed; expected {directory.EXPECTED}")
        tables = None if scan is None else log_tables(scan)
        log_of = [-1] * len(rows)
        if scan is not None and rows:
            log_of = join(rows, scan.requests, scan.name, self.warn)
        rows, log_of = self._successful(rows, log_of)
        self._check_times(rows)
        name = found.plan.name if found.plan is not None else ""
        sessions, of_plan = session_indices(rows, plan, name, self.warn) if rows else ([], False)
        if plan is not None and not rows:
            self.warn(f"{name}: without request rows it cannot be checked, so it is not used")
        if set(kinds) & _OTHER_ORIGIN:
            _from_zero(rows)
        cached = self._cached(rows, log_of, kinds, scan, tables)
        requests = self._requests(rows, log_of, sessions, cached, scan, tables)
        steps, evictions = self._log_side(requests, rows, log_of, sessions, scan, tables)
        if scan is not None and tables is not None:
            self._check_log(rows, log_of, scan, tables)
            if scan.requests and evictions is not None and evictions["cause"].is_null().any():
                unknown = int(evictions["cause"].is_null().sum())
                self.warn(f"the cause of {unknown} of {evictions.height} evictions cannot be told from the log")
        if found.windows:
            self.warn(f"{found.windows[0].name}: the diagnosis covers the whole run, warm-up included")
        if found.left:
            self.warn(f"not read: {', '.join(found.left)}")
        config, config_from = self._config(plan_data, scan, tables)
        times = [(r.arrival_s, r.finish_s) for r in rows if r.arrival_s is not None and r.finish_s is not None]
        details: dict[str, Any] = {
            "rows": kinds,
            "log": None if scan is None else scan.name,
            "metrics": metrics,
            "metrics_are_difference": is_difference,
            "config_from": config_from,
            "block_tokens": None if scan is None else scan.block_tokens,
        }
        if self.saved is not None:
            details = {**self.saved.details, **details}
        run = Run(
            config=config,
            steps=steps,
            requests=requests,
            evictions=evictions,
            decode_s=None,
            prefill_s=None,
            stall_session_s=None,
            wall_s=max(end for _, end in times) - min(start for start, _ in times) if times else None,
            source="measured",
            plan_id=plan.plan_id if plan is not None and of_plan else None,
            plan_sha256=plan.content_sha256 if plan is not None and of_plan else None,
            notes=tuple(self.notes),
            details=details,
        )
        if self.saved is None:
            return run
        kept = self.saved
        return replace(
            run,
            config=config or kept.config,
            wall_s=kept.wall_s,
            turnaround_s=kept.turnaround_s,
            plan_id=kept.plan_id,
            plan_sha256=kept.plan_sha256,
            notes=(*kept.notes, *self.notes),
        )

    # --- the log -----------------------------------------------------------------------------------

    def _scan(self) -> LogScan | None:
        result: LogScan | None = None
        quiet: list[str] = []
        for paths in self.found.logs.values():
            scan = self._scan_server(paths)
            if scan.bucket_lines == 0 and scan.pfx_lines == 0:
                quiet.append(scan.name)
            elif result is not None:
                raise InputError(
                    f"{self.found.folder}: logs of two servers ({result.name} and {scan.name}); "
                    "a run directory holds the log of one server"
                )
            else:
                result = scan
        for name in quiet:
            self.warn(f"{name}: no [PFX] and no [BUCKET] lines in it (is the server's log level DEBUG?)")
        if result is not None:
            self._note_scan(result)
        return result

    def _scan_server(self, paths: list[Path]) -> LogScan:
        ordered, sure = order_pieces(paths)
        if len(ordered) == 1 or sure:
            return scan_log(ordered, self.meter)
        # equal clocks: numbers may run either way; the wrong way shows as lines out of place
        scans: list[LogScan] = []
        problem: InputError | None = None
        for candidate in (ordered, ordered[::-1]):
            try:
                scan = scan_log(candidate, self.meter)
            except InputError as error:
                problem = problem or error
                continue
            if scan.misplaced == 0 and scan.silent_evictions == 0:
                return scan
            scans.append(scan)
        if not scans:
            assert problem is not None
            raise problem
        return min(scans, key=lambda scan: scan.misplaced + scan.silent_evictions)

    def _note_scan(self, scan: LogScan) -> None:
        for tag, (count, line) in scan.unread.items():
            total = scan.bucket_lines if tag == "[BUCKET]" else scan.pfx_lines
            self.warn(
                f"{scan.name}: {count} of {total} {tag.split()[0]} lines ({tag}) are not as vllm-rbln 0.11.1 writes "
                f"them, first at line {line}; they were left out"
            )
        if scan.bucket_lines == 0:
            self.warn(f"{scan.name}: no [BUCKET] lines; the step distribution is not observed")
        if scan.pfx_lines == 0:
            self.warn(f"{scan.name}: no [PFX] lines; evictions are not observed")
        if scan.cut_lines:
            self.warn(f"{scan.name}: {scan.cut_lines} line{'s are' if scan.cut_lines > 1 else ' is'} cut; left out")
        for name in scan.cut_gzip:
            self.warn(f"{name}: the gzip stream ends in the middle; read up to there")
        if scan.clock_back:
            self.warn(f"{scan.name}: the clock goes back {scan.clock_back} times; only the order of lines is used")
        if scan.misplaced:
            self.warn(
                f"{scan.name}: {scan.misplaced} lines tell of requests or slots the log has not introduced "
                "(its beginning is missing?)"
            )
        if scan.silent_evictions:
            self.warn(f"{scan.name}: {scan.silent_evictions} slots changed hands without an [EVICTION] line")

    def _check_log(self, rows: Sequence[RequestRow], log_of: Sequence[int], scan: LogScan, tables: LogTables) -> None:
        if tables.restarts:
            self.warn(f"{scan.name}: the server was started again {tables.restarts} times; all of it is counted")
        open_ends = int((tables.finish_order < 0).sum())
        if open_ends:
            self.warn(f"{open_ends} requests were still running when the log ended")
        again = int((tables.admissions > 1).sum())
        if again:
            self.warn(f"{again} requests were preempted and admitted again; their second prefill is not priced")
        if not (tables.step_repeats.size and scan.pfx_lines):
            return
        if tables.other_running:
            self.warn(
                f"{tables.other_running} of {int(tables.step_repeats.sum())} decode steps run another number of "
                "requests than admissions and releases leave in flight"
            )
        other = sum(
            index >= 0
            and tables.steps_owned[index] >= 0
            and row.output_tokens is not None
            and tables.steps_owned[index] != row.output_tokens - 1
            for row, index in zip(rows, log_of, strict=True)
        )
        if other:
            self.warn(f"{other} requests own another number of [BUCKET] lines than their output tokens less one")

    # --- rows --------------------------------------------------------------------------------------

    def _successful(self, rows: list[RequestRow], log_of: list[int]) -> tuple[list[RequestRow], list[int]]:
        reasons = Counter(row.failed for row in rows if row.failed is not None)
        if reasons:
            text = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(4))
            self.warn(f"{sum(reasons.values())} request rows without a result were left out ({text})")
        pairs = [(row, r) for row, r in zip(rows, log_of, strict=True) if row.failed is None]
        return [row for row, _ in pairs], [r for _, r in pairs]

    def _check_times(self, rows: Sequence[RequestRow]) -> None:
        backwards = first = gaps = 0
        for row in rows:
            if row.arrival_s is not None and row.finish_s is not None and row.finish_s < row.arrival_s:
                row.arrival_s = row.first_token_s = row.finish_s = None
                backwards += 1
            if row.first_token_s is not None and not (
                (row.arrival_s is None or row.first_token_s >= row.arrival_s)
                and (row.finish_s is None or row.first_token_s <= row.finish_s)
            ):
                row.first_token_s = None
                first += 1
            if row.token_gaps_s is not None and bool((row.token_gaps_s < 0).any()):
                row.token_gaps_s = None
                gaps += 1
        if backwards:
            self.warn(f"{backwards} request rows end before they begin (the clock went back); their times are left out")
        if first:
            self.warn(f"{first} request rows have a first token outside the request; it is left out")
        if gaps:
            self.warn(f"{gaps} requests have token times that go back; they are left out")
        ends = {(row.session, row.turn): row.finish_s for row in rows}
        early = 0
        for row in rows:
            if row.turn is not None and row.arrival_s is not None:
                before = ends.get((row.session, row.turn - 1))
                early += before is not None and row.arrival_s < before
        if early:
            self.warn(f"{early} returns were sent before the answer they build on (clock or rows mixed up?)")

    def _cached(
        self,
        rows: Sequence[RequestRow],
        log_of: Sequence[int],
        kinds: list[str],
        scan: LogScan | None,
        tables: LogTables | None,
    ) -> list[int | None]:
        """Cached tokens a row: from the log where it tells, else from the row."""
        from_rows = [row.cached_tokens for row in rows]
        from_log: list[int | None] = [None] * len(rows)
        if scan is not None and tables is not None and _lookups_readable(scan):
            from_log = [int(tables.cached_tokens[r]) if r >= 0 else None for r in log_of]
        if kinds == [TWO_TURN.name] and rows and not any(from_rows) and None in from_log:
            self.warn(
                "every cached_tokens is 0, which the two-turn runner also writes when the server reports none; "
                "taken as not observable"
            )
            from_rows = [None] * len(rows)
        other = sum(a is not None and b is not None and a != b for a, b in zip(from_rows, from_log, strict=True))
        if other:
            self.warn(f"{other} requests have other cached tokens in the log than in their row; the log's are used")
        cached = [b if b is not None else a for a, b in zip(from_rows, from_log, strict=True)]
        over = 0
        for i, (row, tokens) in enumerate(zip(rows, cached, strict=True)):
            if tokens is not None and row.prompt_tokens is not None and tokens > row.prompt_tokens:
                cached[i] = None
                over += 1
        if over:
            self.warn(f"{over} requests have more cached than prompt tokens; their reuse is taken as not observable")
        return cached

    def _requests(
        self,
        rows: Sequence[RequestRow],
        log_of: Sequence[int],
        sessions: Sequence[int | None],
        cached: Sequence[int | None],
        scan: LogScan | None,
        tables: LogTables | None,
    ) -> pl.DataFrame:
        import polars as pl

        if not rows and scan is not None and tables is not None:
            # only the log: it names requests, but neither their sessions nor their lengths
            rows = [
                RequestRow(scan.name, name, None, None, None, None, None, None, None, None, None)
                for name in scan.requests
            ]
            log_of, sessions = list(range(len(rows))), [None] * len(rows)
            cached = [int(c) for c in tables.cached_tokens] if _lookups_readable(scan) else [None] * len(rows)
        prompt = [row.prompt_tokens for row in rows]
        computed = [None if p is None or c is None else p - c for p, c in zip(prompt, cached, strict=True)]

        def of_log(name: str) -> pl.Series:
            if tables is None:
                return pl.Series([None] * len(rows), dtype=pl.Int64)
            values = getattr(tables, name)
            return pl.Series([int(values[r]) if r >= 0 and values[r] >= 0 else None for r in log_of], dtype=pl.Int64)

        def whole(values: Sequence[int | None]) -> pl.Series:
            return pl.Series(values, dtype=pl.Int64)

        def seconds(values: Sequence[float | None]) -> pl.Series:
            return pl.Series(values, dtype=pl.Float64)

        table = {
            "session": whole(sessions),
            "turn": whole([row.turn if s is not None else None for row, s in zip(rows, sessions, strict=True)]),
            "prompt_tokens": whole(prompt),
            "cached_tokens": whole(cached),
            "computed_tokens": whole(computed),
            "output_tokens": whole([row.output_tokens for row in rows]),
            "arrival_s": seconds([row.arrival_s for row in rows]),
            "admit_s": seconds([None] * len(rows)),
            "first_token_s": seconds([row.first_token_s for row in rows]),
            "finish_s": seconds([row.finish_s for row in rows]),
            "request_id": pl.Series([row.request_id for row in rows], dtype=pl.String),
            "slot": of_log("slot"),
            "admit_order": of_log("admit_order"),
            "finish_order": of_log("finish_order"),
            "planned_new_tokens": whole([row.planned_new_tokens for row in rows]),
            "planned_output_tokens": whole([row.planned_output_tokens for row in rows]),
        }
        if any(row.token_gaps_s is not None for row in rows):
            table["token_gaps_s"] = pl.Series(
                [None if row.token_gaps_s is None else row.token_gaps_s.tolist() for row in rows],
                dtype=pl.List(pl.Float32),
            )
        return pl.DataFrame(table).sort("session", "turn", maintain_order=True, nulls_last=True)

    def _log_side(
        self,
        requests: pl.DataFrame,
        rows: Sequence[RequestRow],
        log_of: Sequence[int],
        sessions: Sequence[int | None],
        scan: LogScan | None,
        tables: LogTables | None,
    ) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
        if scan is None or tables is None:
            return None, None
        session: list[int | None] = [None] * len(scan.requests)
        turn: list[int | None] = [None] * len(scan.requests)
        for row, r, s in zip(rows, log_of, sessions, strict=True):
            if r >= 0 and s is not None:
                session[r], turn[r] = s, row.turn
        by_order = dict(zip(requests["admit_order"].to_list(), requests["computed_tokens"].to_list(), strict=True))
        computed = [by_order.get(int(order)) for order in tables.admit_order]
        steps = step_table(tables, session, turn, computed)
        unread = any("ALLOC" in tag or "EVICTION" in tag for tag in scan.unread)
        evictions = None if scan.pfx_lines == 0 or unread else eviction_table(tables, session, turn)
        return (steps if steps.height else None), evictions

    # --- the configuration -------------------------------------------------------------------------

    def _config(
        self, plan_data: dict[str, Any] | None, scan: LogScan | None, tables: LogTables | None
    ) -> tuple[ServingConfig | None, str | None]:
        """From the options, else from what the directory states, else from the log."""
        given = self.given
        stated = directory.stated_config(self.found, plan_data)
        seen = sorted(set(tables.step_bucket.tolist())) if tables is not None else []
        slots_seen = len(set(tables.slot[tables.slot >= 0].tolist())) if tables is not None else 0
        evicted = tables is not None and bool((tables.eviction_victim >= 0).any())
        if stated and not given["buckets"] and not set(seen) <= set(stated["buckets"]):
            self.warn(f"{stated['where']}: buckets {stated['buckets']} are not those of the log, which ran {seen}")
            stated = {}
        top = given["max_running"] or stated.get("max_running") or (scan.max_running if scan is not None else None)
        buckets = given["buckets"] or stated.get("buckets")
        where = "options" if given["buckets"] else stated.get("where")
        if buckets is None and seen:
            buckets = sorted({*seen, *([top] if top and top > seen[-1] else [])})
            where = "the log"
            self.warn(f"compiled buckets are not stated; taken from the log: {', '.join(map(str, buckets))}")
        if buckets is None:
            return (self.saved.config if self.saved is not None else None), None
        if not set(seen) <= set(buckets):
            extra = ", ".join(str(size) for size in seen if size not in set(buckets))
            raise InputError(f"buckets: the log ran bucket {extra}, which is not among {', '.join(map(str, buckets))}")
        # once something was evicted every slot has been in use, so the number of slots is known
        slots = given["slots"] or stated.get("slots") or (slots_seen if evicted else None)
        config = ServingConfig(buckets, slots=slots or top, max_running=top)
        if slots_seen > config.slots:
            raise InputError(f"slots: the log used {slots_seen} slots, more than the {config.slots} of {where}")
        return config, where


def _lookups_readable(scan: LogScan) -> bool:
    return scan.pfx_lines > 0 and not any("CACHE" in tag or "ALLOC" in tag for tag in scan.unread)


def _from_zero(rows: Sequence[RequestRow]) -> None:
    starts = [row.arrival_s for row in rows if row.arrival_s is not None]
    if not starts:
        return
    origin = min(starts)
    for row in rows:
        row.arrival_s = None if row.arrival_s is None else row.arrival_s - origin
        row.first_token_s = None if row.first_token_s is None else row.first_token_s - origin
        row.finish_s = None if row.finish_s is None else row.finish_s - origin


def _rows_of(run: Run, where: str) -> list[RequestRow]:
    """The request table of a saved measured run as rows again, to be joined with its server's log."""
    rows = []
    for i, entry in enumerate(run.requests.iter_rows(named=True)):
        gaps = entry.get("token_gaps_s")
        rows.append(
            RequestRow(
                where=f"{where}: request {i}",
                request_id=entry.get("request_id"),
                session=None if entry["session"] is None else str(entry["session"]),
                order=None if entry["session"] is None else (float(entry["session"]),),
                turn=entry["turn"],
                prompt_tokens=entry["prompt_tokens"],
                output_tokens=entry["output_tokens"],
                cached_tokens=entry["cached_tokens"],
                arrival_s=entry["arrival_s"],
                first_token_s=entry["first_token_s"],
                finish_s=entry["finish_s"],
                token_gaps_s=None if gaps is None else np.asarray(gaps, np.float32),
                planned_new_tokens=entry.get("planned_new_tokens"),
                planned_output_tokens=entry.get("planned_output_tokens"),
            )
        )
    return rows

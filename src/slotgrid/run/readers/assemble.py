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
from slotgrid.run.memory import give_back, return_large
from slotgrid.run.readers import directory
from slotgrid.run.readers.aiperf import AIPERF
from slotgrid.run.readers.client_events import with_events
from slotgrid.run.readers.directory import Found
from slotgrid.run.readers.event_log import run_from_events, states_config
from slotgrid.run.readers.guidellm import NAME as GUIDELLM
from slotgrid.run.readers.join import join
from slotgrid.run.readers.log_tables import LogTables, eviction_table, log_tables, step_table
from slotgrid.run.readers.metrics import read_metrics
from slotgrid.run.readers.observer_log import is_observer_log, scan_observer_log
from slotgrid.run.readers.request_table import MOST_IDS, lookups_readable, request_table, requests_of_log
from slotgrid.run.readers.row_table import Ints, RowTable
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
_IDS_LEFT_OUT = f"more than {MOST_IDS:,} requests: their ids are left out of the request table"


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
    # the engine's own log holds every step and request; an observer's is read in place of a server log
    complete_events = (
        bool(found.events)
        and not is_observer_log(found.events[0])
        and (not found.logs or states_config(found.events[0]))
    )
    if found.run_json is not None:
        saved = load_run(found.folder)
        if saved.source == "simulated" or saved.steps is not None or not (found.logs or found.events):
            return saved
        if complete_events:
            return with_events(saved, _one_event_log(found))
        return _Assembly(found, given, progress, saved).run()
    if complete_events and found.rows:
        # what a client left that was killed before it saved its run
        rows = _Assembly(replace(found, logs={}), given, progress, None).run()
        if rows.requests["request_id"].null_count() < rows.requests.height:
            return with_events(rows, _one_event_log(found))
    if found.events and not found.logs and not is_observer_log(found.events[0]):
        return _run_of_events(found)
    return _Assembly(found, given, progress, None).run()


def _run_of_events(found: Found) -> Run:
    """The server's own event log, which holds every step and request; rows beside it name none of them."""
    run = run_from_events(_one_event_log(found))
    if found.rows:
        names = ", ".join(path.name for path in found.rows)
        run = replace(run, notes=(*run.notes, f"request rows are not used beside the event log: {names}"))
    return run


def _one_event_log(found: Found) -> Path:
    if len(found.events) > 1:
        first, second = found.events[:2]
        raise InputError(f"{second}: a second event log beside {first.name}; one run has one server")
    return found.events[0]


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
        return_large()
        found = self.found
        plan, plan_data = None, None
        if found.plan is not None:
            plan, plan_data = directory.read_plan(found.plan)
        scan = self._scan()
        # before the rows are read: it needs most memory while it is made
        logged = None if scan is None else log_tables(scan)
        give_back()
        if self.saved is not None:
            table, kinds = _rows_of(self.saved, str(found.run_json)), ["slotgrid run"]
            kept = np.arange(len(table))
        else:
            table, kept, kinds = directory.read_rows(found, self.meter, self.warn)
        metrics, is_difference = read_metrics(found.metrics, self.meter, self.warn) if found.metrics else ({}, False)
        if scan is None and not len(table) and not metrics:
            raise InputError(f"{found.folder}: nothing in it can be diagnosed; expected {directory.EXPECTED}")
        log_of: Ints = np.full(len(table), -1, np.int32)
        if scan is not None and len(table):
            log_of = join(table.ids, kept, scan.requests, table.where(0), scan.name, self.warn)
            scan.requests.forget()
            if len(table) > MOST_IDS:
                table.ids.forget()
                self.warn(_IDS_LEFT_OUT)
            give_back()
        kept = self._successful(table, kept)
        log_of = log_of[kept]
        self._check_times(table, kept)
        name = found.plan.name if found.plan is not None else ""
        session: Ints = np.empty(0, np.int32)
        of_plan = False
        if len(kept):
            session, of_plan = session_indices(table, kept, plan, name, self.warn)
        elif plan is not None:
            self.warn(f"{name}: without request rows it cannot be checked, so it is not used")
        if set(kinds) & _OTHER_ORIGIN:
            _from_zero(table, kept)
        cached = self._cached(table, kept, log_of, kinds, scan, logged)
        steps, evictions = None, None
        covered: list[int] | None = None
        if scan is not None and logged is not None:
            if len(kept) and scan.pfx_lines and table.ids.any_present:
                whole = np.append((logged.admit_order >= 0) & (logged.finish_order >= 0), False)
                covered = [int(whole[log_of].sum()), len(kept)]
            steps, evictions = self._log_side(table, kept, log_of, session, cached, scan, logged)
            # memory: what tables were made of goes before the next are made
            logged.forget_events()
            give_back()
            self._check_log(table, kept, log_of, scan, logged)
            give_back()
            unknown = 0 if evictions is None else int(evictions["cause"].is_null().sum())
            if unknown and evictions is not None:
                self.warn(f"the cause of {unknown} of {evictions.height} evictions cannot be told from the log")
        if len(kept):
            requests = request_table(table, kept, log_of, session, cached, logged)
        else:
            requests = requests_of_log(scan, logged)
            if requests.height > MOST_IDS:
                self.warn(_IDS_LEFT_OUT)
        del table, kept, log_of, session, cached
        give_back()
        window = directory.read_window(found, kinds, self.warn)
        if found.left:
            self.warn(f"not read: {', '.join(found.left)}")
        config, config_from = self._config(plan_data, scan, logged)
        sent, done = requests["arrival_s"], requests["finish_s"]
        details: dict[str, Any] = {
            "rows": kinds,
            "log": None if scan is None else scan.name,
            "metrics": metrics,
            "metrics_are_difference": is_difference,
            "config_from": config_from,
            "block_tokens": None if scan is None else scan.block_tokens,
            # requests whose admission and release the log has, of how many; None where it tells neither
            "log_covers": covered,
            "unread_step_lines": 0 if scan is None else scan.unread.get("[BUCKET]", (0, 0))[0],
            "window": window,
        }
        if self.saved is not None:
            details = {**self.saved.details, **details}
        last, begin = done.max(), sent.min()
        run = Run(
            config=config,
            steps=steps,
            requests=requests,
            evictions=evictions,
            decode_s=None,
            prefill_s=None,
            stall_session_s=None,
            wall_s=last - begin if isinstance(last, float) and isinstance(begin, float) else None,
            source="measured",
            plan_id=plan.plan_id if plan is not None and of_plan else None,
            plan_sha256=plan.content_sha256 if plan is not None and of_plan else None,
            notes=tuple(self.notes),
            details=details,
        )
        if self.saved is None:
            return run
        before = self.saved
        return replace(
            run,
            config=config or before.config,
            wall_s=before.wall_s,
            turnaround_s=before.turnaround_s,
            plan_id=before.plan_id,
            plan_sha256=before.plan_sha256,
            notes=(*before.notes, *self.notes),
        )

    # --- the log -----------------------------------------------------------------------------------

    def _scan(self) -> LogScan | None:
        if self.found.events and not self.found.logs:
            return self._scan_events()
        for path in self.found.events:
            self.warn(f"{path.name}: not read beside {next(iter(self.found.logs.values()))[0].name}")
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

    def _scan_events(self) -> LogScan:
        """The plugin's event log in place of a server log."""
        if len(self.found.events) > 1:
            first, second = self.found.events[:2]
            raise InputError(f"{second}: a second event log beside {first.name}; one run has one server")
        scan = scan_observer_log(self.found.events[0])
        unread, _ = scan.unread.get("[BUCKET]", (0, 0))
        if unread:
            self.warn(f"{scan.name}: {unread} of {scan.bucket_lines} decode steps state no running count or bucket")
        if scan.bucket_lines == 0:
            self.warn(f"{scan.name}: no decode steps; the step distribution is not observed")
        if scan.pfx_lines == 0:
            self.warn(f"{scan.name}: no allocations and evictions; evictions are not observed")
        if scan.misplaced:
            self.warn(
                f"{scan.name}: {scan.misplaced} events tell of requests or slots it has not introduced "
                "(its beginning is missing?)"
            )
        if scan.silent_evictions:
            self.warn(f"{scan.name}: {scan.silent_evictions} slots changed hands without an eviction")
        return scan

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
            self.warn(
                f"{scan.name}: the clock goes back, first at line {scan.clock_back}; only the order of lines is used"
            )
        if scan.misplaced:
            self.warn(
                f"{scan.name}: {scan.misplaced} lines tell of requests or slots the log has not introduced "
                "(its beginning is missing?)"
            )
        if scan.silent_evictions:
            self.warn(f"{scan.name}: {scan.silent_evictions} slots changed hands without an [EVICTION] line")

    def _check_log(self, table: RowTable, kept: Ints, log_of: Ints, scan: LogScan, logged: LogTables) -> None:
        if logged.restarts:
            self.warn(f"{scan.name}: the server was started again {logged.restarts} times; all of it is counted")
        open_ends = int((logged.finish_order < 0).sum())
        if open_ends:
            self.warn(f"{open_ends} requests were still running when the log ended")
        again = int((logged.admissions > 1).sum())
        if again:
            self.warn(f"{again} requests were preempted and admitted again; their second prefill is not priced")
        if not (logged.steps and scan.pfx_lines):
            return
        if logged.other_running:
            self.warn(
                f"{logged.other_running} of {logged.steps} decode steps run another number of requests than admissions "
                "and releases leave in flight"
            )
        output = table.whole("output_tokens")[kept]
        joined = (log_of >= 0) & (output >= 0)
        owned = logged.steps_owned[log_of[joined]]
        other = int(((owned >= 0) & (owned != output[joined] - 1)).sum())
        if not other:
            return
        compared = int((owned >= 0).sum())
        if 2 * other > compared and not any("BUCKET" in tag for tag in scan.unread) and not logged.restarts:
            at = kept[joined][(owned >= 0) & (owned != output[joined] - 1)][0]
            raise InputError(
                f"{table.where(int(at))}: request rows of another run: {other} of the {compared} requests that share "
                f"an id with {scan.name} have other output tokens than the decode steps it logged for them"
            )
        self.warn(
            f"{other} requests own another number of [BUCKET] lines than their output tokens less one, of {compared} "
            "compared (a line is missing, or a row is of another run)"
        )

    # --- rows --------------------------------------------------------------------------------------

    def _successful(self, table: RowTable, kept: Ints) -> Ints:
        reasons = Counter(table.failed.values())
        if reasons:
            text = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(4))
            self.warn(f"{sum(reasons.values())} request rows without a result were left out ({text})")
        failed = np.fromiter(table.failed, np.int64, len(table.failed))
        return kept[~np.isin(kept, failed)]

    def _check_times(self, table: RowTable, kept: Ints) -> None:
        sent, first, done = (table.seconds(name) for name in ("arrival_s", "first_token_s", "finish_s"))
        backwards = kept[done[kept] < sent[kept]]
        for column in (sent, first, done):
            column[backwards] = np.nan
        outside = kept[(first[kept] < sent[kept]) | (first[kept] > done[kept])]
        first[outside] = np.nan
        gaps = [i for i, times in table.gaps.items() if bool((times < 0).any())]
        for i in gaps:
            del table.gaps[i]
        if len(backwards):
            self.warn(
                f"{len(backwards)} request rows end before they begin (the clock went back); their times are left out"
            )
        if len(outside):
            self.warn(f"{len(outside)} request rows have a first token outside the request; it is left out")
        if gaps:
            self.warn(f"{len(gaps)} requests have token times that go back; they are left out")
        code, turn = table.session[kept], table.whole("turn")[kept]
        order = np.lexsort((turn, code))
        now, before = kept[order[1:]], kept[order[:-1]]
        follows = (code[order[1:]] >= 0) & (code[order[1:]] == code[order[:-1]])
        follows &= turn[order[1:]] == turn[order[:-1]] + 1
        early = int((follows & (sent[now] < done[before])).sum())
        if early:
            self.warn(f"{early} returns were sent before the answer they build on (clock or rows mixed up?)")

    def _cached(
        self,
        table: RowTable,
        kept: Ints,
        log_of: Ints,
        kinds: list[str],
        scan: LogScan | None,
        logged: LogTables | None,
    ) -> Ints:
        """Cached tokens a row, -1 not observable: from the log where it tells, else from the row."""
        from_rows = table.whole("cached_tokens")[kept].copy()
        from_log = np.full(len(kept), -1, np.int32)
        if scan is not None and logged is not None and lookups_readable(scan):
            joined = log_of >= 0
            from_log[joined] = logged.cached_tokens[log_of[joined]]
        if kinds == [TWO_TURN.name] and len(kept) and not (from_rows > 0).any() and (from_log < 0).any():
            self.warn(
                "every cached_tokens is 0, which the two-turn runner also writes when the server reports none; "
                "taken as not observable"
            )
            from_rows[:] = -1
        other = int(((from_rows >= 0) & (from_log >= 0) & (from_rows != from_log)).sum())
        if other:
            self.warn(f"{other} requests have other cached tokens in the log than in their row; the log's are used")
        cached = np.where(from_log >= 0, from_log, from_rows)
        prompt = table.whole("prompt_tokens")[kept]
        over = (prompt >= 0) & (cached > prompt)
        cached[over] = -1
        if over.any():
            self.warn(
                f"{int(over.sum())} requests have more cached than prompt tokens; "
                "their reuse is taken as not observable"
            )
        return cached

    def _log_side(
        self,
        table: RowTable,
        kept: Ints,
        log_of: Ints,
        session: Ints,
        cached: Ints,
        scan: LogScan,
        logged: LogTables,
    ) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
        joined = log_of >= 0
        r, rows = log_of[joined], kept[joined]
        by_request = np.full((3, len(scan.requests)), -1, np.int32)
        known = session[joined] >= 0
        by_request[0, r[known]] = session[joined][known]
        by_request[1, r[known]] = table.whole("turn")[rows][known]
        prompt, reused = table.whole("prompt_tokens")[rows], cached[joined]
        by_request[2, r] = np.where((prompt >= 0) & (reused >= 0), prompt - reused, -1)
        steps = step_table(logged, *by_request)
        unread = any("ALLOC" in tag or "EVICTION" in tag for tag in scan.unread)
        evictions = None
        if scan.pfx_lines and not unread:
            evictions = eviction_table(logged, by_request[0], by_request[1])
        return (steps if steps.height else None), evictions

    # --- the configuration -------------------------------------------------------------------------

    def _config(
        self, plan_data: dict[str, Any] | None, scan: LogScan | None, tables: LogTables | None
    ) -> tuple[ServingConfig | None, str | None]:
        """From the options, else from what the directory states, else from the log."""
        given = self.given
        stated = directory.stated_config(self.found, plan_data)
        seen = tables.step_buckets if tables is not None else []
        slots_seen = len(np.unique(tables.slot[tables.slot >= 0])) if tables is not None else 0
        evicted = tables is not None and tables.evicted
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
        if slots is None:
            slots = top or max(buckets)
            if where == "the log":
                slots = max(slots, slots_seen)
        config = ServingConfig(buckets, slots=slots, max_running=top)
        if slots_seen > config.slots:
            raise InputError(f"slots: the log used {slots_seen} slots, more than the {config.slots} of {where}")
        return config, where


def _from_zero(table: RowTable, kept: Ints) -> None:
    sent = table.seconds("arrival_s")[kept]
    if np.isnan(sent).all():
        return
    origin = np.nanmin(sent)
    for name in ("arrival_s", "first_token_s", "finish_s"):
        column = table.seconds(name)
        column -= origin


def _rows_of(run: Run, where: str) -> RowTable:
    """The request table of a saved measured run as rows again, to be joined with its server's log."""
    table = RowTable()
    for i, entry in enumerate(run.requests.iter_rows(named=True)):
        gaps = entry.get("token_gaps_s")
        row = RequestRow(
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
        table.add(row, where, i)
    return table

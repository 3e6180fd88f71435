"""A Run from an event log (JSONL): what a server did, step by step. Fields: docs/serve.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotgrid import files
from slotgrid.config import ServingConfig
from slotgrid.errors import InputError
from slotgrid.event_format import FIELDS, FORMAT
from slotgrid.run.run import Run

if TYPE_CHECKING:
    import polars as pl

_NS = 1e-9


@dataclass
class _Request:
    prompt_tokens: int
    arrival_ns: int | None
    session: int | None
    turn: int | None
    prefix: str | None
    cached_tokens: int = 0
    admit_ns: int | None = None
    first_token_ns: int | None = None
    finish_ns: int | None = None
    output_tokens: int | None = None
    slot: int | None = None
    # lines of the log
    admit_order: int | None = None
    finish_order: int | None = None


@dataclass
class _Log:
    """What has been read so far."""

    start: Mapping[str, Any] | None = None
    requests: dict[str, _Request] = field(default_factory=dict)
    # start, end, step_start, its line
    steps: list[tuple[int, int, Mapping[str, Any], int]] = field(default_factory=list)
    open_step: Mapping[str, Any] | None = None
    open_line: int = 0
    # time, holder, cause, slot, line
    evictions: list[tuple[int, str, str, int | None, int]] = field(default_factory=list)
    last_ns: int = 0


def run_from_events(path: str | Path, sessions: Mapping[str, tuple[int, int]] | None = None) -> Run:
    """Read the event log of a slotgrid server or in-process replay into a Run.

    sessions: (session, turn) by the client's request id, where a client told; other requests then have neither.
    Times count from the first arrival, or from 0 when the log's clock is the CPU's. Without ``sessions`` they are those
    the log states; where it states none, requests with the same first block of prompt tokens are one session.
    Requests that did not finish (cancelled, or still running at the end of the log) are left out and counted in the
    notes. Besides the usual columns the requests have their request_id, and with ``sessions`` the tables have the
    columns a log gives (order, slot, ...; see :class:`slotgrid.run.Run`). Raises InputError naming file and line.
    """
    log = _Log()
    notes = []
    for number, event, whole in _lines(Path(path)):
        if event is None:
            if whole:
                raise InputError(f"{path}: line {number}: not an event (a JSON object with event and t_ns)")
            notes.append("the last line of the event log is cut off and was left out")
            continue
        try:
            _take(log, event, number)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{path}: line {number}: {event['event']}: {reason}") from None
    if log.start is None:
        raise InputError(f"{path}: no start event; the first line of an event log says what served")
    if sessions is not None:
        for name, request in log.requests.items():
            request.session, request.turn = _told(name, sessions)
    elif _number_sessions(log.requests):
        notes.append("the log states no sessions: requests with the same first prompt block count as one session")
    return _build(log, ServingConfig.from_dict(log.start["config"]), notes, sessions is not None)


def _told(name: str, sessions: Mapping[str, tuple[int, int]]) -> tuple[int, int] | tuple[None, None]:
    """Session and turn of a request; the client's id begins the server's, on whole dash parts."""
    while name:
        if name in sessions:
            return sessions[name]
        name = name.rpartition("-")[0]
    return None, None


def states_config(path: Path) -> bool:
    """Whether an event log says itself what served, so that no other log is needed."""
    try:
        event = files.parse_json(files.first_line(path), f"{path}: line 1")
    except InputError:
        return False
    return isinstance(event, dict) and event.get("event") == "start" and "config" in event


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None, bool]]:
    """(line number, event or None when it is none, whether the line is complete)."""
    content = files.read_bytes(path)
    lines = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = files.parse_json(line, f"{path}: line {number}")
        except InputError:
            event = None
        good = isinstance(event, dict) and isinstance(event.get("t_ns"), int) and event.get("event") in FIELDS
        yield number, event if good else None, number < len(lines)


def _take(log: _Log, event: dict[str, Any], line: int) -> None:
    kind, at = event["event"], event["t_ns"]
    log.last_ns = max(log.last_ns, at)
    if kind == "start":
        if event["format"] != FORMAT:
            raise ValueError(f"format is {event['format']!r}; this version reads {FORMAT!r}")
        if log.start is not None:
            raise ValueError("a second one; each server needs its own event log")
        # asked for here, where the line is known
        ServingConfig.from_dict(event["config"])
        log.start = event
    elif kind == "step_start":
        if event["kind"] not in ("prefill", "decode"):
            raise ValueError(f"kind is {event['kind']!r}; allowed: prefill, decode")
        log.open_step, log.open_line = event, line
        if event["kind"] == "prefill":
            request = _request(log, event)
            request.admit_ns, request.admit_order = at, line
    elif kind == "step_end":
        _end_step(log, event)
    elif kind == "eviction":
        log.evictions.append((at, event["request"], event["cause"], event.get("slot"), line))
        _request(log, event)
    elif kind == "allocation":
        optional: dict[str, Any] = {key: event.get(key) for key in ("arrival_ns", "session", "turn", "prefix", "slot")}
        log.requests[event["request"]] = _Request(event["prompt_tokens"], **optional)
    elif kind == "release":
        _request(log, event).finish_order = line
    elif kind == "hit":
        _request(log, event).cached_tokens = event["cached_tokens"]


def _end_step(log: _Log, event: Mapping[str, Any]) -> None:
    if log.open_step is None or log.open_step["step"] != event["step"]:
        raise ValueError(f"step {event['step']} was not started")
    at = event["t_ns"]
    log.steps.append((log.open_step["t_ns"], at, log.open_step, log.open_line))
    if log.open_step["kind"] == "prefill":
        _request(log, log.open_step).first_token_ns = at
    for entry in event.get("finished", ()):
        found = _request(log, entry)
        found.finish_ns, found.output_tokens = at, entry["output_tokens"]
    log.open_step = None


def _request(log: _Log, event: Mapping[str, Any]) -> _Request:
    name = event["request"]
    if name not in log.requests:
        raise ValueError(f"request {name!r} has no allocation before it")
    return log.requests[name]


def _build(log: _Log, config: ServingConfig, notes: list[str], told: bool) -> Run:
    import polars as pl

    assert log.start is not None
    arrivals = [r.arrival_ns for r in log.requests.values() if r.arrival_ns is not None]
    origin = 0 if log.start.get("clock") == "cpu" or not arrivals else min(arrivals)

    def seconds(t_ns: int) -> float:
        return (t_ns - origin) * _NS

    served = {name: r for name, r in log.requests.items() if r.finish_ns is not None}
    if len(served) < len(log.requests):
        notes.append(
            f"{len(log.requests) - len(served)} of {len(log.requests)} requests did not finish and are left out"
        )
    whole = pl.Int64
    requests = pl.DataFrame(
        [
            (
                r.session,
                r.turn,
                r.prompt_tokens,
                r.cached_tokens,
                r.prompt_tokens - r.cached_tokens,
                r.output_tokens,
                None if r.arrival_ns is None else seconds(r.arrival_ns),
                seconds(r.admit_ns or 0),
                seconds(r.first_token_ns or 0),
                seconds(r.finish_ns or 0),
                name,
                r.slot,
                r.admit_order,
                r.finish_order,
            )
            for name, r in served.items()
        ],
        schema={
            "session": whole,
            "turn": whole,
            "prompt_tokens": whole,
            "cached_tokens": whole,
            "computed_tokens": whole,
            "output_tokens": whole,
            "arrival_s": pl.Float64,
            "admit_s": pl.Float64,
            "first_token_s": pl.Float64,
            "finish_s": pl.Float64,
            "request_id": pl.String,
            **dict.fromkeys(("slot", "admit_order", "finish_order"), whole),
        },
        orient="row",
    ).sort("session", "turn")
    steps = pl.DataFrame(
        [
            (
                seconds(begin),
                (end - begin) * _NS,
                step["kind"],
                step["running"],
                step.get("bucket"),
                *_prefilled(log, step),
                line,
                1,
            )
            for begin, end, step, line in log.steps
        ],
        schema={
            "start_s": pl.Float64,
            "duration_s": pl.Float64,
            "kind": pl.String,
            "running": whole,
            "bucket": whole,
            "session": whole,
            "turn": whole,
            "computed_tokens": whole,
            "order": whole,
            "repeats": whole,
        },
        orient="row",
    )
    evictions = pl.DataFrame(
        [
            (seconds(at), log.requests[holder].session, cause, line, log.requests[holder].turn, slot)
            for at, holder, cause, slot, line in log.evictions
        ],
        schema={
            "time_s": pl.Float64,
            "session": whole,
            "cause": pl.String,
            **dict.fromkeys(("order", "turn", "slot"), whole),
        },
        orient="row",
    )
    if not told:
        # the log's own sessions: its clock gives the order
        requests = requests.drop("slot", "admit_order", "finish_order")
        steps = steps.drop("order", "repeats")
        evictions = evictions.drop("order", "turn", "slot")
    return Run(
        config=config,
        steps=steps,
        requests=requests,
        evictions=evictions,
        decode_s=None,
        prefill_s=None,
        stall_session_s=stall_session_s(steps),
        wall_s=seconds(log.last_ns),
        source="measured",
        rules=log.start.get("rules"),
        notes=tuple(notes),
        details={key: log.start[key] for key in ("writer", "clock", "versions", "block_tokens") if key in log.start},
    )


def stall_session_s(steps: pl.DataFrame) -> float:
    """Session-seconds others waited while prefills ran."""
    prefills = steps.filter(steps["kind"] == "prefill")
    return float((prefills["running"] * prefills["duration_s"]).sum())


def _prefilled(log: _Log, step: Mapping[str, Any]) -> tuple[int | None, int | None, int | None]:
    """(session, turn, computed tokens) of a prefill step; nothing of a decode step."""
    if step["kind"] == "decode":
        return None, None, None
    request = _request(log, step)
    return request.session, request.turn, step["computed_tokens"]


def _number_sessions(requests: Mapping[str, _Request]) -> bool:
    """Give every request a session and turn; True when they had to be found by content."""
    found = False
    sessions: dict[str, int] = {}
    turns: dict[int, int] = {}
    taken = {r.session for r in requests.values() if r.session is not None}
    unused = (number for number in range(len(taken) + len(requests)) if number not in taken)
    for name, request in requests.items():
        if request.session is None:
            found = True
            key = request.prefix or f"alone {name}"
            if key not in sessions:
                sessions[key] = next(unused)
            request.session = sessions[key]
        if request.turn is None:
            request.turn = turns.get(request.session, 0)
        turns[request.session] = request.turn + 1
    return found

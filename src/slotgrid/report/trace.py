"""The timeline of a diagnosis in the Chrome trace format (JSON), which Perfetto and chrome://tracing open.

Process 1 holds one track a slot, process 2 one track a request, process 3 the engine with its prefills, decode steps
and the counters running and bucket. Times are microseconds; on a run that has only an order, one unit a decode step
or admission is written as one millisecond, and the process names say so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.diagnose import Diagnosis
from slotgrid.diagnose.reuse import CAUSES
from slotgrid.diagnose.timeline import Timeline, build_timeline
from slotgrid.errors import InputError

_SLOTS, _REQUESTS, _ENGINE = 1, 2, 3


def save_trace(d: Diagnosis, path: Path) -> None:
    """Write the trace, whole or not at all. Raises InputError when the run shows neither an order nor times."""
    timeline = build_timeline(d)
    if timeline is None and d.run.requests["arrival_s"].is_null().all():
        raise InputError(
            "--timeline: neither the order of events nor request times were observed; "
            "a server log with [PFX] lines or request rows with times are needed"
        )
    with files.replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        stream.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        # one event at a time: a long run has more of them than should be held as text
        for i, event in enumerate(trace_events(d, timeline)):
            stream.write((",\n" if i else "") + json.dumps(event, separators=(",", ":"), allow_nan=False))
        stream.write("\n]}\n")


def trace_events(d: Diagnosis, timeline: Timeline | None) -> Iterator[dict[str, Any]]:
    """The events, metadata first."""
    if timeline is None:
        yield _name("process_name", _REQUESTS, 0, "requests (client clock)")
        yield from _client_requests(d)
        return
    unit = 1e3 if timeline.in_order else 1e6
    yield _name("process_name", _SLOTS, 0, f"KV slots ({timeline.basis})")
    yield _name("process_name", _REQUESTS, 0, f"requests ({timeline.basis})")
    yield _name("process_name", _ENGINE, 0, f"engine ({timeline.basis})")
    yield _name("thread_name", _ENGINE, 1, "steps")
    labels = _labels(d)
    for slot in sorted({held.slot for held in timeline.held}):
        yield _name("thread_name", _SLOTS, slot + 1, f"slot {slot}")
    for held in timeline.held:
        label = labels[held.request]
        yield _span(label, _SLOTS, held.slot + 1, held.start_s, held.released_s, unit, state="running")
        if held.end_s > held.released_s:
            yield _span(f"{label} kept", _SLOTS, held.slot + 1, held.released_s, held.end_s, unit, state="idle")
    for gone in timeline.evicted:
        yield {
            "name": f"evicted ({CAUSES[gone.cause]}{', cost a reuse' if gone.cost_reuse else ''})",
            "ph": "i",
            "s": "t",
            "pid": _SLOTS,
            "tid": gone.slot + 1,
            "ts": gone.time_s * unit,
        }
    yield from _requests(d, timeline, labels, unit)
    for p in timeline.prefills:
        label = labels[p.request] if p.request >= 0 else "request without a row"
        yield _span(f"prefill {label}", _ENGINE, 1, p.start_s, p.end_s, unit, waiting=p.waiting)
    end_s = 0.0
    for part in timeline.decodes:
        if part.start_s > end_s:
            yield _counter(end_s, 0, 0, unit)
        name = f"decode {part.running} in {part.bucket}"
        yield _span(name, _ENGINE, 1, part.start_s, part.end_s, unit, steps=part.steps)
        yield _counter(part.start_s, part.running, part.bucket, unit)
        end_s = part.end_s
    yield _counter(end_s, 0, 0, unit)


def _labels(d: Diagnosis) -> list[str]:
    names = d.run.requests["request_id"].to_list() if "request_id" in d.run.requests.columns else []
    labels = []
    for i, (session, turn) in enumerate(d.run.requests.select("session", "turn").iter_rows()):
        given = names[i] if names else None
        labels.append(f"s{session} t{turn}" if session is not None else str(given or f"request {i}"))
    return labels


def _requests(d: Diagnosis, timeline: Timeline, labels: list[str], unit: float) -> Iterator[dict[str, Any]]:
    """Waiting, prefill and decode of each request, one after another on its track."""
    admitted = {p.request: p for p in timeline.prefills if p.request >= 0}
    sent = [None] * len(labels) if timeline.in_order else d.run.requests["arrival_s"].to_list()
    cached = d.run.requests["cached_tokens"].to_list()
    for held in sorted(timeline.held, key=lambda h: h.start_s):
        tid = held.request + 1
        yield _name("thread_name", _REQUESTS, tid, labels[held.request])
        p = admitted[held.request]
        arrival = sent[held.request]
        if arrival is not None and arrival < p.start_s:
            yield _span("waiting", _REQUESTS, tid, arrival, p.start_s, unit)
        yield _span("prefill", _REQUESTS, tid, p.start_s, p.end_s, unit, cached_tokens=cached[held.request])
        if held.released_s > p.end_s:
            yield _span("decode", _REQUESTS, tid, p.end_s, held.released_s, unit)


def _client_requests(d: Diagnosis) -> Iterator[dict[str, Any]]:
    for i, (label, sent, done) in enumerate(
        zip(_labels(d), d.run.requests["arrival_s"], d.run.requests["finish_s"], strict=True)
    ):
        if sent is not None and done is not None:
            yield _name("thread_name", _REQUESTS, i + 1, label)
            yield _span("in flight", _REQUESTS, i + 1, sent, done, 1e6)


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _span(name: str, pid: int, tid: int, start: float, end: float, unit: float, **details: Any) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": start * unit,
        "dur": max(end - start, 0.0) * unit,
        "args": details,
    }


def _counter(at: float, running: int, bucket: int, unit: float) -> dict[str, Any]:
    values = {"running": running, "bucket": bucket}
    return {"name": "decode", "ph": "C", "pid": _ENGINE, "ts": at * unit, "args": values}

"""Event logs read and checked; the format itself stands in ``slotgrid.event_format``, which writers share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.event_format import (
    ALLOCATION,
    CAUSES,
    COMMON,
    EVICTION,
    FIELDS,
    FORMAT,
    HIT,
    MISS,
    RELEASE,
    START,
    STEP_END,
    STEP_KINDS,
    STEP_START,
    Field,
    check_event,
)

__all__ = [
    "ALLOCATION",
    "CAUSES",
    "COMMON",
    "EVICTION",
    "FIELDS",
    "FORMAT",
    "HIT",
    "MISS",
    "RELEASE",
    "START",
    "STEP_END",
    "STEP_KINDS",
    "STEP_START",
    "Field",
    "check_event",
    "read_events",
]


def read_events(path: str | Path) -> list[dict[str, Any]]:
    """All events of a file by time (a writer's own order where times are equal).

    Raises InputError naming file, line and field when a line is not an event of this format. A last line that was
    cut off while being written is left out.
    """
    text = files.read_bytes(path).decode("utf-8", errors="replace")
    lines = text.split("\n")
    if lines[-1]:
        # no newline at the end: the writer was stopped in the middle
        lines.pop()
    events = []
    started: set[int] = set()
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        where = f"{path}: line {number}"
        try:
            event = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{where}: not JSON ({error.msg})") from None
        check_event(event, where)
        if event["event"] == START:
            started.add(event["pid"])
        elif event["pid"] not in started:
            raise InputError(f"{where}: process {event['pid']} has no start event before it")
        events.append(event)
    if not events:
        raise InputError(f"{path}: no events; expected lines of {FORMAT}")
    events.sort(key=lambda event: event["t_ns"])
    return events

"""The event log of the observation plugin inside a vLLM server (docs/events.md), as the scan of a server log.

It says what ``[PFX]`` and ``[BUCKET]`` lines say, in the same order, and more: what each eviction was for. What it does
not know (prompt lengths, sessions, the configuration) comes from the files beside it, as for a log. Its times are of
the server's host and are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.event_format import ALLOCATION, EVICTION, HIT, RELEASE, START, STEP_END, STEP_START
from slotgrid.run.events import read_events
from slotgrid.run.readers.vllm_rbln_log import (
    ALLOC,
    EVICT,
    EVICT_CAUSES,
    FREE,
    PARTIAL,
    PREEMPT,
    RESTART,
    STEP,
    LogScan,
)


def is_observer_log(path: Path) -> bool:
    """Whether an event log is the plugin's: its start states no configuration, the static engine's does.

    Raises InputError when it does not begin with an event.
    """
    first = files.first_line(path)
    event = files.parse_json(first, f"{path}: line 1")
    if not isinstance(event, dict):
        raise InputError(f"{path}: line 1: not an event (a JSON object with event and t_ns)")
    return event.get("event") == START and "config" not in event


def scan_observer_log(path: Path) -> LogScan:
    """Read the plugin's event log. Raises InputError naming the file, and line or request, when it contradicts itself
    or a request takes several slots."""
    events = read_events(path)
    ended = {(event["pid"], event["step"]) for event in events if event["event"] == STEP_END}
    reader = _Reader(path)
    for event in events:
        reader.take(event, ended)
    double = reader.scan.requests.first_double()
    if double is not None:
        raise InputError(f"{path}: {double} is admitted a second time after it had finished; one log a run")
    return reader.scan


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.scan = LogScan(path.name)
        self._index: dict[str, int] = {}
        self._preempted: dict[str, int] = {}
        # slot -> request in it, running or kept; running request -> slot
        self._holder: dict[int, int] = {}
        self._slot: dict[int, int] = {}
        self._manager: int | None = None

    def _add(self, kind: int, first: int, second: int, count: int) -> None:
        self.scan.table.extend((kind, first, second, count))

    def take(self, event: Mapping[str, Any], ended: set[tuple[int, int]]) -> None:
        kind = event["event"]
        if kind == STEP_START:
            if event["kind"] == "decode" and (event["pid"], event["step"]) in ended:
                self._step(event)
        elif kind in (ALLOCATION, EVICTION, HIT, RELEASE):
            self.scan.pfx_lines += 1
            {ALLOCATION: self._alloc, EVICTION: self._evict, HIT: self._hit, RELEASE: self._release}[kind](event)

    def _step(self, event: Mapping[str, Any]) -> None:
        self.scan.bucket_lines += 1
        running, bucket = event.get("running"), event.get("bucket")
        if running is None or bucket is None or not 1 <= running <= bucket:
            count, line = self.scan.unread.get("[BUCKET]", (0, 0))
            self.scan.unread["[BUCKET]"] = (count + 1, line)
            return
        self._add(STEP, running, bucket, 1)

    def _alloc(self, event: Mapping[str, Any]) -> None:
        name, slot = event["request"], event["slot"]
        if event["pid"] != self._manager:
            if self._manager is not None:
                # a new process: nothing of the old one is left in its slots
                self._add(RESTART, 0, 0, 1)
                for kept in (self._index, self._preempted, self._holder, self._slot):
                    kept.clear()
            self._manager = event["pid"]
        if name in self._index:
            raise InputError(
                f"{self.path}: {name} takes slots {self._slot[self._index[name]]} and {slot}; "
                "only servers with one slot a request are modelled"
            )
        holder = self._holder.get(slot)
        if holder is not None and holder in self._slot:
            raise InputError(
                f"{self.path}: slot {slot} is given to {name} while {self.scan.requests[holder]} still holds it; "
                "events are missing or of two servers"
            )
        index = self._preempted.pop(name, None)
        index = self.scan.requests.add(name.encode()) if index is None else index
        if holder is not None:
            self.scan.silent_evictions += 1
            self._add(EVICT, holder, slot, 0)
        self._index[name] = self._holder[slot] = index
        self._slot[index] = slot
        self._add(ALLOC, index, slot, len(self._slot) - 1)

    def _evict(self, event: Mapping[str, Any]) -> None:
        holder = self._holder.pop(event["slot"], -1)
        if holder in self._slot:
            raise InputError(
                f"{self.path}: slot {event['slot']} is evicted while {self.scan.requests[holder]} still runs in it; "
                "events are missing or of two servers"
            )
        if holder < 0:
            self.scan.misplaced += 1
        self._add(EVICT, holder, event["slot"], EVICT_CAUSES[event["cause"]])

    def _hit(self, event: Mapping[str, Any]) -> None:
        index = self._index.get(event["request"])
        if index is None:
            self.scan.misplaced += 1
        else:
            self._add(PARTIAL, index, 0, event["cached_tokens"])

    def _release(self, event: Mapping[str, Any]) -> None:
        index = self._index.pop(event["request"], None)
        if index is None:
            self.scan.misplaced += 1
            return
        slot = self._slot.pop(index)
        if event.get("preempted"):
            self._preempted[event["request"]] = index
        self._add(PREEMPT if event.get("preempted") else FREE, index, slot, 1)

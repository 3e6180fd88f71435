"""The event log (``slotgrid-events/1``): one JSON object a line, times in nanoseconds. The format: ``event_format``,
docs/events.md."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import IO, Any

from slotgrid import event_format as names
from slotgrid.event_format import FORMAT
from slotgrid.serve.scheduler import Allocated, Change, Evicted, Hit

__all__ = ["FORMAT", "EventLog"]


class EventLog:
    """Writes events to a stream, or nowhere. A full disk ends the log, said once through ``on_failure``."""

    def __init__(
        self,
        stream: IO[str] | None,
        clock_ns: Callable[[], int],
        on_failure: Callable[[OSError], None] | None = None,
    ) -> None:
        self._stream = stream
        self._on_failure = on_failure
        self._pid = os.getpid()
        self.clock_ns = clock_ns

    def write(self, event: str, t_ns: int | None = None, **fields: Any) -> None:
        """One event, now unless ``t_ns`` is given; fields that are None are left out. Raises OSError without
        ``on_failure``."""
        if self._stream is None:
            return
        at = self.clock_ns() if t_ns is None else t_ns
        known = {key: value for key, value in fields.items() if value is not None}
        line = json.dumps({"event": event, "t_ns": at, "pid": self._pid, **known})
        self._guard(lambda stream: stream.write(line + "\n"))

    def changes(
        self,
        changes: tuple[Change, ...],
        *,
        allocated: Mapping[str, Any] | None = None,
        released: Mapping[str, Any] | None = None,
    ) -> None:
        """What happened to the slots; ``allocated`` and ``released`` are further fields of such events."""
        for change in changes:
            if isinstance(change, Allocated):
                self.write(names.ALLOCATION, request=change.request, slot=change.slot, **(allocated or {}))
            elif isinstance(change, Hit):
                self.write(names.HIT, request=change.request, slot=change.from_slot, cached_tokens=change.cached_tokens)
            elif isinstance(change, Evicted):
                self.write(names.EVICTION, slot=change.slot, request=change.request, cause=change.cause)
            else:
                self.write(names.RELEASE, request=change.request, slot=change.slot, **(released or {}))

    def flush(self) -> None:
        if self._stream is not None:
            self._guard(lambda stream: stream.flush())

    def _guard(self, action: Callable[[IO[str]], object]) -> None:
        assert self._stream is not None
        try:
            action(self._stream)
        except OSError as error:
            if self._on_failure is None:
                raise
            self._stream = None
            self._on_failure(error)

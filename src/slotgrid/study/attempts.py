"""Attempts: measurements that began, and what came of each, as the log tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slotgrid.study import log
from slotgrid.study.log import Line, Log
from slotgrid.study.manifest import Cell
from slotgrid.study.records import MEASURED_HERE, Record
from slotgrid.study.settings import PlanSet
from slotgrid.study.study import Study

_Place = tuple[Any, ...]


@dataclass(frozen=True)
class Attempt:
    """A measurement that began; began_at: ISO 8601 with its zone."""

    sessions: int
    replicate: str
    arm: str
    began_at: str

    @property
    def name(self) -> str:
        """Its cell and arm, for people: ``n3-s5-b0 wide``."""
        return f"n{self.sessions}-{self.replicate} {self.arm}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def log_attempt(study: Study, time: str, cell: Cell, arm: str) -> None:
    """Put into the log that a measurement begins."""
    place = {"set": cell.plan_set, "sessions": cell.sessions, "replicate": cell.replicate, "arm": arm}
    log.append(study.folder, log.ATTEMPT, time, **place)


def attempts(study: Study, record: Record) -> int | None:
    """Attempts a run took: what it says itself, or the log where that knows of more (a run that was stopped, or whose
    folder was removed). None where nobody counted."""
    place = (record.cell.plan_set, record.cell.sessions, record.cell.replicate, record.arm)
    logged = sum(line.what == log.ATTEMPT and _place(line) == place for line in study.log.lines)
    if record.data["how"] != MEASURED_HERE and logged:
        # those were not its own
        logged += 1
    return max(record.data.get("attempts") or 0, logged) or None


def began(found: Log, plan_set: str) -> bool:
    """Whether a measurement of this set began here."""
    return any(line.what == log.ATTEMPT and line.data.get("set") == plan_set for line in found.lines)


def without_outcome(found: Log, plans: PlanSet) -> tuple[Attempt, ...]:
    """Attempts of a set that left neither a run nor a refusal: stopped, removed before they came in, or still going."""
    lost: list[Line] = []
    going: dict[_Place, Line] = {}
    for line in found.lines:
        if line.data.get("set") != plans.name or line.what not in (log.ATTEMPT, log.RUN, log.REFUSED):
            continue
        before = going.pop(_place(line), None)
        # a run that was brought in is not what came of it
        foreign = line.what == log.RUN and line.data.get("how") != MEASURED_HERE
        if before is not None and (line.what == log.ATTEMPT or foreign):
            lost.append(before)
        if line.what == log.ATTEMPT:
            going[_place(line)] = line
    lost += going.values()
    lost.sort(key=lambda line: line.number)
    return tuple(Attempt(line.data["sessions"], line.data["replicate"], line.data["arm"], line.time) for line in lost)


def counted(found: Sequence[Attempt]) -> str:
    """``n3-s5-b0 wide (2), n4-s5-b0 base (1)``."""
    return ", ".join(f"{name} ({count})" for name, count in Counter(attempt.name for attempt in found).items())


def _place(line: Line) -> _Place:
    return tuple(line.data.get(key) for key in ("set", "sessions", "replicate", "arm"))

"""log.jsonl: everything that was done to a study, a line each, every line with the hash of the line before.

A line is on disk before what it names takes its place (see :mod:`slotgrid.study.audit`), so that nothing can come into
a study, or leave it, without a trace.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.study.store import sync
from slotgrid.study.strangers import CHANGED_LINE_ENDS

FILE = "log.jsonl"
FORMAT = "slotgrid-study-log/1"
REGISTRATION, AMENDMENT, VERDICT = "registration", "amendment", "verdict"
# attempt: a measurement that begins, so before anybody can know what comes of it
ATTEMPT, RUN, REFUSED, CONTINUED = "attempt", "run", "refused", "continued"
# an arms file other than the registered one was used; a page about a verdict was written
OTHER_ARMS, PAGE = "other_arms", "page"
_NEEDED = ("line", "time", "what", "previous_sha256", "sha256")


@dataclass(frozen=True)
class Line:
    """One line. sha256: its own hash, over everything else in it."""

    number: int
    sha256: str
    data: Mapping[str, Any]

    @property
    def what(self) -> str:
        return str(self.data["what"])

    @property
    def time(self) -> str:
        return str(self.data["time"])

    @property
    def place(self) -> str | None:
        """The folder of the study it names, or None."""
        return self.data.get("place")

    @property
    def named(self) -> str:
        """For messages: ``line 7 names run runs/main/n3-s5-b0/base``."""
        return f"line {self.number} names {self.what} {self.place}"


@dataclass(frozen=True)
class Log:
    """Whole lines, oldest first; size: their bytes; cut: bytes of a last line that was cut off while it was written."""

    lines: tuple[Line, ...] = ()
    size: int = 0
    cut: int = 0

    @property
    def head(self) -> str | None:
        """Hash of the last line: it stands for the whole log."""
        return self.lines[-1].sha256 if self.lines else None

    def summary(self) -> dict[str, Any]:
        """{"entries", "sha256"}: how long it is, and its head."""
        return {"entries": len(self.lines), "sha256": self.head}


def read_log(folder: Path) -> Log:
    """The log of a study directory, empty where there is none. Raises InputError naming the line that is wrong."""
    path = folder / FILE
    return parse_log(files.read_bytes(path), str(path)) if path.exists() else Log()


def parse_log(data: bytes, where: str) -> Log:
    """Read and check the chain. Raises InputError naming ``where`` and the line."""
    *rows, cut = data.split(b"\n")
    lines: list[Line] = []
    for number, row in enumerate(rows, start=1):
        lines.append(_parse_line(row, number, lines[-1].sha256 if lines else None, where))
    return Log(tuple(lines), len(data) - len(cut), len(cut))


def _parse_line(row: bytes, number: int, previous: str | None, where: str) -> Line:
    at = f"{where}: line {number}"
    try:
        data = json.loads(row)
    except ValueError:
        raise InputError(f"{at}: not JSON; the log is only ever added to") from None
    if not isinstance(data, dict) or not all(key in data for key in _NEEDED):
        raise InputError(f"{at}: not a line of the log; it has {', '.join(_NEEDED)}")
    if number == 1 and data.get("format") != FORMAT:
        raise InputError(f'{at}: expected "format": "{FORMAT}"')
    whole = data["sha256"] == _digest(data)
    if row != _text(data) or not whole:
        hint = CHANGED_LINE_ENDS if whole and row == _text(data) + b"\r" else ""
        raise InputError(f"{at}: changed after it was written (its hash is another){hint}")
    if data["line"] != number or data["previous_sha256"] != previous:
        raise InputError(f"{at}: does not follow the line before it; a line was changed, removed or added")
    return Line(number, data["sha256"], data)


def append(folder: Path, what: str, time: str, **facts: Any) -> Line:
    """Add a line; it is on disk when this returns. Only the command that holds the lock of the study may call it.

    What a killed command left of a line is overwritten. Raises InputError when it cannot be written; what was written
    of it is taken back then.
    """
    path = folder / FILE
    log = read_log(folder)
    data: dict[str, Any] = {"line": len(log.lines) + 1, "time": time, "what": what, **facts}
    if not log.lines:
        data = {"format": FORMAT, **data}
    data["previous_sha256"] = log.head
    data["sha256"] = _digest(data)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.ftruncate(handle, log.size)
            _write(handle, _text(data) + b"\n", log.size)
        finally:
            os.close(handle)
        sync(folder)
    except OSError as error:
        raise InputError(f"{path}: cannot write: {error.strerror or error}") from None
    return Line(data["line"], data["sha256"], data)


def _write(handle: int, data: bytes, size: int) -> None:
    try:
        done = 0
        while done < len(data):
            done += os.write(handle, data[done:])
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise


def cut_line(folder: Path, log: Log) -> str | None:
    """What a killed command wrote of its line, as text; None where nothing was cut off."""
    return files.read_bytes(folder / FILE)[log.size :].decode(errors="replace") if log.cut else None


def _text(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, allow_nan=False).encode()


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text({key: value for key, value in data.items() if key != "sha256"})).hexdigest()

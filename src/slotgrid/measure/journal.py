"""Rows on disk as they happen: one JSON object a line, flushed, so that a killed run keeps what it had."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from slotgrid.errors import InputError


class Journal:
    """Appends JSON lines to a new file. Writing raises OSError (a full disk); opening an existing file InputError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = open(path, "x", encoding="utf-8")  # noqa: SIM115  # closed in __exit__
        except FileExistsError:
            raise InputError(f"{path}: exists already; give another directory for this run") from None
        except OSError as error:
            raise InputError(f"{path}: cannot write: {error.strerror or error}") from None

    def write(self, row: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")
        self._stream.flush()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # what could not be written was said when it happened
        with contextlib.suppress(OSError):
            self._stream.close()

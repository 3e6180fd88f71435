"""Request rows as columns: a million rows are numbers in arrays, not a million objects."""

from __future__ import annotations

from array import array
from operator import attrgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slotgrid.run.readers.names import Names
from slotgrid.run.readers.rows import Gaps, RequestRow

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_WHOLE = ("turn", "prompt_tokens", "output_tokens", "cached_tokens", "planned_new_tokens", "planned_output_tokens")
_SECONDS = ("arrival_s", "first_token_s", "finish_s")
_NAN = float("nan")
_get_whole = attrgetter(*_WHOLE)
_get_seconds = attrgetter(*_SECONDS)


class RowTable:
    """Rows in the order they were read. Integer columns hold -1 and second columns NaN where there is nothing.

    session: code of each row's session, -1 without one; session_keys, session_order: by code.
    failed: row index -> reason. gaps: row index -> seconds between tokens.
    """

    def __init__(self) -> None:
        self._whole = {name: array("q") for name in _WHOLE}
        self._seconds = {name: array("d") for name in _SECONDS}
        self._add_whole = [column.append for column in self._whole.values()]
        self._add_seconds = [column.append for column in self._seconds.values()]
        self._session = array("i")
        self._file = array("h")
        self._line = array("i")
        self._files: list[str] = []
        self._path: Path | str | None = None
        self.ids = Names()
        self._codes: dict[str, int] = {}
        self.session_keys: list[str] = []
        self.session_order: list[tuple[float, ...] | None] = []
        self.failed: dict[int, str] = {}
        self.gaps: dict[int, Gaps] = {}

    def __len__(self) -> int:
        return len(self._session)

    def add(self, row: RequestRow, path: Path | str, line: int) -> None:
        """Append a row that was read from a line (or entry) of a file."""
        index = len(self)
        for append, value in zip(self._add_whole, _get_whole(row), strict=True):
            append(-1 if value is None else value)
        for add, seconds in zip(self._add_seconds, _get_seconds(row), strict=True):
            add(_NAN if seconds is None else seconds)
        code = -1
        if row.session is not None:
            code = self._codes.setdefault(row.session, len(self.session_keys))
            if code == len(self.session_keys):
                self.session_keys.append(row.session)
                self.session_order.append(row.order)
        self._session.append(code)
        if self._path is not path:
            self._path = path
            self._files.append(str(path))
        self._file.append(len(self._files) - 1)
        self._line.append(line)
        self.ids.add(None if row.request_id is None else row.request_id.encode())
        if row.failed is not None:
            self.failed[index] = row.failed
        if row.token_gaps_s is not None:
            self.gaps[index] = row.token_gaps_s

    def where(self, index: int) -> str:
        """File and line of a row."""
        return f"{self._files[self._file[index]]}: line {self._line[index]}"

    def whole(self, name: str) -> Ints:
        """A column of whole numbers (a view), -1 where there is nothing."""
        return np.frombuffer(self._whole[name], np.int64) if len(self) else np.empty(0, np.int64)

    def seconds(self, name: str) -> Floats:
        """A column of seconds (a view that can be written), NaN where there is nothing."""
        return np.frombuffer(self._seconds[name], np.float64) if len(self) else np.empty(0)

    @property
    def session(self) -> Ints:
        return np.frombuffer(self._session, np.int32).astype(np.int64) if len(self) else np.empty(0, np.int64)

    def same(self, a: int, b: int) -> bool:
        """Whether two rows say the same, apart from where they stand."""
        if self._session[a] != self._session[b] or self.failed.get(a) != self.failed.get(b):
            return False
        if any(column[a] != column[b] for column in self._whole.values()):
            return False
        pairs = ((column[a], column[b]) for column in self._seconds.values())
        return all(x == y or (x != x and y != y) for x, y in pairs)

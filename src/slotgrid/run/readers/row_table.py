"""Request rows as columns: a million rows are numbers in narrow arrays, not a million objects."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.errors import InputError
from slotgrid.run.readers.names import Names
from slotgrid.run.readers.rows import Gaps, RequestRow

Ints = npt.NDArray[np.signedinteger[Any]]
Floats = npt.NDArray[np.float64]

_WHOLE = ("turn", "prompt_tokens", "output_tokens", "cached_tokens", "planned_new_tokens", "planned_output_tokens")
_SECONDS = ("arrival_s", "first_token_s", "finish_s")
_NAN = float("nan")
# sessions whose next turn is likely still to come; those forgotten are found again at the end
_RECENT_SESSIONS = 8192


class RowTable:
    """Rows in the order they were read. Integer columns hold -1 and second columns NaN where there is nothing.

    session: code of each row's session, -1 without one; session_key, session_orders: by code.
    failed: row index -> reason. gaps: row index -> seconds between tokens.
    """

    def __init__(self) -> None:
        self._whole = {name: array("i") for name in _WHOLE}
        self._seconds = {name: array("d") for name in _SECONDS}
        self._add_whole = [column.append for column in self._whole.values()]
        self._add_seconds = [column.append for column in self._seconds.values()]
        self._session = array("i")
        self._file = array("h")
        self._line = array("i")
        self._files: list[str] = []
        self._path: Path | str | None = None
        self.ids = Names()
        self._recent: dict[str, int] = {}
        self._merged = 0
        self._keys = Names()
        self._order = (array("d"), array("d"))
        self.failed: dict[int, str] = {}
        self.gaps: dict[int, Gaps] = {}

    def __len__(self) -> int:
        return len(self._session)

    def add(self, row: RequestRow, path: Path | str, line: int) -> None:
        """Append a row that was read from a line (or entry) of a file."""
        turn, prompt, output, cached, new, planned = self._add_whole
        try:
            turn(-1 if row.turn is None else row.turn)
            prompt(-1 if row.prompt_tokens is None else row.prompt_tokens)
            output(-1 if row.output_tokens is None else row.output_tokens)
            cached(-1 if row.cached_tokens is None else row.cached_tokens)
            new(-1 if row.planned_new_tokens is None else row.planned_new_tokens)
            planned(-1 if row.planned_output_tokens is None else row.planned_output_tokens)
        except OverflowError:
            raise InputError(f"{row.where}: a turn or a number of tokens is above {2**31 - 1:,}") from None
        arrival, first, finish = self._add_seconds
        arrival(_NAN if row.arrival_s is None else row.arrival_s)
        first(_NAN if row.first_token_s is None else row.first_token_s)
        finish(_NAN if row.finish_s is None else row.finish_s)
        self._session.append(-1 if row.session is None else self._code(row.session, row.order))
        if self._path is not path:
            self._path = path
            self._files.append(str(path))
        self._file.append(len(self._files) - 1)
        self._line.append(line)
        self.ids.add(None if row.request_id is None else row.request_id.encode())
        if row.failed is not None:
            self.failed[len(self) - 1] = row.failed
        if row.token_gaps_s is not None:
            self.gaps[len(self) - 1] = row.token_gaps_s

    def _code(self, session: str, order: tuple[float, ...] | None) -> int:
        code = self._recent.get(session)
        if code is None:
            code = self._keys.add(session.encode())
            if len(self._recent) >= _RECENT_SESSIONS:
                self._recent.clear()
            self._recent[session] = code
            for i, column in enumerate(self._order):
                column.append(order[i] if order is not None and i < len(order) else _NAN)
        return code

    def session_key(self, code: int) -> str:
        """What the rows call a session."""
        return str(self._keys[code])

    @property
    def session_codes(self) -> int:
        """One more than the largest code. Not every number below is in use."""
        return len(self._keys)

    def session_orders(self, codes: Ints) -> Floats:
        """What the rows state about the place of sessions: two numbers each, NaN where they state none or one."""
        return np.stack([np.frombuffer(column, np.float64)[codes] for column in self._order], axis=1)

    def where(self, index: int) -> str:
        """File and line of a row."""
        return f"{self._files[self._file[index]]}: line {self._line[index]}"

    def whole(self, name: str) -> npt.NDArray[np.int32]:
        """A column of whole numbers (a view), -1 where there is nothing."""
        return np.frombuffer(self._whole[name], np.int32) if len(self) else np.empty(0, np.int32)

    def seconds(self, name: str) -> Floats:
        """A column of seconds (a view that can be written), NaN where there is nothing."""
        return np.frombuffer(self._seconds[name], np.float64) if len(self) else np.empty(0)

    def take(self, name: str) -> npt.NDArray[Any]:
        """A column, whole numbers or seconds, which the table no longer has afterwards."""
        columns: dict[str, array[int]] | dict[str, array[float]]
        columns = self._whole if name in self._whole else self._seconds
        dtype = np.int32 if name in self._whole else np.float64
        return np.frombuffer(columns.pop(name), dtype) if len(self) else np.empty(0, dtype)

    @property
    def session(self) -> npt.NDArray[np.int32]:
        """Code of each row's session (a view), -1 without one. Equal sessions have equal codes."""
        codes = np.frombuffer(self._session, np.int32) if len(self) else np.empty(0, np.int32)
        if self._merged != len(codes):
            # a session that came back after it was forgotten has several codes
            first = np.arange(len(self._keys), dtype=np.int32)
            for one, later in self._keys.doubles():
                first[later] = one
            named = codes >= 0
            codes[named] = first[codes[named]]
            self._merged = len(codes)
            self._recent.clear()
        return codes

    def same(self, a: int, b: int) -> bool:
        """Whether two rows say the same, apart from where they stand."""
        if self._session[a] != self._session[b] or self.failed.get(a) != self.failed.get(b):
            return False
        if any(column[a] != column[b] for column in self._whole.values()):
            return False
        pairs = ((column[a], column[b]) for column in self._seconds.values())
        return all(x == y or (x != x and y != y) for x, y in pairs)

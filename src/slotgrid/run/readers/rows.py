"""Request rows, whatever wrote them: one value object, checked field access, and the JSONL shapes told apart.

Shapes: the two published ones (two-turn and multi-turn runners), ours, and aiperf's records here; the JSON files of
``vllm bench serve`` and guidellm in their own modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.errors import InputError

Gaps = npt.NDArray[np.float32]


@dataclass(slots=True)
class RequestRow:
    """One request as its client saw it. Times in seconds on the client's clock, lengths in tokens.

    where: file and line, for messages. session: what names the session, or None when the rows do not say.
    order: sorts sessions in plan order where the rows know it. turn: from 0. cached_tokens: None when not observable.
    token_gaps_s: seconds between tokens, None without token times. failed: why the request has no result.
    planned_*: what the plan asked for, where the row repeats it.
    """

    where: str
    request_id: str | None
    session: str | None
    order: tuple[float, ...] | None
    turn: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    arrival_s: float | None
    first_token_s: float | None
    finish_s: float | None
    token_gaps_s: Gaps | None = None
    failed: str | None = None
    planned_new_tokens: int | None = None
    planned_output_tokens: int | None = None


@dataclass(frozen=True)
class Shape:
    """A kind of row: its name in reports, the keys that tell it, and how an object becomes a row."""

    name: str
    keys: frozenset[str]
    read: Callable[[Mapping[str, Any], str], RequestRow]


class Fields:
    """Checked access to one row's fields. Errors name the place, the key, the value and what is allowed."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data = data
        self.where = where

    def _value(self, key: str, needed: bool) -> Any:
        if key not in self._data and needed:
            raise InputError(f"{self.where}: {key} is missing")
        return self._data.get(key)

    def whole(self, key: str, *, needed: bool = True, nullable: bool = False, least: int = 0) -> int | None:
        """A whole number of at least ``least``. Raises InputError naming row and key."""
        value = self._data.get(key)
        if type(value) is int and value >= least:  # nearly always
            return value
        value = self._value(key, needed)
        if value is None and (nullable or not needed):
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{self.where}: {key} is {value!r}; expected a whole number of at least {least}")
        return value

    def seconds(self, key: str, *, needed: bool = True, nullable: bool = False) -> float | None:
        """A finite time in seconds. Raises InputError naming row and key."""
        value = self._data.get(key)
        if type(value) is float and value - value == 0:  # nearly always; not for NaN and infinities
            return value
        value = self._value(key, needed)
        if value is None and (nullable or not needed):
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"{self.where}: {key} is {value!r}; expected a finite number")
        return float(value)

    def text(self, key: str, *, needed: bool = True, nullable: bool = False) -> str | None:
        """A text that is not empty. Raises InputError naming row and key."""
        value = self._data.get(key)
        if type(value) is str and value:  # nearly always
            return value
        value = self._value(key, needed)
        if value is None and (nullable or not needed):
            return None
        if not isinstance(value, str) or not value:
            raise InputError(f"{self.where}: {key} is {value!r}; expected text")
        return value

    def numbers(self, key: str) -> list[float] | None:
        """A list of finite numbers, or None when the key is absent or null."""
        value = self._data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) for x in value
        ):
            raise InputError(f"{self.where}: {key} is not a list of finite numbers")
        return [float(x) for x in value]


def gaps_of(times_s: list[float]) -> Gaps:
    """Seconds between token times. The first entry is the first token."""
    return np.diff(np.asarray(times_s)).astype(np.float32)


def _failure(fields: Fields) -> str | None:
    status = fields.whole("status", needed=False)
    error = fields.text("error", needed=False)
    if status is not None and status != 200:
        return f"status {status}"
    return f"error: {error.splitlines()[0][:60]}" if error else None


def _two_turn(data: Mapping[str, Any], where: str) -> RequestRow:
    """Published two-turn runner (session_runner): writes 0 where the server reported no cached tokens."""
    f = Fields(data, where)
    failed = _failure(f)
    ok = failed is None
    index = f.whole("session_index")
    return RequestRow(
        where=where,
        request_id=f.text("request_id", nullable=not ok),
        session=f.text("session"),
        order=(float(index or 0),),
        turn=f.whole("turn"),
        prompt_tokens=f.whole("prompt_tokens", nullable=not ok, least=1 if ok else 0),
        output_tokens=f.whole("completion_tokens", nullable=not ok),
        cached_tokens=f.whole("cached_tokens", needed=False),
        arrival_s=f.seconds("sent_s"),
        first_token_s=f.seconds("first_token_s", needed=False),
        finish_s=f.seconds("done_s", nullable=not ok),
        failed=failed,
        planned_new_tokens=f.whole("requested_segment_tokens", needed=False),
        planned_output_tokens=f.whole("requested_generation_tokens", needed=False),
    )


def _multi_turn(data: Mapping[str, Any], where: str) -> RequestRow:
    """Published multi-turn runner (multiturn_runner): cached_tokens is null where the server reported none."""
    f = Fields(data, where)
    row = _two_turn({**data, "session_index": 0}, where)
    row.order = (float(f.whole("slot") or 0), float(f.whole("generation") or 0))
    if data.get("details_present") is False:
        row.cached_tokens = None
    return row


def _ours(data: Mapping[str, Any], where: str) -> RequestRow:
    """Rows of slotgrid: the columns of a run's request table by their names, plus request_id, status, error,
    token_times_s."""
    f = Fields(data, where)
    failed = _failure(f)
    ok = failed is None
    session = data.get("session")
    if isinstance(session, bool) or not isinstance(session, int | str):
        raise InputError(f"{where}: session is {session!r}; expected its index or its id")
    times = f.numbers("token_times_s")
    first = f.seconds("first_token_s", needed=False)
    return RequestRow(
        where=where,
        request_id=f.text("request_id", needed=False),
        session=str(session),
        order=(float(session),) if isinstance(session, int) else None,
        turn=f.whole("turn"),
        prompt_tokens=f.whole("prompt_tokens", nullable=not ok),
        output_tokens=f.whole("output_tokens", nullable=not ok),
        cached_tokens=f.whole("cached_tokens", needed=False),
        arrival_s=f.seconds("arrival_s"),
        first_token_s=times[0] if first is None and times else first,
        finish_s=f.seconds("finish_s", nullable=not ok),
        token_gaps_s=gaps_of(times) if times else None,
        failed=failed,
        planned_new_tokens=f.whole("planned_new_tokens", needed=False),
        planned_output_tokens=f.whole("planned_output_tokens", needed=False),
    )


TWO_TURN = Shape("published two-turn rows", frozenset({"session_index", "sent_s", "done_s"}), _two_turn)
MULTI_TURN = Shape("published multi-turn rows", frozenset({"slot", "generation", "sent_s", "done_s"}), _multi_turn)
OURS = Shape("slotgrid rows", frozenset({"session", "turn", "arrival_s", "finish_s"}), _ours)

"""Prompts of a plan: the same for the same plan, session and turn, as token ids or as words.

A conversation grows by what the plan adds and by what the server answered. As token ids the next prompt begins with
exactly what the server has seen; as text the tokens at the seam between two pieces may be others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from slotgrid.plan import Session

# one token each in nearly every byte-level vocabulary, with the space before them
_WORDS = [
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"),
    *("family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system"),
    *("program", "question", "work", "number", "night", "point", "home", "water", "room", "mother", "area", "money"),
    *("story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side"),
    *("kind", "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end", "member"),
]


@dataclass(frozen=True)
class TokenRange:
    """Token ids to draw prompts from: ``low`` included, ``high`` excluded."""

    low: int
    high: int


def segment(
    plan_id: str, session: Session, session_index: int, turn: int, tokens: TokenRange
) -> tuple[list[int], list[int]]:
    """The ``new_tokens`` token ids a turn appends, as (prefix, own): a shared prefix of the first turn is the same in
    every session, the rest is the session's own. Either may be empty."""
    count = session.turns[turn].new_tokens
    shared = session.prefix_tokens if turn == 0 else 0
    own = _draw(f"{plan_id}:{session_index}:{turn}", count - shared, tokens)
    return _draw(f"prefix:{session.prefix_id}", shared, tokens) if shared else [], own


def _draw(seed: str, count: int, tokens: TokenRange) -> list[int]:
    # a hash and not a generator: the same on every version and platform, and fast
    numbers = np.frombuffer(hashlib.shake_256(seed.encode()).digest(4 * count), "<u4")
    drawn: list[int] = (tokens.low + numbers.astype(np.int64) % (tokens.high - tokens.low)).tolist()
    return drawn


class Conversation(Protocol):
    """The prompt of one session as it grows. planned_tokens: its length by the plan (and what was really generated)."""

    planned_tokens: int

    def append(self, ids: Sequence[int]) -> None:
        """New tokens of the plan. Pieces that other sessions do and do not share are appended one by one."""
        ...

    def answered(self, text: str, ids: Sequence[int] | None, count: int) -> None:
        """What the server generated: text, ids when it told them, and how many tokens."""
        ...

    def json(self) -> bytes:
        """The prompt as a JSON value."""
        ...


class TokenConversation:
    """Token ids, kept as the JSON they are sent as."""

    def __init__(self) -> None:
        self._json = bytearray()
        self.planned_tokens = 0

    def append(self, ids: Sequence[int]) -> None:
        if not ids:
            return
        if self._json:
            self._json += b","
        self._json += ",".join(map(str, ids)).encode()
        self.planned_tokens += len(ids)

    def answered(self, text: str, ids: Sequence[int] | None, count: int) -> None:
        assert ids is not None, "a conversation of token ids needs the ids of the answer"
        self.append(ids)

    def json(self) -> bytes:
        return b"[" + self._json + b"]"


class TextConversation:
    """Words of about one token each. words_per_token: as a probe of the server measured it."""

    def __init__(self, words_per_token: float = 1.0) -> None:
        self._parts: list[str] = []
        self._words_per_token = words_per_token
        self.planned_tokens = 0

    def append(self, ids: Sequence[int]) -> None:
        if not ids:
            return
        # each piece is scaled by itself: a cut across pieces would drop what tells sessions apart
        self._parts.append(words(ids[: max(1, round(len(ids) * self._words_per_token))]))
        self.planned_tokens += len(ids)

    def answered(self, text: str, ids: Sequence[int] | None, count: int) -> None:
        self._parts.append(text)
        self.planned_tokens += count

    def json(self) -> bytes:
        return json.dumps("".join(self._parts)).encode()


def words(ids: Sequence[int]) -> str:
    """A word for each id, with a space before it."""
    return "".join(" " + _WORDS[token % len(_WORDS)] for token in ids)

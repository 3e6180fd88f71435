"""A streamed completion as it arrives: bytes in, tokens with their times out. No sockets, no clock."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# a server error is shown in one line of a report
_LONGEST_ERROR = 200
_MARK = re.compile(rb"\ndata:[ \t]{0,8}\[DONE\]")
# the same with every kind of line break; comments (keep-alive) are no events
_EVENT = b"\ndata:"
# as long as the longest mark
_TAIL_BYTES = 21


@dataclass
class Answer:
    """What one request got. Times in seconds as given to :meth:`feed`, lengths in tokens.

    While it arrives bytes are only kept, with their times, so that hundreds of streams can share one core; everything
    but ``ended`` and ``events`` is known after :meth:`close`.

    ended: the end mark was seen. events: lines of data that came: a token each, and one or two at the end.
    token_times_s: when each token arrived; where the server does not tell token ids, when each piece of text did.
    token_ids: None when the server did not tell them. usage: the server's, or None.
    streamed: False for JSON in one piece instead of a stream of events; ``error`` then says so, or has its own error.
    """

    ended: bool = False
    events: int = 0
    request_id: str | None = None
    model: str | None = None
    token_times_s: list[float] = field(default_factory=list)
    token_ids: list[int] | None = None
    usage: Mapping[str, Any] | None = None
    finish_reason: str | None = None
    error: str | None = None
    streamed: bool = True
    # empty pieces without ids before the first text; some servers open their answer with one
    _empty_first: int = 0
    _text: list[str] = field(default_factory=list)
    _pieces: list[tuple[float, bytes]] = field(default_factory=list)
    # a line cannot begin inside JSON, so a mark after a line break is one; the first line has one before it, too
    _tail: bytes = b"\n"

    def feed(self, data: bytes, at_s: float) -> None:
        """Keep bytes of a server-sent event stream that arrived at ``at_s``."""
        self._pieces.append((at_s, data))
        seen = self._tail + data
        # what the tail alone held was counted before
        self.events += seen.count(_EVENT) - self._tail.count(_EVENT)
        if _MARK.search(seen):
            self.ended = True
        self._tail = seen[-_TAIL_BYTES:]

    def close(self) -> None:
        """Read what was kept. A line that was cut off is left out."""
        if self.events == 0 and self._pieces:
            self._whole_body(b"".join(data for _, data in self._pieces))
        rest = b""
        for at_s, data in self._pieces:
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                if line.startswith(b"data:"):
                    self._event(line[5:].strip(), at_s)
        self._pieces.clear()
        self._drop_opening()

    def _whole_body(self, content: bytes) -> None:
        try:
            value = json.loads(content)
        except ValueError:
            return
        self.streamed = False
        self.error = _error_of(value) or "the server sent JSON in one piece"

    def _drop_opening(self) -> None:
        """Leave out empty pieces at the start that are no tokens: more than the server counted, or all of them where it
        does not count (a token may have no text, so the count decides where there is one)."""
        if self.token_ids is not None:
            return
        told = _whole(self.usage, "completion_tokens")
        more = self._empty_first if told is None else max(0, len(self.token_times_s) - told)
        drop = min(more, self._empty_first)
        del self.token_times_s[:drop]
        self._empty_first -= drop

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def prompt_tokens(self) -> int | None:
        return _whole(self.usage, "prompt_tokens")

    @property
    def output_tokens(self) -> int:
        """As the server counts them, else as they arrived."""
        told = _whole(self.usage, "completion_tokens")
        return len(self.token_times_s) if told is None else told

    @property
    def cached_tokens(self) -> int | None:
        """None when the server does not say: that is not observable, not zero."""
        details = None if self.usage is None else self.usage.get("prompt_tokens_details")
        return _whole(details, "cached_tokens") if isinstance(details, Mapping) else None

    def _event(self, data: bytes, at_s: float) -> None:
        if data == b"[DONE]":
            return
        try:
            value = json.loads(data)
        except ValueError:
            self.error = self.error or "the stream holds something that is not JSON"
            return
        if not isinstance(value, dict):
            self.error = self.error or "the stream holds JSON that is not an object"
            return
        error = _error_of(value)
        if error is not None:
            self.error = self.error or error
            return
        if self.request_id is None:
            self.request_id, self.model = _text(value, "id"), _text(value, "model")
        if isinstance(value.get("usage"), dict):
            self.usage = value["usage"]
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            self._choice(choice, at_s)

    def _choice(self, choice: Any, at_s: float) -> None:
        if not isinstance(choice, dict):
            return
        text, ids, reason = choice.get("text"), choice.get("token_ids"), choice.get("finish_reason")
        if isinstance(text, str) and text:
            self._text.append(text)
        if isinstance(reason, str):
            self.finish_reason = reason
        if isinstance(ids, list) and all(type(token) is int for token in ids):
            if self.token_ids is None:
                self.token_ids = []
            self.token_ids += ids
            self.token_times_s += [at_s] * len(ids)
        elif text or reason is None:
            # an empty piece with a reason only closes the stream
            if not text and self._empty_first == len(self.token_times_s):
                self._empty_first += 1
            self.token_times_s.append(at_s)


def _error_of(value: Any) -> str | None:
    """The error that an object tells of; None when it is none (some servers send the key with every piece)."""
    if not isinstance(value, Mapping) or (value.get("error") is None and value.get("object") != "error"):
        return None
    return error_text(value)


def error_text(value: Any) -> str:
    """The message of an error in OpenAI's shape, in one line."""
    inner = value
    if isinstance(value, Mapping) and value.get("error") is not None:
        inner = value["error"]
    text = inner.get("message") if isinstance(inner, Mapping) else None
    line = " ".join(str(inner if text is None else text).split())
    return line if len(line) <= _LONGEST_ERROR else line[: _LONGEST_ERROR - 3] + "..."


def _whole(data: Mapping[str, Any] | None, key: str) -> int | None:
    value = None if data is None else data.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(data: Mapping[str, Any], key: str) -> str | None:
    value = data.get(key)
    return value if isinstance(value, str) and value else None

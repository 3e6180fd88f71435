"""Answers in the shapes of the OpenAI API: whole, or chunk by chunk."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from slotgrid.serve.hub import Token
from slotgrid.serve.protocol import Generation


class Reply(ABC):
    """One answer as it grows. Subclasses say what a chunk and a whole answer look like."""

    prefix: ClassVar[str]

    def __init__(self, name: str, model: str, request: Generation) -> None:
        self._name = name
        self._model = model
        self._request = request
        self._created = int(time.time())
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._reason: str | None = None
        self._cached = 0

    def opening(self) -> Iterator[dict[str, Any]]:
        """Chunks before the first token."""
        return iter(())

    def chunk(self, token: Token) -> dict[str, Any]:
        """Take a token in and give its chunk."""
        self._texts.append(token.text)
        self._ids.append(token.id)
        self._reason = token.finish_reason
        self._cached = token.cached_tokens
        return self._chunk(token)

    def closing(self) -> Iterator[dict[str, Any]]:
        """Chunks after the last token."""
        if self._request.include_usage:
            yield {**self._head(stream=True), "choices": [], "usage": self._usage()}

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""

    @abstractmethod
    def _chunk(self, token: Token) -> dict[str, Any]: ...

    @abstractmethod
    def _head(self, *, stream: bool) -> dict[str, Any]: ...

    def _usage(self) -> dict[str, Any]:
        prompt, generated = len(self._request.prompt), len(self._ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }

    def _with_usage(self, data: dict[str, Any]) -> dict[str, Any]:
        # every chunk but the last says null when usage was asked for
        return {**data, "usage": None} if self._request.include_usage else data


class CompletionReply(Reply):
    prefix = "cmpl"

    def whole(self) -> dict[str, Any]:
        choice = self._choice("".join(self._texts), self._reason)
        if self._request.return_token_ids:
            choice.update(token_ids=self._ids, prompt_token_ids=list(self._request.prompt))
        return {**self._head(stream=False), "choices": [choice], "usage": self._usage()}

    def _chunk(self, token: Token) -> dict[str, Any]:
        choice = self._choice(token.text, token.finish_reason)
        if self._request.return_token_ids:
            choice["token_ids"] = [token.id]
            if len(self._ids) == 1:
                choice["prompt_token_ids"] = list(self._request.prompt)
        return self._with_usage({**self._head(stream=True), "choices": [choice]})

    def _choice(self, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}

    def _head(self, *, stream: bool) -> dict[str, Any]:
        return {"id": self._name, "object": "text_completion", "created": self._created, "model": self._model}


class ChatReply(Reply):
    prefix = "chatcmpl"

    def opening(self) -> Iterator[dict[str, Any]]:
        first = self._delta({"role": "assistant", "content": ""}, None)
        if self._request.return_token_ids:
            first["prompt_token_ids"] = list(self._request.prompt)
        yield first

    def whole(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": "".join(self._texts)}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._reason}
        data = {**self._head(stream=False), "choices": [choice], "usage": self._usage()}
        if self._request.return_token_ids:
            choice["token_ids"] = self._ids
            data["prompt_token_ids"] = list(self._request.prompt)
        return data

    def _chunk(self, token: Token) -> dict[str, Any]:
        data = self._delta({"content": token.text}, token.finish_reason)
        if self._request.return_token_ids:
            data["choices"][0]["token_ids"] = [token.id]
        return data

    def _delta(self, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._with_usage({**self._head(stream=True), "choices": [choice]})

    def _head(self, *, stream: bool) -> dict[str, Any]:
        kind = "chat.completion.chunk" if stream else "chat.completion"
        return {"id": self._name, "object": kind, "created": self._created, "model": self._model}

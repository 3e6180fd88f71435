"""One request while it is generated: choosing tokens, turning them into text, knowing when to stop."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from slotgrid.serve.executor import StepResult


@dataclass(frozen=True)
class Request:
    """What is asked of the engine. Lengths in tokens.

    order: place in the queue. temperature: 0 takes the most likely token. seed: None draws differently each time.
    eos_ids: tokens that end the output. stop: texts that end it and are left out. session, turn: for the event log,
    when known.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    order: tuple[Any, ...]
    eos_ids: frozenset[int] = frozenset()
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    session: int | None = None
    turn: int | None = None


class Sampler:
    """Draws from the logits of a request with its own random stream."""

    def __init__(self, request: Request) -> None:
        self._temperature = request.temperature
        self._top_p = request.top_p
        seed = None if request.seed is None else request.seed & (2**64 - 1)
        self._random = np.random.Generator(np.random.Philox(seed)) if request.temperature > 0 else None

    def choose(self, result: StepResult, row: int) -> int:
        if self._random is None:
            return result.most_likely[row]
        scaled = result.logits(row).astype(np.float64) / self._temperature
        weights = np.exp(scaled - scaled.max())
        if self._top_p < 1:
            order = np.argsort(-weights, kind="stable")
            reached = np.cumsum(weights[order])
            # the smallest set of likely tokens that reaches top_p of the mass
            weights[order[np.searchsorted(reached, self._top_p * reached[-1]) + 1 :]] = 0.0
        total = np.cumsum(weights)
        return min(int(np.searchsorted(total, self._random.random() * total[-1], "right")), len(total) - 1)


class TextStream:
    """Text of a growing token sequence. Holds back incomplete characters and what may become a stop text."""

    def __init__(self, token_bytes: Callable[[int], bytes], stop: Sequence[str] = ()) -> None:
        self._token_bytes = token_bytes
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Text that is certain with this token; sets ``stopped`` when a stop text is complete."""
        return self._emit(self._decoder.decode(self._token_bytes(token)))

    def end(self) -> str:
        """What was held back, when the output is over."""
        text = self._emit(self._decoder.decode(b"", final=True))
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _emit(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0

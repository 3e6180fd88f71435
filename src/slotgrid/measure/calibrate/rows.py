"""What a replay shows of one request: how long its prompt was, what was cached, when each token came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.errors import RunError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as its client saw it. Times in seconds on one clock, lengths in tokens.

    cached_tokens: None when the server does not say. token_times_s: one a token, the first is the end of the prefill.
    """

    session: int
    turn: int
    prompt_tokens: int
    cached_tokens: int | None
    arrival_s: float
    finish_s: float
    token_times_s: tuple[float, ...]

    @property
    def first_token_s(self) -> float:
        return self.token_times_s[0]

    @property
    def wait_s(self) -> float:
        """From sending to the first token."""
        return self.first_token_s - self.arrival_s

    @property
    def computed_tokens(self) -> int | None:
        return None if self.cached_tokens is None else self.prompt_tokens - self.cached_tokens

    @property
    def times_s(self) -> Floats:
        return np.asarray(self.token_times_s)

    def to_dict(self) -> dict[str, Any]:
        return {
            "session": self.session,
            "turn": self.turn,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "arrival_s": self.arrival_s,
            "finish_s": self.finish_s,
            "token_times_s": list(self.token_times_s),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Seen:
        return cls(**{**data, "token_times_s": tuple(data["token_times_s"])})


def check_rows(rows: Sequence[Seen], expected: int, name: str) -> None:
    """Raise RunError when a replay did not bring every answer."""
    if len(rows) != expected:
        raise RunError(f"replay {name}: {len(rows)} of {expected} requests were answered")
    for row in rows:
        if not row.token_times_s:
            raise RunError(f"replay {name}: session {row.session}, turn {row.turn}: no token has a time")

"""What can be chosen about a replay."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from slotgrid.errors import InputError
from slotgrid.run.window import EVALUATION_S

PROMPTS = ("auto", "ids", "text")


@dataclass(frozen=True)
class WindowRule:
    """Steady load: after the warm-up evaluate ``evaluation_s`` and send nothing after its end.

    The warm-up ends when three cycles of ``cycle_s`` have passed and every client has finished two turns.
    """

    cycle_s: float = 0.0
    evaluation_s: float = EVALUATION_S

    def __post_init__(self) -> None:
        if not 0 < self.evaluation_s < 1e10 or not 0 <= self.cycle_s < 1e10:
            raise InputError(
                f"window: evaluation {self.evaluation_s!r} s after a cycle of {self.cycle_s!r} s; allowed: seconds, "
                "the evaluation more than 0"
            )


@dataclass(frozen=True)
class ReplayOptions:
    """How to replay.

    model: the server's first one unless given. seed: sent with every request. token_times: keep the time of every
    token. retries: of a request of which nothing was generated. prompts: "ids", "text", or "auto" (ids where the server
    takes and returns them). metrics: keep /metrics before and after. failures_in_a_row: the run ends when so many
    requests failed one after another; None is as many as clients, at least 3.
    """

    model: str | None = None
    seed: int = 20260819
    token_times: bool = True
    retries: int = 3
    prompts: str = "auto"
    metrics: bool = True
    window: WindowRule | None = None
    failures_in_a_row: int | None = None

    def __post_init__(self) -> None:
        if self.prompts not in PROMPTS:
            raise InputError(f"prompts: {self.prompts!r}; allowed: {', '.join(PROMPTS)}")
        if self.retries < 0:
            raise InputError(f"retries: {self.retries}; allowed: at least 0")

    def to_dict(self) -> dict[str, Any]:
        """The options as JSON values."""
        return asdict(self)

"""What can be chosen about a replay."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.run.window import EVALUATION_S

PROMPTS = ("auto", "ids", "text")
_LONGEST_S = 1e10


@dataclass(frozen=True)
class WindowRule:
    """Steady load: after the warm-up evaluate ``evaluation_s`` and send nothing after its end.

    The warm-up ends when three cycles of ``cycle_s`` have passed and every client has finished two turns, or after
    ``warmup_s`` where that is given (an open-loop plan needs it). cycle_s None: the plan's own. Seconds.
    """

    cycle_s: float | None = None
    evaluation_s: float = EVALUATION_S
    warmup_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("cycle", self.cycle_s or 0.0),
            ("warm-up", self.warmup_s or 0.0),
            ("window", self.evaluation_s),
        ):
            if not 0 <= value < _LONGEST_S:
                raise InputError(f"{name}: {value!r} s; allowed: seconds of at least 0")
        if self.evaluation_s == 0:
            raise InputError("window: 0 s; allowed: more than 0")

    def of(self, plan: InputPlan) -> WindowRule:
        """The rule with the cycle of this plan where none was given (0 with a fixed warm-up, which needs none).

        Raises InputError when the rule cannot end the warm-up of this plan, or its clients start unevenly.
        """
        self.check(plan)
        if self.cycle_s is not None:
            return self
        return replace(self, cycle_s=plan.cycle_s if self.warmup_s is None else 0.0)

    def check(self, plan: InputPlan) -> None:
        """Raise InputError when the rule cannot end the warm-up of this plan."""
        if plan.open_loop and self.warmup_s is None:
            raise InputError("warm-up: an open-loop plan renews no client; give the warm-up in seconds (--warmup)")


@dataclass(frozen=True)
class ReplayOptions:
    """How to replay.

    model: the server's first one unless given. seed: sent with every request. token_times: keep the time of every
    token. retries: of a request of which nothing was generated. prompts: "ids", "text", or "auto" (ids where the server
    takes and returns them). metrics: keep /metrics before and after. failures_in_a_row: the run ends when so many
    requests failed one after another; None is as many as clients, at least 3. backoff_s: before the first retry; it
    doubles with each, up to 30 s, unless the server says how long to wait (Retry-After, up to 30 s).
    """

    model: str | None = None
    seed: int = 20260819
    token_times: bool = True
    retries: int = 3
    prompts: str = "auto"
    metrics: bool = True
    window: WindowRule | None = None
    failures_in_a_row: int | None = None
    backoff_s: float = 0.25

    def __post_init__(self) -> None:
        if self.prompts not in PROMPTS:
            raise InputError(f"prompts: {self.prompts!r}; allowed: {', '.join(PROMPTS)}")
        if self.retries < 0:
            raise InputError(f"retries: {self.retries}; allowed: at least 0")

    def to_dict(self) -> dict[str, Any]:
        """The options as JSON values."""
        return asdict(self)

"""The evaluation window of steady load: one rule for simulated and measured runs.

Warm-up ends when three cycles have passed and every client has finished two turns; then comes the evaluation, 120 s
unless said otherwise. Nothing that is sent after its end is needed (docs/fidelity.md, "Steady load").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slotgrid.errors import InputError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WARMUP_CYCLES = 3
WARMUP_TURNS = 2
EVALUATION_S = 120.0


class PlanTooShort(InputError):
    """The plan ends inside the window; ``sessions_per_client`` would about last."""

    def __init__(self, text: str, sessions_per_client: int) -> None:
        super().__init__(text)
        self.sessions_per_client = sessions_per_client


@dataclass(frozen=True)
class Window:
    """From ``start_s`` (the end of the warm-up) to ``end_s``, seconds from the start of the run; the end excluded."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.end_s - self.start_s

    def covers(self, time_s: Floats) -> npt.NDArray[np.bool_]:
        """Which of these times lie in the window: bool array of the same shape."""
        inside: npt.NDArray[np.bool_] = (time_s >= self.start_s) & (time_s < self.end_s)
        return inside


def warmup_end_s(client: Ints, finish_s: Floats, clients: int, cycle_s: float) -> float | None:
    """When the warm-up ends: max(3 cycles, the time every client has finished two turns).

    client, finish_s: client index and finish time of every finished request, in any order (equal length).
    None while some client has not finished two turns, so that a running replay can ask again.
    """
    end_s = WARMUP_CYCLES * cycle_s
    order = np.lexsort((finish_s, client))
    sorted_client, sorted_finish = client[order], finish_s[order]
    first = np.searchsorted(sorted_client, np.arange(clients))
    count = np.searchsorted(sorted_client, np.arange(clients), "right") - first
    if np.any(count < WARMUP_TURNS):
        return None
    return float(max(end_s, sorted_finish[first + WARMUP_TURNS - 1].max()))


def check_lasting(window: Window, last_finish_s: Floats, sessions_per_client: int) -> None:
    """Raise PlanTooShort when a client ran out of sessions before the window ended.

    last_finish_s: float64[C], when each client finished the last turn of its last session, infinite when it did not
    come to that; the message says how many sessions per client would have lasted.
    """
    shortest_s = float(last_finish_s.min())
    if shortest_s >= window.end_s:
        return
    # the slowest sessions seen decide the pace; a tenth more, since the next ones may be shorter
    needed = max(math.ceil(1.1 * sessions_per_client * window.end_s / shortest_s), sessions_per_client + 1)
    raise PlanTooShort(
        f"window: client {int(last_finish_s.argmin())} runs out of sessions at {shortest_s:.1f} s, the window ends at "
        f"{window.end_s:.1f} s; about {needed} sessions per client are needed, the plan has {sessions_per_client}",
        needed,
    )

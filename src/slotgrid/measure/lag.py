"""Was the client the limit? Planned against actual send times, delay of the event loop, concurrency reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# more than this late, or more than this share of the sessions' time lost by it, and the client was the limit
LATE_MS = 5.0
LATE_SHARE = 0.01
_TICK_S = 0.01


@dataclass(frozen=True)
class ClientLag:
    """The client's own share in a run. Percentiles in milliseconds; None without a single request.

    send_*: how much later than planned requests were handed to the connection. late_share: the sum of it over the
    time from the first request sent to the last answer, times the clients. loop_*: how much later than asked the
    event loop came back to a timer. in_flight_mean, in_flight_most: requests at once.
    """

    send_p50_ms: float | None
    send_p99_ms: float | None
    send_max_ms: float | None
    late_share: float | None
    loop_p99_ms: float | None
    loop_max_ms: float | None
    in_flight_mean: float | None
    in_flight_most: int

    def warnings(self) -> list[str]:
        """Why the client, not the server, may have been the limit; empty when it was not."""
        found = []
        if self.send_p99_ms is not None and self.send_p99_ms > LATE_MS:
            found.append(f"99 % of requests were sent up to {self.send_p99_ms:.1f} ms late (limit {LATE_MS:g} ms)")
        if self.late_share is not None and self.late_share > LATE_SHARE:
            found.append(f"late sends took {self.late_share:.1%} of the clients' time (limit {LATE_SHARE:.0%})")
        if self.loop_p99_ms is not None and self.loop_p99_ms > LATE_MS:
            found.append(f"the event loop was up to {self.loop_p99_ms:.1f} ms late 99 % of the time")
        return [f"the client was the limit, not only the server: {'; '.join(found)}"] if found else []

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return asdict(self)


class LoopClock:
    """Measures how late the event loop is, as a task beside the clients."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            due = time.monotonic() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self.delays_s.append(max(0.0, time.monotonic() - due))


def client_lag(
    late_s: Sequence[float], loop_s: Sequence[float], spans_s: Sequence[tuple[float, float]], clients: int
) -> ClientLag:
    """Sum up a run: lateness of each send, of each tick of the loop, (sent, done) of each request."""
    late = np.maximum(np.asarray(late_s, float), 0.0)
    loop = np.asarray(loop_s, float)
    most, mean, seconds = in_flight(spans_s)
    return ClientLag(
        send_p50_ms=_percentile_ms(late, 50),
        send_p99_ms=_percentile_ms(late, 99),
        send_max_ms=_percentile_ms(late, 100),
        late_share=float(late.sum()) / (seconds * clients) if seconds > 0 else None,
        loop_p99_ms=_percentile_ms(loop, 99),
        loop_max_ms=_percentile_ms(loop, 100),
        in_flight_mean=mean,
        in_flight_most=most,
    )


def in_flight(spans_s: Sequence[tuple[float, float]]) -> tuple[int, float | None, float]:
    """(most requests at once, mean over time, seconds from the first sent to the last done)."""
    if not spans_s:
        return 0, None, 0.0
    spans = np.asarray(spans_s, float)
    times = np.concatenate([spans[:, 0], spans[:, 1]])
    change = np.concatenate([np.ones(len(spans)), -np.ones(len(spans))])
    # at one instant the answer comes before the request it makes possible
    at_once = np.cumsum(change[np.lexsort((change, times))])
    seconds = float(spans[:, 1].max() - spans[:, 0].min())
    mean = float((spans[:, 1] - spans[:, 0]).sum()) / seconds if seconds > 0 else None
    return int(at_once.max()), mean, seconds


def _percentile_ms(values_s: npt.NDArray[np.float64], which: float) -> float | None:
    return float(np.percentile(values_s, which)) * 1e3 if len(values_s) else None

"""The client's own share: concurrency, lateness, and when it is said to be the limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgrid.measure.lag import client_lag, in_flight

SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)).map(lambda x: (x[0], x[0] + x[1])), min_size=1)


@given(SPANS)
def test_in_flight_is_what_counting_at_every_instant_gives(spans: list[tuple[int, int]]) -> None:
    first, last = min(a for a, _ in spans), max(b for _, b in spans)
    counts = [sum(a <= t < b for a, b in spans) for t in range(first, last)]
    most, mean, seconds = in_flight([(float(a), float(b)) for a, b in spans])
    assert (most, seconds) == (max(counts), last - first)
    assert mean == pytest.approx(sum(counts) / len(counts))


def test_a_punctual_client_is_not_the_limit() -> None:
    lag = client_lag([0.001] * 100, [0.002] * 100, [(0.0, 10.0)] * 4, 4)
    assert lag.warnings() == []
    assert lag.late_share == pytest.approx(0.1 / 40)
    assert (lag.send_p99_ms, lag.in_flight_most, lag.in_flight_mean) == (pytest.approx(1.0), 4, 4.0)


def test_each_limit_is_named_when_it_is_passed() -> None:
    def said(late: list[float], loop: list[float]) -> str:
        return " ".join(client_lag(late, loop, [(0.0, 10.0)], 1).warnings())

    assert "sent up to 6.0 ms late" in said([0.006], [0.001])
    assert "late sends took 2.0% of the clients' time" in said([0.002] * 100, [0.001])
    assert "event loop was up to 7.0 ms late" in said([0.001], [0.007])
    # one late tick in a thousand is a machine, not a limit
    assert said([0.001], [0.001] * 999 + [0.5]) == ""


def test_without_requests_nothing_is_claimed() -> None:
    lag = client_lag([], [], [], 3)
    assert lag.to_dict() == {
        **dict.fromkeys(("send_p50_ms", "send_p99_ms", "send_max_ms", "late_share", "loop_p99_ms", "loop_max_ms")),
        "in_flight_mean": None,
        "in_flight_most": 0,
    }
    assert lag.warnings() == []

"""The survival chain: its closed form, a brute-force exponential, and what has to hold for any numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotgrid.analytic.survival import PoissonWeights, survival_probability

RATE = st.floats(0.01, 5.0)


def survive(slots: int, rate: float, service_s: float, waits: list[float], arrivals: list[float]) -> float:
    jumps = rate + (min(slots, len(arrivals)) - 1) / service_s
    return survival_probability(
        slots=slots,
        others_rate=rate,
        service_s=service_s,
        waits=PoissonWeights.of(np.array(waits), jumps * 1.05 + 1e-9),
        arrivals=np.array(arrivals),
    )


@given(st.integers(1, 12), RATE, st.lists(st.floats(0.0, 20.0), min_size=1, max_size=5))
def test_without_active_others_it_is_a_poisson_count(slots: int, rate: float, waits: list[float]) -> None:
    """All others idle and no time in service: the prefix survives if others and its own session take C - 1 at most."""
    expected = np.mean(
        [
            sum(math.exp(-rate * wait) * (rate * wait) ** k / math.factorial(k) for k in range(slots - 1))
            for wait in waits
        ]
    )
    assert survive(slots, rate, 1e-12, waits, [1.0]) == pytest.approx(expected, abs=1e-9)


def brute_force(slots: int, rate: float, service_s: float, wait: float, active: int) -> float:
    """The chain with free, active and idle slots told apart, by matrix exponentials of its generator."""
    others = slots - 1
    states = [(f, a, others - f - a) for f in range(others + 1) for a in range(others + 1 - f)]
    states += [(f, a, d) for f in range(others) for a in range(others - f) for d in range(others - f - a)]
    at = {state: i for i, state in enumerate(dict.fromkeys(states))}
    lost = len(at)

    def exponential(target_active: bool, time_s: float) -> np.ndarray:
        q = np.zeros((lost + 1, lost + 1))
        for (f, a, d), i in at.items():
            if f:
                to = at[f - 1, a, d]
            elif d:
                to = at[f, a, d - 1]
            else:
                to = i if target_active else lost
            q[i, to] += rate
            if a:
                q[i, at[f, a - 1, d + 1]] += a / service_s
        q -= np.diag(q.sum(axis=1))
        halvings = 20
        matrix = np.eye(len(q)) + q * time_s / 2**halvings + (q * time_s / 2**halvings) @ (q * time_s / 2**halvings) / 2
        for _ in range(halvings):
            matrix = matrix @ matrix
        return matrix

    begin = np.zeros(lost + 1)
    begin[at[0, min(active, others), others - min(active, others)]] = 1
    end = begin @ exponential(True, service_s) @ exponential(False, wait)
    return float(sum(end[i] for (f, _, d), i in at.items() if f + d > 0))


@pytest.mark.parametrize(
    ("slots", "rate", "service_s", "wait", "active"),
    [(2, 0.3, 1.0, 2.0, 1), (4, 0.8, 2.0, 1.5, 2), (5, 1.0, 2.5, 4.0, 3), (6, 0.5, 1.0, 6.0, 7), (3, 2.0, 0.5, 0.0, 2)],
)
def test_chain_against_matrix_exponentials(slots: int, rate: float, service_s: float, wait: float, active: int) -> None:
    arrivals = np.eye(active + 1)[active].tolist()
    expected = brute_force(slots, rate, service_s, wait, active)
    assert survive(slots, rate, service_s, [wait], arrivals) == pytest.approx(expected, abs=1e-6)


@settings(max_examples=40)
@given(
    st.integers(1, 8),
    RATE,
    st.floats(0.1, 5.0),
    st.lists(st.floats(0.0, 30.0), min_size=1, max_size=4),
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8),
)
def test_a_probability_that_falls_with_load(
    slots: int, rate: float, service_s: float, waits: list[float], weights: list[float]
) -> None:
    arrivals = (np.array(weights) / sum(weights)).tolist()
    value = survive(slots, rate, service_s, waits, arrivals)
    assert 0 <= value <= 1
    assert survive(slots, 2 * rate, service_s, waits, arrivals) <= value + 1e-9
    if slots == 1:
        assert value == 0


def test_weights_are_a_distribution_over_jumps() -> None:
    weights = PoissonWeights.of(np.array([0.0, 0.0, 3.0, 60.0]), 4.0).weights
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert weights[0] == pytest.approx(0.5 + math.exp(-12) / 4)
    assert weights @ np.arange(len(weights)) == pytest.approx(4.0 * 63 / 4)


def test_a_jump_rate_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="below the chain's"):
        survival_probability(
            slots=4,
            others_rate=1.0,
            service_s=1.0,
            waits=PoissonWeights.of(np.array([1.0]), 0.5),
            arrivals=np.array([1.0]),
        )

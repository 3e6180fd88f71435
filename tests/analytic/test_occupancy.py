"""The closed network: a distribution, the balance equations, and the published two-turn predictions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.analytic import closed_network, moments_of
from tests.analytic.published import whole_second_plan
from tests.conftest import read_csv

SECONDS = st.floats(0.01, 20.0)


def stationary(rates: np.ndarray) -> np.ndarray:
    """Solve pi Q = 0 for off-diagonal rates [from, to], the brute way."""
    q = rates - np.diag(rates.sum(axis=1))
    equations = np.vstack([q.T, np.ones(len(q))])
    solution: np.ndarray = np.linalg.lstsq(equations, np.append(np.zeros(len(q)), 1.0), rcond=None)[0]
    return solution


@given(
    clients=st.integers(1, 6),
    max_running=st.integers(1, 7),
    think_s=SECONDS,
    decode_steps=st.floats(1.0, 200.0),
    step_s=st.lists(st.floats(0.001, 0.1), min_size=7, max_size=7),
    prefill_s=st.floats(0.0, 2.0),
)
def test_product_form_solves_the_chain(
    clients: int, max_running: int, think_s: float, decode_steps: float, step_s: list[float], prefill_s: float
) -> None:
    step = np.array([0.0, *step_s])
    found = closed_network(
        clients=clients,
        think_s=think_s,
        decode_steps=decode_steps,
        step_s=step,
        prefill_s=prefill_s,
        max_running=max_running,
    )
    assert found.present.sum() == pytest.approx(1, abs=1e-12)
    assert found.running.sum() == pytest.approx(1, abs=1e-12)
    assert found.steps.sum() == pytest.approx(1, abs=1e-12)
    assert found.steps[0] == 0
    # the share left for decoding is what prefills leave
    assert found.decode_share == pytest.approx(1 - found.throughput * prefill_s, abs=1e-9)

    def chain(population: int) -> np.ndarray:
        rates = np.zeros((population + 1, population + 1))
        for n in range(population):
            running = min(n + 1, max_running)
            rates[n, n + 1] = (population - n) / think_s
            rates[n + 1, n] = found.decode_share * running / (decode_steps * step[running])
        return stationary(rates)

    assert found.present == pytest.approx(chain(clients), abs=1e-7)
    assert found.arrivals == pytest.approx(chain(clients - 1), abs=1e-7)
    # Little's law: clients in thought and clients at the engine are all clients
    assert found.mean_present + found.throughput * think_s == pytest.approx(clients, rel=1e-9)


def test_many_clients_neither_overflow_nor_starve() -> None:
    found = closed_network(
        clients=500, think_s=1e-3, decode_steps=100, step_s=np.full(65, 0.02), prefill_s=0.5, max_running=64
    )
    assert np.isfinite(found.present).all()
    assert found.present.sum() == pytest.approx(1)
    assert found.decode_share == pytest.approx(1 - found.throughput * 0.5)
    assert found.steps[64] == pytest.approx(1)


# base seed and blocks of the plans behind the published table; two of its sources do not say theirs
SOURCES = {
    "TASK20": (20260830, range(3)),
    "TASK23-2a": (20260841, range(3)),
    "TASK23-2b": (20260842, range(3)),
}
OTHER_BLOCKS = {("TASK20", 8): range(5), ("TASK20", 16): range(5), ("TASK23-2a", 8): range(5, 8)}


def test_published_two_turn_occupancy(profile: sg.StackProfile) -> None:
    """Cycle, running and padding as printed; there every prefill is a full one and the think time is the mean wait."""
    compared = 0
    for row in read_csv("m04_occupancy_prediction_two_turn.csv"):
        if row["task"] not in SOURCES:
            continue
        clients = int(row["n_sessions"])
        seed, blocks = SOURCES[row["task"]]
        plans = [whole_second_plan(clients, seed, b) for b in OTHER_BLOCKS.get((row["task"], clients), blocks)]
        moments = moments_of(plans, profile)
        buckets = tuple(map(int, row["grid"].split()))
        found = closed_network(
            clients=clients,
            think_s=float(moments.waits_s.mean()),
            decode_steps=moments.decode_steps,
            step_s=profile.price.decode.step_s(sg.ServingConfig(buckets)),
            prefill_s=moments.prefill_clock.mean_s(moments.first_share, 0.0),
            max_running=8,
        )
        counts = np.arange(len(found.steps))
        running = float(found.steps @ counts)
        padded = float(found.steps[1:] @ [min(b for b in buckets if b >= n) for n in counts[1:]])
        assert moments.waits_s.mean() == pytest.approx(float(row["mean_gap_s"]), abs=0.00501)
        assert clients / found.throughput == pytest.approx(float(row["cycle_s"]), abs=0.00501)
        assert running == pytest.approx(float(row["mean_running_predicted"]), abs=0.00501)
        assert 1 - running / padded == pytest.approx(float(row["padding_predicted"]), abs=0.000501)
        compared += 1
    assert compared == 12

"""How many requests run: a closed network of clients and one engine whose prefills stop everybody.

N clients think for a mean of ``think_s`` and then ask; the engine answers n requests at the rate

    mu(n) = phi * min(n, M) / (D * t(min(n, M)))

with D decode steps a turn, t(r) seconds a step with r running, M the running limit, and phi the share of time that is
left for decoding: phi = 1 - X * E[P], with throughput X and mean prefill E[P]. The states have the product form
pi(n + 1) / pi(n) = ((N - n) / think_s) / mu(n + 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Occupancy:
    """The network in equilibrium.

    present: float64[N + 1], time share with n requests running or queued. arrivals: float64[N], the same as a request
    finds it when it arrives (the network with one client less at the same phi). running, steps: float64[R + 1] with
    R = min(N, M), share of time and share of decode steps with r running. throughput: turns per second.
    decode_share: phi.
    """

    present: Floats
    arrivals: Floats
    steps: Floats
    running: Floats
    throughput: float
    decode_share: float

    @property
    def mean_running(self) -> float:
        """Running requests on average over time."""
        return float(self.running @ np.arange(len(self.running)))

    @property
    def mean_present(self) -> float:
        """Running and queued requests on average over time."""
        return float(self.present @ np.arange(len(self.present)))


def closed_network(
    *, clients: int, think_s: float, decode_steps: float, step_s: Floats, prefill_s: float, max_running: int
) -> Occupancy:
    """Solve the network.

    step_s: float64[>= min(clients, max_running) + 1], seconds of a step by running count (index 0 is not used).
    prefill_s: mean prefill of a turn.
    """
    most = min(clients, max_running)
    running = np.minimum(np.arange(clients + 1), max_running)
    # turns per second with n present if no time went to prefills
    rate = np.zeros(clients + 1)
    rate[1:] = running[1:] / (decode_steps * step_s[running[1:]])

    def throughput(phi: float) -> float:
        return float(_product_form(clients, think_s, phi * rate) @ (phi * rate))

    # 1 - X(phi) * E[P] falls while phi grows, so the two meet once
    low, high = 0.0, 1.0
    for _ in range(200):
        phi = (low + high) / 2
        if phi in (low, high):
            break
        low, high = (phi, high) if 1 - throughput(phi) * prefill_s > phi else (low, phi)
    phi = high
    present = _product_form(clients, think_s, phi * rate)
    time_share: Floats = np.bincount(running, weights=present, minlength=most + 1).astype(np.float64)
    steps = np.zeros(most + 1)
    steps[1:] = time_share[1:] * phi / step_s[1 : most + 1]
    return Occupancy(
        present=present,
        arrivals=_product_form(clients - 1, think_s, phi * rate),
        steps=steps / steps.sum(),
        running=time_share,
        throughput=throughput(phi),
        decode_share=phi,
    )


def _product_form(clients: int, think_s: float, rate: Floats) -> Floats:
    """float64[clients + 1]: state probabilities of a birth-death chain, born (N - n) / think_s, dying rate[n]."""
    waiting = clients - np.arange(clients)
    # in logarithms: ratios of many clients overflow
    logs = np.concatenate(([0.0], np.cumsum(np.log(waiting / think_s) - np.log(rate[1 : clients + 1]))))
    weights = np.exp(logs - logs.max())
    shares: Floats = weights / weights.sum()
    return shares

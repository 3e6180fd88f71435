"""Whether a prefix is still in its slot when its session comes back: an absorbing chain over the other slots.

A request takes the newest slot. Of the other C - 1 slots, all older at first, ``a`` are active and ``s`` spare (idle,
or free: whoever needs a slot takes a free one, then the oldest idle one, and for the target both mean one step less).
Other clients take a slot at rate ``lambda`` (s goes down; without a spare one the target itself is lost, unless it is
still active) and the older active ones finish at rate ``a * mu`` (a goes down, s up). The target is active for the mean
service time, then idle for the session's wait, and at its end the session takes a slot for itself before it looks: the
prefix is lost if none is spare.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Poisson weight left out by uniformization
_LEFT_OUT = 1e-13
_CHUNK = 256


def survival_probability(
    *,
    slots: int,
    others_rate: float,
    service_s: float,
    waits: PoissonWeights,
    arrivals: Floats,
) -> float:
    """Probability that a returning session finds its prefix, averaged over its waits.

    slots: C. others_rate: lambda, requests of other clients per second. service_s: mean service time, 1 / mu.
    waits: the waits, for jumps at a rate of at least lambda + (C - 1 or fewer active) * mu. arrivals: float64[K],
    probability of k active others when the target arrives (beyond C - 1 count as C - 1).
    """
    others = slots - 1
    active = min(others, len(arrivals) - 1)
    rate = waits.rate
    state = np.zeros((active + 1, others + 1))
    counts = np.minimum(np.arange(len(arrivals)), active)
    np.add.at(state, (counts, others - counts), arrivals)

    taken = others_rate / rate
    finish = np.arange(active + 1)[:, None] / (service_s * rate)
    stay = 1 - taken - finish
    if stay.min() < -1e-9:
        raise ValueError("the jump rate of the waits is below the chain's")

    def jump(before: Floats, *, target_active: bool) -> Floats:
        after = before * stay
        after[:, :-1] += taken * before[:, 1:]
        if target_active:
            after[:, 0] += taken * before[:, 0]
        after[:-1, 1:] += finish[1:] * before[1:, :-1]
        return after

    phase = np.zeros_like(state)
    for weight in PoissonWeights.of(np.array([service_s]), rate).weights:
        phase += weight * state
        state = jump(state, target_active=True)
    state, found = phase, 0.0
    for weight in waits.weights:
        found += weight * state[:, 1:].sum()
        state = jump(state, target_active=False)
    return float(min(max(found, 0.0), 1.0))


class PoissonWeights:
    """Mean probability of k jumps during one of some times, k = 0, 1, ...: what uniformization needs of them.

    They depend on the times and the rate only, so a chain that changes a little can use them again.
    """

    def __init__(self, weights: Floats, rate: float) -> None:
        self.weights = weights
        self.rate = rate

    @classmethod
    def of(cls, times_s: Floats, rate: float) -> PoissonWeights:
        """times_s: float64[W], at least one, each as likely."""
        times, counts = np.unique(times_s, return_counts=True)
        share = counts / counts.sum()
        mean = times * rate
        most = mean[-1]
        count = int(most + 9 * np.sqrt(most) + 40)
        k = np.arange(count)
        log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, count)))))
        weights = np.zeros(count)
        still = mean == 0
        weights[0] = share[still].sum()
        mean, share = mean[~still], share[~still]
        for start in range(0, len(mean), _CHUNK):
            part = mean[start : start + _CHUNK, None]
            weights += share[start : start + _CHUNK] @ np.exp(k * np.log(part) - part - log_factorial)
        # the tail beyond the last weight that matters is cut
        kept = int(np.searchsorted(np.cumsum(weights), 1 - _LEFT_OUT)) + 1
        return cls(weights[:kept], rate)

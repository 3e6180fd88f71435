"""Occupancy and survival together: more reuse makes prefills shorter, shorter prefills make clients come back sooner.

Starting from a reuse of 0.9 the two are solved in turn until the reuse stays. Service time of a turn (how long its slot
is active): its own prefill plus D steps at the mean running count, stretched by the time that prefills take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.analytic.moments import Moments
from slotgrid.analytic.occupancy import Occupancy, closed_network
from slotgrid.analytic.survival import PoissonWeights, survival_probability
from slotgrid.config import ServingConfig
from slotgrid.errors import InputError
from slotgrid.profile import StackProfile

Floats = npt.NDArray[np.float64]

_START_REUSE = 0.9
_MOST_ROUNDS = 60
_TOLERANCE = 1e-7


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the equations say about ``clients`` clients on one configuration, in steady state.

    reuse: share of later turns that find their prefix; None when no session has a second turn. cycle_s: seconds from a
    client's request to its next. service_s: seconds a turn's slot is active. device_time_per_turn_s: priced decode plus
    priced prefill of a turn. converged: the fixed point was reached; if not, ``reuse`` is its last value.
    """

    config: ServingConfig
    clients: int
    occupancy: Occupancy
    reuse: float | None
    service_s: float
    device_time_per_turn_s: float
    rounds: int
    converged: bool

    @property
    def cycle_s(self) -> float:
        """Seconds from one return of a client to its next."""
        return self.clients / self.occupancy.throughput

    @property
    def steps(self) -> Floats:
        """Share of decode steps by running count, float64[min(clients, max_running) + 1]."""
        return self.occupancy.steps

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            **self.config.to_dict(),
            "sessions": self.clients,
            "occupancy": {str(n): float(share) for n, share in enumerate(self.steps) if n},
            "mean_running": self.occupancy.mean_running,
            "reuse": self.reuse,
            "cycle_s": self.cycle_s,
            "service_s": self.service_s,
            "turns_per_s": self.occupancy.throughput,
            "decode_share": self.occupancy.decode_share,
            "device_time_per_turn_s": self.device_time_per_turn_s,
            "rounds": self.rounds,
            "converged": self.converged,
        }

    def __repr__(self) -> str:
        reuse = "no returns" if self.reuse is None else f"reuse {self.reuse:.1%}"
        return (
            f"Prediction({self.config.label}, {self.clients} clients: {reuse}, "
            f"{self.occupancy.mean_running:.2f} running, {self.device_time_per_turn_s:.4f} s a turn"
            f"{'' if self.converged else ', not converged'})"
        )


def check_range(clients: int, max_running: int, usable_slots: int | None = None) -> None:
    """Raise InputError outside the range the model was checked in: as many clients as can run at once.

    usable_slots: slots requests may hold, where they may be fewer than ``max_running``.
    """
    if usable_slots is not None and usable_slots < max_running:
        limit, text = usable_slots, f"the {usable_slots} usable slots, fewer than max_running {max_running}"
    else:
        limit, text = max_running, f"max_running = {max_running}"
    if not 1 <= clients <= limit:
        raise InputError(
            f"sessions: {clients}; the analytic model holds for 1 to {text} (beyond, requests queue and it is far "
            "off); simulate instead, or let more requests run"
        )


def predict(
    profile: StackProfile,
    config: ServingConfig,
    moments: Moments,
    *,
    clients: int,
    usable_slots: int | None = None,
    outside_range: bool = False,
) -> Prediction:
    """Steady state of ``clients`` clients on ``config``.

    usable_slots: slots requests may hold where one is kept back for padding; the configuration's unless given.
    outside_range: do not refuse more clients than can run at once; for comparisons with published values only.
    Raises InputError outside the range, UnmeasuredError when a step time is missing.
    """
    slots = config.slots if usable_slots is None else usable_slots
    if not outside_range:
        check_range(clients, config.max_running, slots)
    limit = min(config.max_running, slots)
    most = min(clients, limit)
    clock_s = _step_s(profile.clock.decode.step_s(config, most), profile.clock.decode.context_s, moments)
    price_s = _step_s(profile.price.decode.step_s(config, most), profile.price.decode.context_s, moments)
    returns = len(moments.waits_s) > 0
    active = min(slots, clients) - 1

    waits: PoissonWeights | None = None
    reuse, rounds, converged = (_START_REUSE, 0, False) if returns else (0.0, 0, True)
    change = 0.0
    while True:
        prefill_s = moments.prefill_clock.mean_s(moments.first_share, reuse)
        found = closed_network(
            clients=clients,
            think_s=moments.think_s,
            decode_steps=moments.decode_steps,
            step_s=clock_s,
            prefill_s=prefill_s,
            max_running=limit,
        )
        at_mean = min(max(round(found.mean_running), 1), most)
        service_s = moments.decode_steps * float(clock_s[at_mean]) / found.decode_share + prefill_s
        if converged or rounds == _MOST_ROUNDS:
            break
        rounds += 1
        others_rate = found.throughput * (clients - 1) / clients
        jumps = others_rate + active / service_s
        if waits is None or jumps > waits.rate:
            # a little more than needed, so that later rounds need no new weights
            waits = PoissonWeights.of(moments.waits_s, 1.05 * jumps + 1e-9)
        survived = survival_probability(
            slots=slots,
            others_rate=others_rate,
            service_s=service_s,
            waits=waits,
            arrivals=found.arrivals,
        )
        before, change = change, survived - reuse
        converged = abs(change) < _TOLERANCE
        # it falls to its value from one side; where it turns back, half the way
        reuse += change if before * change >= 0 else change / 2

    price_prefill_s = moments.prefill_price.mean_s(moments.first_share, reuse)
    # seconds of decoding per second of wall time, at the price instead of the clock
    decoding = found.decode_share * float(found.running[1:] @ (price_s[1:] / clock_s[1:]))
    return Prediction(
        config=config,
        clients=clients,
        occupancy=found,
        reuse=reuse if returns else None,
        service_s=service_s,
        device_time_per_turn_s=decoding / found.throughput + price_prefill_s,
        rounds=rounds,
        converged=converged,
    )


def _step_s(step_s: Floats, context_s: float, moments: Moments) -> Floats:
    """Step seconds with the mean context of every running request added."""
    with_context: Floats = step_s + context_s * moments.context_tokens * np.arange(len(step_s))
    return with_context

"""Occupancy and reuse of a configuration in simulation, pooled over plans of equally many clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slotgrid.config import ServingConfig
from slotgrid.engine import RuleSet, simulate
from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.profile import StackProfile
from slotgrid.run import Run
from slotgrid.run.window import Window, warmup_end_s

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Load:
    """steps: float64[max_running + 1], share of decode steps by running count. decode_steps: steps of one plan on
    average. reused, returns: later turns that found their prefix, and all of them."""

    steps: Floats
    decode_steps: float
    reused: int
    returns: int

    @property
    def reuse(self) -> float | None:
        """Share of later turns that found their prefix; None without any."""
        return self.reused / self.returns if self.returns else None

    @property
    def mean_running(self) -> float:
        """Running requests of a decode step on average."""
        return float(self.steps @ np.arange(len(self.steps)))


def simulated_load(
    profile: StackProfile, config: ServingConfig, plans: Sequence[InputPlan], *, rules: RuleSet, turnaround_s: float
) -> Load:
    """Simulate the plans and pool them. Raises InputError when nothing is ever decoded.

    Where clients renew their sessions only the steady part counts: after the warm-up (:mod:`run.window`) and before the
    first client has run out of sessions. Where they do not, the whole run counts.
    """
    counts = np.zeros(config.max_running + 1)
    tokens = reused = returns = 0
    for plan in plans:
        run = simulate(profile, config, plan, rules=rules, turnaround_s=turnaround_s)
        tokens += sum(turn.output_tokens - 1 for _, session in plan.sessions() for turn in session.turns)
        window = steady_part(run, plan)
        assert run.steps is not None
        start = run.steps["start_s"].to_numpy()
        decode = (run.steps["kind"] == "decode").to_numpy() & window.covers(start)
        counts += np.bincount(run.steps["running"].to_numpy()[decode], minlength=len(counts))
        later = (run.requests["turn"].to_numpy() > 0) & window.covers(run.requests["arrival_s"].to_numpy())
        returns += int(later.sum())
        reused += int((run.requests["cached_tokens"].to_numpy()[later] > 0).sum())
    if tokens == 0:
        raise InputError(
            "occupancy: every turn generates one token, so there are no decode steps and no buckets to choose"
        )
    steps = counts / counts.sum()
    # every step makes one token for each request that runs
    return Load(steps, tokens / len(plans) / float(steps @ np.arange(len(steps))), reused, returns)


def steady_part(run: Run, plan: InputPlan) -> Window:
    """From the end of the warm-up to the first client's last answer; the whole run where clients do not renew."""
    finish_s = run.requests["finish_s"].to_numpy()
    whole = Window(0.0, float(finish_s.max()) + 1.0)
    if any(len(client.sessions) < 2 for client in plan.clients):
        return whole
    client_of = np.fromiter((c for c, _ in plan.sessions()), np.int64, plan.session_count)
    client = client_of[run.requests["session"].to_numpy()]
    last = np.zeros(len(plan.clients))
    np.maximum.at(last, client, finish_s)
    start_s = warmup_end_s(client, finish_s, len(plan.clients), plan.cycle_s)
    if start_s is None or start_s >= last.min():
        return whole
    return Window(start_s, float(last.min()))

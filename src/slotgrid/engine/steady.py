"""Steady load: simulate a plan and measure its evaluation window, once or as an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.config import ServingConfig
from slotgrid.engine.ensemble import draw_members, ensemble_notes, summary
from slotgrid.engine.outside import Outside
from slotgrid.engine.rules import RuleSet
from slotgrid.engine.setup import set_up
from slotgrid.engine.single import record
from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.profile import Scatter, StackProfile
from slotgrid.run import Run
from slotgrid.run.steady import SteadyLoad, find_window, steady_load
from slotgrid.run.window import EVALUATION_S

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SteadyEnsemble:
    """The window of M repeats of one plan that differ by what is random on a real server.

    extrapolated: what they ask of the profile outside its measured ranges; notes: what else to know.
    """

    members: tuple[SteadyLoad, ...]
    config: ServingConfig
    plan_id: str
    seed: int
    rules: str
    clock: str
    extrapolated: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def samples(self, value: Callable[[SteadyLoad], float | None]) -> Floats:
        """One value of every member, float64[M]; NaN where a member has none."""
        found = (value(member) for member in self.members)
        return np.array([np.nan if x is None else x for x in found])

    def to_dict(self, *, level: float = 0.95) -> dict[str, Any]:
        """Mean and prediction interval of what a window says, as JSON values; null where not known."""
        values = {name: self.samples(value) for name, value in _VALUES.items()}
        running = sorted({n for member in self.members for n in member.occupancy or {}})
        return {
            "members": len(self.members),
            "seed": self.seed,
            "level": level,
            "config": self.config.to_dict(),
            "plan_id": self.plan_id,
            "rules": self.rules,
            "clock": self.clock,
            **{name: None if np.isnan(x).any() else summary(x, level) for name, x in values.items()},
            "occupancy": {
                str(n): float(np.mean([(member.occupancy or {}).get(n, 0.0) for member in self.members]))
                for n in running
            },
            "members_keeping_up": sum(member.keeps_up is not False for member in self.members),
            "extrapolated": list(self.extrapolated),
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        cost, reuse = (self.samples(_VALUES[name]).mean() for name in ("device_time_per_turn_s", "reuse_rate"))
        return f"SteadyEnsemble({len(self.members)} members: device time {cost:.4f} s a turn, reuse {reuse:.1%})"


_VALUES: dict[str, Callable[[SteadyLoad], float | None]] = {
    "device_time_per_turn_s": lambda s: s.device_time_per_turn_s,
    "reuse_rate": lambda s: s.reuse_rate,
    "stall_per_turn_s": lambda s: s.stall_per_turn_s,
    "padding_ratio": lambda s: s.padding_ratio,
    "idle_share": lambda s: s.idle_share,
    "queue_mean": lambda s: s.queue_mean,
    "queue_share": lambda s: s.queue_share,
    "queue_p50": lambda s: None if s.queue is None else s.queue[0],
    "queue_p95": lambda s: None if s.queue is None else s.queue[1],
    "queue_p99": lambda s: None if s.queue is None else s.queue[2],
    "turns_per_s": lambda s: s.turns_per_s,
    "output_tokens_per_s": lambda s: s.tokens_per_s,
    "ttft_p50_s": lambda s: None if s.ttft is None else s.ttft.p50_s,
    "ttft_p95_s": lambda s: None if s.ttft is None else s.ttft.p95_s,
    "ttft_p99_s": lambda s: None if s.ttft is None else s.ttft.p99_s,
    "ttft_later_p50_s": lambda s: None if s.ttft_later is None else s.ttft_later.p50_s,
    "ttft_later_p95_s": lambda s: None if s.ttft_later is None else s.ttft_later.p95_s,
    "inter_token_p50_s": lambda s: None if s.inter_token is None else s.inter_token.p50_s,
    "inter_token_p95_s": lambda s: None if s.inter_token is None else s.inter_token.p95_s,
    "inter_token_p99_s": lambda s: None if s.inter_token is None else s.inter_token.p99_s,
}


def simulate_steady(
    profile: StackProfile,
    config: ServingConfig,
    plan: InputPlan,
    *,
    evaluation_s: float = EVALUATION_S,
    cycle_s: float | None = None,
    warmup_s: float | None = None,
    rules: str | RuleSet | None = None,
    turnaround_s: float | None = None,
    clock: str | None = None,
    without: Sequence[str] = (),
) -> SteadyLoad:
    """Simulate ``plan`` and measure its window (:func:`run.steady.find_window`, :func:`engine.simulate`).

    Raises InputError when the plan does not last, with the number of sessions it would need.
    """
    setup = set_up(profile, config, plan, rules, turnaround_s, clock, tuple(without))
    run = record(setup, setup.flat, setup.step_s)
    return measure_window(run, plan, profile, evaluation_s=evaluation_s, cycle_s=cycle_s, warmup_s=warmup_s)


def simulate_steady_ensemble(
    profile: StackProfile,
    config: ServingConfig,
    plan: InputPlan,
    *,
    ensemble: int,
    seed: int = 0,
    scatter: Scatter | None = None,
    evaluation_s: float = EVALUATION_S,
    cycle_s: float | None = None,
    warmup_s: float | None = None,
    rules: str | RuleSet | None = None,
    turnaround_s: float | None = None,
    clock: str | None = None,
    without: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> SteadyEnsemble:
    """The same for ``ensemble`` repeats; every repeat has its own window by the same rule. progress is called with
    (repeats done, all)."""
    if cycle_s is None and warmup_s is None and plan.renews:
        # the plan's, since perturbed starts are not evenly spaced
        cycle_s = plan.cycle_s
    setup = set_up(profile, config, plan, rules, turnaround_s, clock, tuple(without))
    members: list[SteadyLoad] = []
    outside = Outside(setup.profile, config)
    for drawn in draw_members(setup, members=ensemble, seed=seed, scatter=scatter):
        for m in range(len(drawn)):
            if progress is not None:
                progress(len(members), ensemble)
            run = record(setup, drawn.flat(m), drawn.step_s[m])
            members.append(
                measure_window(run, plan, profile, evaluation_s=evaluation_s, cycle_s=cycle_s, warmup_s=warmup_s)
            )
            running = np.array([n for n, _, _ in members[-1].histogram or ()], np.int64)
            outside.add(running, run.requests["computed_tokens"].to_numpy(), plan.longest_context_tokens)
    return SteadyEnsemble(
        tuple(members),
        config,
        plan.plan_id,
        seed,
        setup.rules.name,
        setup.profile.clock_text or ("price" if setup.profile.clock is setup.profile.price else "profile"),
        outside.texts(),
        ensemble_notes(setup),
    )


def measure_window(
    run: Run,
    plan: InputPlan,
    profile: StackProfile,
    *,
    evaluation_s: float = EVALUATION_S,
    cycle_s: float | None = None,
    warmup_s: float | None = None,
    may_be_empty: bool = False,
) -> SteadyLoad:
    """The window of any run of ``plan``, simulated or measured, at the profile's prices.

    Raises InputError when no request arrives in it, unless it may be empty.
    """
    window = find_window(run, plan, cycle_s=cycle_s, evaluation_s=evaluation_s, warmup_s=warmup_s)
    price = profile.price
    steady = steady_load(
        run,
        window,
        decode_price=price.decode.seconds,
        prefill_price=price.prefill.seconds,
        context_priced=price.decode.context_s != 0,
    )
    if not steady.requests and not may_be_empty:
        raise InputError(f"window: no request arrives between {window.start_s:g} and {window.end_s:g} s")
    return steady

"""Steady load: simulate a plan and measure its evaluation window, once or as an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.config import ServingConfig
from slotgrid.engine.ensemble import draw_members, prediction_interval
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
    """The window of M repeats of one plan that differ by what is random on a real server."""

    members: tuple[SteadyLoad, ...]

    def samples(self, value: Callable[[SteadyLoad], float | None]) -> Floats:
        """One value of every member, float64[M]; NaN where a member has none."""
        found = (value(member) for member in self.members)
        return np.array([np.nan if x is None else x for x in found])

    def to_dict(self, *, level: float = 0.95) -> dict[str, Any]:
        """Mean and prediction interval of what a window says, as JSON values; null where not known."""
        return {
            "members": len(self.members),
            "level": level,
            **{name: _summary(self.samples(value), level) for name, value in _VALUES.items()},
        }

    def __repr__(self) -> str:
        cost, reuse = (self.samples(_VALUES[name]).mean() for name in ("device_time_per_turn_s", "reuse_rate"))
        return f"SteadyEnsemble({len(self.members)} members: device time {cost:.4f} s a turn, reuse {reuse:.1%})"


_VALUES: dict[str, Callable[[SteadyLoad], float | None]] = {
    "device_time_per_turn_s": lambda s: s.device_time_per_turn_s,
    "reuse_rate": lambda s: s.reuse_rate,
    "stall_per_turn_s": lambda s: s.stall_per_turn_s,
    "padding_ratio": lambda s: s.padding_ratio,
    "queue_mean": lambda s: s.queue_mean,
    "turns_per_s": lambda s: s.requests / s.window.seconds,
    "output_tokens_per_s": lambda s: s.output_tokens / s.window.seconds,
    "ttft_p50_s": lambda s: None if s.ttft is None else s.ttft.p50_s,
    "ttft_p95_s": lambda s: None if s.ttft is None else s.ttft.p95_s,
    "ttft_p99_s": lambda s: None if s.ttft is None else s.ttft.p99_s,
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
) -> SteadyEnsemble:
    """The same for ``ensemble`` repeats; every repeat has its own window by the same rule."""
    if cycle_s is None and warmup_s is None and not plan.open_loop:
        # the plan's, since perturbed starts are not evenly spaced
        cycle_s = plan.cycle_s
    setup = set_up(profile, config, plan, rules, turnaround_s, clock, tuple(without))
    drawn = draw_members(setup, members=ensemble, seed=seed, scatter=scatter)
    return SteadyEnsemble(
        tuple(
            measure_window(
                record(setup, drawn.flat(m), drawn.step_s[m]),
                plan,
                profile,
                evaluation_s=evaluation_s,
                cycle_s=cycle_s,
                warmup_s=warmup_s,
            )
            for m in range(len(drawn))
        )
    )


def measure_window(
    run: Run,
    plan: InputPlan,
    profile: StackProfile,
    *,
    evaluation_s: float = EVALUATION_S,
    cycle_s: float | None = None,
    warmup_s: float | None = None,
) -> SteadyLoad:
    """The window of any run of ``plan``, simulated or measured, at the profile's prices."""
    window = find_window(run, plan, cycle_s=cycle_s, evaluation_s=evaluation_s, warmup_s=warmup_s)
    price = profile.price
    return steady_load(run, window, decode_price=price.decode.seconds, prefill_price=price.prefill.seconds)


def _summary(samples: Floats, level: float) -> dict[str, float | None] | None:
    if not len(samples) or np.isnan(samples).any():
        return None
    try:
        low, high = prediction_interval(samples, level)
    except InputError:
        return {"mean": float(samples.mean()), "low": None, "high": None}
    return {"mean": float(samples.mean()), "low": low, "high": high}

"""What a run of one arm on one plan is predicted to be: one simulation, and an ensemble for the interval if asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slotgrid.config import ServingConfig
from slotgrid.diagnose.cost import extrapolated
from slotgrid.engine import simulate
from slotgrid.engine.ensemble import draw_members
from slotgrid.engine.rules import find_rules
from slotgrid.engine.setup import set_up
from slotgrid.engine.single import record
from slotgrid.engine.steady import simulate_steady_ensemble
from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.profile import StackProfile
from slotgrid.run import Run
from slotgrid.run.steady import SteadyLoad, find_window, steady_load
from slotgrid.run.window import Window
from slotgrid.study.outcome import PREDICTED, Outcome
from slotgrid.study.settings import STEADY, Arm, PlanSet, Settings

# a stated window may differ by this
_SAME_S = 1e-3


def predict(
    settings: Settings, plans: PlanSet, plan: InputPlan, arm: str, profile: StackProfile, sessions: int, replicate: str
) -> Outcome:
    """The prediction of one arm on one plan by the rules and turnaround of the settings.

    Raises InputError when the plan does not fit the configuration or ends inside its window.
    """
    config = settings.arm(arm).config
    run = simulate(
        profile, config, plan, rules=settings.rules, turnaround_s=settings.turnaround_s, clock=settings.clock
    )
    point = outcome_of(run, plans, plan, profile, sessions, replicate, arm, PREDICTED)
    if not settings.ensemble:
        return point
    return replace(point, samples_s=_samples(settings, plans, plan, config, profile, point))


def _samples(
    settings: Settings, plans: PlanSet, plan: InputPlan, config: ServingConfig, profile: StackProfile, point: Outcome
) -> tuple[float, ...]:
    """Device seconds of every member of the ensemble; in steady load per turn, times the turns of the prediction."""
    common: dict[str, Any] = {
        "ensemble": settings.ensemble,
        "seed": settings.ensemble_seed,
        "rules": settings.rules,
        "turnaround_s": settings.turnaround_s,
        "clock": settings.clock,
    }
    if plans.load != STEADY:
        return tuple(simulate(profile, config, plan, **common).device_time_s.tolist())
    window: dict[str, Any] = {"evaluation_s": plans.window_s, "warmup_s": plans.warmup_s}
    members = simulate_steady_ensemble(profile, config, plan, **common, **window)
    per_turn = members.samples(lambda load: load.device_time_per_turn_s)
    return tuple((per_turn * (point.turns or 0)).tolist())


def stand_in_run(settings: Settings, arm: Arm, plan: InputPlan, profile: StackProfile) -> Run:
    """A run of an arm without hardware, by the rules, clock and turnaround its settings name."""
    stand = arm.stand
    assert stand is not None
    rules = find_rules(stand.rules or settings.rules or profile.rules)
    rules = rules.but(release=stand.release, padding=stand.padding)  # type: ignore[arg-type]  # checked by settings
    turnaround_s = settings.turnaround_s if stand.turnaround_s is None else stand.turnaround_s
    setup = set_up(profile, arm.config, plan, rules, turnaround_s, stand.clock or settings.clock, ())
    if stand.scatter_seed is None:
        return record(setup, setup.flat, setup.step_s)
    drawn = next(draw_members(setup, members=2, seed=stand.scatter_seed, scatter=None))
    return record(setup, drawn.flat(0), drawn.step_s[0])


def outcome_of(
    run: Run,
    plans: PlanSet,
    plan: InputPlan,
    profile: StackProfile,
    sessions: int,
    replicate: str,
    arm: str,
    source: str,
) -> Outcome:
    """Totals of a simulated run, whole or inside its window."""
    if plans.load == STEADY:
        return steady_outcome(run, plans, plan, profile, sessions, replicate, arm, source)
    assert run.device_time_s is not None
    return Outcome(
        sessions=sessions,
        replicate=replicate,
        arm=arm,
        device_s=run.device_time_s,
        decode_s=run.decode_s,
        prefill_s=run.prefill_s,
        turns=run.requests.height,
        later_turns=run.returns,
        reused=run.reused,
        decode_steps=run.decode_steps,
        extrapolated=run.extrapolated,
        source=source,
    )


def steady_outcome(
    run: Run,
    plans: PlanSet,
    plan: InputPlan,
    profile: StackProfile,
    sessions: int,
    replicate: str,
    arm: str,
    source: str,
) -> Outcome:
    """Totals of a run, simulated or measured, inside its evaluation window."""
    window = _window(run, plans, plan)
    price = profile.price
    load = steady_load(run, window, decode_price=price.decode.seconds, prefill_price=price.prefill.seconds)
    steps = None if load.histogram is None else sum(count for _, _, count in load.histogram)
    return Outcome(
        sessions=sessions,
        replicate=replicate,
        arm=arm,
        device_s=float("nan") if load.device_time_s is None else load.device_time_s,
        decode_s=load.decode_s,
        prefill_s=load.prefill_s,
        turns=load.requests,
        later_turns=load.later_turns,
        reused=load.reused,
        decode_steps=steps,
        occupancy=load.occupancy,
        # a prediction names what its clock asked of the profile too, an observation what its window was priced by
        extrapolated=run.extrapolated if source == PREDICTED else _outside(run, load, profile),
        source=source,
    )


def _outside(run: Run, load: SteadyLoad, profile: StackProfile) -> tuple[str, ...]:
    """What of a window was priced outside the measured range."""
    histogram = None if load.histogram is None else {(n, b): steps for n, b, steps in load.histogram}
    sent = run.requests["arrival_s"]
    inside = run.requests.filter((sent >= load.window.start_s) & (sent < load.window.end_s))
    return extrapolated(replace(run, requests=inside), histogram, profile)


def _window(run: Run, plans: PlanSet, plan: InputPlan) -> Window:
    """The window the registered rule finds. A run that states its own must have had the same."""
    found = find_window(run, plan, evaluation_s=plans.window_s, warmup_s=plans.warmup_s)
    stated = run.details.get("window")
    if stated is None:
        return found
    try:
        window = Window(float(stated["start_s"]), float(stated["end_s"]))
    except (KeyError, TypeError, ValueError):
        raise InputError(f"window: the run states {stated!r}; expected start_s and end_s") from None
    # "not within" instead of "beyond", so that NaN does not pass
    if not (abs(window.start_s - found.start_s) <= _SAME_S and abs(window.end_s - found.end_s) <= _SAME_S):
        raise InputError(
            f"window: the run states {window.start_s:.3f} to {window.end_s:.3f} s, "
            f"the registered rule gives {found.start_s:.3f} to {found.end_s:.3f} s"
        )
    return found

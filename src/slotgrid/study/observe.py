"""From a run to what the criteria need, and whether the run is valid for its place in the study."""

from __future__ import annotations

from slotgrid.diagnose.cost import channel_a, channel_b_s
from slotgrid.diagnose.order import event_order
from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.profile import StackProfile
from slotgrid.run import Run
from slotgrid.study.manifest import Cell
from slotgrid.study.outcome import Outcome
from slotgrid.study.predict import steady_outcome
from slotgrid.study.settings import STEADY, Arm, PlanSet

# where a configuration was pieced together from what ran, buckets that never ran are not in it
_SEEN_ONLY = "the log"


def invalid_reasons(run: Run, plan: InputPlan, arm: Arm, plans: PlanSet) -> list[str]:
    """Why the run may not stand for this arm on this plan; empty when it may."""
    reasons = []
    stated = run.details.get("valid")
    if stated is False:
        told = run.details.get("invalid_reasons") or run.details.get("reasons") or ["no reason is given"]
        reasons += [f"marked invalid: {text}" for text in ([told] if isinstance(told, str) else told)]
    if plans.load != STEADY and run.requests.height != plan.turn_count:
        reasons.append(f"{run.requests.height} of {plan.turn_count} requests have a result")
    if run.config is not None and not _fits(run, arm):
        reasons.append(f"configuration {run.config.label}, the arm has {arm.config.label}")
    for name, what in (("computed_tokens", "cached tokens are not observable"), ("finish_s", "no finish time")):
        missing = run.requests[name].null_count()
        if missing and plans.load != STEADY:
            reasons.append(f"{missing} requests: {what}")
    if run.histogram is None:
        reasons.append("decode steps are not observed (channel A needs them)")
    return reasons


def observe(run: Run, plan: InputPlan, cell: Cell, arm: str, plans: PlanSet, profile: StackProfile) -> Outcome:
    """Both channels, parts, reuse and steps of a run, priced by the registered profile.

    Raises InputError naming the channel that is missing and what it needs.
    """
    place = f"{cell.place}, arm {arm}"
    if plans.load == STEADY:
        try:
            return steady_outcome(run, plans, plan, profile, cell.sessions, cell.replicate, arm, run.source)
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
    histogram = None
    if run.histogram is not None:
        histogram = {(n, b): steps for n, b, steps in run.histogram.iter_rows()}
    cost = channel_a(run, event_order(run), histogram, profile)
    if cost.total_s is None:
        raise InputError(f"{place}: channel A is missing: needs {' and '.join(cost.missing)}")
    b_s = channel_b_s(run)
    if b_s is None:
        raise InputError(f"{place}: channel B is missing: needs sent and done times of every request")
    return Outcome(
        sessions=cell.sessions,
        replicate=cell.replicate,
        arm=arm,
        device_s=cost.total_s,
        decode_s=cost.decode_s,
        prefill_s=cost.prefill_s,
        channel_b_s=b_s,
        turns=run.requests.height,
        later_turns=run.returns,
        reused=run.reused,
        decode_steps=run.decode_steps,
        source=run.source,
    )


def _fits(run: Run, arm: Arm) -> bool:
    assert run.config is not None
    if run.details.get("config_from") == _SEEN_ONLY:
        return set(run.config.buckets) <= set(arm.config.buckets) and run.config.slots <= arm.config.slots
    return run.config == arm.config

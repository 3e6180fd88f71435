"""From a run to what the criteria need."""

from __future__ import annotations

from slotgrid.diagnose.cost import ChannelA, channel_a, channel_b_s, extrapolated
from slotgrid.diagnose.order import event_order
from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.profile import StackProfile
from slotgrid.run import Run
from slotgrid.study.manifest import Cell, Entry
from slotgrid.study.outcome import Outcome
from slotgrid.study.predict import steady_outcome
from slotgrid.study.settings import STEADY, Arm, PlanSet
from slotgrid.study.validity import invalid_reasons


def channels(run: Run, profile: StackProfile, place: str) -> tuple[ChannelA, float, float]:
    """Channel A, its total and channel B in seconds. Raises InputError, beginning with ``place``, naming the
    channel that is missing and what it needs."""
    cost = channel_a(run, event_order(run), _histogram(run), profile)
    if cost.total_s is None:
        raise InputError(f"{place}: channel A is missing: needs {' and '.join(cost.missing)}")
    b_s = channel_b_s(run)
    if b_s is None:
        raise InputError(f"{place}: channel B is missing: needs sent and done times of every request")
    return cost, cost.total_s, b_s


def _histogram(run: Run) -> dict[tuple[int, int], int] | None:
    """Steps by (running, bucket); None where they were not observed."""
    return None if run.histogram is None else {(n, b): steps for n, b, steps in run.histogram.iter_rows()}


def observe(run: Run, plan: InputPlan, cell: Cell, arm: str, plans: PlanSet, profile: StackProfile) -> Outcome:
    """Both channels, parts, reuse and steps of a run, priced by the registered profile, and what of that price lies
    outside the range the profile was measured in.

    Raises InputError naming the channel that is missing and what it needs.
    """
    place = f"{cell.place}, arm {arm}"
    if plans.load == STEADY:
        try:
            return steady_outcome(run, plans, plan, profile, cell.sessions, cell.replicate, arm, run.source)
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
    cost, a_s, b_s = channels(run, profile, place)
    return Outcome(
        sessions=cell.sessions,
        replicate=cell.replicate,
        arm=arm,
        device_s=a_s,
        decode_s=cost.decode_s,
        prefill_s=cost.prefill_s,
        channel_b_s=b_s,
        turns=run.requests.height,
        later_turns=run.returns,
        reused=run.reused,
        decode_steps=run.decode_steps,
        extrapolated=extrapolated(run, _histogram(run), profile),
        source=run.source,
    )


def check_run(run: Run, entry: Entry, plans: PlanSet, cell: Cell, arm: Arm, plan: InputPlan) -> Outcome:
    """What the run says. Raises InputError when it is not valid for its place or lacks a channel."""
    reasons = invalid_reasons(run, plan, arm, plans)
    if reasons:
        raise InputError(f"not a valid run of {cell.place}, arm {arm.name}: {'; '.join(reasons)}")
    return observe(run, plan, cell, arm.name, plans, entry.profile)

"""What a simulation needs besides the plan's arrays: rules, usable slots, step seconds."""

from __future__ import annotations

from dataclasses import dataclass

from slotgrid.config import ServingConfig
from slotgrid.engine.prepare import FlatPlan, Floats, flatten
from slotgrid.engine.rules import RuleSet, find_rules, pick_turnaround
from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.profile import StackProfile


@dataclass(frozen=True)
class Setup:
    """One plan on one configuration, ready for the kernel.

    gap_s: client turnaround; turnaround_given: an argument or the plan fixes it. most: most requests that can run.
    step_s, price_s: float64[most + 1], clock and price seconds of a decode step by running count.
    """

    profile: StackProfile
    config: ServingConfig
    plan: InputPlan
    rules: RuleSet
    gap_s: float
    turnaround_given: bool
    flat: FlatPlan
    capacity: int
    most: int
    step_s: Floats
    price_s: Floats

    @property
    def pads_by_eviction(self) -> bool:
        """A padded step may evict (:meth:`RuleSet.evicts_for_padding`)."""
        return self.rules.evicts_for_padding(self.config.slots, self.config.max_running)

    @property
    def releases_at_once(self) -> bool:
        """A finished slot is evictable at once."""
        return self.rules.release == "at_once"


def set_up(
    profile: StackProfile,
    config: ServingConfig,
    plan: InputPlan,
    rules: str | RuleSet | None,
    turnaround_s: float | None,
    clock: str | None,
    without: tuple[str, ...],
) -> Setup:
    """Everything the kernel sees, from the arguments of :func:`engine.simulate`."""
    if clock is not None:
        profile = profile.clocked(clock, config, without=without)
    elif without:
        raise InputError("without: leaves out corrections of the operating clock; choose clock operating")
    rule_set = find_rules(profile.rules if rules is None else rules)
    gap_s = pick_turnaround(
        rule_set,
        turnaround_s,
        plan.turnaround_s,
        None if profile.turnaround_s is None else profile.turnaround_s.value,
    )
    fixed = plan.has_arrivals if rule_set.arrivals == "plan" else rule_set.arrivals == "fixed"
    flat = flatten(plan, profile, gap_s, fixed, inner_blocks=rule_set.inner_blocks == "stack")
    capacity = rule_set.usable_slots(config.slots, config.max_running)
    if flat.pool is not None:
        # slots beyond one a request and one for padding are never touched
        capacity = min(capacity, flat.requests + 1)
    # no more than one request per client can run
    most = min(config.max_running, flat.clients)
    return Setup(
        profile=profile,
        config=config,
        plan=plan,
        rules=rule_set,
        gap_s=gap_s,
        turnaround_given=turnaround_s is not None or plan.turnaround_s is not None,
        flat=flat,
        capacity=capacity,
        most=most,
        step_s=profile.clock.decode.step_s(config, most),
        price_s=profile.price.decode.step_s(config, most),
    )

"""Rule sets: how a scheduler frees slots, pads steps and how fast clients come back.

Source of both sets: docs/fidelity.md. ``real`` is what the stack's own scheduler does, ``paper`` is the
published simulator, kept so that its numbers can be reproduced to the last digit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from slotgrid.errors import InputError

Release = Literal["at_once", "next_admission"]
Padding = Literal["none", "evict"]
InnerBlocks = Literal["stack", "none"]


@dataclass(frozen=True)
class RuleSet:
    """The rules of a simulation; every one can be switched alone with :meth:`but`.

    release: when a finished request's slot becomes evictable: ``at_once``, or after the ``next_admission`` has
        chosen its victim.
    padding: ``evict``: before a decode step with fewer than max_running requests and no free slot, the oldest
        idle slot is evicted (and with slots < max_running one slot is kept back instead); ``none``: neither.
    turnaround_s: seconds from an answer to the client's next request besides the tool wait, where neither the
        argument, the plan nor the profile says otherwise.
    arrivals: ``fixed`` uses the plan's ``arrival_s`` (a turn is never sent before the answer it builds on);
        ``closed_loop`` ignores them; ``plan`` (default) is fixed when the plan carries arrivals.
    inner_blocks: ``stack`` simulates the blocks inside the slots where the profile says the stack has them and the
        plan can feel them (a sequence above half a slot, shared prefixes); ``none`` never does.
    """

    name: str
    release: Release
    padding: Padding
    turnaround_s: float
    arrivals: Literal["plan", "fixed", "closed_loop"] = "plan"
    inner_blocks: InnerBlocks = "stack"

    def but(
        self,
        *,
        release: Release | None = None,
        padding: Padding | None = None,
        turnaround_s: float | None = None,
        arrivals: Literal["plan", "fixed", "closed_loop"] | None = None,
        inner_blocks: InnerBlocks | None = None,
    ) -> RuleSet:
        """The same rules with some switched; the name says which."""
        changes = {
            key: value
            for key, value in {
                "release": release,
                "padding": padding,
                "turnaround_s": turnaround_s,
                "arrivals": arrivals,
                "inner_blocks": inner_blocks,
            }.items()
            if value is not None and value != getattr(self, key)
        }
        if not changes:
            return self
        suffix = ",".join(f"{key}={value}" for key, value in changes.items())
        return check_rules(replace(self, name=f"{self.name}+{suffix}", **changes))  # type: ignore[arg-type]

    def evicts_for_padding(self, slots: int, max_running: int) -> bool:
        """Whether a padded step may evict: asked for, and no slot is kept back for padding instead."""
        return self.padding == "evict" and slots >= max_running

    def usable_slots(self, slots: int, max_running: int) -> int:
        """KV slots requests may hold. Raises InputError when the padding slot leaves none."""
        if self.padding == "evict" and slots < max_running:
            if slots == 1:
                raise InputError(
                    "slots: 1 with max_running above 1 leaves no usable slot, one is kept back for padding; "
                    "allowed: at least 2"
                )
            return slots - 1
        return slots


REAL = RuleSet("real", "at_once", "evict", 0.0008)
PAPER = RuleSet("paper", "next_admission", "none", 0.0, inner_blocks="none")
RULE_SETS = {"real": REAL, "paper": PAPER}


def check_rules(rules: RuleSet) -> RuleSet:
    """Return the rules, or raise InputError naming the switch that has no such position."""
    if rules.release not in get_args(Release):
        raise InputError(f"release: {rules.release!r}; allowed: {', '.join(get_args(Release))}")
    if rules.padding not in get_args(Padding):
        raise InputError(f"padding: {rules.padding!r}; allowed: {', '.join(get_args(Padding))}")
    if rules.arrivals not in ("plan", "fixed", "closed_loop"):
        raise InputError(f"arrivals: {rules.arrivals!r}; allowed: plan, fixed, closed_loop")
    if rules.inner_blocks not in get_args(InnerBlocks):
        raise InputError(f"inner_blocks: {rules.inner_blocks!r}; allowed: {', '.join(get_args(InnerBlocks))}")
    check_turnaround(rules.turnaround_s)
    return rules


def check_turnaround(turnaround_s: float) -> float:
    """Return it, or raise InputError: seconds, finite, at least 0."""
    if not math.isfinite(turnaround_s) or turnaround_s < 0:
        raise InputError(f"turnaround_s: {turnaround_s!r}; allowed: seconds of at least 0")
    return turnaround_s


def find_rules(rules: str | RuleSet) -> RuleSet:
    """A rule set by name ("real", "paper") or as given. Raises InputError for an unknown name."""
    if isinstance(rules, RuleSet):
        return check_rules(rules)
    if rules not in RULE_SETS:
        raise InputError(f"rules: {rules!r}; allowed: {', '.join(RULE_SETS)}")
    return RULE_SETS[rules]


def pick_turnaround(rules: RuleSet, argument_s: float | None, plan_s: float | None, profile_s: float | None) -> float:
    """Seconds of client turnaround: argument, then plan, then profile, then rule set."""
    for value in (argument_s, plan_s, profile_s):
        if value is not None:
            return check_turnaround(value)
    return rules.turnaround_s

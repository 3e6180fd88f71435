"""What explain and propose share: rules, plans, and occupancies pooled over session counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slotgrid.analytic import Moments, Prediction
from slotgrid.engine.rules import RuleSet, find_rules, pick_turnaround
from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.profile import StackProfile
from slotgrid.search.load import Load
from slotgrid.workload import Workload

Floats = npt.NDArray[np.float64]


def rules_and_turnaround(
    profile: StackProfile, rules: str | RuleSet | None, turnaround_s: float | None
) -> tuple[RuleSet, float]:
    """The rule set and the client turnaround by the usual precedence."""
    rule_set = find_rules(profile.rules if rules is None else rules)
    known = None if profile.turnaround_s is None else profile.turnaround_s.value
    return rule_set, pick_turnaround(rule_set, turnaround_s, None, known)


def session_counts(sessions: Sequence[int]) -> tuple[int, ...]:
    """The session counts, checked: at least one, each at least 1, none twice."""
    if not sessions:
        raise InputError("sessions: empty; give at least one whole number")
    for n in sessions:
        if n < 1:
            raise InputError(f"sessions: {n}; allowed: whole numbers of at least 1")
    if len(set(sessions)) != len(sessions):
        raise InputError("sessions: a value appears twice")
    return tuple(sessions)


def drawn_plans(
    workload: Workload, sessions: Sequence[int], seeds: Sequence[int] | None, blocks: Sequence[int] | None
) -> dict[int, list[InputPlan]]:
    """The plans of every session count; the workload's exploration seeds and blocks unless given."""
    chosen_seeds = workload.explore_seeds if seeds is None else seeds
    chosen_blocks = workload.blocks if blocks is None else blocks
    if not chosen_seeds or not chosen_blocks:
        raise InputError("seeds, blocks: empty; at least one each is needed")
    return {
        n: [workload.draw(clients=n, seed=s, block=b) for s in chosen_seeds for b in chosen_blocks] for n in sessions
    }


def pooled_steps(figures: dict[int, Prediction], moments: dict[int, Moments], max_running: int) -> Floats:
    """Shares of decode steps over all session counts, each counted as the steps of its plan.

    Returns float64[max_running + 1].
    """
    total = np.zeros(max_running + 1)
    for n, figure in figures.items():
        running = float(figure.steps @ np.arange(len(figure.steps)))
        total[: len(figure.steps)] += figure.steps * moments[n].turns * moments[n].decode_steps / running
    pooled: Floats = total / total.sum()
    return pooled


def pooled_loads(loads: dict[int, Load]) -> Floats:
    """The same over simulated loads."""
    total: Floats = sum((load.steps * load.decode_steps for load in loads.values()), start=np.zeros(1))
    pooled: Floats = total / total.sum()
    return pooled

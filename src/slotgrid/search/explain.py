"""explain: why a bucket set is what it is, by the analytic view and, when asked, by simulation beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.analytic import (
    BucketReason,
    GridChoice,
    Prediction,
    best_response,
    bucket_reasons,
    check_range,
    grid_seconds,
    moments_of,
    optimal_buckets,
    predict,
)
from slotgrid.config import ServingConfig
from slotgrid.engine.rules import RuleSet
from slotgrid.errors import InputError
from slotgrid.profile import StackProfile
from slotgrid.search.inputs import drawn_plans, pooled_loads, pooled_steps, rules_and_turnaround, session_counts
from slotgrid.search.load import simulated_load
from slotgrid.workload import Workload

Floats = npt.NDArray[np.float64]
Buckets = tuple[int, ...]

BURST_NOTE = (
    "clients run one session each, so there is no steady state: the analytic occupancy and reuse are those of clients "
    "that go on; compare with the simulation"
)


@dataclass(frozen=True, eq=False)
class View:
    """One source's occupancy and what follows from it.

    source: "analytic" or "simulated". steps: float64[max_running + 1], share of decode steps by running count, pooled
    over the session counts by the decode steps of their plans. reuse, mean_running: by session count (running requests
    of a decode step). optimal: the cheapest set for these steps. over_optimal: for every listed set, the mean seconds
    its buckets take of a step, and its excess over the optimal set's. reasons: why each bucket of the explained set
    but the top is there.
    """

    source: str
    steps: Floats
    reuse: dict[int, float | None]
    mean_running: dict[int, float]
    optimal: GridChoice
    over_optimal: tuple[tuple[Buckets, float, float], ...]
    reasons: tuple[BucketReason, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "source": self.source,
            "occupancy": {str(n): float(share) for n, share in enumerate(self.steps) if n},
            "reuse": {str(n): value for n, value in self.reuse.items()},
            "mean_running": {str(n): value for n, value in self.mean_running.items()},
            "optimal": {"buckets": list(self.optimal.buckets), "bucket_s_per_step": self.optimal.seconds},
            "sets": [
                {"buckets": list(buckets), "bucket_s_per_step": seconds, "over_optimal": excess}
                for buckets, seconds, excess in self.over_optimal
            ],
            "reasons": [reason.to_dict() for reason in self.reasons],
        }


@dataclass(frozen=True, eq=False)
class Explanation:
    """What :func:`explain` found.

    config: the explained configuration, whose buckets make the occupancy. fixed: None when they were given; else they
    are the last answer of the analytic best response, and this says whether that is a fixed point. most_sessions: the
    end of the analytic view's range. predictions: the analytic figures by session count. views: the analytic one and,
    when asked for, the simulated one. step_s: float64[max_running + 1], priced seconds of a step.
    """

    profile_id: str
    workload_id: str
    config: ServingConfig
    fixed: bool | None
    rules: RuleSet
    turnaround_s: float
    clock_text: str
    sessions: tuple[int, ...]
    most_sessions: int
    predictions: dict[int, Prediction]
    views: tuple[View, ...]
    step_s: Floats
    notes: tuple[str, ...]

    @property
    def occupancy_difference(self) -> float | None:
        """Total variation distance of the two occupancies; None without a simulation."""
        if len(self.views) < 2:
            return None
        return float(np.abs(self.views[0].steps - self.views[1].steps).sum() / 2)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "profile": self.profile_id,
            "workload": self.workload_id,
            **self.config.to_dict(),
            "found": self.fixed is not None,
            "fixed": self.fixed,
            "rules": self.rules.name,
            "turnaround_s": self.turnaround_s,
            "clock": self.clock_text,
            "sessions": list(self.sessions),
            "range": [1, self.most_sessions],
            "analytic": [prediction.to_dict() for prediction in self.predictions.values()],
            "views": [view.to_dict() for view in self.views],
            "occupancy_difference": self.occupancy_difference,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        view = self.views[-1]
        excess = view.over_optimal[0][2]
        best = ",".join(map(str, view.optimal.buckets))
        return (
            f"Explanation({self.config.label} for {', '.join(map(str, self.sessions))} clients: {excess:.2%} over the "
            f"cheapest set {best} of the {view.source} occupancy)"
        )


def explain(
    profile: StackProfile,
    workload: Workload,
    *,
    sessions: Sequence[int],
    max_running: int,
    slots: int | None = None,
    buckets: Sequence[Sequence[int]] = (),
    max_buckets: int = 6,
    intermediate: Sequence[int] | None = None,
    simulate: bool = False,
    rules: str | RuleSet | None = None,
    turnaround_s: float | None = None,
    clock: str | None = None,
    seeds: Sequence[int] | None = None,
    blocks: Sequence[int] | None = None,
) -> Explanation:
    """Explain bucket sets by the occupancy they meet.

    sessions: numbers of concurrent clients, each from 1 to as many as can run at once (``max_running``, or the usable
    slots if those are fewer). buckets: sets to compare; the first is explained and makes the occupancy. Without any the
    cheapest set of the analytic view is explained. max_buckets, intermediate: what the cheapest set may hold (sizes
    between 1 and ``max_running``; None: all).
    simulate: simulate the same plans beside it. clock: "price" or "operating"; the profile's unless given.
    seeds, blocks: of the plans; the workload's exploration inputs unless given.

    Raises InputError for session counts outside the model's range and for open-loop workloads.
    """
    rule_set, gap_s = rules_and_turnaround(profile, rules, turnaround_s)
    counts = session_counts(sessions)
    if max_running < 1:
        raise InputError(f"max-running: {max_running}; allowed: at least 1")
    # any buckets do to check the slots
    held = ServingConfig((max_running,), slots=slots).slots
    usable = rule_set.usable_slots(held, max_running)
    for n in counts:
        check_range(n, max_running, usable)
    plans = drawn_plans(workload, counts, seeds, blocks)
    moments = {n: moments_of(plans[n], profile, turnaround_s=gap_s) for n in counts}
    price = profile.price.decode

    def configured(chosen: Sequence[int]) -> ServingConfig:
        return ServingConfig(chosen, slots=held, max_running=max_running)

    def clocked(config: ServingConfig) -> StackProfile:
        return profile if clock is None else profile.clocked(clock, config)

    def analytic(config: ServingConfig) -> dict[int, Prediction]:
        return {n: predict(clocked(config), config, moments[n], clients=n, usable_slots=usable) for n in counts}

    def cheapest(steps: Floats) -> Buckets:
        found = optimal_buckets(steps, price.fixed, top=max_running, max_buckets=max_buckets, intermediate=intermediate)
        return found.buckets

    listed = [configured(chosen) for chosen in buckets]
    fixed = None
    if not listed:
        # a bucket for every count is the start that favours none
        path = best_response(
            tuple(range(1, max_running + 1)),
            lambda chosen: pooled_steps(analytic(configured(chosen)), moments, max_running),
            cheapest,
        )
        listed, fixed = [configured(path.buckets)], path.fixed
    config = listed[0]
    sets = [other.buckets for other in listed]
    figures = analytic(config)
    reuse = {n: figure.reuse for n, figure in figures.items()}
    running = {n: float(figure.steps @ np.arange(len(figure.steps))) for n, figure in figures.items()}
    views = [
        _view("analytic", pooled_steps(figures, moments, max_running), reuse, running, sets, cheapest, price.fixed)
    ]
    used = clocked(config)
    if simulate:
        loads = {n: simulated_load(used, config, plans[n], rules=rule_set, turnaround_s=gap_s) for n in counts}
        reuse = {n: load.reuse for n, load in loads.items()}
        running = {n: load.mean_running for n, load in loads.items()}
        views.append(_view("simulated", pooled_loads(loads), reuse, running, sets, cheapest, price.fixed))
    notes = [] if all(found.renews for found in moments.values()) else [BURST_NOTE]
    notes += [
        f"N = {n}: the fixed point was not reached in {figure.rounds} rounds; its reuse is the last value"
        for n, figure in figures.items()
        if not figure.converged
    ]
    sizes = [size for size in config.buckets if size <= config.bucket_for(max(counts))]
    beyond = price.beyond(sizes, range(1, max(counts) + 1))
    return Explanation(
        profile_id=profile.id,
        workload_id=workload.id,
        config=config,
        fixed=fixed,
        rules=rule_set,
        turnaround_s=gap_s,
        clock_text=used.clock_text or ("price" if used.clock is used.price else "the profile's"),
        sessions=counts,
        most_sessions=min(max_running, usable),
        predictions=figures,
        views=tuple(views),
        step_s=price.step_s(config),
        notes=(*notes, *(f"outside the measured range: {text}" for text in beyond)),
    )


def _view(
    source: str,
    steps: Floats,
    reuse: dict[int, float | None],
    mean_running: dict[int, float],
    listed: Sequence[Buckets],
    cheapest: Callable[[Floats], Buckets],
    cost: Callable[[int], float],
) -> View:
    best = cheapest(steps)
    optimal = GridChoice(best, grid_seconds(steps, cost, best))
    seconds = [(buckets, grid_seconds(steps, cost, buckets)) for buckets in listed]
    return View(
        source=source,
        steps=steps,
        reuse=reuse,
        mean_running=mean_running,
        optimal=optimal,
        over_optimal=tuple((buckets, total, total / optimal.seconds - 1) for buckets, total in seconds),
        reasons=bucket_reasons(steps, cost, listed[0]),
    )

"""Everything a report shows of a study, gathered and verified. Observations are shown once there is a verdict."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slotgrid.errors import InputError
from slotgrid.study.attempts import Attempt, attempts, without_outcome
from slotgrid.study.breakeven import NO_DECISION, ArmCost, BreakEven, arm_cost, break_even_runs
from slotgrid.study.decide import predicted_ratio
from slotgrid.study.decisions import decisions_of
from slotgrid.study.manifest import Entry, changed_code
from slotgrid.study.notes import merge_notes
from slotgrid.study.outcome import PREDICTED, Outcome, Outcomes, total
from slotgrid.study.records import Record, set_records
from slotgrid.study.resample import Interval
from slotgrid.study.saturation import RESAMPLES, SEED, Saturation, cells_of, find_saturation, slot_order
from slotgrid.study.settings import SIMULATED, STEADY, PlanSet
from slotgrid.study.study import Study
from slotgrid.study.verdict import StoredVerdict, load_verdict


@dataclass(frozen=True)
class PredictedRatio:
    """What was registered for one arm at one N."""

    sessions: int
    arm: str
    ratio: float
    interval: Interval | None
    extrapolated: tuple[str, ...]


@dataclass(frozen=True)
class SetOverview:
    """One data set. basis: "predicted" before the verdict, "measured" or "simulated" after it. changed_code: source
    files that are not as the entry of the set was registered with. attempts: by hash of a record, see
    :func:`attempts.attempts`. lost: attempts that left neither a run nor a refusal."""

    entry: Entry
    plans: PlanSet
    predicted: tuple[PredictedRatio, ...]
    records: tuple[Record, ...]
    verdict: StoredVerdict | None
    outcomes: tuple[Outcome, ...]
    basis: str
    saturation: Saturation | None
    no_saturation: str | None
    costs: tuple[ArmCost, ...]
    break_even: tuple[BreakEven, ...]
    changed_code: tuple[str, ...]
    attempts: Mapping[str, int | None]
    lost: tuple[Attempt, ...]

    @property
    def simulated(self) -> bool:
        """Whether its runs are stand-ins."""
        return self.basis == SIMULATED or any(record.source == SIMULATED for record in self.records)

    @property
    def runs_wanted(self) -> int:
        return len(self.entry.cells(self.plans)) * len(self.entry.settings.arms)


@dataclass(frozen=True)
class Overview:
    """A study as it stands."""

    study: Study
    sets: tuple[SetOverview, ...]


def overview(study: Study, *, compile_s: float | None = None) -> Overview:
    """Gather a study. compile_s: compile time of every arm for the break-even, instead of what is known of each."""
    sets = tuple(_set(study, entry, plans, compile_s) for entry, plans in study.sets())
    return Overview(study, sets)


def set_saturation(
    entry: Entry,
    plans: PlanSet,
    outcomes: Sequence[Outcome],
    *,
    arms: Sequence[str] | None = None,
    channel: str = "a",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Saturation:
    """Adjacent slot counts of a set over its confirmatory N; exploratory N are left out, they decide nothing.

    Raises InputError when two arms have the same number of slots, or every N is exploratory.
    """
    if not plans.sessions:
        raise InputError(f"saturation: every N of set {plans.name} is exploratory; exploratory N decide nothing")
    settings = entry.settings
    chosen = settings.arm_names if arms is None else arms
    order = slot_order({name: settings.arm(name).config.slots for name in chosen})
    judged = [o for o in outcomes if o.arm in order and o.sessions in plans.sessions]
    found = cells_of([(o.arm, o.sessions, o.replicate, _seconds(o, plans, channel)) for o in judged])
    most = max(plans.sessions)
    controlled = {}
    for fewer, more in itertools.pairwise(order):
        a, b = settings.arm(fewer).config, settings.arm(more).config
        top = min(most, max(a.max_running, b.max_running))
        same = min(a.max_running, b.max_running) >= top
        controlled[fewer, more] = same and all(a.bucket_for(n) == b.bucket_for(n) for n in range(1, top + 1))
    ordered = {name: found.get(name, {}) for name in order}
    result = find_saturation(ordered, resamples=resamples, seed=seed, controlled=controlled)
    return replace(result, left_out=tuple(plans.exploratory))


def _set(study: Study, entry: Entry, plans: PlanSet, compile_s: float | None) -> SetOverview:
    stored = load_verdict(study, entry, plans)
    registered = entry.predictions(plans.name)
    if stored is None:
        outcomes, basis = registered, PREDICTED
    else:
        outcomes = [Outcome.from_dict(row, str(stored.path)) for row in stored.data["observations"]]
        basis = str(stored.data["source"])
    saturation, why_not = None, None
    try:
        saturation = set_saturation(entry, plans, outcomes)
    except InputError as error:
        why_not = str(error)
    records = tuple(set_records(study, entry, plans))
    costs = tuple(arm_cost(arm, entry.profile, compile_s) for arm in entry.settings.arms)
    return SetOverview(
        entry=entry,
        plans=plans,
        predicted=tuple(_predicted(entry, plans, registered)),
        records=records,
        verdict=stored,
        outcomes=tuple(outcomes),
        basis=basis,
        saturation=saturation,
        no_saturation=why_not,
        costs=costs,
        break_even=tuple(_break_even(entry, plans, outcomes, basis, {cost.arm: cost for cost in costs}, stored)),
        changed_code=tuple(changed_code(entry)),
        attempts={record.sha256: attempts(study, record) for record in records},
        lost=without_outcome(study.log, plans),
    )


def _predicted(entry: Entry, plans: PlanSet, registered: Sequence[Outcome]) -> list[PredictedRatio]:
    rows = Outcomes(registered, "prediction")
    made = []
    for n in rows.session_counts():
        replicates = rows.replicates(n)
        base = rows.arm(n, entry.settings.baseline.name, replicates)
        for arm in entry.settings.arm_names[1:]:
            mine = rows.arm(n, arm, replicates)
            found, interval = predicted_ratio(mine, base, per_turn=plans.load == STEADY)
            notes = merge_notes([text for row in (*mine, *base) for text in row.extrapolated])
            made.append(PredictedRatio(n, arm, found, interval, notes))
    return made


def _break_even(
    entry: Entry,
    plans: PlanSet,
    outcomes: Sequence[Outcome],
    basis: str,
    costs: Mapping[str, ArmCost],
    stored: StoredVerdict | None,
) -> list[BreakEven]:
    decisions = {} if stored is None else decisions_of(stored.data)
    rows = Outcomes(outcomes, "run")
    steady = plans.load == STEADY
    made = []
    for n in rows.session_counts():
        replicates = rows.replicates(n)
        base_s = _mean_s(rows.arm(n, entry.settings.baseline.name, replicates), steady)
        for arm in entry.settings.arm_names[1:]:
            saved_s = base_s - _mean_s(rows.arm(n, arm, replicates), steady)
            cost_s = costs[arm].compile_s
            unit = "turns" if steady else "runs"
            decision = decisions.get((n, arm), NO_DECISION)
            made.append(BreakEven(n, arm, basis, unit, cost_s, saved_s, break_even_runs(cost_s, saved_s), decision))
    return made


def _mean_s(rows: Sequence[Outcome], steady: bool) -> float:
    """Mean device seconds of a plan, or of a turn."""
    seconds: Any = total(rows, "device_s")
    return float(seconds / (total(rows, "turns") if steady else len(rows)))


def _seconds(outcome: Outcome, plans: PlanSet, channel: str) -> float:
    if channel == "a":
        return outcome.per_turn_s if plans.load == STEADY else outcome.device_s
    if outcome.channel_b_s is None:
        raise InputError(f"{outcome.place}: channel B is missing")
    return outcome.channel_b_s

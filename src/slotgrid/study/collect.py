"""Runs come into a study: made here arm by arm, or brought in from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from slotgrid.errors import InputError
from slotgrid.measure.arms import STARTING, ConditionResult
from slotgrid.measure.arms import Progress as MeasureProgress
from slotgrid.measure.order import balanced_order
from slotgrid.run import Run, save_run
from slotgrid.run.readers import read_run
from slotgrid.study import log, store
from slotgrid.study.attempts import began, log_attempt
from slotgrid.study.hardware import OTHER_ARMS_OPTION, ArmsFile, check_arms_file, measure_set
from slotgrid.study.lock import working
from slotgrid.study.manifest import Cell, Entry
from slotgrid.study.observe import check_run
from slotgrid.study.predict import stand_in_run
from slotgrid.study.records import (
    MEASURED_HERE,
    Record,
    add_run,
    content_digest,
    has_run,
    load_record,
    log_refusal,
    refuse_twin,
    set_records,
)
from slotgrid.study.settings import MEASURED, SIMULATED, Arm, PlanSet, Settings
from slotgrid.study.study import Study, check_code, open_study
from slotgrid.study.texts import check_text
from slotgrid.study.validity import check_started

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Collected:
    """Runs that were added, how many places are still empty, and why measured conditions were not taken. blocked: why
    sets were left out that could not be measured, one each."""

    added: tuple[Record, ...]
    there_before: int
    missing: int
    invalid: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        rows = [
            {"set": r.cell.plan_set, "sessions": r.cell.sessions, "replicate": r.cell.replicate, "arm": r.arm}
            | {"source": r.source, "folder": str(r.folder)}
            for r in self.added
        ]
        return {
            "added": rows,
            "there_before": self.there_before,
            "missing": self.missing,
            "invalid": list(self.invalid),
            "blocked": list(self.blocked),
        }


@dataclass(frozen=True)
class _Job:
    """One arm on one plan; order: its position in the order of the arms."""

    entry: Entry
    plans: PlanSet
    cell: Cell
    arm: Arm
    order: int
    code: dict[str, object] | None = None


# --- made here --------------------------------------------------------------------------------------------------


def arm_order(settings: Settings, cells: Sequence[Cell]) -> dict[Cell, list[str]]:
    """Order of the arms in each cell, balanced over places and predecessors."""
    order = balanced_order(settings.arm_names, len(cells), settings.order_seed)
    return dict(zip(cells, order, strict=True))


def measure(
    folder: str | Path,
    *,
    now: Callable[[], str],
    plan_set: str | None = None,
    other_code: str | None = None,
    other_arms: str | None = None,
    progress: Progress | None = None,
    replaying: Callable[[MeasureProgress], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Collected:
    """Run every arm on every plan that has no run yet, of one data set or all; a stopped one goes on where it stopped.

    Arms with runs = "simulated" are simulated by their own rules and stay marked so; the others are measured as the
    arms file says (:func:`measure.arms.measure_arms`, which ``replaying`` and ``note`` are handed to), and each comes
    in as soon as it is finished. What is not valid stays out and is named in the result. other_code, other_arms: why
    code or arms file are not the registered ones; kept. A set that cannot be measured is left out and named in the
    result where there are others. Raises InputError when there are none, RunError when another command is at work on
    the study.
    """
    with working(Path(folder), now=now, note=note):
        return _measure(open_study(folder), now, plan_set, other_code, other_arms, progress, replaying, note)


def _measure(
    study: Study,
    now: Callable[[], str],
    plan_set: str | None,
    other_code: str | None,
    other_arms: str | None,
    progress: Progress | None,
    replaying: Callable[[MeasureProgress], None] | None,
    note: Callable[[str], None] | None,
) -> Collected:
    chosen = list(study.sets()) if plan_set is None else [study.choose(plan_set)]
    jobs: list[_Job] = []
    by_hardware: list[tuple[Entry, PlanSet, ArmsFile]] = []
    blocked: list[InputError] = []
    there = missing = 0
    for entry, plans in chosen:
        open_jobs = []
        for cell, names in arm_order(entry.settings, entry.cells(plans)).items():
            for order, name in enumerate(names):
                if has_run(study, cell, name):
                    there += 1
                else:
                    open_jobs.append(_Job(entry, plans, cell, entry.settings.arm(name), order))
        missing += len(open_jobs)
        if not open_jobs:
            continue
        try:
            code = check_code(entry, other_code)
            if any(job.arm.runs == MEASURED for job in open_jobs):
                by_hardware.append((entry, plans, _check_measurable(study, entry, plans, other_arms)))
        except InputError as error:
            blocked.append(error)
            continue
        jobs += [replace(job, code=code) for job in open_jobs]
    if blocked and not jobs:
        raise blocked[0]
    added: list[Record] = []
    stand_ins = [job for job in jobs if job.arm.runs == SIMULATED]
    for i, job in enumerate(stand_ins):
        if progress is not None:
            progress(i, len(stand_ins))
        started = now()
        plan = job.entry.plan(job.cell)
        run = stand_in_run(job.entry.settings, job.arm, plan, job.entry.profile)
        check_run(run, job.entry, job.plans, job.cell, job.arm, plan)
        facts = {"how": MEASURED_HERE, "started_at": started, "order": job.order, "code": job.code, "added_at": now()}
        added.append(add_run(study, job.entry, job.cell, job.arm.name, run, partial(save_run, run), facts))
    invalid: dict[tuple[Cell, str], str] = {}
    for entry, plans, arms_file in by_hardware:
        places = {(job.cell, job.arm.name): job for job in jobs if job.plans is plans and job.arm.runs == MEASURED}
        if arms_file.other is not None:
            _log_other_arms(study, now(), plans, arms_file.other)

        def begun(cell: Cell, progress: MeasureProgress) -> None:
            if progress.phase == STARTING:
                log_attempt(study, now(), cell, progress.arm)
            if replaying is not None:
                replaying(progress)

        def over(
            cell: Cell,
            result: ConditionResult,
            places: Mapping[tuple[Cell, str], _Job] = places,
            arms_file: ArmsFile = arms_file,
        ) -> None:
            # one that is not valid may be run once more: what counts is the last
            invalid.pop((cell, result.arm), None)
            found = _take_in(study, places[cell, result.arm], result, arms_file, now)
            if isinstance(found, Record):
                added.append(found)
            else:
                invalid[cell, result.arm] = found

        measure_set(
            study, entry, plans, arms_file=arms_file, wanted=set(places), outcome=over, progress=begun, note=note
        )
    told = tuple(str(error) for error in blocked)
    return Collected(tuple(added), there, missing - len(added), tuple(invalid.values()), told)


def _check_measurable(study: Study, entry: Entry, plans: PlanSet, other_arms: str | None) -> ArmsFile:
    """A set is measured here or brought in, not both: the measuring part orders and repeats all its conditions."""
    arms_file = check_arms_file(entry, other_arms)
    for record in set_records(study, entry, plans):
        if record.source == MEASURED and record.data["how"] != MEASURED_HERE:
            raise InputError(
                f"{record.folder}: was brought in; bring in the other runs of set {plans.name} likewise "
                "(slotgrid study ingest), a set is measured in one order"
            )
    return arms_file


def _log_other_arms(study: Study, time: str, plans: PlanSet, other: Mapping[str, str]) -> None:
    """Put into the log that another arms file is used; the same file with the same reason stands there once."""
    facts = {"set": plans.name, **other}
    for line in log.read_log(study.folder).lines:
        if line.what == log.OTHER_ARMS and all(line.data.get(key) == value for key, value in facts.items()):
            return
    log.append(study.folder, log.OTHER_ARMS, time, **facts)


def _take_in(
    study: Study, job: _Job, result: ConditionResult, arms_file: ArmsFile, now: Callable[[], str]
) -> Record | str:
    """A measured condition becomes a run of the study, or its reasons are kept: then what can be done about it."""
    place = f"{job.cell.place}, arm {job.arm.name}"
    source = Path(result.folder)

    def refuse(reasons: Sequence[str]) -> str:
        seen = {"attempts": result.attempts, "began_at": result.started_at}
        told = f"{place}: {'; '.join(reasons)}"
        log_refusal(study, now(), origin=str(source), reason=told, cell=job.cell, arm=job.arm.name, **seen)
        return f"{place}: {reasons[0]}; {what_next(result)}"

    if not result.valid:
        return refuse(result.reasons)
    try:
        run = read_run(source)
        started = check_started(run, result.started_at, str(source), job.entry.registered_at, now())
        check_run(run, job.entry, job.plans, job.cell, job.arm, job.entry.plan(job.cell))
    except InputError as error:
        return refuse([str(error).removeprefix(f"{place}: ")])
    facts = {
        "how": MEASURED_HERE,
        "started_at": started,
        "order": result.position,
        "attempts": result.attempts,
        "code": job.code,
        "arms_file": arms_file.other,
        "added_at": now(),
    }
    return add_run(study, job.entry, job.cell, job.arm.name, run, partial(store.copy_tree, source), facts)


def what_next(result: ConditionResult) -> str:
    """What can be done about a condition that was not taken."""
    if not result.attempts:
        return (
            "it was not run; the next slotgrid study measure tries again (with a mended arms file: "
            f"{OTHER_ARMS_OPTION} REASON)"
        )
    times = "1 attempt is" if result.attempts == 1 else f"{result.attempts} attempts are"
    folder = Path(result.folder)
    return (
        f"{times} used up, so it is not run again by itself; mend the cause, then rename {folder} to "
        f"{folder.name}.invalid-{result.attempts} and measure again, or measure with a mended arms file and "
        f"{OTHER_ARMS_OPTION} REASON: one more attempt, counted and shown"
    )


# --- brought in -------------------------------------------------------------------------------------------------


def ingest(
    folder: str | Path,
    run_folders: Sequence[str | Path],
    *,
    now: Callable[[], str],
    arm: str | None = None,
    started: str | None = None,
    other_code: str | None = None,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> Collected:
    """Copy run directories into the study. The plan's hash says which plan a run is of, its configuration which arm.

    arm: for runs whose files do not state the configuration. started: ISO 8601 with zone, for runs that do not say
    when they began; kept as stated. Nothing is added when one of the runs is refused; the log keeps the refusal. Runs
    that a stopped call with the same directories brought in already are left as they are. Raises InputError naming run
    and reason, RunError when another command is at work on the study.
    """
    with working(Path(folder), now=now, note=note):
        return _ingest(open_study(folder), run_folders, now, arm, started, other_code, progress)


@dataclass(frozen=True)
class _Incoming:
    """A run that may come in."""

    path: Path
    run: Run
    entry: Entry
    cell: Cell
    arm: str
    digest: str
    begun: str | None


def _ingest(
    study: Study,
    run_folders: Sequence[str | Path],
    now: Callable[[], str],
    arm: str | None,
    started: str | None,
    other_code: str | None,
    progress: Progress | None,
) -> Collected:
    if not run_folders:
        raise InputError("ingest: no run directory given")
    check_text(started, "--started")
    for name in run_folders:
        check_text(Path(name).resolve(), "run directory")
    jobs: list[_Incoming] = []
    for i, name in enumerate(run_folders):
        if progress is not None:
            progress(i, len(run_folders))
        path = Path(name)
        run = read_run(path)
        try:
            job = _incoming(study, path, run, arm, started, now(), jobs)
        except InputError as error:
            log_refusal(study, now(), origin=str(path.resolve()), reason=str(error), content=content_digest(run))
            raise
        if job is not None:
            jobs.append(job)
    codes = {job.entry.number: check_code(job.entry, other_code) for job in jobs}
    added = []
    for job in jobs:
        facts = {
            "how": "study ingest",
            "origin": str(job.path.resolve()),
            "started_at": job.begun,
            "started_stated": None if job.run.details.get("started_at") else started,
            "code": codes[job.entry.number],
            "added_at": now(),
        }
        fill = partial(store.copy_tree, job.path)
        added.append(add_run(study, job.entry, job.cell, job.arm, job.run, fill, facts))
    places = [
        (cell, name)
        for entry, plans in study.sets()
        for cell in entry.cells(plans)
        for name in entry.settings.arm_names
    ]
    missing = sum(not has_run(study, cell, name) for cell, name in places)
    return Collected(tuple(added), len(places) - missing - len(added), missing)


def _incoming(
    study: Study, path: Path, run: Run, arm: str | None, started: str | None, now: str, before: Sequence[_Incoming]
) -> _Incoming | None:
    """The run with its place; None when it was brought in before. Raises InputError with the reason it may not come."""
    entry, plans, cell, chosen = _place(study, run, path, arm)
    place = f"{cell.place}, arm {chosen.name}"
    digest = content_digest(run)
    for other in before:
        if (other.cell, other.arm) == (cell, chosen.name):
            raise InputError(f"{path}: {place} is also {other.path}; one is needed")
        # before anything is added, so that all are added or none
        if run.source == MEASURED and other.digest == digest:
            raise InputError(f"{path}: the same run as {other.path}; every run may stand once")
    if has_run(study, cell, chosen.name):
        there = load_record(study, entry, cell, chosen.name).data
        if (there.get("origin"), there.get("content")) == (str(path.resolve()), digest):
            return None
        raise InputError(f"{path}: {place} has a run already; it is never overwritten")
    if run.source == MEASURED and began(study.log, plans.name):
        raise InputError(
            f"{path}: slotgrid study measure has begun set {plans.name} here; a set is measured here or brought in, "
            "not both; go on with measure, or register a set with new seeds (--amend REASON) and bring in its runs"
        )
    begun = check_started(run, started, str(path), entry.registered_at, now)
    try:
        check_run(run, entry, plans, cell, chosen, entry.plan(cell))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if run.source == MEASURED:
        refuse_twin(study, cell, chosen.name, digest)
    return _Incoming(path, run, entry, cell, chosen.name, digest, begun)


def _place(study: Study, run: Run, path: Path, arm: str | None) -> tuple[Entry, PlanSet, Cell, Arm]:
    if run.plan_sha256 is None:
        raise InputError(f"{path}: does not say which plan it ran; put the plan as plan.json beside its request rows")
    found = study.cell_of_plan(run.plan_sha256)
    if found is None:
        raise InputError(
            f"{path}: its plan {run.plan_id} ({run.plan_sha256[:12]}) is not one of this study; plans of another study "
            "do not count here"
        )
    entry, plans, cell = found
    if arm is not None:
        chosen = entry.settings.arm(arm)
    else:
        fitting = [a for a in entry.settings.arms if run.config == a.config]
        if run.config is None or len(fitting) != 1:
            label = "no configuration is stated" if run.config is None else f"configuration {run.config.label}"
            arms = ", ".join(f"{a.name} ({a.config.label})" for a in entry.settings.arms)
            raise InputError(
                f"{path}: {label}, which is {'more than one' if fitting else 'no'} arm; name it with --arm: {arms}"
            )
        chosen = fitting[0]
    if run.source != chosen.runs:
        raise InputError(
            f"{path}: a {run.source} run, but arm {chosen.name} is registered with runs = {chosen.runs!r}; "
            "a simulated run never stands for a measured one"
        )
    return entry, plans, cell, chosen

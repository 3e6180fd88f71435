"""register: draw the plans, predict every arm, fix all of it in one manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.profile import StackProfile
from slotgrid.profile.stack_profile import profile_bytes, profile_from_toml
from slotgrid.study import log, manifest, store
from slotgrid.study.audit import audit
from slotgrid.study.hardware import names_to_measure, read_arms_file
from slotgrid.study.lock import working
from slotgrid.study.manifest import (
    ARMS,
    PREDICTIONS,
    PREDICTIONS_FORMAT,
    PROFILE,
    Cell,
    Entry,
    entry_name,
    plan_file,
    sha256_of,
)
from slotgrid.study.outcome import Outcome
from slotgrid.study.predict import predict
from slotgrid.study.resample import LEAST_VALUES
from slotgrid.study.seeds import check_plans, check_search
from slotgrid.study.settings import FILE, SIMULATED, STEADY, PlanSet, Settings, load_settings
from slotgrid.study.strangers import ATTRIBUTES, ATTRIBUTES_TEXT
from slotgrid.study.texts import check_text
from slotgrid.workload import Workload, load_workload

Progress = Callable[[int, int], None]
# predictions made so far, one a line; only in the folder of an entry that is not finished
_SO_FAR = ".so-far.jsonl"


def register(
    folder: str | Path,
    *,
    now: Callable[[], str],
    git: Mapping[str, Any] | None = None,
    amend: str | None = None,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> Entry:
    """Register the study, or with ``amend`` (the reason) a change of study.toml for new data sets.

    now: the time, ISO 8601 with its zone; read when everything else is done, so that no run that began during the
    predicting counts. git: commit and whether it was clean, where there is one. A stopped registration is continued:
    predictions that were made are kept. Raises InputError when the study is registered already, when its arms are
    partly simulated, when it does not say what chose the configurations, when seeds or plans are not new, or when an
    amendment touches what was registered; RunError when another command is at work on the study.
    """
    check_text(amend, "--amend")
    with working(Path(folder), now=now, note=note) as finished:
        return _register(Path(folder), now, git, amend, progress, finished)


def _register(
    study: Path,
    now: Callable[[], str],
    git: Mapping[str, Any] | None,
    amend: str | None,
    progress: Progress | None,
    finished: Path | None,
) -> Entry:
    settings = load_settings(study)
    entries = manifest.load_entries(study)
    audit(study)
    if entries and entries[-1].folder == finished and sha256_of(study / FILE) == entries[-1].data["files"][FILE]:
        # it was killed when all but its last step was done
        return entries[-1]
    check_arms(settings)
    new_sets = _new_sets(study, settings, entries, amend)
    workloads = [load_workload(settings.resolve(plans.workload)) for plans in new_sets]
    searched = check_search(settings, new_sets, workloads)
    _check_replicates(study, new_sets)
    data, where = profile_bytes(settings.resolve(settings.profile))
    profile = profile_from_toml(data, where)
    plans = _draw(new_sets, workloads, entries)
    check_plans(searched, {cell.place: plan.content_sha256 for cell, (_, plan) in plans.items()})
    # a study.toml that was not made by init
    store.write_new(study / ATTRIBUTES, ATTRIBUTES_TEXT.encode())
    number = len(entries) + 1
    target = study / manifest.REGISTERED / entry_name(number)

    def announce(partial: Path) -> None:
        log.append(
            study,
            log.REGISTRATION if number == 1 else log.AMENDMENT,
            registered_at,
            place=target.relative_to(study).as_posix(),
            sets=[s.name for s in new_sets],
            reason=amend,
            file_sha256=sha256_of(partial / manifest.MANIFEST),
        )

    with store.new_folder(target, keep=True, announce=announce) as partial:
        _clear(partial)
        store.write_new(partial / FILE, files.read_bytes(study / FILE))
        store.write_new(partial / PROFILE, data)
        for cell, (_, plan) in plans.items():
            store.write_new(partial / plan_file(cell), store.json_bytes(plan.to_dict()))
        if settings.arms_file is not None:
            arms_file = study / settings.arms_file
            store.write_new(partial / ARMS, files.read_bytes(arms_file))
            read_arms_file(arms_file, names_to_measure(settings), [partial / plan_file(cell) for cell in plans])
        predictions = _predict_all(settings, plans, profile, partial / _SO_FAR, progress)
        rows = {s.name: [p.to_dict() for c, p in predictions if c.plan_set == s.name] for s in new_sets}
        store.write_new(partial / PREDICTIONS, store.json_bytes({"format": PREDICTIONS_FORMAT, "sets": rows}))
        (partial / _SO_FAR).unlink()
        registered_at = now()
        manifest.write_manifest(
            partial,
            number=number,
            reason=amend,
            sets=[s.name for s in new_sets],
            plans={plan_file(cell): plan.content_sha256 for cell, (_, plan) in plans.items()},
            profile=profile,
            previous_sha256=entries[-1].sha256 if entries else None,
            registered_at=registered_at,
            git=git,
            search=searched.to_dict(),
            title=settings.title,
        )
    return manifest.load_entries(study)[-1]


def check_arms(settings: Settings) -> None:
    """Raise InputError when some arms are simulated and others measured: such a set could never get a verdict."""
    kinds = {kind: [arm.name for arm in settings.arms if (arm.runs == SIMULATED) == kind] for kind in (True, False)}
    if kinds[True] and kinds[False]:
        raise InputError(
            f"{settings.folder / FILE}: simulated arms ({', '.join(kinds[True])}) beside measured ones "
            f"({', '.join(kinds[False])}); the arms of a study are all measured or all simulated"
        )


def _new_sets(study: Path, settings: Settings, entries: Sequence[Entry], amend: str | None) -> list[PlanSet]:
    """The data sets this registration is for. What was registered stays as it is."""
    if not entries:
        if amend is not None:
            raise InputError(f"{study}: nothing is registered yet, so there is nothing to amend; leave out --amend")
        return list(settings.sets)
    if amend is None:
        manifest.check_current(study, entries)
        last = entries[-1]
        raise InputError(
            f"{study}: registered on {last.registered_at} (entry {last.number}); it is never registered again. "
            "A change of study.toml is an amendment (--amend REASON) for new plans"
        )
    if not amend.strip():
        raise InputError("--amend: empty; say why, it is kept with the amendment")
    old = {plans.name: (entry, plans) for entry in entries for plans in entry.sets}
    for plans in settings.sets:
        if plans.name in old and plans != old[plans.name][1]:
            raise InputError(
                f"{study / FILE}: set {plans.name} differs from what entry {old[plans.name][0].number} registered; "
                "leave it as it was and add another [[plans]] set with new seeds"
            )
    fresh = [plans for plans in settings.sets if plans.name not in old]
    if not fresh:
        raise InputError(
            f"{study / FILE}: no new [[plans]] set; an amendment counts for plans drawn after it, so it needs some"
        )
    return fresh


def _check_replicates(study: Path, sets: Sequence[PlanSet]) -> None:
    """Steady load is judged on replicates; with few there would be no decision, and that is known before measuring."""
    for plans in sets:
        if plans.load == STEADY and plans.sessions and len(plans.replicates) < LEAST_VALUES:
            raise InputError(
                f"{study / FILE}: set {plans.name}: {len(plans.replicates)} replicates (seeds x blocks) in steady "
                f"load; at least {LEAST_VALUES} are needed to judge, or state all its N as exploratory (sessions = [])"
            )


def _draw(
    sets: Sequence[PlanSet], workloads: Sequence[Workload], entries: Sequence[Entry]
) -> dict[Cell, tuple[PlanSet, InputPlan]]:
    """Every plan of the sets. Raises InputError for a plan that was registered before or is there twice."""
    seen = {sha: f"entry {e.number}, {name}" for e in entries for name, sha in e.data["plans"].items()}
    drawn = {}
    for plans, workload in zip(sets, workloads, strict=True):
        for n in plans.all_sessions:
            for replicate in plans.replicates:
                cell = Cell(plans.name, n, replicate.name)
                plan = workload.draw(clients=n, seed=replicate.seed, block=replicate.block)
                sha = plan.content_sha256
                if sha in seen:
                    raise InputError(
                        f"{cell.place}: the plan is the same as {seen[sha]}; new data need new plans (another seed; "
                        "{block} in the workload's plan_id makes blocks differ)"
                    )
                seen[sha] = f"{plans.name}, {cell.name}"
                drawn[cell] = (plans, plan)
    return drawn


def _predict_all(
    settings: Settings,
    plans: Mapping[Cell, tuple[PlanSet, InputPlan]],
    profile: StackProfile,
    so_far: Path,
    progress: Progress | None,
) -> list[tuple[Cell, Outcome]]:
    """Predictions of every arm on every plan; those a stopped registration made are taken from its file."""
    made = _read_so_far(so_far)
    code = json.dumps(manifest.code_hashes())
    jobs = [(cell, arm) for cell in plans for arm in settings.arms]
    done: list[tuple[Cell, Outcome]] = []
    with open(so_far, "a", encoding="utf-8") as stream:
        for i, (cell, arm) in enumerate(jobs):
            if progress is not None:
                progress(i, len(jobs))
            plan_set, plan = plans[cell]
            key = _key(settings, plan_set, plan, arm.name, profile, code)
            if key in made:
                outcome = Outcome.from_dict(made[key], str(so_far))
            else:
                outcome = predict(settings, plan_set, plan, arm.name, profile, cell.sessions, cell.replicate)
                stream.write(json.dumps({"key": key, "outcome": outcome.to_dict()}) + "\n")
                stream.flush()
            done.append((cell, outcome))
    if progress is not None:
        progress(len(jobs), len(jobs))
    return done


def _key(settings: Settings, plan_set: PlanSet, plan: InputPlan, arm: str, profile: StackProfile, code: str) -> str:
    """What a prediction depends on."""
    chosen = [settings.rules, settings.clock, settings.turnaround_s, settings.ensemble, settings.ensemble_seed, arm]
    window = [plan_set.load, plan_set.window_s, plan_set.warmup_s, settings.arm(arm).config.to_dict()]
    text = json.dumps([plan.content_sha256, profile.sha256, plan_set.name, chosen, window, code], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _read_so_far(path: Path) -> dict[str, Any]:
    """Lines of a stopped registration; a cut last line is as if it had not been written."""
    found: dict[str, Any] = {}
    if not path.exists():
        return found
    lines = files.read_bytes(path).split(b"\n")
    for line in lines[:-1]:
        try:
            row = json.loads(line)
            found[row["key"]] = row["outcome"]
        except (ValueError, KeyError, TypeError):
            continue
    if lines[-1]:
        # the cut line is ended, so that the next one stands alone
        with open(path, "ab") as stream:
            stream.write(b"\n")
    return found


def _clear(partial: Path) -> None:
    """Whatever a stopped registration left but its predictions: it may be of another study.toml."""
    for path in sorted(partial.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        elif path.name != _SO_FAR:
            path.unlink()

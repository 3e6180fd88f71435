"""verdict: once per data set, from the registered predictions and the recorded runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.study import log, store
from slotgrid.study.attempts import attempts, without_outcome
from slotgrid.study.audit import VERDICT_FILE as FILE
from slotgrid.study.decide import compare_all, mean_absolute_error
from slotgrid.study.lock import working
from slotgrid.study.manifest import Entry, sha256_of
from slotgrid.study.observe import check_run
from slotgrid.study.outcome import Outcome
from slotgrid.study.records import Record, has_run, set_records
from slotgrid.study.settings import STEADY, PlanSet
from slotgrid.study.steady import judge_steady
from slotgrid.study.study import Study, check_code, open_study
from slotgrid.study.validity import check_started

FORMAT = "slotgrid-verdict/1"
FOLDER, VOUCHER = "verdicts", "verdict.sha256"
_NAMED = 3


@dataclass(frozen=True)
class StoredVerdict:
    """A verdict as it lies in the study. fresh: it was made by this call, not found."""

    path: Path
    data: dict[str, Any]
    fresh: bool


def verdict(
    folder: str | Path,
    *,
    now: Callable[[], str],
    plan_set: str | None = None,
    other_code: str | None = None,
    note: Callable[[str], None] | None = None,
) -> StoredVerdict:
    """Judge a data set, or give the verdict it has. A verdict is never replaced. One that is there is read without
    holding the study, so also where nothing can be written.

    Raises InputError when a run is missing, changed, of another plan or another study, or lacks a channel, and when the
    arms of a set are partly simulated; RunError when another command is at work on the study.
    """
    if any((Path(folder) / FOLDER).glob(f"*/{FILE}")):
        study = open_study(folder)
        stored = load_verdict(study, *study.choose(plan_set))
        if stored is not None:
            return stored
    with working(Path(folder), now=now, note=note):
        return _verdict(open_study(folder), now, plan_set, other_code)


def _verdict(study: Study, now: Callable[[], str], plan_set: str | None, other_code: str | None) -> StoredVerdict:
    entry, plans = study.choose(plan_set)
    stored = load_verdict(study, entry, plans)
    if stored is not None:
        return stored
    code = check_code(entry, other_code)
    records = complete_records(study, entry, plans)
    observed = observations(entry, plans, records, now=now())
    data: dict[str, Any] = {
        "format": FORMAT,
        "set": plans.name,
        "load": plans.load,
        "entry": entry.number,
        "manifest_sha256": entry.sha256,
        "registered_at": entry.registered_at,
        "decided_at": now(),
        "code": code,
        "source": records[0].source,
        "baseline": entry.settings.baseline.name,
        "log": study.log.summary(),
        "runs": {_run_name(record): record.sha256 for record in records},
        "attempts": {_run_name(record): attempts(study, record) for record in records},
        "attempts_without_run": [attempt.to_dict() for attempt in without_outcome(study.log, plans)],
        "data_sha256": data_sha256(records),
        "observations": [row.to_dict() for row in observed],
        **judge(entry, plans, observed),
    }
    path = path_of(study, plans)
    body = store.json_bytes(data)
    sha256 = hashlib.sha256(body).hexdigest()

    def announce(_: Path) -> None:
        log.append(
            study.folder,
            log.VERDICT,
            data["decided_at"],
            place=path.parent.relative_to(study.folder).as_posix(),
            set=plans.name,
            other_code=None if code is None else code["reason"],
            data_sha256=data["data_sha256"],
            file_sha256=sha256,
        )

    with store.new_folder(path.parent, announce=announce) as partial:
        store.write_new(partial / FILE, body)
        store.write_new(partial / VOUCHER, f"{sha256}  {FILE}\n".encode())
    # as it will be read: no tuples, keys as text
    return StoredVerdict(path, json.loads(body), True)


def judge(entry: Entry, plans: PlanSet, observed: Sequence[Outcome]) -> dict[str, Any]:
    """The registered criteria on predictions and observations, as JSON values."""
    settings, predicted = entry.settings, entry.predictions(plans.name)
    if plans.load == STEADY:
        found = judge_steady(
            predicted,
            observed,
            arms=settings.arm_names,
            limits={arm.name: arm.config.max_running for arm in settings.arms},
            exploratory=plans.exploratory,
            criteria=settings.steady,
        )
        return {"criteria": settings.steady.to_dict(), **found.to_dict()}
    comparisons = compare_all(
        predicted,
        observed,
        arms=settings.arm_names,
        exploratory=plans.exploratory,
        criteria=settings.device_time,
    )
    return {
        "criteria": settings.device_time.to_dict(),
        "comparisons": [c.to_dict() for c in comparisons],
        "mean_absolute_error": mean_absolute_error(comparisons),
    }


def load_verdict(study: Study, entry: Entry, plans: PlanSet) -> StoredVerdict | None:
    """The verdict of a set, or None. Raises InputError when it, or a run it rests on, is not what it was."""
    path = path_of(study, plans)
    if not path.exists():
        return None
    vouched = files.read_bytes(path.with_name(VOUCHER)).split()
    if not vouched or vouched[0].decode(errors="replace") != sha256_of(path):
        raise InputError(f"{path}: changed after it was decided ({VOUCHER} beside it names another hash)")
    data = store.read_object(path, FORMAT)
    if data.get("manifest_sha256") != entry.sha256:
        raise InputError(f"{path}: belongs to another manifest than {entry.folder}")
    records = set_records(study, entry, plans)
    told, there = data.get("runs", {}), {_run_name(record): record.sha256 for record in records}
    for name in sorted(set(told) | set(there)):
        if told.get(name) != there.get(name):
            raise InputError(f"{study.folder}: run {name} is not the one the verdict {path} rests on")
    return StoredVerdict(path, data, False)


def path_of(study: Study, plans: PlanSet) -> Path:
    """Where the verdict of a set lies."""
    return study.folder / FOLDER / plans.name / FILE


def complete_records(study: Study, entry: Entry, plans: PlanSet) -> list[Record]:
    """Every run of the set. Raises InputError naming those that are missing, or simulated beside measured."""
    missing = [
        f"{cell.name} {arm}"
        for cell in entry.cells(plans)
        for arm in entry.settings.arm_names
        if not has_run(study, cell, arm)
    ]
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise InputError(
            f"{study.folder}: set {plans.name}: {len(missing)} runs are missing: {', '.join(missing[:_NAMED])}{more}"
        )
    records = set_records(study, entry, plans)
    for record in records:
        if record.source != records[0].source:
            raise InputError(
                f"{record.folder}: a {record.source} run beside {records[0].source} ones "
                f"({records[0].folder}); the arms of a set are all measured or all simulated"
            )
    return records


def observations(entry: Entry, plans: PlanSet, records: Sequence[Record], *, now: str) -> list[Outcome]:
    """Every run read, verified, checked as when it came in, and priced. A record is believed only where the run and
    the registration say the same."""
    found = []
    for record in records:
        run, plan, arm = record.read(), entry.plan(record.cell), entry.settings.arm(record.arm)
        if not run.source == record.source == arm.runs:
            raise InputError(
                f"{record.folder}: a {run.source} run, recorded as {record.source}, for an arm that is {arm.runs}"
            )
        if run.plan_sha256 is not None and run.plan_sha256 != plan.content_sha256:
            raise InputError(f"{record.folder}: the run is of another plan than {record.cell.place}")
        told = record.data.get("started_at")
        begun = check_started(run, told, str(record.folder), entry.registered_at, now)
        if begun is not None and begun != told:
            raise InputError(f"{record.folder}: recorded as begun {told}, the run itself says {begun}")
        try:
            found.append(check_run(run, entry, plans, record.cell, arm, plan))
        except InputError as error:
            raise InputError(f"{record.folder}: {error}") from None
    return found


def data_sha256(records: Sequence[Record]) -> str:
    """What the data set is: the hash of its records' hashes."""
    return hashlib.sha256("".join(sorted(record.sha256 for record in records)).encode()).hexdigest()


def _run_name(record: Record) -> str:
    return f"{record.cell.name}/{record.arm}"

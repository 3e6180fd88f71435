"""Runs inside a study: ``runs/SET/CELL/ARM/run`` and beside it ``record.json``, written together and never again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.run import Run
from slotgrid.run.readers import read_run
from slotgrid.study import store
from slotgrid.study.manifest import Cell, Entry, sha256_of
from slotgrid.study.settings import MEASURED, PlanSet
from slotgrid.study.study import Study

FORMAT = "slotgrid-study-run/1"
RUNS, RECORD, RUN = "runs", "record.json", "run"
# columns that no two executions share: seconds on a clock
_OWN = ("session", "turn", "arrival_s", "first_token_s", "finish_s", "request_id")


@dataclass(frozen=True)
class Record:
    """One run of the study as its record says; ``sha256`` is the record's own."""

    folder: Path
    cell: Cell
    arm: str
    data: Mapping[str, Any]
    sha256: str

    @property
    def source(self) -> str:
        return str(self.data["source"])

    def read(self) -> Run:
        """The run, its files verified."""
        self.verify()
        return read_run(self.folder / RUN)

    def verify(self) -> None:
        """Raise InputError naming a file of the run that changed since it was recorded."""
        run = self.folder / RUN
        for name, told in self.data["files"].items():
            if not (run / name).is_file() or sha256_of(run / name) != told:
                raise InputError(f"{run / name}: changed after it was recorded on {self.data['added_at']}")
        for path in run.rglob("*"):
            if path.is_file() and path.relative_to(run).as_posix() not in self.data["files"]:
                raise InputError(f"{path}: was not there when the run was recorded on {self.data['added_at']}")


def folder_of(study: Study, cell: Cell, arm: str) -> Path:
    """Where a run of the study lies."""
    return study.folder / RUNS / cell.plan_set / cell.name / arm


def add_run(
    study: Study,
    entry: Entry,
    cell: Cell,
    arm: str,
    run: Run,
    fill: Callable[[Path], object],
    facts: Mapping[str, Any],
) -> Record:
    """Put a run into the study with its record; ``fill`` makes the run directory at the path it is given.

    Raises InputError when the place is taken, or when a measured run is the same as one already there.
    """
    target = folder_of(study, cell, arm)
    if target.exists():
        raise InputError(f"{target}: {cell.place}, arm {arm} has a run already; it is never overwritten")
    digest = content_digest(run)
    if run.source == MEASURED:
        for other in all_records(study):
            if other.data.get("content") == digest:
                raise InputError(
                    f"{cell.place}, arm {arm}: the same run as {other.cell.place}, arm {other.arm}; "
                    "every run may stand once"
                )
    with store.new_folder(target) as partial:
        fill(partial / RUN)
        copied = partial / RUN
        data = {
            "format": FORMAT,
            "set": cell.plan_set,
            "sessions": cell.sessions,
            "replicate": cell.replicate,
            "arm": arm,
            "plan_sha256": entry.plan_sha256(cell),
            "manifest_sha256": entry.sha256,
            "source": run.source,
            "config": None if run.config is None else run.config.to_dict(),
            "content": digest,
            **facts,
            "files": {
                path.relative_to(copied).as_posix(): sha256_of(path)
                for path in sorted(copied.rglob("*"))
                if path.is_file()
            },
        }
        store.write_new(partial / RECORD, store.json_bytes(data))
    return load_record(study, entry, cell, arm)


def load_record(study: Study, entry: Entry, cell: Cell, arm: str) -> Record:
    """The record of one run. Raises InputError when it is missing or of another study."""
    folder = folder_of(study, cell, arm)
    path = folder / RECORD
    if not path.exists():
        raise InputError(f"{cell.place}, arm {arm}: the run is missing ({folder})")
    data = store.read_object(path, FORMAT)
    told = (data.get("set"), data.get("sessions"), data.get("replicate"), data.get("arm"))
    if told != (cell.plan_set, cell.sessions, cell.replicate, arm):
        raise InputError(f"{path}: is the record of {told}, not of {cell.place}, arm {arm}")
    if data.get("manifest_sha256") != entry.sha256:
        raise InputError(f"{path}: belongs to another manifest; a run counts only for what it was measured under")
    if data.get("plan_sha256") != entry.plan_sha256(cell):
        raise InputError(f"{path}: another plan than the registered one of {cell.place}")
    for key in ("files", "source", "added_at"):
        if key not in data:
            raise InputError(f"{path}: {key} is missing")
    return Record(folder, cell, arm, data, sha256_of(path))


def has_run(study: Study, cell: Cell, arm: str) -> bool:
    """Whether the place is taken."""
    return folder_of(study, cell, arm).exists()


def set_records(study: Study, entry: Entry, plans: PlanSet) -> list[Record]:
    """Records of every run of a set that is there, N by N, arm by arm."""
    return [
        load_record(study, entry, cell, arm.name)
        for cell in entry.cells(plans)
        for arm in entry.settings.arms
        if has_run(study, cell, arm.name)
    ]


def all_records(study: Study) -> Iterator[Record]:
    """Records of every set."""
    for entry, plans in study.sets():
        yield from set_records(study, entry, plans)


def content_digest(run: Run) -> str:
    """Hash of what no two executions share; the same run in two places has the same."""
    table = run.requests.select([name for name in _OWN if name in run.requests.columns])
    return hashlib.sha256(table.write_csv().encode()).hexdigest()


def check_plan(plan: InputPlan, record: Record, run: Run) -> None:
    """The run itself must still say the plan of its record."""
    if run.plan_sha256 is not None and run.plan_sha256 != plan.content_sha256:
        raise InputError(f"{record.folder}: the run is of another plan than {record.cell.place}")

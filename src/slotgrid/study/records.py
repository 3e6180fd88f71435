"""Runs inside a study: ``runs/SET/CELL/ARM/run`` and beside it ``record.json``, written together and never again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.run import Run
from slotgrid.run.readers import read_run
from slotgrid.study import log, store
from slotgrid.study.audit import RECORD, RECORD_FORMAT, RUN, check_run_files, read_record
from slotgrid.study.manifest import Cell, Entry, sha256_of
from slotgrid.study.settings import MEASURED, PlanSet
from slotgrid.study.study import Study

# how a run came in that this study measured itself
MEASURED_HERE = "study measure"
RUNS, VOUCHER = "runs", "record.sha256"
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
        check_run_files(self.folder, self.data)


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

    The log names it before it takes its place. Raises InputError when the place is taken, or when a measured run is the
    same as one already there.
    """
    target = folder_of(study, cell, arm)
    if store.is_taken(target):
        raise InputError(f"{target}: {cell.place}, arm {arm} has a run already; it is never overwritten")
    digest = content_digest(run)
    if run.source == MEASURED:
        refuse_twin(study, cell, arm, digest)

    def announce(partial: Path) -> None:
        code = facts.get("code")
        log.append(
            study.folder,
            log.RUN,
            str(facts["added_at"]),
            place=target.relative_to(study.folder).as_posix(),
            set=cell.plan_set,
            sessions=cell.sessions,
            replicate=cell.replicate,
            arm=arm,
            source=run.source,
            how=facts.get("how"),
            other_code=None if code is None else code["reason"],
            content=digest,
            file_sha256=sha256_of(partial / RECORD),
        )

    with store.new_folder(target, announce=announce) as partial:
        fill(partial / RUN)
        copied = partial / RUN
        data = {
            "format": RECORD_FORMAT,
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
        body = store.json_bytes(data)
        store.write_new(partial / RECORD, body)
        store.write_new(partial / VOUCHER, f"{hashlib.sha256(body).hexdigest()}  {RECORD}\n".encode())
    return load_record(study, entry, cell, arm)


def log_refusal(
    study: Study,
    time: str,
    *,
    origin: str,
    reason: str,
    cell: Cell | None = None,
    arm: str | None = None,
    **facts: Any,
) -> None:
    """Put into the log that a run was not taken; the same refusal of the same run stands there once."""
    facts = {"origin": origin, "reason": reason, **facts}
    if cell is not None:
        facts |= {"set": cell.plan_set, "sessions": cell.sessions, "replicate": cell.replicate, "arm": arm}
    for line in log.read_log(study.folder).lines:
        if line.what == log.REFUSED and all(line.data.get(key) == value for key, value in facts.items()):
            return
    log.append(study.folder, log.REFUSED, time, **facts)


def refuse_twin(study: Study, cell: Cell, arm: str, digest: str) -> None:
    """Raise InputError when a run of the study has the same content."""
    for other in all_records(study):
        if other.data.get("content") == digest:
            raise InputError(
                f"{cell.place}, arm {arm}: the same run as {other.cell.place}, arm {other.arm}; "
                "every run may stand once"
            )


def load_record(study: Study, entry: Entry, cell: Cell, arm: str) -> Record:
    """The record of one run. Raises InputError when it is missing or of another study."""
    folder = folder_of(study, cell, arm)
    path = folder / RECORD
    if not path.exists():
        raise InputError(f"{cell.place}, arm {arm}: the run is missing ({folder})")
    if not (folder / VOUCHER).is_file():
        raise InputError(f"{folder / VOUCHER}: missing; it vouches for {RECORD} beside it")
    vouched = files.read_bytes(folder / VOUCHER).split()
    if not vouched or vouched[0].decode(errors="replace") != sha256_of(path):
        raise InputError(f"{path}: changed after it was recorded ({VOUCHER} beside it names another hash)")
    data = read_record(path)
    told = (data.get("set"), data.get("sessions"), data.get("replicate"), data.get("arm"))
    if told != (cell.plan_set, cell.sessions, cell.replicate, arm):
        raise InputError(f"{path}: is the record of {told}, not of {cell.place}, arm {arm}")
    if data.get("manifest_sha256") != entry.sha256:
        raise InputError(f"{path}: belongs to another manifest; a run counts only for what it was measured under")
    if data.get("plan_sha256") != entry.plan_sha256(cell):
        raise InputError(f"{path}: another plan than the registered one of {cell.place}")
    return Record(folder, cell, arm, data, sha256_of(path))


def has_run(study: Study, cell: Cell, arm: str) -> bool:
    """Whether the place is taken."""
    return store.is_taken(folder_of(study, cell, arm))


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

"""What was registered, and how a change is noticed.

``registered/0001`` is the registration, later numbers are amendments; each folder is written once and holds
``manifest.json`` (SHA-256 of every file in it, of the code and of the entry before), the study.toml and profile it was
made from, the plans and the predictions. ``manifest.sha256`` vouches for the manifest, and so does everything made
later: amendments, runs and verdicts carry its hash.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import slotgrid
from slotgrid import files
from slotgrid._version import __version__
from slotgrid.errors import InputError
from slotgrid.plan import InputPlan, load_plan
from slotgrid.profile import StackProfile
from slotgrid.profile.stack_profile import profile_from_toml
from slotgrid.study import store
from slotgrid.study.outcome import Outcome
from slotgrid.study.settings import FILE, PlanSet, Settings, settings_from_toml
from slotgrid.study.strangers import FOREIGN, line_ends_hint

FORMAT = "slotgrid-manifest/1"
REGISTERED = "registered"
MANIFEST, VOUCHER, PREDICTIONS, PROFILE = "manifest.json", "manifest.sha256", "predictions.json", "profile.toml"
ARMS = "arms.toml"
PREDICTIONS_FORMAT = "slotgrid-predictions/1"
# what plans, predictions, runs and decisions depend on; a change elsewhere (a picture, a server) cannot bend a verdict
_DECIDING = ("config.py", "errors.py", "event_format.py", "files.py", "plan.py", "toml_reader.py", "units.py")
_DECIDING_ROOMS = ("workload", "profile", "engine", "run", "diagnose", "study")
# how runs are made, timed and called valid; not the calibration, which lies in a folder of its own
_MEASURING = "measure"


@dataclass(frozen=True)
class Cell:
    """One plan: N concurrent clients and the replicate it was drawn for."""

    plan_set: str
    sessions: int
    replicate: str

    @property
    def name(self) -> str:
        """Name of its file and folder."""
        return f"n{self.sessions}-{self.replicate}"

    @property
    def place(self) -> str:
        """For messages."""
        return f"set {self.plan_set}, N = {self.sessions}, replicate {self.replicate}"


@dataclass(frozen=True)
class Entry:
    """One folder of the register, read and verified."""

    folder: Path
    number: int
    sha256: str
    data: Mapping[str, Any]
    settings: Settings

    @property
    def registered_at(self) -> str:
        return str(self.data["registered_at"])

    @property
    def sets(self) -> tuple[PlanSet, ...]:
        """Data sets whose plans were drawn with this entry."""
        return tuple(plans for plans in self.settings.sets if plans.name in self.data["sets"])

    @cached_property
    def profile(self) -> StackProfile:
        """The profile as it was registered."""
        path = self.folder / PROFILE
        return profile_from_toml(files.read_bytes(path), str(path))

    def cells(self, plans: PlanSet) -> list[Cell]:
        """The plans of a set, N by N."""
        return [Cell(plans.name, n, r.name) for n in plans.all_sessions for r in plans.replicates]

    def plan(self, cell: Cell) -> InputPlan:
        return load_plan(self.folder / plan_file(cell))

    def plan_sha256(self, cell: Cell) -> str:
        return str(self.data["plans"][plan_file(cell)])

    def predictions(self, plan_set: str) -> list[Outcome]:
        """The registered predictions of a set."""
        path = self.folder / PREDICTIONS
        rows = store.read_object(path, PREDICTIONS_FORMAT)["sets"][plan_set]
        return [Outcome.from_dict(row, str(path)) for row in rows]


def plan_file(cell: Cell) -> str:
    """Path of a plan inside its entry."""
    return f"plans/{cell.plan_set}/{cell.name}.json"


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file, read in blocks. Raises InputError when it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def code_hashes() -> dict[str, str]:
    """SHA-256 of every source file that plans, predictions, runs and decisions depend on."""
    source = Path(slotgrid.__file__).parent
    paths = [source / name for name in _DECIDING] + list((source / _MEASURING).glob("*.py"))
    for room in _DECIDING_ROOMS:
        paths += [path for path in (source / room).rglob("*") if path.suffix in (".py", ".toml", ".csv")]
    return {path.relative_to(source).as_posix(): sha256_of(path) for path in sorted(paths)}


def write_manifest(
    folder: Path,
    *,
    number: int,
    reason: str | None,
    sets: Sequence[str],
    plans: Mapping[str, str],
    profile: StackProfile,
    previous_sha256: str | None,
    registered_at: str,
    git: Mapping[str, Any] | None,
    search: Mapping[str, Any],
    title: str,
) -> None:
    """Write the manifest over everything else in the folder."""
    code = code_hashes()
    data = {
        "format": FORMAT,
        "entry": number,
        "kind": "registration" if number == 1 else "amendment",
        "reason": reason,
        "title": title,
        "registered_at": registered_at,
        "git": git,
        "slotgrid": __version__,
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("numpy", "numba", "polars")}},
        "code_sha256": hashlib.sha256(store.json_bytes(code)).hexdigest(),
        "code": code,
        "profile": {"id": profile.id, "sha256": profile.sha256},
        "sets": list(sets),
        "search": search,
        "plans": dict(plans),
        "previous_sha256": previous_sha256,
        "files": {name: sha256_of(folder / name) for name in _files(folder)},
    }
    body = store.json_bytes(data)
    store.write_new(folder / MANIFEST, body)
    store.write_new(folder / VOUCHER, f"{hashlib.sha256(body).hexdigest()}  {MANIFEST}\n".encode())


def load_entries(study: Path) -> list[Entry]:
    """Every entry, oldest first, verified. Raises InputError naming the file that is not as it was registered."""
    register = study / REGISTERED
    names = (
        sorted(path.name for path in register.iterdir() if not path.name.startswith(".")) if register.exists() else []
    )
    entries: list[Entry] = []
    for number, name in enumerate(names, start=1):
        if name != entry_name(number):
            raise InputError(f"{register / name}: not an entry; {entry_name(number)} is expected here ({FOREIGN})")
        entries.append(_load_entry(register / name, number, entries[-1].sha256 if entries else None, study))
    return entries


def entry_name(number: int) -> str:
    """Folder name of an entry."""
    return f"{number:04d}"


def check_current(study: Path, entries: Sequence[Entry]) -> None:
    """study.toml must be the one of the last entry. Raises InputError naming it when it is not."""
    path = study / FILE
    if sha256_of(path) != entries[-1].data["files"][FILE]:
        last = entries[-1]
        advice = f"; put it back ({last.folder / FILE}), or register the change with --amend REASON for new plans"
        advice = line_ends_hint(path, last.data["files"][FILE]) or advice
        raise InputError(
            f"{path}: changed after it was registered on {last.registered_at} (entry {last.number}){advice}"
        )


def changed_code(entry: Entry) -> list[str]:
    """Source files that differ from those the entry was registered with, by name."""
    now, then = code_hashes(), entry.data["code"]
    return sorted(name for name in set(now) | set(then) if now.get(name) != then.get(name))


def _load_entry(folder: Path, number: int, previous_sha256: str | None, study: Path) -> Entry:
    path = folder / MANIFEST
    sha256 = sha256_of(path)
    vouched = files.read_bytes(folder / VOUCHER).split()
    if not vouched or vouched[0].decode(errors="replace") != sha256:
        hint = line_ends_hint(path, vouched[0].decode(errors="replace")) if vouched else ""
        raise InputError(f"{path}: changed after it was registered ({VOUCHER} beside it names another hash){hint}")
    data = store.read_object(path, FORMAT)
    missing = [key for key in ("entry", "registered_at", "sets", "plans", "files", "code") if key not in data]
    if missing:
        raise InputError(f"{path}: {missing[0]} is missing")
    if data["entry"] != number or data.get("previous_sha256") != previous_sha256:
        raise InputError(f"{path}: does not follow the entry before it; it belongs to another study")
    when = f"on {data['registered_at']} (entry {number})"
    for name, told in data["files"].items():
        if not (folder / name).is_file():
            raise InputError(f"{folder / name}: missing; it was registered {when}")
        if sha256_of(folder / name) != told:
            hint = line_ends_hint(folder / name, told)
            raise InputError(f"{folder / name}: changed after it was registered {when}{hint}")
    extra = sorted(set(_files(folder)) - set(data["files"]) - {MANIFEST, VOUCHER})
    if extra:
        raise InputError(f"{folder / extra[0]}: was not there when the entry was registered {when}; {FOREIGN}")
    settings = settings_from_toml(files.read_bytes(folder / FILE), str(folder / FILE), study)
    # without one in study.toml it is the name of the folder, as it was when it was registered
    settings = replace(settings, title=str(data.get("title", settings.title)))
    return Entry(folder, number, sha256, data, settings)


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())

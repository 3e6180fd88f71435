"""Study: a directory with everything registered in it, verified when it is opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slotgrid.errors import InputError
from slotgrid.study import manifest, store
from slotgrid.study.audit import audit
from slotgrid.study.log import Log
from slotgrid.study.manifest import Cell, Entry
from slotgrid.study.settings import PlanSet
from slotgrid.study.texts import check_text

# folders of a study where nothing but what it keeps may lie
KEPT = ("registered", "runs", "verdicts", "measuring")


@dataclass(frozen=True)
class Study:
    """A registered study. Open it with :func:`open_study`."""

    folder: Path
    entries: tuple[Entry, ...]
    log: Log

    @property
    def title(self) -> str:
        return self.entries[-1].settings.title

    def sets(self) -> Iterator[tuple[Entry, PlanSet]]:
        """Every data set with the entry that registered it, oldest first."""
        for entry in self.entries:
            for plans in entry.sets:
                yield entry, plans

    def choose(self, name: str | None) -> tuple[Entry, PlanSet]:
        """The set of that name, or the only one. Raises InputError naming what there is."""
        found = list(self.sets())
        names = ", ".join(plans.name for _, plans in found)
        if name is None:
            if len(found) > 1:
                raise InputError(f"{self.folder}: holds {len(found)} data sets; choose one with --set ({names})")
            return found[0]
        for entry, plans in found:
            if plans.name == name:
                return entry, plans
        raise InputError(f"--set: {name!r} is not registered; registered: {names}")

    def cell_of_plan(self, sha256: str) -> tuple[Entry, PlanSet, Cell] | None:
        """Which plan of this study has that hash."""
        for entry, plans in self.sets():
            for cell in entry.cells(plans):
                if entry.plan_sha256(cell) == sha256:
                    return entry, plans, cell
        return None


def open_study(folder: str | Path) -> Study:
    """Open and verify: what was registered, the log, and every run and verdict the log names.

    Raises InputError naming the first file that is gone, not as it was, or not in the log.
    """
    path = Path(folder)
    store.check_folder(path)
    entries = manifest.load_entries(path)
    log = audit(path)
    if not entries:
        raise InputError(f"{path}: nothing is registered; slotgrid study register {path} does it")
    manifest.check_current(path, entries)
    return Study(path, tuple(entries), log)


def check_output(target: str | Path, where: str) -> None:
    """Raise InputError when what is written to ``target`` would lie among what a study keeps and make it refuse."""
    found = Path(target).resolve()
    for path in (found, *found.parents):
        if path.name in KEPT and (path.parent / store.STUDY_FILE).is_file():
            raise InputError(f"{where}: {target} is inside {path}, which the study keeps; choose a folder outside it")


def check_code(entry: Entry, reason: str | None) -> dict[str, object] | None:
    """None when the code is what the entry was registered with, else what is kept about the difference.

    Raises InputError naming the first changed file unless a reason is given.
    """
    check_text(reason, "--other-code")
    changed: Sequence[str] = manifest.changed_code(entry)
    if not changed:
        return None
    if reason is None or not reason.strip():
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise InputError(
            f"slotgrid/{changed[0]}{more}: changed after entry {entry.number} was registered with slotgrid "
            f"{entry.data.get('slotgrid')}; install that version, or say why with --other-code REASON (it is kept)"
        )
    return {"reason": reason, "changed": list(changed), "registered_with": entry.data.get("slotgrid")}

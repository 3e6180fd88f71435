"""Arms that are measured: the measuring part is asked, and what it leaves becomes runs of the study.

It works in ``measuring/SET`` of the study and resumes there by itself. It is asked for the places without a run alone,
and tells of every condition as soon as that is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slotgrid.errors import InputError
from slotgrid.measure.arm_file import Arms, load_arms
from slotgrid.measure.arms import ConditionResult, Progress, measure_arms
from slotgrid.measure.options import WindowRule
from slotgrid.measure.server_process import end_leftover
from slotgrid.study.manifest import ARMS, Cell, Entry, plan_file, sha256_of
from slotgrid.study.settings import MEASURED, STEADY, PlanSet, Settings
from slotgrid.study.study import Study
from slotgrid.study.texts import check_text

FOLDER = "measuring"
OTHER_ARMS_OPTION = "--other-arms"
# in the name of a directory of conditions: they were measured with an arms file other than the registered one
_OTHER = "-arms-"
# from TERM to KILL of a server that a killed command left
_STOP_S = 30.0


def names_to_measure(settings: Settings) -> tuple[str, ...]:
    """Names of the arms that are measured on hardware."""
    return tuple(arm.name for arm in settings.arms if arm.runs == MEASURED)


@dataclass(frozen=True)
class ArmsFile:
    """The arms file that is used. other: what is kept when it is not the registered one (reason, both hashes)."""

    path: Path
    other: dict[str, str] | None = None


def check_arms_file(entry: Entry, reason: str | None = None) -> ArmsFile:
    """The arms file of an entry. Raises InputError when the study names none, or when it is not as it was registered
    and no reason is given."""
    settings = entry.settings
    if settings.arms_file is None:
        raise InputError(
            f"{settings.folder}: arm {names_to_measure(settings)[0]} is to be measured, and study.toml names no "
            f"arms file ([measure] arms); run it on the plans in {entry.folder / 'plans'} and bring the runs in with "
            "slotgrid study ingest"
        )
    path = settings.folder / settings.arms_file
    check_text(reason, OTHER_ARMS_OPTION)
    registered = str(entry.data["files"].get(ARMS))
    sha256 = sha256_of(path)
    if sha256 == registered:
        return ArmsFile(path)
    if reason is None or not reason.strip():
        raise InputError(
            f"{path}: changed after it was registered on {entry.registered_at} (entry {entry.number}); put it back "
            f"({entry.folder / ARMS}), or measure with the changed one and say why with {OTHER_ARMS_OPTION} REASON "
            "(it is kept and shown)"
        )
    return ArmsFile(path, {"reason": reason, "file_sha256": sha256, "registered_sha256": registered})


def read_arms_file(path: Path, names: Sequence[str], plans: Sequence[Path]) -> Arms:
    """The arms of these names on these plans. Raises InputError for a name the file does not have."""
    arms = load_arms(path, plans=plans)
    known = {arm.name: arm for arm in arms.arms}
    for name in names:
        if name not in known:
            raise InputError(f"{path}: arm {name} of the study is not in it; its arms: {', '.join(known)}")
    return replace(arms, arms=tuple(known[name] for name in names))


def measure_set(
    study: Study,
    entry: Entry,
    plans: PlanSet,
    *,
    arms_file: ArmsFile,
    wanted: Collection[tuple[Cell, str]],
    outcome: Callable[[Cell, ConditionResult], None],
    progress: Callable[[Cell, Progress], None],
    note: Callable[[str], None] | None = None,
) -> None:
    """Measure the places of the set that are wanted, or read what was measured before; ``outcome`` gets each as soon
    as it is over, with its plan, and ``progress`` what goes on."""
    names = names_to_measure(entry.settings)
    _end_leftovers(study.folder / FOLDER / plans.name, note)
    for folder, cells, window in _batches(entry, plans):
        files = [entry.folder / plan_file(cell) for cell in cells]
        arms = read_arms_file(arms_file.path, names, files)
        arms = replace(arms, seed=entry.settings.order_seed, options=replace(arms.options, window=window))
        target = study.folder / FOLDER / plans.name / folder
        if arms_file.other is not None:
            # the measuring part measures one description of the arms in one directory
            target = target.with_name(f"{folder}{_OTHER}{arms_file.other['file_sha256'][:12]}")
        open_places = {(arm, r) for r, cell in enumerate(cells) for arm in names if (cell, arm) in wanted}
        if not open_places:
            continue

        def tell(found: Progress, cells: Sequence[Cell] = cells) -> None:
            progress(cells[found.replicate], found)

        def over(result: ConditionResult, cells: Sequence[Cell] = cells) -> None:
            outcome(cells[result.replicate], result)

        measure_arms(arms=arms, output=target, wanted=open_places, outcome=over, progress=tell, note=note)


def _end_leftovers(folder: Path, note: Callable[[str], None] | None) -> None:
    """What a killed command left running takes the machine, with whatever arms file it was started."""
    for path in sorted([*folder.glob("*/*"), *folder.glob("*/*/r*")]):
        left = end_leftover(path, _STOP_S) if path.is_dir() else None
        if left is not None and note is not None:
            note(left)


def _batches(entry: Entry, plans: PlanSet) -> list[tuple[str, list[Cell], WindowRule | None]]:
    """Plans that are measured in one go: all of them, in steady load those with one window rule."""
    cells = entry.cells(plans)
    if plans.load != STEADY:
        return [("all", cells, None)]
    grouped: dict[float, list[Cell]] = {}
    for cell in cells:
        cycle_s = 0.0 if plans.warmup_s is not None else entry.plan(cell).cycle_s
        grouped.setdefault(cycle_s, []).append(cell)
    return [
        (f"cycle{i}", group, WindowRule(cycle_s, plans.window_s, plans.warmup_s))
        for i, (cycle_s, group) in enumerate(grouped.items())
    ]

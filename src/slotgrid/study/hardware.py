"""Arms that are measured: the measuring part is asked, and what it leaves becomes runs of the study.

It works in ``measuring/SET`` of the study and resumes there by itself; a finished, valid condition is copied to its
place among the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from slotgrid.errors import InputError
from slotgrid.measure.arm_file import Arms, load_arms
from slotgrid.measure.arms import ConditionResult, Progress, measure_arms
from slotgrid.measure.options import WindowRule
from slotgrid.study.manifest import ARMS, Cell, Entry, plan_file, sha256_of
from slotgrid.study.settings import MEASURED, STEADY, PlanSet, Settings
from slotgrid.study.study import Study

FOLDER = "measuring"


def names_to_measure(settings: Settings) -> tuple[str, ...]:
    """Names of the arms that are measured on hardware."""
    return tuple(arm.name for arm in settings.arms if arm.runs == MEASURED)


def check_arms_file(entry: Entry) -> Path:
    """The registered arms file, unchanged. Raises InputError when the study names none or it changed."""
    settings = entry.settings
    if settings.arms_file is None:
        raise InputError(
            f"{settings.folder}: arm {names_to_measure(settings)[0]} is to be measured, and study.toml names no "
            f"arms file ([measure] arms); run it on the plans in {entry.folder / 'plans'} and bring the runs in with "
            "slotgrid study ingest"
        )
    path = settings.folder / settings.arms_file
    if sha256_of(path) != entry.data["files"].get(ARMS):
        raise InputError(f"{path}: changed after it was registered on {entry.registered_at} (entry {entry.number})")
    return path


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
    progress: Callable[[Cell, Progress], None],
    note: Callable[[str], None] | None = None,
) -> list[tuple[Cell, ConditionResult]]:
    """Measure every arm on every plan of the set, or read what was measured before. ``progress`` gets the plan too."""
    path = check_arms_file(entry)
    names = names_to_measure(entry.settings)
    done = []
    for folder, cells, window in _batches(entry, plans):
        files = [entry.folder / plan_file(cell) for cell in cells]
        arms = read_arms_file(path, names, files)
        arms = replace(arms, seed=entry.settings.order_seed, options=replace(arms.options, window=window))
        target = study.folder / FOLDER / plans.name / folder

        def tell(found: Progress, cells: Sequence[Cell] = cells) -> None:
            progress(cells[found.replicate], found)

        results = measure_arms(arms=arms, output=target, progress=tell, note=note)
        done += [(cells[result.replicate], result) for result in results]
    return done


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

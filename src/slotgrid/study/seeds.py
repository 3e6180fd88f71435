"""Seeds of a study must be new: nothing that chose the configurations may also judge them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.search.ledger import STATE
from slotgrid.study.settings import PlanSet, Settings
from slotgrid.workload import Workload


def check_seeds(settings: Settings, sets: Sequence[PlanSet], workloads: Sequence[Workload]) -> None:
    """Raise InputError naming the seed and where it was used before.

    Looked at: the search seeds of each set's workload (the defaults of ``slotgrid search``), ``search.seeds`` and the
    ``search.folders`` of study.toml.
    """
    used: dict[int, str] = {}
    for workload in workloads:
        for seed in workload.explore_seeds:
            used.setdefault(seed, f"an exploration seed of workload {workload.id}")
        for seed in workload.evaluate_seeds:
            used.setdefault(seed, f"an evaluation seed of workload {workload.id}")
    for seed in settings.search_seeds:
        used.setdefault(seed, "listed in search.seeds")
    for name in settings.search_folders:
        for seed in searched_seeds(settings.folder / name):
            used.setdefault(seed, f"a seed of the search in {name}")
    for plans in sets:
        for seed in plans.seeds:
            if seed in used:
                raise InputError(
                    f"set {plans.name}: seed {seed} is {used[seed]}; a study needs inputs the choice has not seen"
                )


def searched_seeds(folder: Path) -> list[int]:
    """Every seed a finished search used. Raises InputError when the folder does not tell."""
    path = folder / STATE
    state = files.read_json(path)
    seeds = state.get("seeds") if isinstance(state, dict) else None
    if not isinstance(seeds, dict):
        raise InputError(f"{path}: does not tell the seeds of the search; run it again, or list them in search.seeds")
    return [int(seed) for phase in seeds.values() for seed in phase]

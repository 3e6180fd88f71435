"""Seeds and plans of a study must be new: nothing that chose the configurations may also judge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.search.ledger import STATE
from slotgrid.study.manifest import sha256_of
from slotgrid.study.settings import FILE, PlanSet, Settings
from slotgrid.workload import Workload


@dataclass(frozen=True)
class SearchFolder:
    """What a finished search says of itself. sha256: of its ``search.json``. plans: content hashes of what it drew,
    None where it does not say."""

    folder: str
    sha256: str
    seeds: tuple[int, ...]
    plans: tuple[str, ...] | None


@dataclass(frozen=True)
class Searched:
    """What the seeds and plans of a registration were checked against. none: no search chose the configurations, as
    study.toml says. workload_seeds: the search seeds of the workloads, by workload."""

    none: bool
    seeds: tuple[int, ...]
    folders: tuple[SearchFolder, ...]
    workload_seeds: Mapping[str, tuple[int, ...]]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def check_search(settings: Settings, sets: Sequence[PlanSet], workloads: Sequence[Workload]) -> Searched:
    """What was looked at: the search seeds of each set's workload (the defaults of ``slotgrid search``), and
    ``search.seeds`` and ``search.folders`` of study.toml. Raises InputError naming the seed and where it was used
    before, and when study.toml does not say what chose the configurations.
    """
    if not (settings.search_none or settings.search_seeds or settings.search_folders):
        raise InputError(
            f"{settings.folder / FILE}: search: does not say what the configurations were chosen with; write [search] "
            'and seeds = [1, 2] or folders = ["DIR"] of the searches, or none = true if no search chose them'
        )
    found = Searched(
        none=settings.search_none,
        seeds=settings.search_seeds,
        folders=tuple(read_search(settings.folder, name) for name in settings.search_folders),
        workload_seeds={w.id: (*w.explore_seeds, *w.evaluate_seeds) for w in workloads},
    )
    used: dict[int, str] = {}
    for workload in workloads:
        for seed in workload.explore_seeds:
            used.setdefault(seed, f"an exploration seed of workload {workload.id}")
        for seed in workload.evaluate_seeds:
            used.setdefault(seed, f"an evaluation seed of workload {workload.id}")
    for seed in found.seeds:
        used.setdefault(seed, "listed in search.seeds")
    for search in found.folders:
        for seed in search.seeds:
            used.setdefault(seed, f"a seed of the search in {search.folder}")
    for plans in sets:
        for seed in plans.seeds:
            if seed in used:
                raise InputError(
                    f"set {plans.name}: seed {seed} is {used[seed]}; a study needs inputs the choice has not seen"
                )
    return found


def check_plans(found: Searched, plans: Mapping[str, str]) -> None:
    """Raise InputError when a plan (content hash by place) is one that a search drew: other seeds may give it too."""
    for place, sha256 in plans.items():
        for search in found.folders:
            if sha256 in (search.plans or ()):
                raise InputError(
                    f"{place}: the plan is one that the search in {search.folder} drew; a study needs inputs the "
                    "choice has not seen"
                )


def read_search(study: Path, name: str) -> SearchFolder:
    """What the search in a folder used. Raises InputError when the folder does not tell its seeds."""
    path = study / name / STATE
    state = files.read_json(path)
    seeds = state.get("seeds") if isinstance(state, dict) else None
    if not isinstance(seeds, dict):
        raise InputError(f"{path}: does not tell the seeds of the search; run it again, or list them in search.seeds")
    plans = state.get("plans")
    try:
        used = tuple(int(seed) for phase in seeds.values() for seed in phase)
        drawn = None if plans is None else tuple(map(str, plans))
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: not the seeds and plans of a search ({error})") from None
    return SearchFolder(folder=name, sha256=sha256_of(path), seeds=used, plans=drawn)

"""study.toml: arms, plans, criteria. Read strictly; what is wrong is named with its key."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from slotgrid import files
from slotgrid.config import ServingConfig
from slotgrid.engine.rules import find_rules
from slotgrid.errors import InputError
from slotgrid.run.window import EVALUATION_S
from slotgrid.study.decide import TOLERANCES, DeviceTimeCriteria
from slotgrid.study.steady import SteadyCriteria
from slotgrid.study.store import STUDY_FILE, check_folder
from slotgrid.toml_reader import Table, parse_toml
from slotgrid.units import parse_quantity

FORMAT = "slotgrid-study/1"
FILE = STUDY_FILE
CLOCKS = ("price", "operating")
# fewer repeats have no 95 % interval of order statistics
LEAST_MEMBERS = 39
WHOLE_RUN, STEADY = "whole run", "steady"
MEASURED, SIMULATED = "measured", "simulated"
# names become directories
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_C = TypeVar("_C", DeviceTimeCriteria, SteadyCriteria)


@dataclass(frozen=True)
class Stand:
    """How a simulated arm's runs are made: what may differ from the prediction's. scatter_seed: each run is one repeat
    with the profile's scatter, drawn from this seed; None leaves it out."""

    rules: str | None
    release: str | None
    padding: str | None
    clock: str | None
    turnaround_s: float | None
    scatter_seed: int | None


@dataclass(frozen=True)
class Arm:
    """One configuration. runs: "measured" (replayed on hardware, or brought in) or "simulated". compile_s: what its
    compilation took, or None to take the profile's model."""

    name: str
    config: ServingConfig
    runs: str
    stand: Stand | None
    compile_s: float | None


@dataclass(frozen=True)
class Replicate:
    """One plan of every N: what is drawn from one seed and block."""

    seed: int
    block: int

    @property
    def name(self) -> str:
        return f"s{self.seed}-b{self.block}"


@dataclass(frozen=True)
class PlanSet:
    """One data set: plans of every N and replicate, judged once. exploratory: N that get errors and no decision.

    load: "whole run" (device time of the whole plan) or "steady" (per turn inside a window of ``window_s`` after the
    warm-up).
    """

    name: str
    workload: str
    sessions: tuple[int, ...]
    exploratory: tuple[int, ...]
    replicates: tuple[Replicate, ...]
    load: str
    window_s: float
    warmup_s: float | None

    @property
    def all_sessions(self) -> tuple[int, ...]:
        """Confirmatory and exploratory N, ascending."""
        return tuple(sorted((*self.sessions, *self.exploratory)))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds in order, each once."""
        return tuple(dict.fromkeys(replicate.seed for replicate in self.replicates))


@dataclass(frozen=True)
class Settings:
    """A study as its file states it. The first arm is the baseline. Relative paths are relative to ``folder``."""

    folder: Path
    title: str
    profile: str
    rules: str | None
    clock: str | None
    turnaround_s: float | None
    ensemble: int
    ensemble_seed: int
    arms: tuple[Arm, ...]
    sets: tuple[PlanSet, ...]
    device_time: DeviceTimeCriteria
    steady: SteadyCriteria
    search_seeds: tuple[int, ...]
    search_folders: tuple[str, ...]
    search_none: bool
    arms_file: str | None
    order_seed: int

    @property
    def baseline(self) -> Arm:
        return self.arms[0]

    @property
    def arm_names(self) -> tuple[str, ...]:
        return tuple(arm.name for arm in self.arms)

    def arm(self, name: str) -> Arm:
        """Raises InputError for an unknown name."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise InputError(f"arm {name!r}: not in this study; its arms: {', '.join(self.arm_names)}")

    def resolve(self, name: str) -> str:
        """A file the settings name, as a path from here; a built-in name stays as it is."""
        path = self.folder / name
        return str(path) if path.exists() or name.endswith(".toml") else name


def load_settings(folder: str | Path) -> Settings:
    """Read ``study.toml`` of a study directory."""
    check_folder(Path(folder))
    path = Path(folder) / FILE
    if not path.exists():
        raise InputError(f"{folder}: no {FILE} in it; slotgrid study init {folder} writes one")
    return settings_from_toml(files.read_bytes(path), str(path), Path(folder))


def settings_from_toml(data: bytes, where: str, folder: Path) -> Settings:
    """Parse the TOML. Raises InputError naming ``where`` and the key."""
    top = parse_toml(data, where)
    stated = top.text("format")
    if stated != FORMAT:
        raise InputError(f"{top.at('format')} is {stated!r}; this version reads {FORMAT!r}")
    arms = tuple(_arm(table) for table in top.tables("arm"))
    _distinct([arm.name for arm in arms], f"{top.at('arm')}: name")
    if len(arms) < 2:
        raise InputError(f"{top.at('arm')}: {len(arms)} arm; a comparison needs a baseline and at least one more")
    baseline = top.text("baseline", arms[0].name)
    if baseline not in [arm.name for arm in arms]:
        names = ", ".join(arm.name for arm in arms)
        raise InputError(f"{top.at('baseline')} is {baseline!r}; allowed: a name of an arm ({names})")
    sets = tuple(_plan_set(table) for table in top.tables("plans"))
    if not sets:
        raise InputError(f"{top.at('plans')} is empty; at least one data set is needed")
    _distinct([plans.name for plans in sets], f"{top.at('plans')}: name")
    rules = top.text("rules") if top.has("rules") else None
    if rules is not None:
        find_rules(rules)
    search = top.table("search") if top.has("search") else Table({}, where, "search")
    measure = top.table("measure") if top.has("measure") else Table({}, where, "measure")
    settings = Settings(
        folder=folder,
        title=top.text("title", folder.resolve().name),
        profile=top.text("profile"),
        rules=rules,
        clock=_clock(top),
        turnaround_s=_seconds(top, "turnaround"),
        ensemble=_ensemble(top),
        ensemble_seed=top.whole("ensemble_seed", 0, 0),
        arms=tuple(sorted(arms, key=lambda arm: arm.name != baseline)),
        sets=sets,
        device_time=_criteria(top, "criteria", DeviceTimeCriteria),
        steady=_criteria(top, "steady_criteria", SteadyCriteria),
        search_seeds=search.wholes("seeds", 0) if search.has("seeds") and search.raw("seeds") else (),
        search_folders=_texts(search, "folders"),
        search_none=_none(search),
        arms_file=measure.text("arms") if measure.has("arms") else None,
        order_seed=measure.whole("order_seed", 0, 0),
    )
    for table in (search, measure, top):
        table.finish()
    for arm in arms:
        if settings.ensemble and arm.stand is not None and arm.stand.scatter_seed == settings.ensemble_seed:
            raise InputError(
                f"{top.at('arm')}: {arm.name}: scatter_seed is also the ensemble_seed; "
                "a stand-in run must not be one of the predictions"
            )
    return settings


def _arm(table: Table) -> Arm:
    name = _name(table)
    config = _at(
        table,
        lambda: ServingConfig(
            table.wholes("buckets", 1),
            slots=table.whole("slots", 1) if table.has("slots") else None,
            max_running=table.whole("max_running", 1) if table.has("max_running") else None,
        ),
    )
    runs = table.choice("runs", (MEASURED, SIMULATED), MEASURED)
    stand = None
    if runs == SIMULATED:
        inner = (
            table.table("simulated") if table.has("simulated") else Table({}, table.where, f"{table.path}.simulated")
        )
        texts = {key: inner.text(key) if inner.has(key) else None for key in ("rules", "release", "padding")}
        stand = Stand(
            **texts,
            clock=_clock(inner),
            turnaround_s=_seconds(inner, "turnaround"),
            scatter_seed=inner.whole("scatter_seed", 0) if inner.has("scatter_seed") else None,
        )
        inner.finish()
        _at(inner, lambda: find_rules(stand.rules or "real").but(release=stand.release, padding=stand.padding))  # type: ignore[arg-type]
    arm = Arm(name, config, runs, stand, _seconds(table, "compile"))
    table.finish()
    return arm


def _plan_set(table: Table) -> PlanSet:
    # empty where every N is exploratory
    stated = table.raw("sessions") != [] or not (table.has("exploratory") and table.raw("exploratory"))
    sessions = table.wholes("sessions", 1) if stated else ()
    exploratory = table.wholes("exploratory", 1) if table.has("exploratory") and table.raw("exploratory") else ()
    _distinct([*sessions, *exploratory], f"{table.at('sessions')} and exploratory")
    seeds, blocks = table.wholes("seeds", 0), table.wholes("blocks", 0, (0,))
    _distinct(seeds, table.at("seeds"))
    _distinct(blocks, table.at("blocks"))
    load = table.choice("load", (WHOLE_RUN, STEADY), WHOLE_RUN)
    window_s = _seconds(table, "window")
    warmup_s = _seconds(table, "warmup")
    if load != STEADY and (window_s is not None or warmup_s is not None):
        raise InputError(f"{table.at('window')}: a window belongs to load = {STEADY!r}; this set is {load!r}")
    plans = PlanSet(
        name=_name(table),
        workload=table.text("workload"),
        sessions=sessions,
        exploratory=exploratory,
        replicates=tuple(Replicate(seed, block) for seed in seeds for block in blocks),
        load=load,
        window_s=EVALUATION_S if window_s is None else window_s,
        warmup_s=warmup_s,
    )
    table.finish()
    return plans


def _criteria(top: Table, key: str, kind: type[_C]) -> _C:
    """Every field of the criteria may be stated; the published value stands where it is not."""
    if not top.has(key):
        return kind()
    table = top.table(key)
    values: dict[str, Any] = {}
    for field in fields(kind):
        if not table.has(field.name):
            continue
        default = None if field.default is MISSING else field.default
        if field.name == "tolerance":
            values[field.name] = table.choice(field.name, TOLERANCES)
        elif field.name == "equal_band":
            band = table.numbers(field.name, 0)
            if len(band) != 2 or not band[0] <= 1 <= band[1]:
                raise InputError(f"{table.at(field.name)} is {list(band)}; expected [low, high] around 1")
            values[field.name] = band
        elif isinstance(default, int) and not isinstance(default, bool):
            values[field.name] = table.whole(field.name, 1 if field.name == "resamples" else 0)
        else:
            values[field.name] = table.number(field.name, 0)
    table.finish()
    return kind(**values)


def _name(table: Table) -> str:
    name = table.text("name")
    if not _NAME.fullmatch(name):
        raise InputError(f"{table.at('name')} is {name!r}; allowed: letters, digits, . _ + - (it names a directory)")
    return name


def _seconds(table: Table, key: str) -> float | None:
    return parse_quantity(table.text(key), "time", table.at(key)) if table.has(key) else None


def _clock(table: Table) -> str | None:
    return table.choice("clock", CLOCKS) if table.has("clock") else None


def _ensemble(table: Table) -> int:
    members = table.whole("ensemble", 0, 0)
    if 0 < members < LEAST_MEMBERS:
        raise InputError(
            f"{table.at('ensemble')} is {members}; allowed: 0 for none, or at least {LEAST_MEMBERS} for a 95 % interval"
        )
    return members


def _texts(table: Table, key: str) -> tuple[str, ...]:
    if not table.has(key):
        return ()
    value = table.raw(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError(f"{table.at(key)} is {value!r}; expected a list of texts")
    return tuple(value)


def _none(search: Table) -> bool:
    """Whether no search chose the configurations, as the file says it."""
    if not search.has("none"):
        return False
    if search.raw("none") is not True:
        raise InputError(f"{search.at('none')} is {search.raw('none')!r}; allowed: true, or leave it out")
    for key in ("seeds", "folders"):
        if search.has(key):
            raise InputError(f"{search.at('none')} is true, so no search chose the configurations; leave out {key}")
    return True


def _distinct(values: Collection[Any], where: str) -> None:
    seen: set[Any] = set()
    for value in values:
        # file systems may not tell capital letters apart
        plain = value.lower() if isinstance(value, str) else value
        if plain in seen:
            raise InputError(f"{where}: {value} is there twice")
        seen.add(plain)


def _at(table: Table, make: Any) -> Any:
    """Errors of values that other rooms check, with the place in this file."""
    try:
        return make()
    except InputError as error:
        message = str(error)
        raise InputError(message if message.startswith(table.where) else f"{table.at()}: {message}") from None

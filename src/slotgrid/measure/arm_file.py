"""What a measurement compares: arms, their servers' commands, plans and order, as read from ``ARMS.toml``."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.measure.http import check_address
from slotgrid.measure.options import ReplayOptions, WindowRule
from slotgrid.measure.order import balanced_order
from slotgrid.plan import InputPlan, load_plan
from slotgrid.toml_reader import Table, parse_toml
from slotgrid.units import parse_quantity

FORMAT = "slotgrid-arms/1"
_FIELD = re.compile(r"\{([a-z_]+)\}")
FIELDS = ("port", "artifact", "run_dir", "arm", "replicate")
# an arm is compiled before it has a server
_COMPILE_FIELDS = ("artifact", "arm")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Arm:
    """One configuration to measure. Commands are lists of words; ``{port}``, ``{artifact}``, ``{run_dir}``, ``{arm}``
    and ``{replicate}`` are filled in; while compiling only ``{artifact}`` and ``{arm}`` are there.
    They run in the folder of the file that names them.

    start: the server, in the foreground. compile: run once before everything, makes ``artifact``. stop: run before
    the server is ended by signal. versions: its output is kept. env: added to the environment. ready: path (or whole
    address) that answers 200 when the server is ready. base_url: where it listens. stop_timeout_s: for the stop
    command, and from TERM to KILL. compile_timeout_s: a compilation that takes longer has failed.
    """

    name: str
    start: tuple[str, ...]
    artifact: str | None = None
    compile: tuple[str, ...] | None = None
    stop: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/health"
    ready_timeout_s: float = 600.0
    stop_timeout_s: float = 30.0
    compile_timeout_s: float = 6 * 3600.0
    base_url: str = "http://127.0.0.1:{port}"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(
                f"arm {self.name!r}: the name becomes a folder; allowed: letters, digits, _ . - (up to 64)"
            )
        if not self.start:
            raise InputError(f"arm {self.name}: start is empty; give the command of the server")
        filled = (
            *((text, FIELDS) for words in (self.start, self.stop, self.versions) for text in words or ()),
            *((text, FIELDS) for text in (*self.env.values(), self.ready, self.base_url)),
            *((text, _COMPILE_FIELDS) for text in self.compile or ()),
        )
        for text, fields in filled:
            for name in _FIELD.findall(text):
                if name not in fields:
                    problem = "is not there while compiling" if name in FIELDS else "is not known"
                    raise InputError(
                        f"arm {self.name}: {{{name}}} in {text!r} {problem}; allowed: "
                        + ", ".join(f"{{{known}}}" for known in fields)
                    )
                if name == "artifact" and self.artifact is None:
                    raise InputError(f"arm {self.name}: {text!r} needs artifact, which is not given")
        # any values do: what they are is known when the server starts
        sample = {"port": "8000", "artifact": "artifact", "run_dir": "run", "arm": self.name, "replicate": "0"}
        check_address(fill((self.base_url,), sample)[0], f"arm {self.name}: base_url")

    def to_dict(self) -> dict[str, Any]:
        """The arm as JSON values."""
        return {**asdict(self), "env": dict(self.env)}


@dataclass(frozen=True)
class Arms:
    """A measurement: every arm on every plan, a fresh server each time. One plan is one replicate.

    folder: where commands run and relative artifacts are. port: 0 takes a free one for each server.
    """

    arms: tuple[Arm, ...]
    plans: tuple[Path, ...]
    seed: int = 0
    folder: Path = Path()
    port: int = 0
    options: ReplayOptions = field(default_factory=ReplayOptions)
    silence_s: float = 300.0

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if not names:
            raise InputError("arms: none; at least one is needed")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"arms: {twice!r} is there twice; names must differ")
        if not self.plans:
            raise InputError("plans: none; at least one is needed, one for each replicate")

    @property
    def order(self) -> list[list[str]]:
        """Names of the arms in the order they are measured, for each replicate."""
        return balanced_order([arm.name for arm in self.arms], len(self.plans), self.seed)

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)


def fill(words: tuple[str, ...], values: Mapping[str, str]) -> list[str]:
    """Put values into the ``{fields}`` of a command; other braces stay."""
    return [_FIELD.sub(lambda match: values.get(match[1], match[0]), word) for word in words]


def hash_file(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    return hashlib.sha256(files.read_bytes(path)).hexdigest()


def load_arms(path: str | Path, *, plans: Sequence[Path] | None = None) -> Arms:
    """Read ``ARMS.toml``; ``plans`` take the place of those it names. Raises InputError naming file and key, also for a
    plan that cannot be read."""
    file = Path(path)
    table = parse_toml(files.read_bytes(file), str(file))
    table.choice("format", [FORMAT], FORMAT)
    arms = tuple(_arm(entry) for entry in table.tables("arm"))
    folder = file.parent
    if plans is None or table.has("plans"):
        named = tuple(folder / name for name in _texts(table, "plans"))
    chosen = named if plans is None else tuple(plans)
    try:
        made = Arms(
            arms=arms,
            plans=chosen,
            seed=table.whole("seed", 0, 0),
            folder=folder,
            port=table.whole("port", 0, 0),
            options=_options(table),
            silence_s=_seconds(table, "silence", 300.0),
        )
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(str(file)) else f"{file}: {text}") from None
    table.finish()
    for plan in chosen:
        read = load_plan(plan)
        if made.options.window is not None:
            try:
                made.options.window.of(read)
            except InputError as error:
                raise InputError(f"{file}: {plan}: {error}") from None
    return made


def _arm(table: Table) -> Arm:
    env = table.raw("env") if table.has("env") else {}
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise InputError(f"{table.at('env')} is {env!r}; expected a table of texts")
    try:
        arm = Arm(
            name=table.text("name"),
            start=_command(table, "start") or (),
            artifact=table.text("artifact") if table.has("artifact") else None,
            compile=_command(table, "compile"),
            stop=_command(table, "stop"),
            versions=_command(table, "versions"),
            env=env,
            ready=table.text("ready", "/health"),
            ready_timeout_s=_seconds(table, "ready_timeout", 600.0),
            stop_timeout_s=_seconds(table, "stop_timeout", 30.0),
            compile_timeout_s=_seconds(table, "compile_timeout", Arm.compile_timeout_s),
            base_url=table.text("base_url", "http://127.0.0.1:{port}"),
        )
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(table.where) else f"{table.where}: {text}") from None
    table.finish()
    return arm


def _options(table: Table) -> ReplayOptions:
    if not table.has("replay"):
        return ReplayOptions()
    replay = table.table("replay")
    window = None
    if replay.has("window"):
        warmup_s = _seconds(replay, "warmup", 0.0) if replay.has("warmup") else None
        # without one each plan has its own
        cycle_s = _seconds(replay, "cycle", 0.0) if replay.has("cycle") else None
        window = WindowRule(cycle_s, _seconds(replay, "window", 0.0), warmup_s)
    if replay.has("cycle") and replay.has("warmup"):
        raise InputError(f"{replay.at('cycle')}: belongs to the rule that finds the warm-up; give it or warmup")
    for key in ("cycle", "warmup"):
        if window is None and replay.has(key):
            raise InputError(f"{replay.at(key)}: is of a window; give window, too")
    options = ReplayOptions(
        model=replay.text("model") if replay.has("model") else None,
        seed=replay.whole("seed", 0, ReplayOptions.seed),
        token_times=replay.flag("token_times", True),
        retries=replay.whole("retries", 0, ReplayOptions.retries),
        prompts=replay.text("prompts", ReplayOptions.prompts),
        window=window,
    )
    replay.finish()
    return options


def _command(table: Table, key: str) -> tuple[str, ...] | None:
    """Words of a command: a list, or one text split as a shell would (no shell is run)."""
    if not table.has(key):
        return None
    value = table.raw(key)
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise InputError(f"{table.at(key)} is {value!r}: {error}") from None
    return _texts(table, key)


def _texts(table: Table, key: str) -> tuple[str, ...]:
    value = table.raw(key)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise InputError(f"{table.at(key)} is {value!r}; expected a list of texts")
    return tuple(value)


def _seconds(table: Table, key: str, default: float) -> float:
    if not table.has(key):
        return default
    return parse_quantity(table.text(key), "time", table.at(key))


def plan_of(arms: Arms, replicate: int) -> InputPlan:
    """The plan of a replicate."""
    return load_plan(arms.plans[replicate])

"""Measure arms fairly: a fresh server for every condition, a balanced order, everything kept, resumable.

A condition is one arm on one plan. Its directory ``OUTPUT/<arm>/r<replicate>/`` is a run directory with the server's
log, metrics, the plan and ``condition.json``, which is written last: a condition that has it is finished. A measurement
that was stopped at any moment goes on from there.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid._version import __version__
from slotgrid.errors import InputError, RunError, SlotgridError
from slotgrid.measure.arm_file import Arm, Arms, fill, hash_file, load_arms
from slotgrid.measure.clients import Status
from slotgrid.measure.command import run_command
from slotgrid.measure.http import Endpoint
from slotgrid.measure.interrupts import ENDING, ended_as_interrupt
from slotgrid.measure.replay import invalid_reasons, replay_over_http
from slotgrid.measure.server_process import ServerProcess, end_leftover, free_port, last_line
from slotgrid.measure.validity import problems
from slotgrid.plan import load_plan

__all__ = ["Arm", "Arms", "ConditionResult", "Progress", "load_arms", "measure_arms"]

FORMAT = "slotgrid-measure/1"
INDEX = "measure.json"
CONDITION = "condition.json"
COMPILED = "compile.json"
MOST_ATTEMPTS = 2
# the phase every attempt begins with
STARTING = "starting the server"
# as for slotgrid replay; never written anywhere
API_KEY = "SLOTGRID_API_KEY"
# of an artifact: what says how it was compiled
_DESCRIPTIONS = ("rbln_config.json", "artifact.json")
# listing packages is quick; what takes longer hangs
VERSIONS_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ConditionResult:
    """One arm on one plan. position: its place in the replicate, from 0. attempts: runs it took, a rerun included.

    reasons: why it must not be used; empty when valid. exit_code, ended: of the server ("by itself", "TERM", "KILL").
    """

    arm: str
    replicate: int
    position: int
    folder: str
    valid: bool
    reasons: tuple[str, ...]
    attempts: int
    plan_sha256: str
    plan_file_sha256: str
    port: int | None = None
    command: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    started_at: str | None = None
    finished_at: str | None = None
    exit_code: int | None = None
    ended: str | None = None
    versions: str | None = None
    host: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {**asdict(self), "reasons": list(self.reasons), "command": list(self.command)}


@dataclass(frozen=True)
class Progress:
    """What a measurement is doing: which condition of how many, in which phase, and the replay's own status."""

    condition: int
    conditions: int
    arm: str
    replicate: int
    phase: str
    replay: Status | None = None


def measure_arms(
    *,
    arms: Arms,
    output: str | Path,
    wanted: Collection[tuple[str, int]] | None = None,
    outcome: Callable[[ConditionResult], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> list[ConditionResult]:
    """Measure every arm on every plan; returns the conditions in the order they were measured.

    wanted: (arm, replicate) of the conditions that are needed, in the same order as with all of them; an arm without
    one is not compiled. outcome: called with what came of every attempt as soon as it is over, also of one that is run
    once more, and with what an earlier call left.

    Finished conditions of an earlier call with the same arms and plans are read, not repeated; a condition that is
    not valid is run once more at most. A server that fails makes its condition invalid and the rest goes on.
    Raises InputError when ``output`` belongs to another measurement, KeyboardInterrupt after SIGINT, SIGTERM or
    SIGHUP (the server it started has ended then).
    """
    tell = note or (lambda _: None)
    target = Path(output)
    hashes = [(load_plan(path).content_sha256, hash_file(path)) for path in arms.plans]
    _claim(target, arms, hashes)
    every = [(name, r, place) for r, names in enumerate(arms.order) for place, name in enumerate(names)]
    conditions = [(name, r, place) for name, r, place in every if wanted is None or (name, r) in wanted]
    results = []
    with ended_as_interrupt():
        # before anything is compiled: what an earlier call left running takes the machine, and the device
        places = [(arm, target / arm.name) for arm in arms.arms]
        places += [(arms.arm(name), target / name / f"r{replicate}") for name, replicate, _ in every]
        for arm, folder in places:
            left = end_leftover(folder, arm.stop_timeout_s)
            if left is not None:
                tell(left)
        needed = {name for name, _, _ in conditions}
        broken = {
            arm.name: _compiled(arm, arms.folder, target / arm.name, tell) for arm in arms.arms if arm.name in needed
        }
        for number, (name, replicate, place) in enumerate(conditions):

            def report(phase: str, status: Status | None = None, at: Sequence[Any] = (number, name, replicate)) -> None:
                if progress is not None:
                    progress(Progress(at[0], len(conditions), at[1], at[2], phase, status))

            condition = _Condition(
                arms, arms.arm(name), replicate, place, target, hashes[replicate], report, tell, outcome
            )
            problem = broken[name]
            results.append(condition.refused(problem) if problem is not None else condition.run())
    return results


def _claim(target: Path, arms: Arms, hashes: list[tuple[str, str]]) -> None:
    """Write what is measured, or check that the directory is of this very measurement."""
    index = {
        "format": FORMAT,
        "slotgrid": __version__,
        "seed": arms.seed,
        "order": arms.order,
        "plans": [
            {"file": str(path), "sha256": content, "file_sha256": whole, "cycle_s": _cycle_s(arms, path)}
            for path, (content, whole) in zip(arms.plans, hashes, strict=True)
        ],
        "arms": [arm.to_dict() for arm in arms.arms],
        "options": arms.options.to_dict(),
    }
    path = target / INDEX
    if not path.exists():
        # a hidden file is what a killed call left of its own
        taken = target.is_dir() and any(not path.name.startswith(".") for path in target.iterdir())
        if taken or (target.exists() and not target.is_dir()):
            raise InputError(f"{target}: holds something else already; give a new directory")
        files.write_json(path, index)
        return
    earlier = files.read_json(path)
    if not isinstance(earlier, dict) or earlier.get("format") != FORMAT:
        raise InputError(f'{path}: not a measurement; expected "format": "{FORMAT}"')
    # as it would be read back: tuples are lists in JSON
    same = json.loads(json.dumps(index))
    for key in ("arms", "plans", "seed", "order", "options"):
        if key == "plans":
            # a plan may lie elsewhere, but its content stays
            same[key], earlier[key] = ([plan["sha256"] for plan in data[key]] for data in (same, earlier))
        if same[key] != earlier.get(key):
            raise InputError(f"{target}: belongs to another measurement (other {key}); give a new directory")


def _cycle_s(arms: Arms, path: Path) -> float | None:
    """Of a plan's window; None without one."""
    window = arms.options.window
    return None if window is None else window.of(load_plan(path)).cycle_s


def _compiled(arm: Arm, folder: Path, target: Path, note: Callable[[str], None]) -> str | None:
    """Run an arm's compile command unless it was done before; what went wrong, or None."""
    if arm.compile is None:
        return None
    path = target / COMPILED
    there = arm.artifact is None or (folder / arm.artifact).exists()
    if there and path.exists() and files.read_json(path).get("exit_code") == 0:
        return None
    values = _values(arm, folder)
    command = fill(arm.compile, values)
    note(f"{arm.name}: compiling")
    started, begin = _now(), time.monotonic()
    target.mkdir(parents=True, exist_ok=True)
    log = target / "compile.log"
    try:
        code = run_command(
            command, what="compile", cwd=folder, env=_env(arm, values), log=log, timeout_s=arm.compile_timeout_s
        )
    except RunError as error:
        return str(error)
    _write(
        path,
        {
            "command": command,
            "exit_code": code,
            "seconds": time.monotonic() - begin,
            "started_at": started,
            "finished_at": _now(),
            "host": platform.node(),
        },
    )
    return None if code == 0 else f"compile failed with exit code {code}: {last_line(log)}"


def _env(arm: Arm, values: Mapping[str, str]) -> dict[str, str]:
    return {key: fill((value,), values)[0] for key, value in arm.env.items()}


def _values(arm: Arm, folder: Path, **more: str) -> dict[str, str]:
    values = {"arm": arm.name, **more}
    if arm.artifact is not None:
        values["artifact"] = str((folder / arm.artifact).resolve())
    return values


class _Condition:
    """One arm on one plan, with its attempts on disk."""

    def __init__(
        self,
        arms: Arms,
        arm: Arm,
        replicate: int,
        position: int,
        target: Path,
        hashes: tuple[str, str],
        report: Callable[..., None],
        note: Callable[[str], None],
        outcome: Callable[[ConditionResult], None] | None,
    ) -> None:
        self._arms, self._arm = arms, arm
        self._replicate, self._position = replicate, position
        self._folder = target / arm.name / f"r{replicate}"
        self._hashes = hashes
        self._report, self._note = report, note
        self._outcome = outcome or (lambda _: None)

    def run(self) -> ConditionResult:
        """The finished condition: read from disk, or measured, with one rerun when it was not valid."""
        while True:
            found = self._finished()
            if found is not None:
                self._outcome(found)
            if found is not None and (found.valid or found.attempts >= MOST_ATTEMPTS):
                return found
            if found is not None:
                self._note(f"{self._arm.name} r{self._replicate}: not valid ({found.reasons[0]}); once more")
                self._folder.rename(self._aside("invalid"))
            elif self._folder.exists():
                self._folder.rename(self._aside("interrupted"))
            result = self._attempt(1 + len(self._others("invalid")))
            _write(self._folder / CONDITION, result.to_dict())

    def refused(self, reason: str) -> ConditionResult:
        """A condition that was not run; nothing is written, so that a later call tries again."""
        self._note(f"{self._arm.name} r{self._replicate}: {reason}")
        result = self._result([reason], attempts=0)
        self._outcome(result)
        return result

    def _finished(self) -> ConditionResult | None:
        path = self._folder / CONDITION
        if not path.exists():
            return None
        data = files.read_json(path)
        try:
            told = {**data, "reasons": tuple(data["reasons"]), "command": tuple(data["command"])}
            # where it lies now: the directory may have been moved since
            return ConditionResult(**{**told, "folder": str(self._folder)})
        except (TypeError, KeyError) as error:
            raise InputError(f"{path}: not a condition of a measurement: {error}") from None

    def _others(self, kind: str) -> list[Path]:
        return sorted(self._folder.parent.glob(f"{self._folder.name}.{kind}-*"))

    def _aside(self, kind: str) -> Path:
        return self._folder.with_name(f"{self._folder.name}.{kind}-{1 + len(self._others(kind))}")

    def _attempt(self, attempt: int) -> ConditionResult:
        """Start a server, replay, end the server, judge. Only an interruption leaves by an exception."""
        arm, arms = self._arm, self._arms
        started = _now()
        self._folder.mkdir(parents=True)
        reasons: list[str] = []
        facts: dict[str, Any] = {"started_at": started, "host": platform.node()}
        server: ServerProcess | None = None
        values: dict[str, str] = {}
        try:
            plan = load_plan(arms.plans[self._replicate])
            if (plan.content_sha256, hash_file(arms.plans[self._replicate])) != self._hashes:
                raise RunError(f"{arms.plans[self._replicate]}: was changed since the measurement began")
            port = free_port(arms.port)
            values = _values(
                arm,
                arms.folder,
                port=str(port),
                run_dir=str(self._folder.resolve()),
                replicate=str(self._replicate),
            )
            command = fill(arm.start, values)
            env = _env(arm, values)
            facts.update(port=port, command=tuple(command), env=env, versions=self._versions(values))
            self._keep_descriptions(values)
            self._report(STARTING)
            server = ServerProcess(
                command, cwd=arms.folder, env=env, folder=self._folder, log=self._folder / "server.log"
            )
            base_url = fill((arm.base_url,), values)[0]
            root = Endpoint(base_url).root
            ready = fill((arm.ready,), values)[0]
            server.wait_ready(ready if "://" in ready else root + ready, arm.ready_timeout_s)
            self._report("replaying")
            run = replay_over_http(
                plan=plan,
                base_url=Endpoint(base_url, api_key=os.environ.get(API_KEY), silence_s=arms.silence_s),
                output=self._folder,
                options=arms.options,
                progress=lambda status: self._report("replaying", status),
                watch=server.death,
            )
            reasons += _interrupted(invalid_reasons(run))
        except SlotgridError as error:
            reasons.append(str(error))
        finally:
            if server is not None:
                reasons += self._end(server, values, facts, bool(reasons))
        if not reasons:
            reasons += problems(self._folder, plan=plan, window=arms.options.window)
        return self._result(list(dict.fromkeys(reasons)), attempts=attempt, finished_at=_now(), **facts)

    def _result(self, reasons: list[str], *, attempts: int, **facts: Any) -> ConditionResult:
        return ConditionResult(
            arm=self._arm.name,
            replicate=self._replicate,
            position=self._position,
            folder=str(self._folder),
            valid=not reasons,
            reasons=tuple(reasons),
            attempts=attempts,
            plan_sha256=self._hashes[0],
            plan_file_sha256=self._hashes[1],
            **facts,
        )

    def _versions(self, values: Mapping[str, str]) -> str | None:
        """What the arm's versions command prints; a command that fails is said, not fatal."""
        if self._arm.versions is None:
            return None
        command = fill(self._arm.versions, values)
        path = self._folder / "versions.txt"
        code = run_command(
            command,
            what="versions",
            cwd=self._arms.folder,
            env=_env(self._arm, values),
            log=path,
            timeout_s=VERSIONS_TIMEOUT_S,
        )
        text = path.read_text(errors="replace").strip()
        return text if code == 0 else f"exit code {code}: {text}"

    def _keep_descriptions(self, values: Mapping[str, str]) -> None:
        """How the artifact was compiled lies beside the run."""
        if "artifact" not in values:
            return
        for name in _DESCRIPTIONS:
            path = Path(values["artifact"]) / name
            if path.is_file():
                shutil.copyfile(path, self._folder / name)

    def _end(self, server: ServerProcess, values: Mapping[str, str], facts: dict[str, Any], failed: bool) -> list[str]:
        """The stop command, then the signals, whatever happened before; what else makes the condition invalid."""
        reasons = []
        try:
            self._report("ending the server")
            died = server.death()
            if died is not None and not failed:
                reasons.append(died)
            self._stop_command(values)
        except SlotgridError as error:
            reasons.append(str(error))
        finally:
            facts["exit_code"], facts["ended"] = server.stop(self._arm.stop_timeout_s)
        return reasons

    def _stop_command(self, values: Mapping[str, str]) -> None:
        if self._arm.stop is None:
            return
        command = fill(self._arm.stop, values)
        code = run_command(
            command,
            what="stop",
            cwd=self._arms.folder,
            env=_env(self._arm, values),
            log=self._folder / "stop.txt",
            timeout_s=self._arm.stop_timeout_s,
        )
        if code != 0:
            self._note(f"{self._arm.name} r{self._replicate}: the stop command ended with exit code {code}")


def _interrupted(reasons: Sequence[str]) -> Sequence[str]:
    """Raise KeyboardInterrupt for a replay that a signal ended: then the whole measurement ends."""
    if any(reason in {f"stopped by {number.name}" for number in ENDING} for reason in reasons):
        raise KeyboardInterrupt
    return reasons


def _write(path: Path, value: Any) -> None:
    """A file that cannot be written is not the user's input that is wrong."""
    try:
        files.write_json(path, value)
    except InputError as error:
        raise RunError(str(error)) from None


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()

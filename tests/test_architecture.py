"""The rooms: no import against the flow, no I/O in the middle, no import the package does not need to start."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "slotgrid"

# Everything may import these.
FOUNDATION = {"_version", "_verb", "errors", "units", "files", "toml_reader", "config", "event_format"}
# Room -> rooms it may import (docs/decisions.md).
MAY_IMPORT = {
    "plan": set(),
    "workload": {"plan"},
    "profile": set(),
    "run": {"plan"},
    "engine": {"plan", "profile", "run"},
    "stacks": {"profile", "run"},
    "diagnose": {"profile", "run"},
    # equations on a workload and a profile: no events, so nothing of the engine
    "analytic": {"plan", "profile"},
    # a capacity is found on windows of runs, and simulated occupancies are read off runs
    "search": {"plan", "run", "engine", "profile", "workload", "analytic"},
    # depends on nothing but its extra: a server must not know what is measured with it
    "serve": set(),
    # an in-process replay needs the engine room's rule sets (turnaround) and the static engine itself
    "measure": {"plan", "run", "profile", "engine", "serve"},
    # predicts (engine), draws plans, and judges runs by the channels of diagnose; measuring is asked of measure
    "study": {"plan", "workload", "profile", "run", "engine", "diagnose", "search", "measure"},
    "report": {"plan", "workload", "profile", "run", "engine", "diagnose", "search", "stacks", "measure", "study"},
    "cli": {
        *("plan", "workload", "profile", "run", "engine", "diagnose", "search", "stacks", "report"),
        *("serve", "measure", "study"),
    },
}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or room_of(path) in MAY_IMPORT)


def test_every_room_is_known() -> None:
    rooms = {room_of(path) for path in SOURCE.rglob("*.py")}
    assert rooms - FOUNDATION - set(MAY_IMPORT) == {"__init__", "__main__"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_import_against_the_flow(path: Path) -> None:
    room = room_of(path)
    for name in imported_modules(path):
        parts = name.split(".")
        if parts[0] != "slotgrid" or len(parts) < 2:
            continue
        target = parts[1]
        assert target == room or target in FOUNDATION or target in MAY_IMPORT[room], f"{room} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_sockets_or_processes_in_pure_rooms(path: Path) -> None:
    if room_of(path) in {"stacks", "cli", "report", "serve", "measure"}:
        return
    names = {name.split(".")[0] for name in imported_modules(path)}
    assert not names & {"socket", "subprocess", "asyncio", "http", "urllib", "selectors"}


def test_help_imports_nothing_heavy() -> None:
    """Every command and every command of a group."""
    code = """
import sys
import typer
from slotgrid.cli.main import app, run
heavy = ("numpy", "numba", "polars", "scipy", "rich", "matplotlib", "aiohttp", "jax", "starlette", "uvicorn", "yaml")
def paths(command, before=()):
    yield before
    for name, child in getattr(command, "commands", {}).items():
        yield from paths(child, (*before, name))
for path in paths(typer.main.get_command(app)):
    assert run([*path, "--help"]) == 0, path
    print(path, [name for name in heavy if name in sys.modules], file=sys.stderr)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = process.stderr.splitlines()
    assert {line.split(") ")[1] for line in lines} == {"[]"}, process.stderr
    for command in ("'compile'", "'serve'", "'diagnose'", "'rbln', 'patch', 'apply'", "'plan', 'draw'"):
        assert any(command in line for line in lines), command
    assert "--compile-budget" in process.stdout


def test_modules_stay_small() -> None:
    sizes = {path.name: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert {name: size for name, size in sizes.items() if size > 600} == {}

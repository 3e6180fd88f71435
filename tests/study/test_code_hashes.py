"""Which source files a registration pins: all that plans, predictions, runs and decisions depend on."""

from __future__ import annotations

import ast
from pathlib import Path

import slotgrid as sg
from slotgrid.study.manifest import code_hashes

SOURCE = Path(sg.__file__).parent
# imported by the room, and not pinned: why a change there cannot bend a verdict
NOT_PINNED = {
    "_verb.py": "makes packages callable",
    "_version.py": "stands in the manifest itself",
    "search/": "chose the configurations before; of it the room takes the name of a file",
}


def modules_of(path: Path) -> set[str]:
    """Every slotgrid module a file imports, also inside functions, with the packages above it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "slotgrid"}


def files_of(module: str) -> list[Path]:
    parts = module.split(".")[1:]
    packages = [SOURCE.joinpath(*parts[:i], "__init__.py") for i in range(1, len(parts) + 1)]
    return [path for path in (*packages, SOURCE.joinpath(*parts).with_suffix(".py")) if path.is_file()]


def closure(files: set[Path]) -> set[str]:
    """Source files those import, directly or not, relative to the package."""
    todo, seen = set(files), set()
    while todo:
        path = todo.pop()
        seen.add(path)
        if path.relative_to(SOURCE).parts[0] in {name.rstrip("/") for name in NOT_PINNED}:
            continue
        todo |= {file for module in modules_of(path) for file in files_of(module)} - seen
    return {path.relative_to(SOURCE).as_posix() for path in seen}


def test_everything_a_study_depends_on_is_pinned() -> None:
    needed = closure(set((SOURCE / "study").rglob("*.py")))
    assert {"event_format.py", "measure/validity.py", "measure/replay.py", "run/readers/event_log.py"} <= needed
    left = {name for name in needed - set(code_hashes()) if not name.startswith(tuple(NOT_PINNED))}
    assert left == set()


def test_every_exception_is_one() -> None:
    """A name that is pinned, or not imported any more, needs no reason."""
    needed, pinned = closure(set((SOURCE / "study").rglob("*.py"))), set(code_hashes())
    for name in NOT_PINNED:
        assert any(file.startswith(name) for file in needed), name
    assert not [file for file in pinned if file.startswith(tuple(NOT_PINNED))]

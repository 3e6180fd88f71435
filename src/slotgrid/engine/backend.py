"""The kernel as a module, compiled or as plain Python."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from types import ModuleType

from slotgrid.engine import _jit


def kernel(*, compiled: bool | None = None) -> ModuleType:
    """The kernel module. ``compiled=False`` gives a second copy of the same source run by the interpreter;
    None follows ``SLOTGRID_ENGINE``."""
    if compiled is None:
        compiled = not _jit.PLAIN_PYTHON
    return _compiled() if compiled else _plain()


@cache
def _compiled() -> ModuleType:
    from slotgrid.engine import kernel as module

    return module


# modules with compiled functions, each after those it imports
_COMPILED = ("heaps", "inner_pool", "expand", "kernel")


@cache
def _plain() -> ModuleType:
    """A second copy of the source, run by the interpreter; its modules import each other, not the compiled ones."""
    names = [f"slotgrid.engine.{name}" for name in _COMPILED]
    before, plain = _jit.PLAIN_PYTHON, {name: sys.modules.get(name) for name in names}
    _jit.PLAIN_PYTHON = True
    try:
        for name in names:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.loader is not None
            source = spec.loader.get_code(name)  # type: ignore[attr-defined]
            module = ModuleType(name, spec.loader.get_source(name))  # type: ignore[attr-defined]
            sys.modules[name] = module
            exec(source, module.__dict__)
    finally:
        _jit.PLAIN_PYTHON = before
        for name, original in plain.items():
            if original is None:
                del sys.modules[name]
            else:
                sys.modules[name] = original
    return module

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


@cache
def _plain() -> ModuleType:
    spec = importlib.util.find_spec("slotgrid.engine.kernel")
    assert spec is not None
    assert spec.loader is not None
    spec.name = "slotgrid.engine.kernel_plain"
    module = importlib.util.module_from_spec(spec)
    before = _jit.PLAIN_PYTHON
    _jit.PLAIN_PYTHON = True
    try:
        source = spec.loader.get_code("slotgrid.engine.kernel")  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module
        exec(source, module.__dict__)
    finally:
        _jit.PLAIN_PYTHON = before
    return module

"""The one switch between compiled and plain Python.

``SLOTGRID_ENGINE=python`` makes ``jit`` the identity, so the very same kernel source runs interpreted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

PLAIN_PYTHON = os.environ.get("SLOTGRID_ENGINE", "") == "python"


def jit(function: F) -> F:
    """Compile with Numba, cached on disk and without the interpreter lock, or leave the function alone."""
    if PLAIN_PYTHON:
        return function
    import numba

    try:
        compiled: Any = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # nowhere to keep compiled code (a read-only package and no writable home): compile anew in each process
        return cast(F, numba.njit(nogil=True)(function))
    keep = compiled._cache.save_overload

    def keep_if_possible(signature: Any, overload: Any) -> None:
        # a full disk: this process has its compiled code, the next one compiles anew
        with contextlib.suppress(OSError):
            keep(signature, overload)

    compiled._cache.save_overload = keep_if_possible
    return cast(F, compiled)

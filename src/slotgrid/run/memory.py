"""Memory that was freed, given back to the system: between two steps of reading a long log it is as much as the log's
tables take."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

# of mallopt: arrays above this many bytes are mapped on their own and go back to the system when freed
_M_MMAP_THRESHOLD, _LARGE = -3, 1 << 20


@functools.cache
def return_large() -> None:
    """From now on freed large arrays go back to the system at once, where the C library can (glibc)."""
    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)
    except (OSError, AttributeError, TypeError):
        return


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None where the C library has none (macOS, musl)."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    return trim


def give_back() -> None:
    """Return freed memory to the system where the C library can; does nothing elsewhere."""
    trim = _trim()
    if trim is not None:
        trim(0)

"""Numbers with units, as people write them on a command line or in a TOML file."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from slotgrid.errors import InputError

# unit -> (dimension, numerator, denominator): value * numerator / denominator is in the base unit.
_UNITS: dict[str, tuple[str, int, int]] = {
    "s": ("time", 1, 1),
    "ms": ("time", 1, 1_000),
    "us": ("time", 1, 1_000_000),
    "µs": ("time", 1, 1_000_000),
    "ns": ("time", 1, 1_000_000_000),
    "m": ("time", 60, 1),
    "min": ("time", 60, 1),
    "h": ("time", 3_600, 1),
    "GiB": ("size", 1, 1),
    "MiB": ("size", 1, 1_024),
    "KiB": ("size", 1, 1_048_576),
    "bytes": ("bytes", 1, 1),
    "tokens": ("tokens", 1, 1),
    "devices": ("devices", 1, 1),
    "%": ("share", 1, 100),
}
_BASE = {"time": "s", "size": "GiB", "bytes": "bytes", "tokens": "tokens", "devices": "devices", "share": "1"}
_TEXT = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµ]*)\s*")


def units_of(dimension: str) -> list[str]:
    """The unit names of a dimension ("time", "size", "bytes", "tokens", "devices", "share")."""
    return [name for name, (kind, _, _) in _UNITS.items() if kind == dimension]


def to_base(value: float, unit: str, dimension: str, where: str) -> float:
    """Convert to seconds, GiB, bytes, tokens or devices. Raises InputError naming ``where``."""
    kind, numerator, denominator = _UNITS.get(unit, ("", 1, 1))
    if kind != dimension:
        raise InputError(f"{where}: unknown unit {unit!r}; allowed: {', '.join(units_of(dimension))}")
    if not math.isfinite(value):
        raise InputError(f"{where}: {value} is not a finite number")
    # in decimals, so that 9.87 ms is the float 0.00987; in floats neither / 1000 nor * 0.001 gives it
    return float(Decimal(repr(float(value))) * numerator / denominator)


def parse_quantity(text: str, dimension: str, where: str) -> float:
    """Read text such as ``30m``, ``500ms`` or ``15.7GiB``; a unit is required.

    Returns the value in the base unit of ``dimension`` (seconds, GiB, bytes, tokens, devices).
    Raises InputError for anything else, a negative value, or a missing unit.
    """
    match = _TEXT.fullmatch(text)
    allowed = ", ".join(units_of(dimension))
    if match is None:
        raise InputError(f"{where}: {text!r} is not a number with a unit; allowed units: {allowed}")
    if not match[2]:
        raise InputError(f"{where}: {text!r} has no unit; write e.g. {match[1]}{_BASE[dimension]} ({allowed})")
    value = to_base(float(match[1]), match[2], dimension, where)
    if value < 0:
        raise InputError(f"{where}: {text!r} is negative")
    return value

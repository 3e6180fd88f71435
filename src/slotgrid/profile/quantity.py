"""A measured number: its value, where it comes from and where it holds."""

from __future__ import annotations

from dataclasses import dataclass

from slotgrid.errors import InputError
from slotgrid.toml_reader import Table
from slotgrid.units import to_base

KINDS = ("measured", "derived", "read from source", "estimate")


@dataclass(frozen=True)
class Quantity:
    """One value of a profile.

    value: in base units (seconds, GiB, bytes, tokens, devices).
    text: value and unit as written in the file.
    kind: measured, derived, read from source, or estimate.
    source: where the number comes from.
    """

    value: float
    text: str
    kind: str
    source: str


@dataclass(frozen=True)
class Range:
    """Where a cost holds: from ``low`` to ``high`` of what it depends on, both included."""

    low: float
    high: float

    def covers(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


def read_quantity(table: Table, key: str, dimension: str, least: float | None = 0.0) -> Quantity:
    """Read ``key = { value = 9.87, unit = "ms", kind = "measured", source = "..." }``."""
    entry = table.table(key)
    quantity = quantity_of(entry, dimension, least)
    entry.finish()
    return quantity


def quantity_of(entry: Table, dimension: str, least: float | None = 0.0) -> Quantity:
    """The value, unit, kind and source of a table that may hold further keys."""
    value = entry.number("value", least)
    unit = entry.text("unit")
    source = entry.text("source")
    if not source.strip():
        raise InputError(f"{entry.at('source')} is empty; say where the number comes from")
    return Quantity(
        to_base(value, unit, dimension, entry.at("unit")),
        f"{value:g} {unit}",
        entry.choice("kind", KINDS),
        source,
    )


def read_range(table: Table, key: str) -> Range | None:
    """Read ``key = [low, high]``; absent means nothing is known about the range."""
    if not table.has(key):
        return None
    values = table.numbers(key)
    if len(values) != 2 or values[0] > values[1]:
        raise InputError(f"{table.at(key)} is {list(values)}; expected [low, high]")
    return Range(values[0], values[1])

"""A measured number: its value, where it comes from and where it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    interval: where the value lies with 95 % confidence, in base units; None when not stated.
    samples: independent measurements behind it; None when not stated.
    conditions: under which it was measured; empty when not stated.
    """

    value: float
    text: str
    kind: str
    source: str
    interval: tuple[float, float] | None = None
    samples: int | None = None
    conditions: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Value and provenance as JSON values; what is not stated is left out."""
        stated: dict[str, Any] = {
            "value": self.value,
            "as_written": self.text,
            "kind": self.kind,
            "source": self.source,
        }
        if self.interval is not None:
            stated["interval"] = list(self.interval)
        if self.samples is not None:
            stated["samples"] = self.samples
        if self.conditions:
            stated["conditions"] = self.conditions
        return stated


@dataclass(frozen=True)
class Range:
    """Where a cost holds: from ``low`` to ``high`` of what it depends on, both included."""

    low: float
    high: float

    def covers(self, value: float) -> bool:
        """Whether a value lies within the range, its ends included."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


def read_quantity(table: Table, key: str, dimension: str, least: float | None = 0.0) -> Quantity:
    """Read ``key = { value = 9.87, unit = "ms", kind = "measured", source = "..." }``.

    interval, samples and conditions are optional.
    """
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
        _interval(entry, unit, dimension),
        entry.whole("samples", 1) if entry.has("samples") else None,
        entry.text("conditions", ""),
    )


def _interval(entry: Table, unit: str, dimension: str) -> tuple[float, float] | None:
    """``interval = [low, high]`` in the value's unit."""
    span = read_range(entry, "interval")
    if span is None:
        return None
    low, high = (to_base(end, unit, dimension, entry.at("interval")) for end in (span.low, span.high))
    return low, high


def read_range(table: Table, key: str) -> Range | None:
    """Read ``key = [low, high]``; absent means nothing is known about the range."""
    if not table.has(key):
        return None
    values = table.numbers(key)
    if len(values) != 2 or values[0] > values[1]:
        raise InputError(f"{table.at(key)} is {list(values)}; expected [low, high]")
    return Range(values[0], values[1])

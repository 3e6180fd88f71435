"""Distributions a workload draws token counts and waits from. Each says how it uses the random stream."""

from __future__ import annotations

import csv
import io
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.toml_reader import Table
from slotgrid.units import parse_quantity
from slotgrid.workload.tool_mix import HUMAN_TOOLS, TRACELAB, ToolMix, load_tools, tracelab_tools


class Distribution(Protocol):
    """Anything a session can draw from."""

    def draw(self, rng: random.Random) -> float:
        """One value: tokens or seconds."""
        ...

    def describe(self) -> str:
        """One line for people."""
        ...


@dataclass(frozen=True)
class Fixed:
    """Always the same value; draws nothing."""

    value: float

    def draw(self, rng: random.Random) -> float:
        """Always the value."""
        return self.value

    def describe(self) -> str:
        """One line for reports."""
        return f"always {self.value:g}"


@dataclass(frozen=True)
class Uniform:
    """Uniform from low to high, both included: whole numbers when both ends are whole (one ``randint``), else
    real (one ``uniform``)."""

    low: float
    high: float

    def draw(self, rng: random.Random) -> float:
        """A whole number where both ends are, else any number between them."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return rng.randint(self.low, self.high)
        return rng.uniform(self.low, self.high)

    def describe(self) -> str:
        """One line for reports."""
        return f"uniform {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class LogNormal:
    """Log-normal through its median and 90th percentile, cut to [low, high]; one ``gauss``-free normal draw."""

    median: float
    p90: float
    low: float
    high: float
    whole: bool

    def draw(self, rng: random.Random) -> float:
        """One value, cut to the range."""
        sigma = math.log(self.p90 / self.median) / 1.2815515655446004
        value = min(max(rng.lognormvariate(math.log(self.median), sigma), self.low), self.high)
        return round(value) if self.whole else value

    def describe(self) -> str:
        """One line for reports."""
        return f"log-normal, median {self.median:g}, p90 {self.p90:g}, within {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Choice:
    """One of some values by weight; one ``random()``."""

    values: tuple[float, ...]
    weights: tuple[float, ...]

    def draw(self, rng: random.Random) -> float:
        """One of the values by its weight."""
        return rng.choices(self.values, self.weights)[0]

    def describe(self) -> str:
        """One line for reports."""
        return f"one of {len(self.values)} values by weight"


@dataclass(frozen=True)
class Empirical:
    """One of the observed values, each as likely; one ``randrange``."""

    values: tuple[float, ...]
    source: str

    def draw(self, rng: random.Random) -> float:
        """One of the values, each as likely."""
        return self.values[rng.randrange(len(self.values))]

    def describe(self) -> str:
        """One line for reports."""
        return f"{len(self.values)} observed values from {self.source}"


def read_tokens(table: Table, folder: Path) -> Distribution:
    """A distribution of token counts (whole, at least 1) from its TOML table."""
    kind = table.choice("kind", ("fixed", "uniform", "lognormal", "choice", "empirical"))
    distribution: Distribution
    if kind == "fixed":
        distribution = Fixed(table.whole("tokens", 1))
    elif kind == "uniform":
        distribution = Uniform(*_ordered(table, table.whole("low", 1), table.whole("high", 1)))
    elif kind == "lognormal":
        low, high = _ordered(table, table.whole("low", 1, 1), table.whole("high", 1))
        distribution = _log_normal(table, table.number("median", 1), table.number("p90", 1), low, high, True)
    elif kind == "choice":
        distribution = _choice(table, table.wholes("tokens", 1))
    else:
        values = table.wholes("tokens", 1) if table.has("tokens") else _column(table, folder, whole=True)
        distribution = Empirical(tuple(values), table.text("file", "the list"))
    table.finish()
    return distribution


def read_wait(table: Table, folder: Path) -> Distribution:
    """A distribution of tool waits (seconds, at least 0) from its TOML table.

    Times are numbers in seconds, or texts with a unit such as "60s" or "250ms".
    """
    kind = table.choice("kind", ("none", "fixed", "uniform", "lognormal", "choice", "empirical", "tool_mix"))
    distribution: Distribution
    if kind == "none":
        distribution = Fixed(0.0)
    elif kind == "fixed":
        distribution = Fixed(_seconds(table, "value_s"))
    elif kind == "uniform":
        distribution = Uniform(*_ordered(table, _seconds(table, "low_s"), _seconds(table, "high_s")))
    elif kind == "lognormal":
        low = _seconds(table, "low_s") if table.has("low_s") else 0.0
        low, high = _ordered(table, low, _seconds(table, "high_s"))
        distribution = _log_normal(table, _seconds(table, "median_s"), _seconds(table, "p90_s"), low, high, False)
    elif kind == "choice":
        distribution = _choice(table, table.numbers("values_s", 0))
    elif kind == "empirical":
        values = table.numbers("values_s", 0) if table.has("values_s") else _column(table, folder, whole=False)
        distribution = Empirical(tuple(values), table.text("file", "the list"))
    else:
        name = table.text("table", TRACELAB)
        exclude = table.raw("exclude") if table.has("exclude") else list(HUMAN_TOOLS)
        if not isinstance(exclude, list) or not all(isinstance(tool, str) for tool in exclude):
            raise InputError(f"{table.at('exclude')} is {exclude!r}; expected a list of tool names")
        tools = tracelab_tools(exclude) if name == TRACELAB else load_tools(folder / name, exclude)
        cap_s = _seconds(table, "cap_s")
        if cap_s == 0:
            raise InputError(f"{table.at('cap_s')} is 0; allowed: above 0 seconds")
        distribution = ToolMix(tools, cap_s, name)
    table.finish()
    return distribution


def _seconds(table: Table, key: str) -> float:
    value = table.raw(key)
    if isinstance(value, str):
        return parse_quantity(value, "time", table.at(key))
    return table.number(key, 0)


def _ordered(table: Table, low: float, high: float) -> tuple[float, float]:
    if low > high:
        raise InputError(f"{table.at()}: low {low:g} is above high {high:g}")
    return low, high


def _log_normal(table: Table, median: float, p90: float, low: float, high: float, whole: bool) -> LogNormal:
    if not 0 < median <= p90:
        raise InputError(f"{table.at()}: median {median:g} and p90 {p90:g}; allowed: 0 < median <= p90")
    return LogNormal(median, p90, low, high, whole)


def _choice(table: Table, values: tuple[float, ...]) -> Choice:
    weights = table.numbers("weights", 0) if table.has("weights") else (1.0,) * len(values)
    if len(weights) != len(values) or not 0 < sum(weights) < math.inf:
        raise InputError(f"{table.at('weights')}: one weight per value is needed, with a positive sum")
    return Choice(values, weights)


def _column(table: Table, folder: Path, *, whole: bool) -> tuple[float, ...]:
    """Values from ``file`` (CSV, relative to the workload file), column ``column``."""
    path = folder / table.text("file")
    column = table.text("column")
    try:
        reader = csv.DictReader(io.StringIO(files.read_bytes(path).decode("utf-8"), newline=""))
        rows = [row.get(column) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file: {error}") from None
    if column not in (reader.fieldnames or ()):
        raise InputError(f"{path}: no column {column!r}; it has: {', '.join(reader.fieldnames or ())}")
    values = []
    for number, text in enumerate(rows, start=2):
        try:
            value: float = int(text or "") if whole else float(text or "")
        except ValueError:
            raise InputError(f"{path}: line {number}: {text!r} is not a {'whole ' if whole else ''}number") from None
        if not math.isfinite(value) or value < (1 if whole else 0):
            raise InputError(f"{path}: line {number}: {text} is too small; allowed: at least {1 if whole else 0}")
        values.append(value)
    if not values:
        raise InputError(f"{path}: column {column!r} has no values")
    return tuple(values)

"""Tool waits drawn from a population of tools, each known by its call count and three latency quantiles.

The inverse CDF of a tool passes exactly through its p50, p90 and p99: log-normal below p50 (matched to p50 and
p90), geometric interpolation between the quantiles, constant above p99. The arithmetic, down to the order of
operations, is that of the published plans, whose content hashes need the last bit.
"""

from __future__ import annotations

import csv
import io
import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from itertools import accumulate
from pathlib import Path

from slotgrid import files
from slotgrid.errors import InputError

HUMAN_TOOLS = ("AskUserQuestion", "ExitPlanMode", "request_user_input", "TaskOutput")
TRACELAB = "tracelab-v0.0.2"
# Latency bands by median, upper ends in seconds (the last is open).
BANDS = (("instant", 0.010), ("fast", 0.200), ("medium", 5.0), ("slow", math.inf))
# Standard normal quantile at 0.9, rounded as in the published generator.
_Z90 = 1.2816
_LOWEST_U = 1e-6
_HIGHEST_U = 1 - 1e-9


@dataclass(frozen=True)
class Tool:
    """One tool: calls seen, latency quantiles in seconds."""

    name: str
    calls: int
    p50_s: float
    p90_s: float
    p99_s: float

    def latency_s(self, u: float) -> float:
        """Inverse CDF at u in (0, 1), seconds."""
        if u >= 0.99:
            return self.p99_s
        if u >= 0.9:
            return self.p90_s * math.pow(self.p99_s / self.p90_s, (u - 0.9) / 0.09)
        if u >= 0.5:
            return self.p50_s * math.pow(self.p90_s / self.p50_s, (u - 0.5) / 0.4)
        if self.p90_s == self.p50_s:
            return self.p50_s
        return self.p50_s * math.exp(math.log(self.p90_s / self.p50_s) / _Z90 * _normal_quantile(u))

    def share_above(self, limit_s: float) -> float:
        """Probability of a latency above ``limit_s``, read off the same curve."""
        low, high = _LOWEST_U, _HIGHEST_U
        if self.latency_s(low) > limit_s:
            return 1.0
        if self.latency_s(high) <= limit_s:
            return 0.0
        while high - low > 1e-12:
            middle = (low + high) / 2
            if self.latency_s(middle) > limit_s:
                high = middle
            else:
                low = middle
        return 1.0 - high


@dataclass(frozen=True)
class ToolMix:
    """Waits in seconds: a tool by call count, then its latency, cut at ``cap_s``.

    Draws two ``random()`` per wait. Raises InputError for an empty population or a cap that is not positive.
    """

    tools: tuple[Tool, ...]
    cap_s: float
    source: str

    def __post_init__(self) -> None:
        if not self.tools:
            raise InputError(f"{self.source}: no tool with calls is left in the population")
        if not self.cap_s > 0:
            raise InputError(f"cap_s: {self.cap_s!r}; allowed: above 0 seconds")

    @cached_property
    def _cumulative(self) -> list[int]:
        return list(accumulate(tool.calls for tool in self.tools))

    def draw(self, rng: random.Random) -> float:
        """One wait in seconds."""
        pick = rng.random() * self._cumulative[-1]
        tool = self.tools[bisect_left(self._cumulative, pick)]
        u = min(max(rng.random(), _LOWEST_U), _HIGHEST_U)
        return min(tool.latency_s(u), self.cap_s)

    @property
    def capped_share(self) -> float:
        """Share of waits that the cap cuts."""
        total = self._cumulative[-1]
        return sum(tool.calls * tool.share_above(self.cap_s) for tool in self.tools) / total

    @property
    def band_shares(self) -> dict[str, float]:
        """Share of calls by the latency band of their tool's median."""
        shares = {name: 0 for name, _ in BANDS}
        for tool in self.tools:
            shares[next(name for name, top in BANDS if tool.p50_s < top)] += tool.calls
        return {name: calls / self._cumulative[-1] for name, calls in shares.items()}

    def describe(self) -> str:
        """One line for reports."""
        bands = ", ".join(f"{name} {share:.1%}" for name, share in self.band_shares.items())
        return (
            f"{len(self.tools)} tools of {self.source}, cut at {self.cap_s:g} s "
            f"({self.capped_share:.2%} of waits); by median: {bands}"
        )


def tracelab_tools(exclude: Sequence[str] = HUMAN_TOOLS) -> tuple[Tool, ...]:
    """The bundled TraceLab v0.0.2 population (43 tools; CC BY 4.0, see data/ATTRIBUTION.md)."""
    entry = resources.files("slotgrid.workload") / "data" / "tracelab_v0.0.2_tool_latency.csv"
    return read_tools(entry.read_bytes(), entry.name, exclude)


def load_tools(path: str | Path, exclude: Sequence[str] = HUMAN_TOOLS) -> tuple[Tool, ...]:
    """Read a CSV with the columns tool, calls, p50_ms, p90_ms, p99_ms. Raises InputError naming file and line."""
    return read_tools(files.read_bytes(path), str(path), exclude)


def read_tools(data: bytes, where: str, exclude: Sequence[str]) -> tuple[Tool, ...]:
    """Tools by descending calls (file order among equals) without the excluded and the uncalled ones.

    p50 is at least 0.5 ms; p90 >= p50 and p99 >= p90 are enforced by raising the upper one.
    """
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8"), newline=""))
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{where}: not a CSV file: {error}") from None
    needed = ("tool", "calls", "p50_ms", "p90_ms", "p99_ms")
    for column in needed:
        if column not in (reader.fieldnames or ()):
            raise InputError(f"{where}: column {column} is missing; needed: {', '.join(needed)}")
    tools = []
    for number, row in enumerate(rows, start=2):
        try:
            calls = int(row["calls"])
            p50, p90, p99 = (float(row[column]) for column in needed[2:])
        except (TypeError, ValueError):
            raise InputError(f"{where}: line {number}: calls must be whole, quantiles numbers in ms") from None
        if calls < 0 or not all(math.isfinite(x) and x >= 0 for x in (p50, p90, p99)):
            raise InputError(f"{where}: line {number}: calls and quantiles must be finite and at least 0")
        if calls == 0 or row["tool"] in exclude:
            continue
        p50 = max(p50, 0.5)
        p90 = max(p90, p50)
        p99 = max(p99, p90)
        tools.append(Tool(row["tool"], calls, p50 / 1000, p90 / 1000, p99 / 1000))
    tools.sort(key=lambda tool: -tool.calls)
    if not tools:
        raise InputError(f"{where}: no tool with calls is left; excluded: {', '.join(exclude) or 'none'}")
    return tuple(tools)


# Rational approximation of the inverse normal CDF (P. J. Acklam), relative error below 1.2e-9.
_A = (
    -3.969683028665376e01,
    2.209460984245205e02,
    -2.759285104469687e02,
    1.383577518672690e02,
    -3.066479806614716e01,
    2.506628277459239e00,
)
_B = (
    -5.447609879822406e01,
    1.615858368580409e02,
    -1.556989798598866e02,
    6.680131188771972e01,
    -1.328068155288572e01,
)
_C = (
    -7.784894002430293e-03,
    -3.223964580411365e-01,
    -2.400758277161838e00,
    -2.549732539343734e00,
    4.374664141464968e00,
    2.938163982698783e00,
)
_D = (7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e00, 3.754408661907416e00)
_TAIL = 0.02425


def _normal_quantile(u: float) -> float:
    """Inverse standard normal CDF for 0 < u < 0.5, the only half that is asked for."""
    if u < _TAIL:
        q = math.sqrt(-2 * math.log(u))
        return (((((_C[0] * q + _C[1]) * q + _C[2]) * q + _C[3]) * q + _C[4]) * q + _C[5]) / (
            (((_D[0] * q + _D[1]) * q + _D[2]) * q + _D[3]) * q + 1
        )
    q = u - 0.5
    r = q * q
    return (
        (((((_A[0] * r + _A[1]) * r + _A[2]) * r + _A[3]) * r + _A[4]) * r + _A[5])
        * q
        / (((((_B[0] * r + _B[1]) * r + _B[2]) * r + _B[3]) * r + _B[4]) * r + 1)
    )

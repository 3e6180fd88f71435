"""What is random on a real server: the sizes of the perturbations that make an ensemble."""

from __future__ import annotations

from dataclasses import dataclass

from slotgrid.errors import InputError
from slotgrid.profile.quantity import Quantity, Range, quantity_of, read_quantity
from slotgrid.toml_reader import Table
from slotgrid.units import to_base


@dataclass(frozen=True)
class Scatter:
    """Scatter between repeats of one plan on one configuration.

    start_spread_s: simultaneous starts are spread over this many seconds (low to high, another width per repeat), in
        random order. turnaround_s: seconds from an answer to the client's next request, anew for each.
    step_s: (bucket, standard deviation in seconds) by which all steps of a bucket are off in one repeat;
        step_other_s: for buckets not listed. prefill_share: standard deviation of one prefill, relative to its time.
    """

    start_spread_s: Range
    turnaround_s: Range
    step_s: tuple[tuple[int, Quantity], ...]
    step_other_s: Quantity
    prefill_share: Quantity

    def step(self, bucket: int) -> float:
        """Standard deviation of a bucket's steps between repeats, seconds."""
        return next((q.value for size, q in self.step_s if size == bucket), self.step_other_s.value)


def read_scatter(table: Table, seen: list[tuple[str, Quantity]]) -> Scatter:
    """Read ``[scatter]`` of a profile (format: docs/formats.md); ``seen`` collects the values with their sources."""
    step: list[tuple[int, Quantity]] = []
    for entry in table.tables("step") if table.has("step") else []:
        size, quantity = entry.whole("bucket", 1), quantity_of(entry, "time")
        entry.finish()
        if any(size == other for other, _ in step):
            raise InputError(f"{entry.at('bucket')}: {size} appears twice")
        step.append((size, quantity))
        seen.append((f"{table.path}.step[bucket {size}]", quantity))
    scatter = Scatter(
        _span(table, "start_spread", seen),
        _span(table, "turnaround", seen),
        tuple(step),
        read_quantity(table, "step_other", "time"),
        read_quantity(table, "prefill_share", "share"),
    )
    seen += [(f"{table.path}.step_other", scatter.step_other_s), (f"{table.path}.prefill_share", scatter.prefill_share)]
    table.finish()
    return scatter


def _span(table: Table, key: str, seen: list[tuple[str, Quantity]]) -> Range:
    """Read ``key = { low = 2, high = 12, unit = "ms", kind = "measured", source = "..." }``."""
    entry = table.table(key)
    low, high, unit = entry.number("low", 0), entry.number("high", 0), entry.text("unit")
    if low > high:
        raise InputError(f"{entry.at('high')} is {high:g}, below low {low:g}")
    kind, source = entry.text("kind"), entry.text("source")
    span = Range(*(to_base(value, unit, "time", entry.at("unit")) for value in (low, high)))
    entry.finish()
    seen += [
        (f"{table.path}.{key}.{name}", Quantity(value, f"{text:g} {unit}", kind, source))
        for name, value, text in (("low", span.low, low), ("high", span.high, high))
    ]
    return span

"""Capacities as sentences and a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from slotgrid.search.capacity import Capacity

if TYPE_CHECKING:
    from rich.console import Console


def capacity_report(found: Sequence[Capacity], console: Console) -> None:
    """Print one sentence per configuration, then what it costs and what breaks next."""
    for entry in found:
        console.print(f"{entry.config.label}: {entry.sentence}", style="bold")
    console.print()
    table = Table(box=None, pad_edge=False)
    for name in (
        "buckets",
        "agents",
        "interval",
        "windows",
        "TTFT p95",
        "inter-token p95",
        "a turn",
        "one more breaks",
        "cost",
    ):
        table.add_column(name)
    for entry in found:
        costs = []
        if entry.compile_s is not None:
            costs.append(f"{entry.compile_s:.0f} s to compile")
        if entry.memory_gib_per_device is not None:
            costs.append(f"{entry.memory_gib_per_device:.1f} GiB a device")
        table.add_row(
            entry.config.label,
            str(entry.agents),
            "none"
            if entry.low is None
            else f"{entry.low} to {entry.high}" + (" or more" if entry.high == entry.most_tried else ""),
            f"{entry.windows_within} of {entry.replicates}",
            *(
                "" if value is None else f"{value:.3f} s"
                for value in (entry.ttft_p95_s, entry.inter_token_p95_s, entry.device_time_per_turn_s)
            ),
            ", ".join(entry.next_broken) or "not tried",
            ", ".join(costs) or "not known",
        )
    console.print(table)
    repeat = " and one repeat of it" if found[0].repeated else "; the profile knows no scatter, so it is run as drawn"
    console.print(f"interval: 95 % of the resamples of the replicates, each a plan of its own{repeat}")
    console.print("windows: replicates that keep the limits in their own window; the others make up for the rest")
    console.print("found by halving, which takes for granted that fewer agents are never slower")
    for text in sorted({text for entry in found for text in entry.extrapolated}):
        console.print(f"outside the measured range: {text}")

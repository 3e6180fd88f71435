"""A proposal as a page: how the buckets were found, the ranking, and the gap to the enumerated best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotgrid.report.search_table import search_report
from slotgrid.search import Proposal

if TYPE_CHECKING:
    from rich.console import Console


def propose_report(result: Proposal, max_seq_len: int, top: int, console: Console) -> None:
    """Print the way to every candidate, then what a search prints, then the gap if it was asked for."""
    console.print(f"{result.space_size:,} candidates in the space; proposed by best response:")
    for way in result.ways:
        steps = " > ".join(",".join(map(str, buckets)) for buckets in way.path)
        first = (
            f"first guess analytic for N = {', '.join(map(str, way.analytic_sessions))}"
            if way.analytic_sessions
            else "no first guess, N is above the batch"
        )
        end = "cheapest for its own occupancy" if way.fixed else "the answers go round, all are candidates"
        console.print(f"  batch {way.max_running}, {way.slots} slots: {steps} ({first}; {end})")
    for batch, slots in result.too_large:
        console.print(f"  batch {batch}, {slots} slots: not looked at, it does not fit into a device")
    console.print()
    search_report(result.result, "proposed", max_seq_len, top, console)
    gap = result.checked
    if gap is not None:
        console.print()
        best = gap.best
        text = (
            "the best proposal is the best of all"
            if gap.rank == 1
            else f"the best proposal has rank {gap.rank}, {gap.gap:.4f} above the best, {best.config.label} "
            f"({best.ratio:.4f})"
        )
        console.print(f"Checked against all {gap.enumerated:,} candidates: {text}", style="bold")

"""An explanation as a page: occupancy, reuse, the cheapest set, and a sentence for every bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from slotgrid.search import Explanation
from slotgrid.search.explain import View

if TYPE_CHECKING:
    from rich.console import Console

_MS = 1000
_FOUND = {
    None: "",
    True: " (the cheapest for their own analytic occupancy)",
    False: " (one of a circle of sets, each the cheapest for the analytic occupancy of the one before)",
}


def explain_report(result: Explanation, console: Console) -> None:
    """Print what makes the buckets cheap or not, for the analytic view and the simulated one if there is any."""
    config = result.config
    console.print(
        f"{result.profile_id}, workload {result.workload_id}, rules {result.rules.name}, "
        f"turnaround {result.turnaround_s * _MS:g} ms, clock: {result.clock_text}"
    )
    console.print(
        f"Buckets {_set(config.buckets)}"
        + _FOUND[result.fixed]
        + f", max running {config.max_running}, {config.slots} KV slots; N = {', '.join(map(str, result.sessions))} "
        f"clients (the analytic view holds for N from 1 to {result.most_sessions})"
    )
    for text in result.notes:
        console.print(f"note: {text}")
    console.print()
    console.print(_occupancy(result))
    console.print()
    console.print(_figures(result))
    if result.occupancy_difference is not None:
        console.print(
            f"The two occupancies differ in {result.occupancy_difference:.1%} of the decode steps (total variation)."
        )
    for view in result.views:
        console.print()
        _cheapest(view, console)
    console.print()
    console.print(f"Why these buckets, by the {result.views[-1].source} occupancy:", style="bold")
    for reason in result.views[-1].reasons:
        console.print(f"  {reason.sentence}")
    console.print(f"  {config.buckets[-1]} is the top: it has to hold max running {config.max_running}")


def _occupancy(result: Explanation) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("running", "bucket", "step", *(f"h(n) {view.source}" for view in result.views)):
        table.add_column(name, justify="right", no_wrap=True)
    for n in range(1, result.config.max_running + 1):
        shares = [float(view.steps[n]) for view in result.views]
        if any(share >= 5e-5 for share in shares):
            table.add_row(
                str(n),
                str(result.config.bucket_for(n)),
                f"{result.step_s[n] * _MS:.2f} ms",
                *(f"{share:.2%}" for share in shares),
            )
    return table


def _figures(result: Explanation) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("N", justify="right")
    table.add_column("view", no_wrap=True)
    for name in ("reuse", "running in a step", "cycle", "device time a turn"):
        table.add_column(name, justify="right")
    for n, prediction in result.predictions.items():
        for view in result.views:
            reuse = view.reuse[n]
            analytic = view.source == "analytic"
            table.add_row(
                str(n),
                view.source,
                "no returns" if reuse is None else f"{reuse:.3f}",
                f"{view.mean_running[n]:.2f}",
                f"{prediction.cycle_s:.2f} s" if analytic else "",
                f"{prediction.device_time_per_turn_s:.4f} s" if analytic else "",
            )
    return table


def _cheapest(view: View, console: Console) -> None:
    best = view.optimal
    console.print(f"Cheapest set for the {view.source} occupancy: {_set(best.buckets)}", style="bold")
    table = Table(box=None, pad_edge=False)
    table.add_column("buckets", no_wrap=True)
    table.add_column("bucket part of a step", justify="right")
    table.add_column("over the cheapest", justify="right")
    rows = [(buckets, seconds, excess) for buckets, seconds, excess in view.over_optimal if buckets != best.buckets]
    for buckets, seconds, excess in [(best.buckets, best.seconds, 0.0), *rows]:
        table.add_row(_set(buckets), f"{seconds * _MS:.3f} ms", f"{excess:+.2%}" if excess else "")
    console.print(table)


def _set(buckets: tuple[int, ...]) -> str:
    return ",".join(map(str, buckets))

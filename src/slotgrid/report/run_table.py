"""A run as a few tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from slotgrid.run import Run

if TYPE_CHECKING:
    from rich.console import Console


def run_report(run: Run, console: Console) -> None:
    """Print totals, the step histogram and what was outside the measured range."""
    facts = [
        f"slots {run.config.slots}" if run.config else "",
        f"max running {run.config.max_running}" if run.config else "",
        f"rules {run.rules}" if run.rules else "",
        f"turnaround {run.turnaround_s * 1000:g} ms" if run.turnaround_s is not None else "",
    ]
    buckets = ",".join(map(str, run.config.buckets)) if run.config else "not known"
    console.print(f"{run.source} run of plan {run.plan_id} on buckets {buckets}")
    console.print(", ".join(fact for fact in facts if fact))
    totals = Table(box=None, show_header=False)
    totals.add_row(
        "device time",
        _seconds(run.device_time_s),
        f"decode {_seconds(run.decode_s)}, prefill {_seconds(run.prefill_s)}",
    )
    totals.add_row("stall", _seconds(run.stall_session_s), "session-seconds others wait while a prefill runs")
    totals.add_row("wall", _seconds(run.wall_s), "")
    padding = "none" if run.padding_ratio is None else f"{run.padding_ratio:.2%}"
    totals.add_row("padding", padding, f"{run.decode_steps} decode steps")
    totals.add_row("reused", f"{run.reused} of {run.returns}", "returning requests that found their prefix in a slot")
    totals.add_row("tokens", f"{run.computed_tokens}", f"computed in prefill, {run.cached_tokens} taken from slots")
    if run.evictions is None:
        totals.add_row("evictions", "not observed", "")
    else:
        totals.add_row(
            "evictions",
            f"{run.evictions.height}",
            f"{run.evicted('admission')} by admission, {run.evicted('padding')} by padding",
        )
    console.print(totals)
    if run.histogram is not None:
        steps = Table("running", "bucket", "steps", box=None)
        for row in run.histogram.iter_rows():
            steps.add_row(*map(str, row))
        console.print(steps)
    for text in run.extrapolated:
        console.print(f"outside the measured range: {text}")
    for text in run.notes:
        console.print(f"note: {text}")


def _seconds(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3f} s"

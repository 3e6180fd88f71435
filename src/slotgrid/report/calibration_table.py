"""What a calibration found, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from slotgrid.measure.calibrate.calibrate import Calibration


def calibration_report(result: Calibration, out: Console) -> None:
    """Every finding in the order of the probes, then the costs with their intervals."""
    from rich.table import Table

    table = Table(box=None)
    for column in ("asked", "found", "samples"):
        table.add_column(column, justify="right" if column == "samples" else "left")
    for finding in result.findings:
        table.add_row(finding.name, finding.value or f"not decided: {finding.reason}", str(finding.samples))
    out.print(table)
    if result.profile is None:
        return
    out.print()
    costs = Table(box=None)
    for column in ("cost", "value", "95 % interval"):
        costs.add_column(column)
    for name, quantity in result.profile.provenance:
        if quantity.interval is None:
            continue
        low, high = (end / quantity.value - 1 if quantity.value else 0.0 for end in quantity.interval)
        costs.add_row(name, quantity.text, f"{low:+.1%} to {high:+.1%}" if quantity.value else "")
    out.print(costs)
    if result.config is not None:
        config = result.config
        out.print(
            f"\nconfiguration: buckets {config.label}, {config.slots} slots, at most {config.max_running} running"
        )

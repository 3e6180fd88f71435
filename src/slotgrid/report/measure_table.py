"""A measurement as tables: the order before it, the conditions after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from slotgrid.measure.arms import Arms, ConditionResult
from slotgrid.measure.dry_run import DryRun

if TYPE_CHECKING:
    from rich.console import Console


def order_report(arms: Arms, totals: Sequence[DryRun], console: Console) -> None:
    """Print which arm is measured when, and what each plan asks for."""
    console.print(f"{len(arms.arms)} arms, {len(totals)} replicates, order drawn with seed {arms.seed}")
    table = Table("replicate", "order", "plan", "clients", "turns", "longest context", "shortest run", box=None)
    for replicate, (names, plan) in enumerate(zip(arms.order, totals, strict=True)):
        table.add_row(
            f"r{replicate}",
            " ".join(names),
            plan.plan_id,
            f"{plan.clients:,}",
            f"{plan.turns:,}",
            f"{plan.longest_context_tokens:,}",
            f"{plan.least_s:,.1f} s",
        )
    console.print(table)
    least_s = len(arms.arms) * sum(plan.least_s for plan in totals)
    console.print(f"all conditions: at least {least_s:,.1f} s, and each server's start")


def conditions_report(results: Sequence[ConditionResult], console: Console) -> None:
    """Print every condition in the order it was measured."""
    table = Table("condition", "valid", "runs", "server ended", "started (UTC)", "reasons", box=None)
    for result in results:
        code = "" if result.exit_code is None else f"{result.ended}, {result.exit_code}"
        table.add_row(
            f"{result.arm} r{result.replicate}",
            "yes" if result.valid else "no",
            str(result.attempts),
            code,
            "" if result.started_at is None else result.started_at[:19],
            "; ".join(result.reasons),
        )
    console.print(table)

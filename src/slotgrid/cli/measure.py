"""``slotgrid measure``: every arm on every plan, on fresh servers, in a balanced order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotgrid.cli._common import JsonOption, console, note, print_json

if TYPE_CHECKING:
    from slotgrid.measure.arms import Arms, ConditionResult


def measure(
    path: Annotated[Path, typer.Argument(help="Arms, their servers and plans (docs/measure.md).", metavar="ARMS.toml")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Directory for all run directories.", metavar="DIR")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check all files, show the order, start nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure arms: compile, start a fresh server for each condition, replay its plan, keep everything.

    Called again with the same arms and directory it goes on where it was stopped.
    """
    from slotgrid.errors import InputError, RunError
    from slotgrid.measure.arms import load_arms, measure_arms

    arms = load_arms(path)
    if dry_run:
        _show_order(arms, as_json)
        return
    if output is None:
        raise InputError("-o is missing; give a directory for the run directories")
    from slotgrid.report.live import measure_display

    with measure_display(note) as (progress, tell):
        results = measure_arms(arms=arms, output=output, progress=progress, note=tell)
    note(f"runs written to {output}")
    _show(results, as_json)
    bad = [result for result in results if not result.valid]
    if bad:
        first = bad[0]
        raise RunError(
            f"{len(bad)} of {len(results)} conditions are not valid, the first {first.arm} r{first.replicate}: "
            f"{first.reasons[0]}"
        )


def _show_order(arms: Arms, as_json: bool) -> None:
    from slotgrid.measure.arm_file import plan_of
    from slotgrid.measure.dry_run import dry_run

    totals = [dry_run(plan_of(arms, replicate), arms.options.window) for replicate in range(len(arms.plans))]
    if as_json:
        print_json({"order": arms.order, "seed": arms.seed, "plans": [plan.to_dict() for plan in totals]})
        return
    from slotgrid.report.measure_table import order_report

    order_report(arms, totals, console())


def _show(results: list[ConditionResult], as_json: bool) -> None:
    if as_json:
        valid = all(result.valid for result in results)
        print_json({"valid": valid, "conditions": [result.to_dict() for result in results]})
        return
    from slotgrid.report.measure_table import conditions_report

    conditions_report(results, console())

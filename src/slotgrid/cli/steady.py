"""``slotgrid steady``: the evaluation window of a run that exists, simulated or measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotgrid.cli._common import JsonOption, console, print_json, progress_bar, seconds


def steady(
    folder: Annotated[Path, typer.Argument(help="Directory of one run.", metavar="RUN_DIR")],
    plan: Annotated[Path, typer.Option(help="The plan it ran.")],
    profile: Annotated[str, typer.Option(help="Built-in profile id or TOML file; prices steps.")],
    window: Annotated[str, typer.Option(help="Seconds evaluated after the warm-up, with unit.")] = "120s",
    cycle: Annotated[
        str | None, typer.Option(help="Cycle of the warm-up rule, with unit; from the plan's starts unless given.")
    ] = None,
    warmup: Annotated[str | None, typer.Option(help="Warm-up with unit, instead of the rule.")] = None,
    as_json: JsonOption = False,
) -> None:
    """What a run does per turn inside its evaluation window: the same rule for simulated and measured runs."""
    from slotgrid.engine.steady import measure_window
    from slotgrid.errors import InputError
    from slotgrid.plan import load_plan
    from slotgrid.profile import load_profile
    from slotgrid.run.readers import read_run

    input_plan = load_plan(plan)
    with progress_bar("reading", "bytes") as progress:
        run = read_run(folder, progress=progress)
    if run.plan_sha256 is not None and run.plan_sha256 != input_plan.content_sha256:
        raise InputError(
            f"{folder}: ran plan {run.plan_id} ({run.plan_sha256[:12]}), --plan {plan} is {input_plan.plan_id} "
            f"({input_plan.content_sha256[:12]})"
        )
    found = measure_window(
        run,
        input_plan,
        load_profile(profile),
        evaluation_s=seconds(window, "--window") or 0.0,
        cycle_s=seconds(cycle, "--cycle"),
        warmup_s=seconds(warmup, "--warmup"),
    )
    if as_json:
        print_json({**found.to_dict(), "source": run.source, "notes": list(run.notes)})
        return
    from slotgrid.report.steady_table import steady_report

    steady_report(found, run, console())

"""``slotgrid simulate``: one plan on one configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotgrid.cli._common import JsonOption, console, note, print_json, seconds


def simulate(
    path: Annotated[Path, typer.Argument(help="Plan file.", metavar="PLAN")],
    profile: Annotated[str, typer.Option(help="Built-in profile id or TOML file.")],
    buckets: Annotated[str, typer.Option(help="Decode batch buckets, e.g. 1,2,4,8.")],
    slots: Annotated[int | None, typer.Option(help="KV slots; the top bucket unless given.")] = None,
    max_running: Annotated[int | None, typer.Option(help="Running limit; the top bucket unless given.")] = None,
    rules: Annotated[str | None, typer.Option(help="real or paper; the profile's unless given.")] = None,
    release: Annotated[str | None, typer.Option(help="Switch one rule: at_once or next_admission.")] = None,
    padding: Annotated[str | None, typer.Option(help="Switch one rule: none or evict.")] = None,
    arrivals: Annotated[str | None, typer.Option(help="Switch one rule: plan, fixed or closed_loop.")] = None,
    turnaround: Annotated[str | None, typer.Option(help="Client turnaround with unit, e.g. 0.8ms.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Run directory to write.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate one plan on one configuration and print its totals."""
    from slotgrid.config import ServingConfig
    from slotgrid.engine import find_rules
    from slotgrid.engine import simulate as run_simulation
    from slotgrid.plan import load_plan
    from slotgrid.profile import load_profile
    from slotgrid.run import save_run

    stack = load_profile(profile)
    config = ServingConfig.parse(buckets, slots=slots, max_running=max_running)
    rule_set = find_rules(stack.rules if rules is None else rules).but(
        release=release,  # type: ignore[arg-type]  # checked by the rule set
        padding=padding,  # type: ignore[arg-type]
        arrivals=arrivals,  # type: ignore[arg-type]
    )
    run = run_simulation(
        stack, config, load_plan(path), rules=rule_set, turnaround_s=seconds(turnaround, "--turnaround")
    )
    if output is not None:
        save_run(run, output)
        note(f"run written to {output}")
    if as_json:
        print_json(run.to_dict())
        return
    from slotgrid.report.run_table import run_report

    run_report(run, console())

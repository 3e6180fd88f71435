"""``slotgrid simulate``: one plan on one configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from slotgrid.cli._common import (
    ClockOption,
    JsonOption,
    ProfileOption,
    RulesOption,
    TurnaroundOption,
    WithoutOption,
    console,
    note,
    print_json,
    progress_bar,
    seconds,
    words,
)


def simulate(
    path: Annotated[Path, typer.Argument(help="Plan file.", metavar="PLAN")],
    profile: ProfileOption,
    buckets: Annotated[str, typer.Option(help="Decode batch buckets, e.g. 1,2,4,8.")],
    slots: Annotated[int | None, typer.Option(help="KV slots; the top bucket unless given.")] = None,
    max_running: Annotated[int | None, typer.Option(help="Running limit; the top bucket unless given.")] = None,
    rules: RulesOption = None,
    release: Annotated[str | None, typer.Option(help="Switch one rule: at_once or next_admission.")] = None,
    padding: Annotated[str | None, typer.Option(help="Switch one rule: none or evict.")] = None,
    arrivals: Annotated[str | None, typer.Option(help="Switch one rule: plan, fixed or closed_loop.")] = None,
    turnaround: TurnaroundOption = None,
    clock: ClockOption = None,
    without: WithoutOption = None,
    ensemble: Annotated[
        int | None, typer.Option(help="Repeats that differ by what is random on a real server, e.g. 200.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the ensemble; 0 unless given.")] = None,
    window: Annotated[
        str | None, typer.Option(help="Steady load: seconds evaluated after the warm-up, with unit, e.g. 120s.")
    ] = None,
    cycle: Annotated[
        str | None, typer.Option(help="Cycle of the warm-up rule, with unit; from the plan's starts unless given.")
    ] = None,
    warmup: Annotated[str | None, typer.Option(help="Warm-up with unit, instead of the rule.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Run directory to write.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate one plan on one configuration and print its totals, an evaluation window, or an ensemble."""
    from slotgrid.config import ServingConfig
    from slotgrid.engine import find_rules
    from slotgrid.engine import simulate as run_simulation
    from slotgrid.errors import InputError
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
    plan = load_plan(path)
    options: dict[str, Any] = {
        "rules": rule_set,
        "turnaround_s": seconds(turnaround, "--turnaround"),
        "clock": clock,
        "without": words(without),
    }
    if window is None:
        for option, given in (("--cycle", cycle), ("--warmup", warmup)):
            if given is not None:
                raise InputError(f"{option}: belongs to --window, which is missing")
    if seed is not None and ensemble is None:
        raise InputError("--seed: belongs to --ensemble, which is missing")
    seed = seed or 0
    if ensemble is not None and output is not None:
        raise InputError("--output: an ensemble has no single run to write; leave out -o or --ensemble")
    if window is not None:
        _steady(stack, config, plan, options, window, cycle, warmup, ensemble, seed, output, as_json=as_json)
        return
    if ensemble is not None:
        result = run_simulation(stack, config, plan, ensemble=ensemble, seed=seed, **options)
        if as_json:
            print_json(result.to_dict())
        else:
            from slotgrid.report.steady_table import ensemble_report

            ensemble_report(result, console())
        return
    run = run_simulation(stack, config, plan, **options)
    if output is not None:
        save_run(run, output)
        note(f"run written to {output}")
    if as_json:
        print_json(run.to_dict())
        return
    from slotgrid.report.run_table import run_report

    run_report(run, console())


def _steady(
    stack: Any,
    config: Any,
    plan: Any,
    options: dict[str, Any],
    window: str,
    cycle: str | None,
    warmup: str | None,
    ensemble: int | None,
    seed: int,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Simulate and report the evaluation window."""
    from slotgrid.engine import simulate as run_simulation
    from slotgrid.engine.steady import measure_window, simulate_steady_ensemble
    from slotgrid.report.steady_table import steady_ensemble_report, steady_report
    from slotgrid.run import save_run

    where: dict[str, Any] = {
        "evaluation_s": seconds(window, "--window"),
        "cycle_s": seconds(cycle, "--cycle"),
        "warmup_s": seconds(warmup, "--warmup"),
    }
    if ensemble is not None:
        with progress_bar("simulating", "repeats") as progress:
            repeats = simulate_steady_ensemble(
                stack, config, plan, ensemble=ensemble, seed=seed, progress=progress, **where, **options
            )
        if as_json:
            print_json(repeats.to_dict())
        else:
            steady_ensemble_report(repeats, console())
        return
    run = run_simulation(stack, config, plan, **options)
    steady = measure_window(run, plan, stack, **where)
    if output is not None:
        save_run(run, output)
        note(f"run written to {output}")
    if as_json:
        print_json({**steady.to_dict(), "extrapolated": list(run.extrapolated), "notes": list(run.notes)})
    else:
        steady_report(steady, run, console())

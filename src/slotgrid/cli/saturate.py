"""``slotgrid saturate`` and ``slotgrid null``: where more slots stop paying; what untreated repeats support."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotgrid.cli._common import JsonOption, console, print_json

if TYPE_CHECKING:
    from slotgrid.study.breakeven import ArmCost
    from slotgrid.study.saturation import Saturation

RESAMPLES, SEED = 4_000, 20261200


def saturate(
    source: Annotated[
        Path, typer.Argument(help="Study directory, or CSV: sessions,replicate,slots,device_s.", metavar="DIR|CSV")
    ],
    plan_set: Annotated[
        str | None, typer.Option("--set", help="Data set of the study; the only one unless given.", metavar="NAME")
    ] = None,
    arms: Annotated[str | None, typer.Option(help="Arms to compare, e.g. B8,B16; all unless given.")] = None,
    predicted: Annotated[bool, typer.Option("--predicted", help="Judge the predictions, not the runs.")] = False,
    channel: Annotated[str, typer.Option(help="a: priced device time; b: what the clients saw.")] = "a",
    profile: Annotated[str | None, typer.Option(help="For memory and compile cost of a CSV with buckets.")] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.", min=1)] = RESAMPLES,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.", min=0)] = SEED,
    as_json: JsonOption = False,
) -> None:
    """Judge adjacent slot counts: saturated, still gaining, losing or undecided."""
    from slotgrid.errors import InputError

    if channel not in ("a", "b"):
        raise InputError(f"--channel: {channel!r}; allowed: a, b")
    names = None if arms is None else [name.strip() for name in arms.split(",")]
    if not source.exists():
        raise InputError(f"{source}: No such file or directory; expected a study directory or a CSV")
    if source.is_dir():
        if profile is not None:
            raise InputError("--profile: a study has its registered profile; the option is for a CSV")
        found, costs, basis = _of_study(source, plan_set, names, predicted, channel, resamples, seed)
    else:
        for given, option in ((plan_set, "--set"), (names, "--arms"), (predicted or None, "--predicted")):
            if given is not None:
                raise InputError(f"{option}: for a study directory; {source} is not one")
        found, costs, basis = _of_csv(source, profile, resamples, seed)
    known = {cost.arm: cost for cost in costs}
    enough = None if found.enough is None else known.get(found.enough)
    if as_json:
        data = {"basis": basis, "resamples": resamples, "seed": seed, **found.to_dict()}
        print_json({**data, "costs": [cost.to_dict() for cost in costs]})
        return
    from slotgrid.report.diagnose_table import show_part
    from slotgrid.report.study_tables import SATURATION_COLUMNS, DataTable, gib, left_out_text, minutes, saturation_rows

    out = console()
    out.print(f"{basis} device times, channel {channel.upper()}; {resamples:,} resamples, seed {seed}")
    rows = saturation_rows(found)
    columns = ("fewer", "more", "median_ratio", "low", "high", "cells", "controlled")
    grid = DataTable("saturation", "", SATURATION_COLUMNS, tuple(rows)).grid(keys=columns)
    assert grid is not None
    show_part(grid, out)
    for row in rows:
        show_part(f"{row['fewer']} to {row['more']}: {row['decision']}: {row['rule']}", out)
    if found.left_out:
        out.print(left_out_text(found))
    detail = ""
    if enough is not None:
        detail = f": {enough.slots} slots"
        detail += "" if enough.memory_gib_per_device is None else f", {gib(enough.memory_gib_per_device)} of a device"
        detail += "" if enough.compile_s is None else f", {minutes(enough.compile_s)} to compile"
    out.print(found.conclusion(detail))


def _of_study(
    folder: Path,
    plan_set: str | None,
    names: list[str] | None,
    predicted: bool,
    channel: str,
    resamples: int,
    seed: int,
) -> tuple[Saturation, list[ArmCost], str]:
    from slotgrid.errors import InputError
    from slotgrid.study.breakeven import arm_cost
    from slotgrid.study.outcome import PREDICTED, Outcome
    from slotgrid.study.overview import set_saturation
    from slotgrid.study.study import open_study
    from slotgrid.study.verdict import load_verdict

    study = open_study(folder)
    entry, plans = study.choose(plan_set)
    if predicted:
        outcomes, basis = entry.predictions(plans.name), PREDICTED
    else:
        stored = load_verdict(study, entry, plans)
        if stored is None:
            raise InputError(
                f"{folder}: set {plans.name} has no verdict; judge it first (slotgrid study verdict {folder}), "
                "or look at the predictions with --predicted"
            )
        outcomes = [Outcome.from_dict(row, str(stored.path)) for row in stored.data["observations"]]
        basis = str(stored.data["source"])
    found = set_saturation(entry, plans, outcomes, arms=names, channel=channel, resamples=resamples, seed=seed)
    return found, [arm_cost(arm, entry.profile) for arm in entry.settings.arms], basis


def _of_csv(path: Path, profile: str | None, resamples: int, seed: int) -> tuple[Saturation, list[ArmCost], str]:
    from slotgrid.profile import load_profile
    from slotgrid.study.breakeven import arm_cost
    from slotgrid.study.csv_input import read_cells
    from slotgrid.study.saturation import find_saturation
    from slotgrid.study.settings import MEASURED, Arm

    stack = None if profile is None else load_profile(profile)
    cells, configs = read_cells(path)
    found = find_saturation(cells, resamples=resamples, seed=seed)
    costs = []
    if stack is not None:
        costs = [arm_cost(Arm(arm, config, MEASURED, None, None), stack) for arm, config in configs.items()]
    return found, costs, path.name


def null(
    sources: Annotated[
        list[Path], typer.Argument(help="Run directories of untreated repeats, or one CSV.", metavar="RUN_DIR...|CSV")
    ],
    profile: Annotated[str | None, typer.Option(help="Prices the runs (channel A); not for a CSV.")] = None,
    runs_per_sum: Annotated[
        int, typer.Option(help="Runs summed on each side of a pair, as many as a verdict sums.", min=1)
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Say which channel tolerance repeats of the same plan support (classes C1, C2, C3)."""
    from slotgrid.errors import InputError
    from slotgrid.study.null import UNDECIDED, null_distribution

    if len(sources) == 1 and not sources[0].is_dir():
        from slotgrid.study.csv_input import read_repeats

        if profile is not None:
            raise InputError("--profile: prices run directories; a CSV has its device seconds already")
        groups = read_repeats(sources[0])
    else:
        from slotgrid.profile import load_profile
        from slotgrid.study.repeats import repeats_of_runs

        if profile is None:
            raise InputError("--profile: is missing; it prices the steps of the runs (channel A)")
        groups = repeats_of_runs(sources, load_profile(profile))
    found = [null_distribution(rows, label=name, runs_per_sum=runs_per_sum) for name, rows in groups.items()]
    if as_json:
        print_json({"groups": [item.to_dict() for item in found]})
        return
    from slotgrid.report.diagnose_table import Grid, show_part
    from slotgrid.study.settings import SIMULATED

    out = console()
    for item in found:
        out.print(item.label or "repeats", style="bold")
        sums = "" if item.runs_per_sum == 1 else f" of sums of {item.runs_per_sum}"
        rows = [
            (name, *(f"{value:.4f}" for value in (s.median, s.q95, s.largest, s.smallest)))
            for name, s in (
                ("channel difference", item.difference),
                ("A: |ratio - 1|", item.ratio_a),
                ("B: |ratio - 1|", item.ratio_b),
            )
        ]
        header = (f"{item.pairs:,} pairs{sums}, {item.runs} runs", "median", "95 %", "largest", "smallest")
        show_part(Grid(header, tuple(rows), frozenset({1, 2, 3, 4})), out)
        show_part(
            f"variation of single runs: A {item.cv_a:.4f}, B {item.cv_b:.4f}; residual B - A: median "
            f"{item.residual_median_s:.3f} s, {item.residual_share_median:.4f} of B",
            out,
        )
        if item.source == SIMULATED:
            show_part("simulated runs: this says nothing about hardware", out, "bold")
        if item.klass == UNDECIDED:
            show_part(f"class undecided: {item.rule}", out)
            continue
        supported = "none of the two" if item.tolerance is None else f"{item.tolerance:.4f}"
        show_part(f"class {item.klass}: {item.rule}; tolerance these data support: {supported}", out)

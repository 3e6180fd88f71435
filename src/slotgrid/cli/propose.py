"""``slotgrid propose``: candidates for spaces too large to enumerate, simulated and ranked."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from slotgrid.cli._common import JsonOption, console, print_json, progress_bar, seconds, whole_numbers


def propose(
    profile: Annotated[str, typer.Option(help="Built-in profile id or TOML file.")],
    workload: Annotated[str, typer.Option(help="Built-in workload name or TOML file.")],
    sessions: Annotated[str, typer.Option(help="Concurrent clients to search for, e.g. 24,48.")],
    batch: Annotated[str, typer.Option(help="Batch sizes: a list or range, e.g. 16,32 or 16-64:16.")],
    baseline: Annotated[str, typer.Option(help="Buckets of the baseline, e.g. 1,2,4,8 or 1,2,4,8@9 (9 slots).")],
    max_buckets: Annotated[int, typer.Option(help="Most bucket sizes of a candidate.")] = 6,
    intermediate: Annotated[
        str | None, typer.Option(help="Sizes allowed between 1 and the batch; all unless given.")
    ] = None,
    slots: Annotated[str, typer.Option(help="KV slots above the batch size, e.g. +0,+1,+4.")] = "+0",
    rules: Annotated[str | None, typer.Option(help="real or paper; the profile's unless given.")] = None,
    turnaround: Annotated[str | None, typer.Option(help="Client turnaround with unit, e.g. 0.8ms.")] = None,
    clock: Annotated[
        str | None, typer.Option(help="What moves time: price or operating; the profile's unless given.")
    ] = None,
    ensemble: Annotated[
        int | None, typer.Option(help="Repeats of every plan that differ by what is random on a real server.")
    ] = None,
    ensemble_seed: Annotated[int, typer.Option(help="Seed of the repeats.")] = 0,
    compile_budget: Annotated[str | None, typer.Option(help="Longest compile time with unit, e.g. 30m.")] = None,
    memory_budget: Annotated[
        str | None,
        typer.Option(help="Most memory of a device with unit, e.g. 15.7GiB; the profile's unless given."),
    ] = None,
    score: Annotated[str, typer.Option(help="sum (of seconds) or mean (of ratios per session count).")] = "sum",
    near_tie: Annotated[float, typer.Option(help="Ratios this close to the best are near-ties.")] = 0.005,
    explore_seeds: Annotated[str | None, typer.Option(help="Seeds of the plans that rank candidates.")] = None,
    eval_seeds: Annotated[str | None, typer.Option(help="Seeds of the plans that check the ranking.")] = None,
    blocks: Annotated[str | None, typer.Option(help="Blocks: several plans per seed, e.g. 0,1,2.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Enumerate the space as well and report the gap to its best.")
    ] = False,
    top: Annotated[int, typer.Option(help="Ranked candidates to show.", min=1)] = 10,
    threads: Annotated[int | None, typer.Option(help="Threads; all cores unless given.", min=1)] = None,
    as_json: JsonOption = False,
) -> None:
    """Propose configurations without enumerating their space; simulate and rank them."""
    from slotgrid.config import ServingConfig
    from slotgrid.profile import load_profile
    from slotgrid.search import propose as run_propose
    from slotgrid.units import parse_quantity
    from slotgrid.workload import load_workload

    def numbers(text: str | None, option: str) -> tuple[int, ...] | None:
        return None if text is None else whole_numbers(text, option)

    source = load_workload(workload)
    with progress_bar("proposing", "batch sizes") as progress:
        result = run_propose(
            load_profile(profile),
            source,
            sessions=whole_numbers(sessions, "--sessions"),
            batch=whole_numbers(batch, "--batch"),
            baseline=ServingConfig.parse(baseline),
            max_buckets=max_buckets,
            intermediate=numbers(intermediate, "--intermediate"),
            extra_slots=whole_numbers(slots.replace("+", ""), "--slots"),
            rules=rules,
            turnaround_s=seconds(turnaround, "--turnaround"),
            clock=clock,
            ensemble=ensemble,
            ensemble_seed=ensemble_seed,
            explore_seeds=numbers(explore_seeds, "--explore-seeds"),
            evaluate_seeds=numbers(eval_seeds, "--eval-seeds"),
            blocks=numbers(blocks, "--blocks"),
            score=score,  # type: ignore[arg-type]  # checked by search
            near_tie=near_tie,
            compile_budget_s=seconds(compile_budget, "--compile-budget"),
            memory_budget_gib=(
                None if memory_budget is None else parse_quantity(memory_budget, "size", "--memory-budget")
            ),
            threads=threads or os.cpu_count() or 1,
            check=check,
            progress=progress,
        )
    if as_json:
        print_json(result.to_dict(top=top))
        return
    from slotgrid.report.propose_table import propose_report

    propose_report(result, source.max_seq_len, top, console())

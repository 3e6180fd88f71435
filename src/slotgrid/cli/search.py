"""``slotgrid search``: every candidate on the same plans, and the configuration to compile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from slotgrid.cli._common import (
    BaselineOption,
    BlocksOption,
    ClockOption,
    CompileBudgetOption,
    EvalSeedsOption,
    ExploreSeedsOption,
    ExtraSlotsOption,
    IntermediateOption,
    JsonOption,
    MaxBucketsOption,
    MemoryBudgetOption,
    NearTieOption,
    ProfileOption,
    RepeatsOption,
    RepeatsSeedOption,
    RulesOption,
    ScoreOption,
    TurnaroundOption,
    WorkloadOption,
    console,
    note,
    print_json,
    progress_bar,
    seconds,
    whole_numbers,
)

DEFAULT_FOLDER = Path("slotgrid-search")


def search(
    profile: ProfileOption,
    workload: WorkloadOption,
    sessions: Annotated[str, typer.Option(help="Concurrent clients to search for, e.g. 6,8,10.")],
    batch: Annotated[str, typer.Option(help="Batch sizes: a list or range, e.g. 8,10,12,16 or 8-16:2.")],
    baseline: BaselineOption,
    max_buckets: MaxBucketsOption = 6,
    intermediate: IntermediateOption = None,
    slots: ExtraSlotsOption = "+0",
    rules: RulesOption = None,
    turnaround: TurnaroundOption = None,
    clock: ClockOption = None,
    ensemble: RepeatsOption = None,
    ensemble_seed: RepeatsSeedOption = 0,
    compile_budget: CompileBudgetOption = None,
    memory_budget: MemoryBudgetOption = None,
    score: ScoreOption = "sum",
    near_tie: NearTieOption = 0.005,
    explore_seeds: ExploreSeedsOption = None,
    eval_seeds: EvalSeedsOption = None,
    blocks: BlocksOption = None,
    top: Annotated[int, typer.Option(help="Ranked candidates to show.", min=1)] = 10,
    threads: Annotated[int | None, typer.Option(help="Threads; all cores unless given.", min=1)] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the ledger.")] = DEFAULT_FOLDER,
    no_ledger: Annotated[bool, typer.Option("--no-ledger", help="Write no files.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped search in the same folder.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Rank candidate configurations on the same plans and name the one to compile."""
    from slotgrid.config import ServingConfig
    from slotgrid.errors import InputError
    from slotgrid.profile import load_profile
    from slotgrid.search import SearchSpace
    from slotgrid.search import search as run_search
    from slotgrid.search.ledger import PARTIAL, PARTIAL_STATE
    from slotgrid.units import parse_quantity
    from slotgrid.workload import load_workload

    if resume and no_ledger:
        raise InputError("--resume: needs the ledger that --no-ledger turns off")
    extra = whole_numbers(slots.replace("+", ""), "--slots")
    space = SearchSpace(
        whole_numbers(batch, "--batch"),
        max_buckets,
        None if intermediate is None else whole_numbers(intermediate, "--intermediate"),
        extra,
    )
    source = load_workload(workload)
    folder = None if no_ledger else output
    if folder is not None and not resume and (folder / PARTIAL).exists():
        note(f"{folder}: starting anew; what a stopped search kept there is dropped (--resume would have continued it)")

    def numbers(text: str | None, option: str) -> tuple[int, ...] | None:
        return None if text is None else whole_numbers(text, option)

    try:
        with progress_bar("searching", "candidates") as progress:
            result = run_search(
                load_profile(profile),
                space,
                source,
                sessions=whole_numbers(sessions, "--sessions"),
                baseline=ServingConfig.parse(baseline),
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
                folder=folder,
                resume=resume,
                threads=threads or os.cpu_count() or 1,
                progress=progress,
            )
    except KeyboardInterrupt:
        if folder is not None and (folder / PARTIAL_STATE).exists():
            note(f"stopped; what is done is kept in {folder}, continue with --resume")
        raise
    if as_json:
        print_json(result.to_dict(top=top))
    else:
        from slotgrid.report.search_table import search_report

        search_report(result, space.describe(), source.max_seq_len, top, console())
    if folder is not None:
        note(f"ledger: {folder / 'ledger.parquet'} and ledger.csv ({result.candidates} candidates)")

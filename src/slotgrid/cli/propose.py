"""``slotgrid propose``: candidates for spaces too large to enumerate, simulated and ranked."""

from __future__ import annotations

import os
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
    print_json,
    progress_bar,
    seconds,
    whole_numbers,
)


def propose(
    profile: ProfileOption,
    workload: WorkloadOption,
    sessions: Annotated[str, typer.Option(help="Concurrent clients to search for, e.g. 24,48.")],
    batch: Annotated[str, typer.Option(help="Batch sizes: a list or range, e.g. 16,32 or 16-64:16.")],
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

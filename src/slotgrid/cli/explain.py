"""``slotgrid explain``: why a bucket set is what it is."""

from __future__ import annotations

from typing import Annotated

import typer

from slotgrid.cli._common import (
    BlocksOption,
    ClockOption,
    JsonOption,
    ProfileOption,
    RulesOption,
    TurnaroundOption,
    WorkloadOption,
    console,
    print_json,
    seconds,
    whole_numbers,
)


def explain(
    profile: ProfileOption,
    workload: WorkloadOption,
    sessions: Annotated[str, typer.Option(help="Concurrent clients, e.g. 8 or 6,8,10; each at most --max-running.")],
    max_running: Annotated[int, typer.Option(help="Most requests in one decode step (batch size).")],
    slots: Annotated[int | None, typer.Option(help="KV slots; as many as --max-running unless given.")] = None,
    buckets: Annotated[
        list[str] | None,
        typer.Option(help="Bucket set, e.g. 1,4,6,8,10,16; may be repeated, the first is explained."),
    ] = None,
    max_buckets: Annotated[int, typer.Option(help="Most sizes of the cheapest set.")] = 6,
    intermediate: Annotated[
        str | None, typer.Option(help="Sizes the cheapest set may hold between 1 and the top; all unless given.")
    ] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Simulate the same plans beside the equations.")] = False,
    rules: RulesOption = None,
    turnaround: TurnaroundOption = None,
    clock: ClockOption = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of the plans; the workload's unless given.")] = None,
    blocks: BlocksOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain a bucket set by how many requests run at once: the cheapest set for it, and what each bucket saves."""
    from slotgrid.config import ServingConfig
    from slotgrid.profile import load_profile
    from slotgrid.search import explain as run_explain
    from slotgrid.workload import load_workload

    result = run_explain(
        load_profile(profile),
        load_workload(workload),
        sessions=whole_numbers(sessions, "--sessions"),
        max_running=max_running,
        slots=slots,
        buckets=[ServingConfig.parse(text).buckets for text in buckets or ()],
        max_buckets=max_buckets,
        intermediate=None if intermediate is None else whole_numbers(intermediate, "--intermediate"),
        simulate=simulate,
        rules=rules,
        turnaround_s=seconds(turnaround, "--turnaround"),
        clock=clock,
        seeds=None if seeds is None else whole_numbers(seeds, "--seeds"),
        blocks=None if blocks is None else whole_numbers(blocks, "--blocks"),
    )
    if as_json:
        print_json(result.to_dict())
        return
    from slotgrid.report.explain_table import explain_report

    explain_report(result, console())

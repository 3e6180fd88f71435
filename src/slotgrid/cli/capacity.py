"""``slotgrid capacity``: how many concurrent agents a configuration serves within latency limits."""

from __future__ import annotations

from typing import Annotated

import typer

from slotgrid.cli._common import (
    ClockOption,
    JsonOption,
    ProfileOption,
    RulesOption,
    WithoutOption,
    WorkloadOption,
    console,
    print_json,
    progress_bar,
    seconds,
    whole_numbers,
    words,
)


def capacity(
    profile: ProfileOption,
    workload: WorkloadOption,
    buckets: Annotated[
        list[str], typer.Option(help="A configuration, e.g. 1,2,4,8 or 1,2,4,8@9 (9 slots); give it once for each.")
    ],
    ttft_p95: Annotated[
        str | None, typer.Option(help="Highest 95th percentile of the time to first token, e.g. 500ms.")
    ] = None,
    itl_p95: Annotated[
        str | None, typer.Option(help="Highest 95th percentile of the time between tokens, e.g. 50ms.")
    ] = None,
    most_agents: Annotated[int, typer.Option(help="Most agents to try.")] = 64,
    seeds: Annotated[str, typer.Option(help="Replicates: one plan and one repeat per seed, e.g. 0-19.")] = "0-19",
    window: Annotated[str, typer.Option(help="Seconds evaluated after the warm-up, with unit.")] = "120s",
    cycle: Annotated[
        str | None, typer.Option(help="Agents start this long over their number apart; the workload's unless given.")
    ] = None,
    rules: RulesOption = None,
    clock: ClockOption = None,
    without: WithoutOption = None,
    turnaround: Annotated[str | None, typer.Option(help="Client turnaround with unit; not perturbed then.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Largest number of concurrent agents within limits of TTFT and inter-token latency, per configuration."""
    from slotgrid.config import ServingConfig
    from slotgrid.profile import load_profile
    from slotgrid.search.capacity import Limits
    from slotgrid.search.capacity import capacity as find_capacity
    from slotgrid.workload import load_workload

    limits = Limits(seconds(ttft_p95, "--ttft-p95"), seconds(itl_p95, "--itl-p95"))
    stack = load_profile(profile)
    with progress_bar("capacity", "configurations") as progress:
        found = find_capacity(
            stack,
            [ServingConfig.parse(text) for text in buckets],
            load_workload(workload),
            limits,
            most_agents=most_agents,
            seeds=whole_numbers(seeds, "--seeds"),
            evaluation_s=seconds(window, "--window") or 0.0,
            cycle_s=seconds(cycle, "--cycle"),
            rules=rules,
            turnaround_s=seconds(turnaround, "--turnaround"),
            clock=clock,
            without=words(without),
            progress=progress,
        )
    if as_json:
        print_json(
            {
                "profile": stack.id,
                "workload": workload,
                "limits": {"ttft_p95_s": limits.ttft_p95_s, "inter_token_p95_s": limits.inter_token_p95_s},
                "capacities": [entry.to_dict() for entry in found],
            }
        )
        return
    from slotgrid.report.capacity_table import capacity_report

    capacity_report(found, console())

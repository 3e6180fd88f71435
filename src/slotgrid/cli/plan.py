"""``slotgrid plan``: draw plans and look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from slotgrid.cli._common import JsonOption, console, note, print_json, seconds

app = typer.Typer(help="Draw input plans and look at them.", no_args_is_help=True)


@app.command()
def draw(
    workload: Annotated[str, typer.Argument(help="Built-in workload name or TOML file.")],
    seed: Annotated[int, typer.Option(help="Base seed.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Plan file to write.")],
    sessions: Annotated[
        int | None, typer.Option(help="Concurrent clients; with open-loop arrivals the number of sessions.")
    ] = None,
    block: Annotated[int, typer.Option(help="Block: another plan of the same seed.")] = 0,
    plan_id: Annotated[str | None, typer.Option(help="Plan id instead of the workload's pattern.")] = None,
    sessions_per_client: Annotated[
        int | None, typer.Option(help="Sessions each client runs one after another; the workload's unless given.")
    ] = None,
    cycle: Annotated[
        str | None, typer.Option(help="Clients start this long over their number apart, with unit, e.g. 5.5s.")
    ] = None,
    arrivals_per_s: Annotated[
        float | None, typer.Option(help="Open loop: sessions arrive by themselves at this mean rate (Poisson).")
    ] = None,
    arrival_times: Annotated[
        Path | None, typer.Option(help="Open loop: file with the start of each session in seconds, one a line.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw one plan from a workload and write it as JSON."""
    from slotgrid.errors import InputError
    from slotgrid.workload import load_workload
    from slotgrid.workload.open_loop import draw_open, poisson_starts, read_starts

    source = load_workload(workload)
    if arrivals_per_s is None and arrival_times is None:
        if sessions is None:
            raise InputError("--sessions is missing; give the number of concurrent clients")
        plan = source.draw(
            clients=sessions,
            seed=seed,
            block=block,
            plan_id=plan_id,
            cycle_s=seconds(cycle, "--cycle"),
            sessions_per_client=sessions_per_client,
        )
    else:
        for option, given in (
            ("--arrival-times", None if arrivals_per_s is None else arrival_times),
            ("--sessions-per-client", sessions_per_client),
            ("--cycle", cycle),
        ):
            if given is not None:
                raise InputError(f"{option}: has no meaning beside the other option for open-loop arrivals")
        if arrival_times is not None:
            starts = read_starts(arrival_times)
            if sessions is not None and not 1 <= sessions <= len(starts):
                raise InputError(f"--sessions: {sessions}; {arrival_times} holds {len(starts)} start times")
            starts = starts[:sessions]
        else:
            if sessions is None:
                raise InputError("--sessions is missing; give the number of sessions that arrive")
            starts = poisson_starts(rate_per_s=arrivals_per_s or 0.0, sessions=sessions, seed=seed, name=f"b{block}")
        plan = draw_open(source, starts, seed=seed, block=block, plan_id=plan_id)
    plan.save(output)
    if as_json:
        print_json({"path": str(output), **_summary(plan)})
    else:
        note(f"{output}: {plan!r}")


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="Plan file.", metavar="PLAN")],
    as_json: JsonOption = False,
) -> None:
    """Show what a plan holds: counts, longest context, waits, hash."""
    from slotgrid import files
    from slotgrid.plan import plan_from_json, published_content_sha256

    data = files.read_json(path)
    summary = _summary(plan_from_json(data, str(path)))
    if "spec" in data:
        # a published plan is known by the hash of its own format
        summary["published_content_sha256"] = published_content_sha256(data)
    if as_json:
        print_json(summary)
        return
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for key, value in summary.items():
        text = "not given" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
        table.add_row(key, text)
    console().print(table)


def _summary(plan: Any) -> dict[str, Any]:
    turns = [turn for _, session in plan.sessions() for turn in session.turns]
    return {
        "plan_id": plan.plan_id,
        "clients": len(plan.clients),
        "sessions": plan.session_count,
        "turns": len(turns),
        "new_tokens": sum(turn.new_tokens for turn in turns),
        "output_tokens": sum(turn.output_tokens for turn in turns),
        "longest_context_tokens": plan.longest_context_tokens,
        "max_seq_len": plan.max_seq_len,
        "total_wait_s": plan.total_wait_s,
        "turnaround_s": plan.turnaround_s,
        "content_sha256": plan.content_sha256,
    }

"""``slotgrid workload``: the workloads plans are drawn from."""

from __future__ import annotations

from typing import Annotated

import typer

from slotgrid.cli._common import JsonOption, console, print_json

app = typer.Typer(help="Look at the workloads plans are drawn from.", no_args_is_help=True)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the built-in workloads."""
    from slotgrid.workload import built_in_workloads, load_workload

    found = [load_workload(name) for name in built_in_workloads()]
    if as_json:
        print_json([{"id": workload.id, "description": workload.description} for workload in found])
        return
    for workload in found:
        console().print(f"{workload.id}  {workload.description}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Built-in workload name or TOML file.", metavar="WORKLOAD")],
    as_json: JsonOption = False,
) -> None:
    """Show what a workload draws, with the capped share and latency bands of its tool waits."""
    from slotgrid.workload import load_workload

    data = load_workload(name).to_dict()
    if as_json:
        print_json(data)
        return
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for key, value in data.items():
        table.add_row(key, "not given" if value is None else str(value))
    console().print(table)

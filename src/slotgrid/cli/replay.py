"""``slotgrid replay``: a plan on something that really computes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotgrid.cli._common import JsonOption, console, note, print_json, progress_bar, seconds


def replay(
    path: Annotated[Path, typer.Argument(help="Plan file.", metavar="PLAN")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Run directory to write.", metavar="RUN_DIR")],
    artifact: Annotated[
        Path | None, typer.Option(help="Artifact of slotgrid compile, run inside this process without HTTP.")
    ] = None,
    clock: Annotated[
        str, typer.Option(help="cpu: the CPU time of the steps advances a virtual clock and waits are skipped.")
    ] = "cpu",
    base_url: Annotated[
        str | None, typer.Option(help="Replay over HTTP: not available yet, only --artifact is.")
    ] = None,
    slots: Annotated[int | None, typer.Option(help="KV slots, at most those compiled.")] = None,
    max_running: Annotated[int | None, typer.Option(help="Running limit; the top bucket unless given.")] = None,
    rules: Annotated[str, typer.Option(help="real or paper.")] = "real",
    turnaround: Annotated[str | None, typer.Option(help="Client turnaround with unit, e.g. 0.8ms.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a plan on a compiled artifact in this process and write a run directory; needs slotgrid[serve]."""
    from slotgrid.errors import InputError
    from slotgrid.measure.inprocess import replay_in_process
    from slotgrid.plan import load_plan
    from slotgrid.serve.require import require

    if base_url is not None:
        raise InputError("--base-url: replay over HTTP is not available yet; use --artifact with --clock cpu")
    if artifact is None:
        raise InputError("--artifact is missing; give an artifact made by slotgrid compile")
    if clock != "cpu":
        raise InputError(f"--clock: {clock!r}; allowed: cpu")
    plan = load_plan(path)
    turnaround_s = seconds(turnaround, "--turnaround")
    require("slotgrid replay --artifact", "jax")
    with progress_bar("replay", "requests") as progress:
        run = replay_in_process(
            plan=plan,
            artifact=artifact,
            output=output,
            rules=rules,
            slots=slots,
            max_running=max_running,
            turnaround_s=turnaround_s,
            progress=progress,
        )
    note(f"run written to {output}")
    if as_json:
        print_json(run.to_dict())
        return
    from slotgrid.report.run_table import run_report

    run_report(run, console())

"""``slotgrid replay``: a plan on something that really computes, over HTTP or in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotgrid.cli._common import JsonOption, console, note, print_json, progress_bar, seconds

if TYPE_CHECKING:
    from slotgrid.plan import InputPlan
    from slotgrid.run import Run


def replay(
    path: Annotated[Path, typer.Argument(help="Plan file.", metavar="PLAN")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Run directory to write.", metavar="RUN_DIR")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="OpenAI-compatible server, e.g. http://127.0.0.1:8000.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name; the server's first one unless given.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Key for the server.", envvar="SLOTGRID_API_KEY")] = None,
    cycle: Annotated[
        str | None, typer.Option(help="Cycle of a steady-load plan; the warm-up takes three (default: the plan's).")
    ] = None,
    window: Annotated[
        str | None, typer.Option(help="Evaluate for so long after the warm-up (e.g. 120s) and send nothing after it.")
    ] = None,
    warmup: Annotated[str | None, typer.Option(help="Warm-up with unit, instead of the rule.")] = None,
    token_times: Annotated[bool, typer.Option(help="Keep the time of every token.")] = True,
    metrics: Annotated[bool, typer.Option(help="Keep the server's /metrics from before and after.")] = True,
    prompts: Annotated[
        str, typer.Option(help="ids: exact prefixes; text: words; auto: ids where the server takes and returns them.")
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Seed sent with every request.")] = 20260819,
    retries: Annotated[
        int, typer.Option(help="How often a request of which nothing was generated is sent again.", min=0)
    ] = 3,
    silence: Annotated[str, typer.Option(help="A request without a byte for so long has failed.")] = "300s",
    ca_file: Annotated[Path | None, typer.Option(help="Certificates to trust instead of the system's.")] = None,
    verify: Annotated[bool, typer.Option(help="Check the server's certificate.")] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the plan and show its totals; send nothing.")
    ] = False,
    artifact: Annotated[
        Path | None,
        typer.Option(help="Artifact of slotgrid compile, run inside this process without HTTP; needs slotgrid[serve]."),
    ] = None,
    clock: Annotated[
        str, typer.Option(help="With --artifact, cpu: the CPU time of the steps advances a clock, waits are skipped.")
    ] = "cpu",
    slots: Annotated[int | None, typer.Option(help="With --artifact: KV slots, at most those compiled.")] = None,
    max_running: Annotated[
        int | None, typer.Option(help="With --artifact: running limit; the top bucket unless given.")
    ] = None,
    rules: Annotated[str, typer.Option(help="With --artifact: real or paper.")] = "real",
    turnaround: Annotated[
        str | None, typer.Option(help="With --artifact: client turnaround with unit, e.g. 0.8ms.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a plan against a server (--base-url) or a compiled artifact (--artifact) and write a run directory."""
    from slotgrid.errors import InputError
    from slotgrid.plan import load_plan

    if (base_url is None) == (artifact is None) and not (dry_run and artifact is None):
        raise InputError("give either --base-url (a server) or --artifact (made by slotgrid compile)")
    plan = load_plan(path)
    rule = _window(plan, cycle, warmup, window)
    if dry_run:
        if artifact is not None:
            from slotgrid.serve.artifact import load_artifact

            plan.check_context(load_artifact(artifact).max_seq_len, "the compiled length of the artifact,")
        _dry_run(plan, rule, as_json)
        return
    if output is None:
        raise InputError("-o is missing; give a directory for the run")
    if artifact is not None:
        for option, value in (("--window", window), ("--model", model)):
            if value is not None:
                raise InputError(f"{option} goes with --base-url, not with --artifact")
        run = _in_process(plan, artifact, output, clock, rules, slots, max_running, seconds(turnaround, "--turnaround"))
    else:
        from slotgrid.measure.http import Endpoint
        from slotgrid.measure.options import ReplayOptions
        from slotgrid.units import parse_quantity

        endpoint = Endpoint(
            base_url or "",
            api_key=api_key,
            ca_file=None if ca_file is None else str(ca_file),
            verify=verify,
            silence_s=parse_quantity(silence, "time", "--silence"),
        )
        options = ReplayOptions(
            model=model,
            seed=seed,
            token_times=token_times,
            retries=retries,
            prompts=prompts,
            metrics=metrics,
            window=rule,
        )
        run = _over_http(plan, endpoint, output, options)
    note(f"run written to {output}")
    _show(run, artifact is None, as_json)
    _end(run)


def _window(plan: InputPlan, cycle: str | None, warmup: str | None, window: str | None) -> Any:
    """The window rule the options ask for, or None."""
    from slotgrid.errors import InputError
    from slotgrid.measure.options import WindowRule

    for option, value in (("--cycle", cycle), ("--warmup", warmup)):
        if value is not None and window is None:
            raise InputError(f"{option} is of a window; give --window, too")
    evaluation_s, cycle_s, warmup_s = (
        seconds(window, "--window"),
        seconds(cycle, "--cycle"),
        seconds(warmup, "--warmup"),
    )
    if evaluation_s is None:
        return None
    return WindowRule(cycle_s, evaluation_s, warmup_s).of(plan)


def _in_process(
    plan: InputPlan,
    artifact: Path,
    output: Path,
    clock: str,
    rules: str,
    slots: int | None,
    max_running: int | None,
    turnaround_s: float | None,
) -> Run:
    from slotgrid.errors import InputError
    from slotgrid.measure.inprocess import replay_in_process
    from slotgrid.measure.interrupts import ended_as_interrupt
    from slotgrid.serve.require import require

    if clock != "cpu":
        raise InputError(f"--clock: {clock!r}; allowed: cpu")
    require("slotgrid replay --artifact", "jax")
    with ended_as_interrupt(), progress_bar("replay", "requests") as progress:
        return replay_in_process(
            plan=plan,
            artifact=artifact,
            output=output,
            rules=rules,
            slots=slots,
            max_running=max_running,
            turnaround_s=turnaround_s,
            progress=progress,
        )


def _over_http(plan: InputPlan, endpoint: Any, output: Path, options: Any) -> Run:
    from slotgrid.measure.interrupts import ended_as_interrupt
    from slotgrid.measure.replay import replay_over_http
    from slotgrid.report.live import replay_display

    with ended_as_interrupt(), replay_display() as progress:
        return replay_over_http(plan=plan, base_url=endpoint, output=output, options=options, progress=progress)


def _dry_run(plan: InputPlan, window: Any, as_json: bool) -> None:
    from slotgrid.measure.dry_run import dry_run
    from slotgrid.report.replay_table import dry_run_report

    totals = dry_run(plan, window)
    if as_json:
        print_json(totals.to_dict())
    else:
        dry_run_report(totals, console())


def _show(run: Run, over_http: bool, as_json: bool) -> None:
    if as_json:
        print_json({**run.to_dict(), "replay": dict(run.details)} if over_http else run.to_dict())
    elif over_http:
        from slotgrid.report.replay_table import replay_report

        replay_report(run, console())
    else:
        from slotgrid.report.run_table import run_report

        run_report(run, console())


def _end(run: Run) -> None:
    """Exit code 1 for a run that must not be used."""
    from slotgrid.errors import RunError

    reasons = run.details.get("invalid_reasons")
    if reasons:
        raise RunError(f"the run is not valid: {'; '.join(reasons)}")

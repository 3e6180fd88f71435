"""``slotgrid study``: predictions first, then the measurement, then a verdict that stays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotgrid.cli._common import JsonOption, console, note, print_json, progress_bar, seconds

app = typer.Typer(
    help="Studies: a registered comparison from prediction to verdict.", no_args_is_help=True, rich_markup_mode=None
)

Folder = Annotated[Path, typer.Argument(help="Study directory.", metavar="DIR")]
SetOption = Annotated[
    str | None, typer.Option("--set", help="Data set, a [[plans]] name; the only one unless given.", metavar="NAME")
]
CodeOption = Annotated[
    str | None,
    typer.Option(
        help="Go on although slotgrid's code is not the registered one; the reason is kept.", metavar="REASON"
    ),
]


@app.command()
def init(folder: Folder, as_json: JsonOption = False) -> None:
    """Write a study.toml with comments to begin with."""
    from slotgrid.study.template import init_study

    path = init_study(folder)
    if as_json:
        print_json({"written": str(path)})
        return
    console().print(f"{path} written; edit it, then: slotgrid study register {folder}")


@app.command()
def register(
    folder: Folder,
    amend: Annotated[
        str | None,
        typer.Option(
            help="Register a changed study.toml for its new [[plans]] sets, with the reason.", metavar="REASON"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw the plans, predict every arm and fix all of it in a manifest."""
    from slotgrid.measure.surroundings import git_ignores, git_state, now
    from slotgrid.report.study_page import show_set
    from slotgrid.report.study_tables import study_tables
    from slotgrid.study.overview import overview
    from slotgrid.study.register import register as run_register
    from slotgrid.study.study import open_study

    git, ignored = git_state(folder), git_ignores(folder / "study.toml")
    if git is not None and ignored:
        # clean whatever becomes of the study, which says nothing
        git = {**git, "clean": None}
    with progress_bar("predicting", "arms on plans") as progress:
        entry = run_register(folder, now=now, git=git, amend=amend, progress=progress, note=note)
    if as_json:
        rows = {plans.name: [row.to_dict() for row in entry.predictions(plans.name)] for plans in entry.sets}
        keys = ("entry", "kind", "registered_at", "git", "sets", "plans", "profile", "code_sha256")
        print_json(
            {"manifest": str(entry.folder / "manifest.json"), "manifest_sha256": entry.sha256}
            | {key: entry.data[key] for key in keys}
            | {"predictions": rows}
        )
        return
    view = overview(open_study(folder))
    tables = study_tables(view)
    out = console()
    for s in view.sets:
        if s.entry.number == entry.number:
            show_set(s, tables, out, ("Registered predictions",))
            out.print()
    out.print(f"Entry {entry.number} registered at {entry.registered_at}: {entry.folder}")
    out.print(f"Manifest {entry.sha256}")
    if entry.data["git"] is None:
        note("no git commit was found here; commit the directory, so that the time is vouched for by more than a clock")
    elif ignored:
        note("git ignores the directory; end that and commit it: then the repository vouches for the time")
    elif not entry.data["git"]["clean"]:
        note("the git repository has uncommitted changes; commit them before measuring")
    else:
        note("commit the directory now: then the repository vouches for the time")


@app.command()
def measure(
    folder: Folder,
    plan_set: Annotated[
        str | None,
        typer.Option("--set", help="Data set, a [[plans]] name; all of them unless given.", metavar="NAME"),
    ] = None,
    other_code: CodeOption = None,
    other_arms: Annotated[
        str | None,
        typer.Option(
            help="Go on although the arms file is not the registered one; the reason is kept.", metavar="REASON"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run every arm on every registered plan that has no run yet."""
    from slotgrid.errors import RunError
    from slotgrid.measure.surroundings import now
    from slotgrid.report.live import measure_display
    from slotgrid.study.collect import measure as run_measure

    with measure_display(note) as (replaying, tell):
        found = run_measure(
            folder,
            now=now,
            plan_set=plan_set,
            other_code=other_code,
            other_arms=other_arms,
            replaying=replaying,
            note=tell,
        )
    kinds = sorted({record.source for record in found.added})
    if as_json:
        print_json(found.to_dict())
    else:
        console().print(
            f"{len(found.added)} runs added ({', '.join(kinds) or 'none'}), {found.there_before} were there"
        )
    if "simulated" in kinds:
        note("simulated stand-ins: their verdict says nothing about hardware")
    for text in found.invalid:
        note(f"not taken: {text}")
    for text in found.blocked:
        note(f"left out: {text}")
    if found.invalid or found.blocked:
        left = [f"{len(found.blocked)} sets could not be measured"] if found.blocked else []
        left += [f"{len(found.invalid)} runs are not valid"] if found.invalid else []
        raise RunError(f"{', '.join(left)}, {found.missing} runs are missing; the lines above say more")


@app.command()
def ingest(
    folder: Folder,
    runs: Annotated[list[Path], typer.Argument(help="Run directories measured elsewhere.", metavar="RUN_DIR...")],
    arm: Annotated[str | None, typer.Option(help="Arm of runs whose files do not state the configuration.")] = None,
    started: Annotated[
        str | None, typer.Option(help="When they began, for runs that do not say it (ISO 8601 with zone).")
    ] = None,
    other_code: CodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy runs measured elsewhere into the study; plan and configuration say where they belong."""
    from slotgrid.measure.surroundings import now
    from slotgrid.study.collect import ingest as run_ingest

    with progress_bar("reading", "runs") as progress:
        found = run_ingest(
            folder, runs, now=now, arm=arm, started=started, other_code=other_code, progress=progress, note=note
        )
    if as_json:
        print_json(found.to_dict())
        return
    out = console()
    for record in found.added:
        out.print(f"{record.cell.place}, arm {record.arm}: {record.source} run kept in {record.folder}")
    out.print(f"{found.missing} runs are missing" if found.missing else "all runs are there")


@app.command()
def verdict(
    folder: Folder, plan_set: SetOption = None, other_code: CodeOption = None, as_json: JsonOption = False
) -> None:
    """Judge a data set, once; a second call shows the verdict it has."""
    from slotgrid.errors import InputError
    from slotgrid.measure.surroundings import now
    from slotgrid.report.study_page import DECIDED, show_set, study_page
    from slotgrid.report.study_tables import study_tables
    from slotgrid.study.overview import overview
    from slotgrid.study.study import open_study
    from slotgrid.study.verdict import verdict as run_verdict
    from slotgrid.study.verdict_page import is_kept, keep_page, said_of

    found = run_verdict(folder, now=now, plan_set=plan_set, other_code=other_code, note=note)
    if not found.fresh:
        note(f"decided at {found.data['decided_at']}; a data set is judged once, this is the stored verdict")
    study = open_study(folder)
    view = overview(study)
    page = found.path.with_suffix(".html")
    # one that lies there as it was written stays, whatever another version would make of the same verdict
    if not is_kept(study, found.data["set"], page):
        told = said_of(study, found.data["set"], page)
        try:
            keep_page(folder, found.data["set"], page, study_page(view, found.data["set"]), now=now)
            note(f"page written to {page}{told}")
        except InputError as error:
            if found.fresh:
                raise
            # the verdict stands and can be shown, also from a disk that is only read
            note(f"the page is not written: {error}{told}")
    if as_json:
        print_json(found.data)
        return
    chosen = next(s for s in view.sets if s.plans.name == found.data["set"])
    show_set(chosen, study_tables(view), console(), DECIDED)


@app.command()
def report(
    folder: Folder,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Directory for page and tables; DIR/report unless given.")
    ] = None,
    compile_time: Annotated[
        str | None, typer.Option(help="Compile time for the break-even with unit, e.g. 30m; else what is known.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write one self-contained HTML page and a CSV of every table."""
    from slotgrid.report.study_page import save_report
    from slotgrid.study.overview import overview
    from slotgrid.study.study import check_output, open_study

    target = folder / "report" if output is None else output
    check_output(target, "--output")
    view = overview(open_study(folder), compile_s=seconds(compile_time, "--compile-time"))
    paths = save_report(view, target)
    if as_json:
        print_json({"page": str(paths[0]), "tables": [str(path) for path in paths[1:]]})
        return
    out = console()
    out.print(f"{paths[0]} and {len(paths) - 1} tables as CSV beside it")

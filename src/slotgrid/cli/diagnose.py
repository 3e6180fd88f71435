"""``slotgrid diagnose``: what a run lost, from what it left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotgrid.cli._common import JsonOption, console, note, print_json, progress_bar, whole_numbers


def diagnose(
    folder: Annotated[Path, typer.Argument(help="Directory of one run.", metavar="RUN_DIR")],
    profile: Annotated[str | None, typer.Option(help="Built-in profile id or TOML file; prices steps.")] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Baseline run of the same plan.", metavar="OTHER_RUN_DIR")
    ] = None,
    other_buckets: Annotated[
        str | None, typer.Option(help="Bucket list to try on the same steps; fitted unless given.")
    ] = None,
    buckets: Annotated[str | None, typer.Option(help="Compiled buckets, where the files do not state them.")] = None,
    slots: Annotated[int | None, typer.Option(help="KV slots, where the files do not state them.")] = None,
    max_running: Annotated[int | None, typer.Option(help="Running limit, where the files do not state it.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained HTML page.", metavar="FILE")] = None,
    plots: Annotated[Path | None, typer.Option(help="Write the pictures as PNG files.", metavar="DIR")] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Write a Chrome trace file (Perfetto opens it).", metavar="FILE")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Diagnose a run: padding, lost prefixes, interference, cost."""
    from slotgrid.diagnose import diagnose as run_diagnosis
    from slotgrid.profile import load_profile
    from slotgrid.run.readers import read_run

    stack = None if profile is None else load_profile(profile)
    sizes = None if buckets is None else whole_numbers(buckets, "--buckets")
    tried = None if other_buckets is None else whole_numbers(other_buckets, "--other-buckets")
    with progress_bar("reading", "bytes") as progress:
        run = read_run(folder, buckets=sizes, slots=slots, max_running=max_running, progress=progress)
        baseline = None if compare is None else read_run(compare, progress=progress)
    result = run_diagnosis(run, profile=stack, compare=baseline, buckets=tried)
    if html is not None or plots is not None:
        from slotgrid.report.pictures import draw_pictures, save_pictures

        pictures = draw_pictures(result)
        if plots is not None:
            for path in save_pictures(pictures, plots):
                note(f"picture written to {path}")
        if html is not None:
            from slotgrid.report.page import save_page

            save_page(result, pictures, html)
            note(f"page written to {html}")
    if timeline is not None:
        from slotgrid.report.trace import save_trace

        save_trace(result, timeline)
        note(f"timeline written to {timeline}")
    if as_json:
        print_json(result.to_dict())
        return
    from slotgrid.report.diagnose_table import diagnosis_report

    diagnosis_report(result, console())

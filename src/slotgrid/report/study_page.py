"""A study as one HTML page and as sections for a console; every table also as CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from slotgrid import files
from slotgrid.report.diagnose_table import Part, show_part
from slotgrid.report.page import document, part_html, picture_html
from slotgrid.report.study_pictures import set_pictures
from slotgrid.report.study_tables import DataTable, left_out_text, study_tables
from slotgrid.study.overview import Overview, SetOverview
from slotgrid.study.settings import SIMULATED, STEADY

if TYPE_CHECKING:
    from rich.console import Console

PAGE = "index.html"
WARNING = "These runs are simulated stand-ins, not measurements. Nothing here was measured on hardware."
_DECISION = ("sessions", "arm", "predicted", "low", "high", "ratio_a", "inside", "ratio_b", "difference", "tolerance")
_SHORT = ("sessions", "arm", "predicted", "ratio_a", "ratio_b")
# letters a terminal needs for every column
NARROW = 110
# the sections that say what was decided and why
DECIDED = ("Decisions", "The rule of each decision", "Criteria")
_PARTS = ("sessions", "arm", "decode_ratio", "decode_predicted", "prefill_ratio", "prefill_predicted", "outside")
_COUNTS = ("sessions", "arm", "steps", "steps_base", "reused", "reused_predicted", "reused_base", "later_turns")


def summary(s: SetOverview) -> list[str]:
    """What a set says, a sentence each; the last is the decision."""
    plans, settings = s.plans, s.entry.settings
    confirmatory = ", ".join(map(str, plans.sessions)) or "none"
    exploratory = f", exploratory N = {', '.join(map(str, plans.exploratory))}" if plans.exploratory else ""
    made = [
        f"Set {plans.name}: workload {plans.workload}, N = {confirmatory}{exploratory}, "
        f"{len(plans.replicates)} replicates, {plans.load}; arms {', '.join(settings.arm_names)} "
        f"(baseline {settings.baseline.name}); registered {s.entry.registered_at} (entry {s.entry.number})."
    ]
    if s.verdict is None:
        made.append(f"No verdict yet: {len(s.records)} of {s.runs_wanted} runs are there.")
        return made
    data = s.verdict.data
    if plans.load == STEADY:
        made.append("; ".join(f"{f['criterion']}: {f['verdict']}" for f in data["findings"]) + ".")
        return made
    found: dict[str, list[str]] = {}
    for c in data["comparisons"]:
        found.setdefault(c["decision"], []).append(f"N = {c['sessions']} {c['arm']}")
    made.append(f"Mean |e| over all {len(data['comparisons'])} comparisons: {data['mean_absolute_error']:.4f}.")
    made.append("; ".join(f"{decision}: {', '.join(names)}" for decision, names in found.items()) + ".")
    return made


def set_sections(s: SetOverview, tables: Sequence[DataTable], *, narrow: bool = False) -> list[tuple[str, list[Part]]]:
    """Title and parts of everything one set has numbers for; ``narrow`` leaves out what the rules say again."""
    by_name = {table.name: table for table in tables}
    made: list[tuple[str, list[Part]]] = []

    def add(title: str, *names: str, keys: Sequence[str] | None = None, note: str | None = None) -> None:
        parts: list[Part] = []
        for name in names:
            table = by_name.get(name)
            grid = None if table is None else table.grid(s.plans.name, keys)
            if table is not None and grid is not None:
                said = table.note if note is None else note
                parts += [said, grid] if said else [grid]
        if parts:
            made.append((title, parts))

    shown = [key for key in _DECISION if not narrow or key in _SHORT]
    add("Decisions", "comparisons", keys=(*shown, "error", "decision"))
    add("The rule of each decision", "comparisons", keys=("sessions", "arm", "decision", "rule"), note="")
    add("Criteria", "findings")
    add("Decode and prefill parts", "comparisons", keys=_PARTS, note="Ratios to the baseline, observed and predicted.")
    add("Steps and reuse", "comparisons", keys=_COUNTS, note="Sums over replicates.")
    add("Replicates", "replicates")
    add("Cells", "cells")
    add("Ranking", "pairs")
    add("Registered predictions", "predictions")
    if s.saturation is not None:
        table = by_name["saturation"]
        texts = (table.note, f"{s.saturation.conclusion()}.", left_out_text(s.saturation))
        add("More slots", "saturation", note=" ".join(text for text in texts if text))
    if s.no_saturation is not None:
        made.append(("More slots", [f"Not judged: {s.no_saturation}."]))
    add("What a configuration costs to have", "costs")
    add("Compile cost against saving", "break_even")
    return made


def study_page(view: Overview, only: str | None = None) -> str:
    """The page as HTML text; ``only`` one data set."""
    study = view.study
    tables = study_tables(view)
    sets = [s for s in view.sets if only is None or s.plans.name == only]
    last = study.entries[-1]
    title = f"Study: {study.title}" if only is None else f"Verdict on {only}: {study.title}"
    entries = "entry" if len(study.entries) == 1 else "entries"
    headline = (
        f"profile {last.settings.profile}; {len(study.entries)} registered {entries}; manifest {last.sha256[:12]}"
    )
    out = [f'<h1>{escape(title)}</h1><p class="headline">{escape(headline)}</p>']
    if any(s.basis == SIMULATED for s in sets):
        out.append(f'<p class="warning">{escape(WARNING)}</p>')
    if view.changed_code:
        text = (
            f"The code differs from the registered one in {len(view.changed_code)} files, first {view.changed_code[0]}."
        )
        out.append(f'<p class="warning">{escape(text)}</p>')
    out.append('<section class="summary">')
    for s in sets:
        sentences = summary(s)
        out += [f'<p class="finding">{escape(text)}</p>' for text in sentences[:-1]]
        out.append(f'<p class="verdict">{escape(sentences[-1])}</p>')
    out.append("</section>")
    for s in sets:
        if len(sets) > 1:
            out.append(f'<h2 class="set">Set {escape(s.plans.name)}</h2>')
        sections = [_section(name, parts) for name, parts in set_sections(s, tables)]
        decided = sum(name in DECIDED for name, _ in set_sections(s, tables))
        out += [*sections[:decided], *(picture_html(picture) for picture in set_pictures(s)), *sections[decided:]]
    for table in tables:
        grid = table.grid() if table.name in ("runs", "log") else None
        if grid is not None and only is None:
            out += [f"<h2>{escape(table.title)}</h2>", part_html(grid)]
    return document(title, out, f"manifest {last.sha256}")


def _section(title: str, parts: Sequence[Part]) -> str:
    return "\n".join([f"<h2>{escape(title)}</h2>", *map(part_html, parts)])


def save_report(view: Overview, folder: Path) -> list[Path]:
    """Write the page and a CSV of every table; returns the paths, the page first."""
    writers: dict[Path, Callable[[Path], object]] = {folder / PAGE: files.text_writer(study_page(view))}
    for table in study_tables(view):
        writers[folder / f"{table.name}.csv"] = files.text_writer(table.csv_text())
    files.write_together(writers)
    return list(writers)


def show_set(s: SetOverview, tables: Sequence[DataTable], console: Console, titles: Sequence[str]) -> None:
    """Print the summary of a set and the sections of these titles."""
    if s.basis == SIMULATED:
        console.print(WARNING, style="bold")
    for text in summary(s):
        console.print(text)
    narrow = console.width < NARROW
    for title, parts in set_sections(s, tables, narrow=narrow):
        if title in titles:
            console.print()
            console.print(title, style="bold")
            for part in parts:
                show_part(part, console)

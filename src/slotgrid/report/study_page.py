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
from slotgrid.report.study_tables import DataTable, left_out_text, other_arms, other_code, started_by_hand, study_tables
from slotgrid.study.attempts import counted
from slotgrid.study.overview import Overview, SetOverview
from slotgrid.study.settings import STEADY

if TYPE_CHECKING:
    from rich.console import Console

    from slotgrid.study.manifest import Entry
    from slotgrid.study.study import Study

PAGE = "index.html"
WARNING = "These runs are simulated stand-ins, not measurements. Nothing here was measured on hardware."
_DECISION = ("sessions", "arm", "predicted", "low", "high", "ratio_a", "inside", "ratio_b", "difference", "tolerance")
_SHORT = ("sessions", "arm", "predicted", "ratio_a", "ratio_b")
# letters a terminal needs for every column
NARROW = 110
# the sections that say what was decided and why
DECIDED = ("Decisions", "The rule of each decision", "Criteria")
_PARTS = ("sessions", "arm", "decode_ratio", "decode_predicted", "prefill_ratio", "prefill_predicted", "outside")
_CELLS = (
    *("sessions", "arm", "reuse_predicted", "reuse", "cost_predicted", "cost", "low", "high"),
    *("occupancy_distance", "null_distance", "exploratory"),
)
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
    made += remarks(s)
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


def remarks(s: SetOverview) -> list[str]:
    """What a reader must know of the runs of a set."""
    by_hand = [f"{r.cell.name} {r.arm}" for r in s.records if started_by_hand(r)]
    counts = {f"{r.cell.name} {r.arm}": s.attempts[r.sha256] or 1 for r in s.records}
    again = [f"{name} ({count})" for name, count in counts.items() if count > 1]
    made = []
    if by_hand:
        made.append(f"Their start is only stated by hand (--started): {', '.join(by_hand)}.")
    if again:
        made.append(f"They took more than one attempt: {', '.join(again)}.")
    if s.lost:
        made.append(f"Attempts of which neither a run nor a refusal came: {counted(s.lost)}.")
    for reason, sha256, count in other_arms(s):
        made.append(f"{count} runs were measured with another arms file than registered ({sha256[:12]}): {reason}.")
    for reason, changed, count in other_code(s):
        made.append(f"{count} runs were added with other code than registered ({changed} files differ): {reason}.")
    code = None if s.verdict is None else s.verdict.data.get("code")
    if code:
        made.append(f"Judged with other code than registered ({len(code['changed'])} files differ): {code['reason']}.")
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
    # a long text beside eleven numbers would make every row as high as a screen
    add("Cells", "cells", keys=_CELLS)
    if s.verdict is not None and any(cell.get("extrapolated") for cell in s.verdict.data.get("cells", ())):
        add("Cells outside the measured range", "cells", keys=("sessions", "arm", "outside"), note="")
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
    sets = [s for s in view.sets if only is None or s.plans.name == only]
    # a verdict's page stands on that verdict alone
    tables = study_tables(Overview(study, tuple(sets)))
    # a set is shown with the entry that registered it, whatever was amended later
    entry = study.entries[-1] if only is None else sets[0].entry
    title = f"Study: {entry.settings.title}" if only is None else f"Verdict on {only}: {entry.settings.title}"
    out = [f'<h1>{escape(title)}</h1><p class="headline">{escape(_headline(study, entry, sets, only))}</p>']
    # of the code that is here now; a verdict has its own sentence about the code it was made with
    there = sets if only is None else []
    for number, changed in {s.entry.number: s.changed_code for s in there if s.changed_code}.items():
        text = f"The code differs from that of entry {number} in {len(changed)} files, first {changed[0]}."
        out.append(f'<p class="warning">{escape(text)}</p>')
    out += [_warning(sets, s) for s in sets if s.simulated]
    out.append('<section class="summary">')
    for s in sets:
        sentences = summary(s)
        out += [f'<p class="finding">{escape(text)}</p>' for text in sentences[:-1]]
        out.append(f'<p class="verdict">{escape(sentences[-1])}</p>')
    out.append("</section>")
    for s in sets:
        if len(sets) > 1:
            out.append(f'<h2 class="set">Set {escape(s.plans.name)}</h2>')
            if s.simulated:
                out.append(_warning(sets, s))
        sections = [_section(name, parts) for name, parts in set_sections(s, tables)]
        decided = sum(name in DECIDED for name, _ in set_sections(s, tables))
        out += [*sections[:decided], *(picture_html(picture) for picture in set_pictures(s)), *sections[decided:]]
    for table in tables:
        grid = None
        if table.name == "runs" or (table.name == "log" and only is None):
            grid = table.grid(only)
        if grid is not None:
            out += [f"<h2>{escape(table.title)}</h2>", part_html(grid)]
    return document(title, out, f"manifest {entry.sha256}")


def _headline(study: Study, entry: Entry, sets: Sequence[SetOverview], only: str | None) -> str:
    """Which register and which log the page stands on. A verdict's page names the log as it was when it was decided."""
    stored = None if only is None else sets[0].verdict
    log = study.log.summary() if stored is None else stored.data["log"]
    entries = "1 registered entry" if len(study.entries) == 1 else f"{len(study.entries)} registered entries"
    which = entries if only is None else f"entry {entry.number}"
    return (
        f"profile {entry.settings.profile}; {which}; manifest {entry.sha256[:12]}; "
        f"log of {log['entries']} entries, head {str(log['sha256'])[:12]}"
    )


def _warning(sets: Sequence[SetOverview], s: SetOverview) -> str:
    which = "" if len(sets) == 1 else f"Set {s.plans.name}: "
    return f'<p class="warning">{escape(which + WARNING)}</p>'


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
    if s.simulated:
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

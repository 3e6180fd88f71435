"""A diagnosis as one HTML page that needs no network: styles inline, pictures embedded, no scripts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from slotgrid import files
from slotgrid._version import __version__
from slotgrid.diagnose import Diagnosis
from slotgrid.report.diagnose_table import Grid, Part, headline, sections
from slotgrid.report.figure import Picture

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; color: #1a1a1a; background: #fff;
  max-width: 1120px; margin: 0 auto; padding: 24px; }
h1 { font-size: 1.6em; margin: 0 0 .2em; }
h2 { font-size: 1.2em; margin: 2em 0 .5em; border-bottom: 1px solid #ccc; padding-bottom: .2em; }
.headline { color: #444; }
.summary { background: #f3f7fb; border-left: 4px solid #0072B2; padding: .6em 1em; margin: 1.2em 0; }
.summary p { margin: .4em 0; }
.summary .verdict { font-weight: 600; }
.warning { background: #fdf0e6; border-left: 4px solid #D55E00; padding: .6em 1em; font-weight: 600; }
h2.set { font-size: 1.4em; border-bottom: 2px solid #444; margin-top: 2.5em; }
.rule { color: #555; font-size: .87em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .6em 0; font-variant-numeric: tabular-nums; }
th, td { padding: .22em .8em; text-align: left; border-bottom: 1px solid #e4e4e4; vertical-align: top; }
th { border-bottom: 2px solid #bbb; font-weight: 600; }
.r { text-align: right; }
td.k { white-space: nowrap; }
td:not(.k) { min-width: 15em; }
figure { margin: 1.5em 0; }
img { max-width: 100%; height: auto; border: 1px solid #e4e4e4; }
figcaption { color: #444; font-size: .93em; margin-top: .3em; }
footer { color: #666; font-size: .85em; margin-top: 3em; }
@page { size: A4; margin: 14mm; }
@media print { body { max-width: none; padding: 0; font-size: 10px; } .scroll { overflow: visible; }
  th, td { padding: .15em .5em; } td.k { white-space: normal; } td:not(.k) { min-width: 0; }
  h2 { margin-top: 1.4em; break-after: avoid; }
  figure { margin: 1em 0; } figure, tr, .warning, .summary { break-inside: avoid; }
  thead { display: table-header-group; } }
"""

# cells up to this many letters are not broken into lines
_KEPT_WHOLE = 24
# nothing may be loaded from anywhere: a browser enforces what the page promises
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def document(title: str, body: Sequence[str], footer: str) -> str:
    """A whole page that loads nothing: styles inline, pictures embedded. ``body`` is HTML, the rest is text."""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{_STYLE}</style></head><body>',
            *body,
            f"<footer>slotgrid {__version__}, {escape(footer)}</footer></body></html>\n",
        ]
    )


def picture_html(picture: Picture) -> str:
    """A picture with its title and caption."""
    data = base64.b64encode(picture.png).decode("ascii")
    return (
        f'<figure id="{picture.name}"><h2>{escape(picture.title)}</h2>'
        f'<img alt="{escape(picture.title)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def part_html(part: Part) -> str:
    """A table or a sentence."""
    return _table(part) if isinstance(part, Grid) else f"<p>{escape(part)}</p>"


def page(d: Diagnosis, pictures: Sequence[Picture]) -> str:
    """The page as HTML text."""
    title = f"Diagnosis of a {d.run.source} run"
    if d.run.plan_id is not None:
        title += f" of plan {d.run.plan_id}"
    out = [
        f'<h1>{escape(title)}</h1><p class="headline">{escape(headline(d))}</p>',
        '<section class="summary">',
    ]
    for i, sentence in enumerate(d.summary):
        last = i == len(d.summary) - 1
        out.append(f'<p class="{"verdict" if last else "finding"}">{escape(sentence.text)}</p>')
        out.append(f'<p class="rule">Rule: {escape(sentence.rule)}.</p>')
    out.append("</section>")
    out += [picture_html(picture) for picture in pictures]
    for name, parts in sections(d):
        out.append(f"<h2>{escape(name)}</h2>")
        out += [part_html(part) for part in parts]
    return document(title, out, "no profile" if d.profile is None else f"profile {d.profile.id}")


def save_page(d: Diagnosis, pictures: Sequence[Picture], path: Path) -> None:
    """Write the page, whole or not at all."""
    files.write_text(path, page(d, pictures))


def _table(grid: Grid) -> str:
    def cell(tag: str, i: int, text: str) -> str:
        names = [name for name, is_so in (("r", i in grid.right), ("k", len(text) <= _KEPT_WHOLE)) if is_so]
        given = f' class="{" ".join(names)}"' if names else ""
        return f"<{tag}{given}>{escape(text)}</{tag}>"

    rows = ["<tr>" + "".join(cell("td", i, text) for i, text in enumerate(row)) + "</tr>" for row in grid.rows]
    head = ""
    if grid.header:
        head = "<thead><tr>" + "".join(cell("th", i, text) for i, text in enumerate(grid.header)) + "</tr></thead>"
    return f'<div class="scroll"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'

"""The page of a study: the numbers of its CSV files, standing alone, never calling a simulated run measured."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from slotgrid.errors import InputError
from slotgrid.report.diagnose_table import Grid
from slotgrid.report.figure import DPI, WIDTH_IN, Picture
from slotgrid.report.study_page import (
    DECIDED,
    WARNING,
    remarks,
    save_report,
    set_sections,
    show_set,
    study_page,
)
from slotgrid.report.study_pictures import set_pictures
from slotgrid.report.study_tables import study_tables
from slotgrid.run import save_run
from slotgrid.study import manifest
from slotgrid.study.collect import ingest, measure
from slotgrid.study.manifest import Entry
from slotgrid.study.overview import Overview, SetOverview, overview
from slotgrid.study.register import register
from slotgrid.study.study import open_study
from slotgrid.study.verdict import verdict
from tests.report.test_page import Outline, browser, requested
from tests.study.small import LATER, NOW, hardware_run, measured, registered, rewrite_record, text, write_study

__all__ = ["browser"]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = measured(tmp_path_factory.mktemp("judged") / "study")
    verdict(folder, now=lambda: LATER)
    return folder


@pytest.fixture(scope="module")
def view(judged: Path) -> Overview:
    return overview(open_study(judged), compile_s=480.0)


@pytest.fixture(scope="module")
def page(view: Overview) -> str:
    return study_page(view)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time, and these tests are about words."""
    monkeypatch.setattr("slotgrid.report.study_page.set_pictures", lambda s: [])


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


@pytest.mark.usefixtures("no_pictures")
def test_every_table_is_a_csv_with_the_verdicts_own_numbers(view: Overview, judged: Path, tmp_path: Path) -> None:
    paths = save_report(view, tmp_path / "report")
    names = ["predictions", "comparisons", "replicates", "saturation", "costs", "break_even", "runs", "log"]
    assert [path.name for path in paths] == ["index.html", *(f"{name}.csv" for name in names)]
    data = json.loads((judged / "verdicts/main/verdict.json").read_text())
    rows = rows_of(tmp_path / "report/comparisons.csv")
    assert len(rows) == len(data["comparisons"]) == 2
    for row, c in zip(rows, data["comparisons"], strict=True):
        for key in ("ratio_a", "ratio_b", "difference", "tolerance", "predicted", "error"):
            assert float(row[key]) == c[key]
        assert (row["decision"], row["rule"]) == (c["decision"], c["rule"])
        assert row["low"] == ""
    assert len(rows_of(tmp_path / "report/replicates.csv")) == 4
    assert {row["source"] for row in rows_of(tmp_path / "report/runs.csv")} == {"simulated"}
    base, wide = rows_of(tmp_path / "report/costs.csv")
    assert (base["compile_s"], wide["compile_from"]) == ("480.0", "given")
    seconds = {(o["sessions"], o["arm"]): 0.0 for o in data["observations"]}
    for o in data["observations"]:
        seconds[o["sessions"], o["arm"]] += o["device_s"] / 2
    for row in rows_of(tmp_path / "report/break_even.csv"):
        n = int(row["sessions"])
        assert float(row["saved_s"]) == pytest.approx(seconds[n, "base"] - seconds[n, "wide"])
        assert row["decision"] == {3: "passed", 4: "exploratory"}[n]
    (pair,) = rows_of(tmp_path / "report/saturation.csv")
    assert (pair["cells"], pair["decision"]) == ("2", "undecided")
    assert re.fullmatch(r"prefills of \d+ to \d+ tokens \(measured 500 to 6000\)", rows[0]["outside"])
    log = rows_of(tmp_path / "report/log.csv")
    assert [row["what"] for row in log] == ["registration", "runs", "verdict", "decision", "decision"]
    assert log[0]["when"] == NOW


def test_page_stands_alone(page: str) -> None:
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    assert "script" not in outline.seen
    assert len(outline.addresses) == 6  # five pictures and the empty icon
    assert all(address.startswith("data:") for address in outline.addresses)
    assert not re.search(r"url\(|@import|https?://", re.sub(r"base64,[^\"]*", "", page))
    for title in ("Predicted against observed", "Channel agreement", "More slots", "Break-even", "Decision log"):
        assert title in page
    assert "@media print" in page


def test_simulated_is_never_called_measured(view: Overview, page: str) -> None:
    assert WARNING in page
    said = re.sub(r"<style>.*?</style>", "", page, flags=re.S).replace(WARNING, "")
    said = re.sub(r"base64,[^\"]*", "", said).replace("outside the measured range", "").replace("(measured ", "(")
    assert "measured" not in re.sub(r"study measure", "", said)
    rows = next(table for table in study_tables(view) if table.name == "comparisons").rows
    assert {row["source"] for row in rows} == {"simulated"}


def test_before_the_verdict_only_predictions_are_shown(tmp_path: Path) -> None:
    folder = registered(tmp_path / "study")
    measure(folder, now=lambda: LATER)
    page = study_page(overview(open_study(folder)))
    assert "No verdict yet: 8 of 8 runs are there." in page
    assert "until then only predictions are shown" in page
    assert "Channel agreement" not in page
    saving = next(t for t in study_tables(overview(open_study(folder))) if t.name == "break_even")
    assert {row["decision"] for row in saving.rows} == {"none"}
    assert {t.name for t in study_tables(overview(open_study(folder)))} == {
        "predictions", "saturation", "costs", "break_even", "runs", "log",
    }  # fmt: skip
    assert overview(open_study(folder)).sets[0].basis == "predicted"


@pytest.mark.usefixtures("no_pictures")
def test_measured_runs_have_no_warning(tmp_path: Path) -> None:
    folder = registered(tmp_path / "study", runs="")
    entry = open_study(folder).entries[0]
    runs = []
    for cell in entry.cells(entry.sets[0]):
        for arm in ("base", "wide"):
            runs.append(tmp_path / f"{cell.name}-{arm}")
            save_run(hardware_run(entry, cell, arm), runs[-1])
    ingest(folder, runs, now=lambda: LATER)
    verdict(folder, now=lambda: LATER)
    page = study_page(overview(open_study(folder)))
    assert WARNING not in page
    assert all(f">{path}</td>" in page for path in runs)  # where each came from


def brought_in(folder: Path, entry: Entry, plan_set: str, run: dict[str, Any], **options: Any) -> None:
    """Every run of a set as measured elsewhere."""
    plans = next(p for p in entry.sets if p.name == plan_set)
    runs = []
    for cell in entry.cells(plans):
        for arm in ("base", "wide"):
            runs.append(folder.parent / f"{plan_set}-{cell.name}-{arm}")
            save_run(hardware_run(entry, cell, arm, **run), runs[-1])
    ingest(folder, runs, now=lambda: LATER, **options)


@pytest.mark.usefixtures("no_pictures")
def test_a_set_is_shown_with_its_own_entry(tmp_path: Path) -> None:
    """After an amendment with another title, kind of runs and criteria, each page and warning is of its own set."""
    folder = write_study(tmp_path / "study")
    path = folder / "study.toml"
    path.write_text(path.read_text().replace("profile =", 'title = "First question"\nprofile =', 1))
    first = register(folder, now=lambda: NOW)
    measure(folder, now=lambda: LATER)
    verdict(folder, now=lambda: LATER)
    before = study_page(overview(open_study(folder)), "main")
    path.write_text(
        text(runs="", sets=(("main", [5]), ("next", [6]))).replace("profile =", 'title = "Second"\nprofile =', 1)
    )
    second = register(folder, now=lambda: LATER, amend="now on hardware")
    brought_in(folder, second, "next", {})
    verdict(folder, now=lambda: LATER, plan_set="next")
    view = overview(open_study(folder))
    page = study_page(view, "main")
    assert page == before
    assert "Verdict on main: First question" in page
    assert f"entry 1; manifest {first.sha256[:12]}; log of 9 entries" in page
    assert f"manifest {first.sha256}" in page
    assert second.sha256[:12] not in page
    assert WARNING in page
    page = study_page(view, "next")
    assert f"entry 2; manifest {second.sha256[:12]}; log of 19 entries" in page
    assert WARNING not in page
    page = study_page(view)
    assert page.count(f"Set main: {WARNING}") == 2  # on top, and where the set begins
    assert page.count(WARNING) == 2
    head = str(view.study.log.head)[:12]
    assert f"2 registered entries; manifest {second.sha256[:12]}; log of 20 entries, head {head}<" in page


@pytest.mark.usefixtures("no_pictures")
def test_what_a_reader_must_know_of_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Starts stated by hand, attempts and other code stand in table, CSV, page and on the console."""
    folder = registered(tmp_path / "study", runs="")
    entry = open_study(folder).entries[0]
    real = manifest.code_hashes()
    monkeypatch.setattr(manifest, "code_hashes", lambda: {**real, "study/decide.py": "0"})
    brought_in(folder, entry, "main", {"details": {}}, started=LATER, other_code="a bug in a picture")
    record = folder / "runs/main/n3-s5-b1/wide/record.json"
    rewrite_record(record, attempts=2)
    verdict(folder, now=lambda: LATER, other_code="the same bug")
    view = overview(open_study(folder))
    save_report(view, tmp_path / "report")
    rows = {(row["replicate"], row["sessions"], row["arm"]): row for row in rows_of(tmp_path / "report/runs.csv")}
    first, again = rows["s5-b0", "3", "base"], rows["s5-b1", "3", "wide"]
    assert (first["started_stated"], first["attempts"], again["attempts"]) == ("True", "", "2")
    others = [row["text"] for row in rows_of(tmp_path / "report/log.csv") if row["what"] == "other code"]
    assert others == [
        "set main: 8 runs added while 1 files differed; reason: a bug in a picture",
        "set main: 1 files differ; reason: the same bug",
    ]
    show_set(view.sets[0], study_tables(view), Console(width=200), DECIDED)
    for said in (study_page(view), study_page(view, "main"), capsys.readouterr().out):
        assert "Their start is only stated by hand (--started): n3-s5-b0 base, n3-s5-b0 wide" in said
        assert "They took more than one attempt: n3-s5-b1 wide (2)." in said
        assert "8 runs were added with other code than registered (1 files differ): a bug in a picture." in said
        assert "Judged with other code than registered (1 files differ): the same bug." in said
    assert "start only stated" in study_page(view)


@pytest.mark.usefixtures("no_pictures")
def test_nothing_to_say_of_ordinary_runs(view: Overview) -> None:
    assert remarks(view.sets[0]) == []


@pytest.mark.usefixtures("no_pictures")
def test_refused_runs_are_in_the_decision_log(tmp_path: Path) -> None:
    folder = registered(tmp_path / "study", runs="")
    entry = open_study(folder).entries[0]
    run = hardware_run(entry, entry.cells(entry.sets[0])[0], "base", details={"started_at": LATER, "valid": False})
    save_run(run, tmp_path / "run")
    with pytest.raises(InputError):
        ingest(folder, [tmp_path / "run"], now=lambda: LATER)
    save_report(overview(open_study(folder)), tmp_path / "report")
    (row,) = [row for row in rows_of(tmp_path / "report/log.csv") if row["what"] == "refused"]
    assert "marked invalid: no reason is given" in row["text"]
    assert "marked invalid: no reason is given" in (tmp_path / "report/index.html").read_text()


@pytest.mark.usefixtures("no_pictures")
def test_names_are_not_markup(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study")
    path = folder / "study.toml"
    path.write_text(path.read_text().replace("profile =", 'title = "<script>alert(1)</script>&"\nprofile =', 1))
    register(folder, now=lambda: NOW)
    path.write_text(path.read_text() + "\n" + text(sets=(("next", [9]),)).split("[[plans]]")[1].join(["[[plans]]", ""]))
    register(folder, now=lambda: LATER, amend="<b>because</b>")
    page = study_page(overview(open_study(folder)))
    assert "<script>" not in page
    assert "<b>" not in page
    assert "reason: &lt;b&gt;because&lt;/b&gt;" in page


def test_steady_pictures(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study")
    path = folder / "study.toml"
    path.write_text(
        path.read_text()
        .replace("small.toml", "tracelab-multi-turn")
        .replace("seeds = [5]", 'seeds = [905, 906, 907, 908, 909]\nload = "steady"\nwindow = "10s"')
        .replace("exploratory = [4]\n", "")
        .replace("blocks = [0, 1]", "")
        + "[steady_criteria]\nnull_reuse = 0.2\nresamples = 200\n"
    )
    register(folder, now=lambda: NOW)
    measure(folder, now=lambda: LATER)
    verdict(folder, now=lambda: LATER)
    found = overview(open_study(folder))
    tables = {table.name: table for table in study_tables(found)}
    assert {"findings", "cells", "pairs"} <= set(tables)
    # the criterion on cost ratios passes, but these replicates do not tell the arms apart
    assert {row["decision"] for row in tables["break_even"].rows} == {"unresolved"}
    assert all(row["outside"].startswith("prefills of ") for row in tables["cells"].rows)
    page = study_page(found)
    assert all(f'id="main-{name}"' in page for name in ("ratios", "reuse", "saturation", "cost", "break-even"))
    for word in ("occupancy", "Ranking", "turns", "not confirmed"):
        assert word in page
    # a long text stands in no row of many numbers, where it would be squeezed to a word a line
    sections = dict(set_sections(found.sets[0], list(tables.values())))
    (_, cells), (outside,) = sections["Cells"], sections["Cells outside the measured range"]
    assert isinstance(cells, Grid)
    assert isinstance(outside, Grid)
    assert max(len(text) for row in cells.rows for text in row) < 12
    assert outside.header == ("N", "arm", "outside the measured range")
    assert len(outside.rows) == len(cells.rows)


def test_a_saving_that_did_not_pass_is_never_shown_alone(
    view: Overview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Withheld and exploratory stand beside the saving in the table and in both pictures of it."""
    folder = measured(
        tmp_path / "study",
        runs='runs = "simulated"\nsimulated = { scatter_seed = 3 }',
        more="[criteria]\nchannel_difference = 0\n",
    )
    verdict(folder, now=lambda: LATER)
    found = overview(open_study(folder), compile_s=480.0)
    (table,) = (table for table in study_tables(found) if table.name == "break_even")
    assert [(row["sessions"], row["decision"]) for row in table.rows] == [(3, "withheld"), (4, "exploratory")]
    drawn: list[Figure] = []
    monkeypatch.setattr("slotgrid.report.study_pictures.png_of", lambda figure: drawn.append(figure) or b"")

    def figures_of(s: SetOverview) -> tuple[dict[str, Picture], dict[str, Figure]]:
        drawn.clear()
        pictures = {picture.name: picture for picture in set_pictures(s)}
        return pictures, dict(zip(pictures, drawn, strict=True))

    def filled(figure: Figure) -> list[bool]:
        return [bool(marks.get_facecolor()[0][3]) for marks in figure.axes[0].collections if len(marks.get_offsets())]

    _, figures = figures_of(view.sets[0])
    assert filled(figures["main-cost"]) == [True, False]  # passed, exploratory
    pictures, figures = figures_of(found.sets[0])
    assert filled(figures["main-cost"]) == [False, False]
    _, labels = figures["main-break-even"].axes[0].get_legend_handles_labels()
    assert labels == ["N = 3, wide (withheld)", "N = 4, wide (exploratory)"]
    _, labels = figures["main-saturation"].axes[0].get_legend_handles_labels()
    assert labels == ["N = 3, replicates", "N = 4, exploratory", "median over cells"]
    line = next(x for x in figures["main-saturation"].axes[0].lines if x.get_label() == "median over cells")
    rows = {(o.sessions, o.replicate, o.arm): o.device_s for o in found.sets[0].outcomes}
    ratios = [rows[3, f"s5-b{b}", "wide"] / rows[3, f"s5-b{b}", "base"] for b in (0, 1)]
    assert list(line.get_ydata()) == pytest.approx([1, sum(ratios) / 2])
    for name, word in (("cost", "Hollow"), ("break-even", "In brackets")):
        assert f"{word}: the decision on that comparison is not passed" in pictures[f"main-{name}"].caption
    assert "left out: N = 4." in pictures["main-saturation"].caption
    assert "Exploratory N decide nothing and are left out: N = 4." in study_page(found)


@pytest.mark.usefixtures("no_pictures")
def test_nothing_but_exploratory(tmp_path: Path) -> None:
    """No confirmatory N: the page says so where it has no decision."""
    folder = write_study(tmp_path / "study")
    path = folder / "study.toml"
    path.write_text(path.read_text().replace("sessions = [3]\nexploratory = [4]", "sessions = []\nexploratory = [3]"))
    register(folder, now=lambda: NOW)
    measure(folder, now=lambda: LATER)
    verdict(folder, now=lambda: LATER)
    page = study_page(overview(open_study(folder)))
    assert "N = none, exploratory N = 3" in page
    assert "Not judged: saturation: every N of set main is exploratory; exploratory N decide nothing." in page


def test_page_in_a_browser(browser: Any, page: str, tmp_path: Path) -> None:
    """It loads without an error, no request leaves it, nothing is wider than it, and it prints."""
    path = tmp_path / "index.html"
    path.write_text(page)
    browser.get("about:blank")
    requested(browser)
    browser.get_log("browser")
    browser.get(path.as_uri())
    assert browser.title.startswith("Study: ")
    assert browser.get_log("browser") == []
    assert [a for a in requested(browser) if a != path.as_uri() and not a.startswith("data:")] == []
    shown = browser.execute_script("return [...document.images].map(i => [i.complete, i.naturalWidth, i.clientWidth])")
    assert len(shown) == 5
    assert all(complete and natural == WIDTH_IN * DPI and width > 500 for complete, natural, width in shown)
    for width in (1200, 700):
        browser.set_window_size(width, 1000)
        assert browser.execute_script(
            "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )
    printed = browser.print_page()
    assert len(printed) > 10_000


def test_a_report_is_written_anew(view: Overview, page: str, tmp_path: Path) -> None:
    """It is derived: it may be written again, unlike everything it is made from, and comes out the same."""
    (tmp_path / "index.html").write_text("old")
    save_report(view, tmp_path)
    assert (tmp_path / "index.html").read_text() == page

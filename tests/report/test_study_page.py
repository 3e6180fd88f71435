"""The page of a study: the numbers of its CSV files, standing alone, never calling a simulated run measured."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from slotgrid.report.figure import DPI, WIDTH_IN
from slotgrid.report.study_page import WARNING, save_report, study_page
from slotgrid.report.study_tables import study_tables
from slotgrid.run import save_run
from slotgrid.study.collect import ingest, measure
from slotgrid.study.overview import Overview, overview
from slotgrid.study.register import register
from slotgrid.study.study import open_study
from slotgrid.study.verdict import verdict
from tests.report.test_page import Outline, browser, requested
from tests.study.small import LATER, NOW, hardware_run, measured, registered, text, write_study

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
    assert "from" in page


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
        .replace("seeds = [5]", 'seeds = [905, 906]\nload = "steady"\nwindow = "10s"')
        .replace("exploratory = [4]\n", "")
        .replace("blocks = [0, 1]", "")
        + "[steady_criteria]\nnull_reuse = 0.2\nresamples = 200\n"
    )
    register(folder, now=lambda: NOW)
    measure(folder, now=lambda: LATER)
    verdict(folder, now=lambda: LATER)
    found = overview(open_study(folder))
    assert {"findings", "cells", "pairs"} <= {table.name for table in study_tables(found)}
    page = study_page(found)
    assert all(f'id="main-{name}"' in page for name in ("ratios", "reuse", "saturation", "cost", "break-even"))
    for word in ("occupancy", "Ranking", "turns", "not confirmed"):
        assert word in page


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

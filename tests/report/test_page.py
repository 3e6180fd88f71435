"""Pictures and page: there is one for everything observed, the page stands alone, and a real browser agrees."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from slotgrid.report.page import page, save_page
from slotgrid.report.pictures import MOST_REQUESTS, draw_pictures, save_pictures
from tests.samples import copy_sample, row, write_rows

PNG = b"\x89PNG\r\n\x1a\n"
CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> sg.Diagnosis:
    folder = copy_sample("base_n8_b0", tmp_path_factory.mktemp("run"))
    return sg.diagnose(folder, profile="rbln-ca25-qwen3-4b")


def test_pictures_of_a_full_run(found: sg.Diagnosis, tmp_path: Path) -> None:
    pictures = draw_pictures(found)
    assert [p.name for p in pictures] == ["steps", "slots", "timeline", "in_flight", "survival"]
    assert all(p.png.startswith(PNG) and len(p.png) > 5_000 for p in pictures)
    paths = save_pictures(pictures, tmp_path / "new")
    assert [path.name for path in paths] == [f"{p.name}.png" for p in pictures]
    assert all(path.read_bytes() == p.png for path, p in zip(paths, pictures, strict=True))
    assert "5 of them cost a reuse" in pictures[1].caption
    assert "9.814 session-seconds" in pictures[2].caption
    assert "13.742 s" in pictures[3].caption


def test_the_same_run_gives_the_same_bytes(found: sg.Diagnosis) -> None:
    assert [p.png for p in draw_pictures(found)] == [p.png for p in draw_pictures(found)]


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (("requests.jsonl",), ["in_flight"]),
        (("server.log",), ["steps", "slots", "timeline"]),
        (("metrics.prom",), []),
    ],
)
def test_pictures_of_what_was_observed(files: tuple[str, ...], names: list[str], tmp_path: Path) -> None:
    d = sg.diagnose(copy_sample("base_n8_b0", tmp_path, *files))
    assert [p.name for p in draw_pictures(d)] == names


def test_long_runs_show_their_beginning(profile: sg.StackProfile) -> None:
    plan = sg.load_workload("tracelab-two-turn").draw(clients=150, seed=4)
    d = sg.diagnose(sg.simulate(profile, sg.ServingConfig((1, 4, 16)), plan), profile=profile)
    captions = {p.name: p.caption for p in draw_pictures(d)}
    for name in ("slots", "timeline", "in_flight"):
        assert f"The first {MOST_REQUESTS} of 300 requests" in captions[name]


class Outline(HTMLParser):
    """Open tags, and every address the page mentions."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href", "action", "data")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_whole_and_stands_alone(found: sg.Diagnosis, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    save_page(found, draw_pictures(found), path)
    text = path.read_text()
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert "script" not in outline.seen
    assert len(outline.addresses) == 6
    assert all(address.startswith("data:") for address in outline.addresses)
    assert not re.search(r"url\(|@import|https?://", re.sub(r"base64,[^\"]*", "", text))
    for sentence in found.summary:
        assert sentence.text in text.replace("&gt;", ">")
    assert "prefix_cache_hits" in text


def test_names_are_not_markup(tmp_path: Path) -> None:
    write_rows(tmp_path / "requests.jsonl", [row(0, 0, status=500, error=None), row("<b>&x", 0, request_id="r")])
    (tmp_path / "<script>.txt").write_text("")
    text = page(sg.diagnose(tmp_path), [])
    assert "<script>" not in text
    assert "not read: &lt;script&gt;.txt" in text


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("SKIPPED browser tests: chromium and chromium-driver are not installed")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,1000"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(DRIVER, env={**os.environ, "SE_OFFLINE": "true"})
    )
    try:
        yield driver
    finally:
        driver.quit()


def requested(driver: Any) -> list[str]:
    """Addresses asked for since the last look at the log."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def test_page_in_a_browser(browser: Any, found: sg.Diagnosis, tmp_path: Path) -> None:
    """It loads with no console error, no request leaves it, every picture is shown and nothing is wider than it."""
    path = tmp_path / "page.html"
    save_page(found, draw_pictures(found), path)
    browser.get("about:blank")
    requested(browser)
    browser.get_log("browser")
    browser.get(path.as_uri())
    assert browser.title == "Diagnosis of a measured run of plan n8b0"
    assert browser.get_log("browser") == []
    addresses = requested(browser)
    assert path.as_uri() in addresses
    assert [a for a in addresses if a != path.as_uri() and not a.startswith("data:")] == []
    shown = browser.execute_script("return [...document.images].map(i => [i.complete, i.naturalWidth, i.clientWidth])")
    assert len(shown) == 5
    assert all(complete and natural > 500 and width > 500 for complete, natural, width in shown)
    for width in (1200, 700):
        browser.set_window_size(width, 1000)
        assert browser.execute_script(
            "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )
    browser.execute_script("new Image().src = 'https://example.invalid/x.png'")
    blocked = [entry["message"] for entry in browser.get_log("browser")]
    assert any("Content Security Policy" in message for message in blocked)

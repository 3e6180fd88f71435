"""``slotgrid diagnose`` as its users type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import slotgrid as sg
from tests.conftest import Command, assert_one_line_error
from tests.samples import NAMES, alloc, copy_sample, expected, log, row, sample_rows, write_rows

PROFILE = ("--profile", "rbln-ca25-qwen3-4b")


def test_json_end_to_end(slotgrid: Command, tmp_path: Path) -> None:
    """Through the real command line: the expected totals, nothing else on stdout, and all three kinds of files."""
    folder = copy_sample("base_n8_b0", tmp_path / "run")
    process = slotgrid(
        "diagnose", folder, *PROFILE, "--json", "--html", "page.html", "--plots", "pictures", "--timeline", "t.json"
    )
    assert process.returncode == 0, process.stderr
    found, told = json.loads(process.stdout), expected("base_n8_b0")
    for key in ("decode_s", "prefill_s"):
        assert found["channel_a"].pop(key) == pytest.approx(told["channel_a"].pop(key), abs=1e-9)
    for key in ("stall_session_s", "channel_a"):
        assert found.pop(key) == pytest.approx(told.pop(key), abs=1e-9)
    assert {key: found[key] for key in told} == told
    assert (found["lost_tokens"], found["returns_computed_tokens"]) == (6400, 8200)
    assert "page written to page.html" in process.stderr
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 5
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_report(slotgrid: Command, tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path / "run")
    process = slotgrid("diagnose", folder, *PROFILE, "--other-buckets", "1,2,4,6,8")
    assert process.returncode == 0
    assert process.stderr == ""
    text = " ".join(process.stdout.split())
    for part in (
        "measured run of plan n8b0: buckets 1,2,4,8, 8 slots, max running 8; 16 requests",
        "More slots first: 62.5 % of returns lose their prefix",
        "in the same order of events 13 slots instead of 8 keep 8 of 8",
        "padding ratio 17.70 %",
        "buckets 1,2,4,6,8 (as asked), same steps: padding 17.70 %",
        "padding and cost can move in opposite directions",
        "prefix_cache_hits 9,856 misleading",
        "evictions 9 1 by admission, 8 by the padding slot",
        "8*: 3, 9: 5, 10: 6, 11: 7, 12: 7, 13: 8",
        "channel A 13.740 s decode 10.385 s, prefill 3.355 s",
        "time to first token: needs first-token times in the request rows",
    ):
        assert part in text, part


def test_simulated_run_directory(slotgrid: Command, tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path / "run", "plan.json")
    plan = folder / "plan.json"
    assert slotgrid("simulate", plan, *PROFILE, "--buckets", "1,2,4,8", "-o", "sim").returncode == 0
    found = json.loads(slotgrid("diagnose", "sim", *PROFILE, "--json").stdout)
    assert found["source"] == "simulated"
    assert found["histogram"] == expected("base_n8_b0")["histogram"]
    assert found["not_observed"] == {}


def test_compare(slotgrid: Command, tmp_path: Path) -> None:
    base, tuned = (copy_sample(name, tmp_path / name) for name in (NAMES[0], NAMES[2]))
    process = slotgrid("diagnose", tuned, *PROFILE, "--compare", base)
    text = " ".join(process.stdout.split())
    assert "Compared with the baseline same plan n8b0" in text
    assert "the channels agree within tau = max(0.02, r_base / B_base) = 0.0200" in text
    data = json.loads((base / "plan.json").read_text())
    data["plan"][0][0][2] = 1.0
    (base / "plan.json").write_text(json.dumps(data))
    assert_one_line_error(slotgrid("diagnose", tuned, "--compare", base), "--compare: the plans differ")


def test_help_is_quick_to_import(slotgrid: Command) -> None:
    text = " ".join(slotgrid("diagnose", "--help").stdout.split())
    for option in ("--profile", "--compare", "--html", "--timeline", "--plots", "--json", "--other-buckets"):
        assert option in text


def test_bad_input_is_one_line(slotgrid: Command, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert_one_line_error(slotgrid("diagnose", empty), "empty: the directory is empty; expected a server log")
    assert_one_line_error(slotgrid("diagnose", "nowhere"), "nowhere: no such directory")
    folder = copy_sample("base_n8_b0", tmp_path / "run")
    assert_one_line_error(slotgrid("diagnose", folder, "--profile", "none"), "profile 'none'")
    assert_one_line_error(slotgrid("diagnose", folder, "--buckets", "1,x"), "--buckets: '1,x'")
    assert_one_line_error(
        slotgrid("diagnose", folder, "--other-buckets", "1,4"), "8 requests ran at once, above the top bucket 4"
    )
    assert_one_line_error(slotgrid("diagnose", folder, "--buckets", "1,2,8"), "the log ran bucket 4")
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "server.log").write_text(log(alloc("a-0-1", 0), alloc("b-0-1", 0)))
    assert_one_line_error(slotgrid("diagnose", mixed), "server.log: line 2", "two servers")
    write_rows(folder / "requests.jsonl", [{**r, "request_id": f"x{i}"} for i, r in enumerate(sample_rows())])
    assert_one_line_error(slotgrid("diagnose", folder), "none of the 16 request rows", "different runs")
    write_rows(empty / "requests.jsonl", [row(0, 0), row(0, 0, request_id="b")])
    assert_one_line_error(slotgrid("diagnose", empty), "line 2: session '0' turn 0 was already at")


def test_a_page_that_cannot_be_written(slotgrid: Command, tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path / "run")
    (tmp_path / "file").write_text("")
    process = slotgrid("diagnose", folder, "--html", "file/page.html")
    assert process.returncode == 2
    assert "file/page.html: cannot write" in process.stderr


@pytest.mark.parametrize("first", ["import slotgrid.diagnose", "from slotgrid.diagnose import diagnose", "pass"])
def test_the_room_is_its_verb(first: str, tmp_path: Path) -> None:
    """``sg.diagnose(...)`` works however the package was imported before."""
    namespace: dict[str, object] = {}
    exec(first, namespace)
    found = sg.diagnose(copy_sample("base_n8_b0", tmp_path))
    assert isinstance(found, sg.Diagnosis)

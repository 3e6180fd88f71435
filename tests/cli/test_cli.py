"""The command line as its users type it: every command once, typos, pipes, faults."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

import slotgrid as sg
from slotgrid.report.search_table import search_report
from tests.conftest import Command, assert_one_line_error
from tests.test_plan import published

SEARCH = (
    "search",
    "--profile",
    "rbln-ca25-qwen3-4b",
    "--workload",
    "tracelab-two-turn",
    "--baseline",
    "1,2,4,8",
    "--max-buckets",
    "6",
)
PUBLISHED = (*SEARCH, "--sessions", "6,8,10", "--batch", "8,10,12,16", "--compile-budget", "30m")
SMALL = (*SEARCH, "--sessions", "4,8", "--batch", "8", "--blocks", "0")


def draw(slotgrid: Command, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    process = slotgrid("plan", "draw", "tracelab-two-turn", "--sessions", 8, "--seed", 20261000, "-o", path)
    assert process.returncode == 0, process.stderr
    assert process.stdout == ""
    assert "InputPlan('n8b0': 8 clients" in process.stderr
    return path


def test_version_and_help(slotgrid: Command) -> None:
    assert slotgrid("--version").stdout == f"slotgrid {sg.__version__}\n"
    assert "search" in slotgrid("--help").stdout
    nothing = slotgrid()
    assert nothing.returncode == 2
    assert nothing.stderr.startswith("Usage: slotgrid")
    assert len(nothing.stderr.splitlines()) > 10
    for command in ("plan", "workload", "profile"):
        assert slotgrid(command, "--help").returncode == 0


def test_plan(slotgrid: Command, tmp_path: Path) -> None:
    path = draw(slotgrid, tmp_path)
    shown = json.loads(slotgrid("plan", "show", path, "--json").stdout)
    assert shown["content_sha256"] == sg.load_plan(path).content_sha256
    assert shown["turns"] == 16
    text = slotgrid("plan", "show", path).stdout
    assert "longest_context_tokens" in text
    drawn = slotgrid(
        *("plan", "draw", "tracelab-two-turn", "--sessions", 8, "--seed", 20261000),
        *("--block", 1, "-o", tmp_path / "b.json", "--json"),
    )
    assert json.loads(drawn.stdout)["plan_id"] == "n8b1"


def test_a_published_plan_shows_its_own_hash(slotgrid: Command, tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    path.write_text(json.dumps(published()))
    shown = json.loads(slotgrid("plan", "show", path, "--json").stdout)
    assert shown["published_content_sha256"] == published()["_sha256"]


def test_workload_and_profile(slotgrid: Command) -> None:
    assert "tracelab-two-turn" in slotgrid("workload", "list").stdout
    assert {w["id"] for w in json.loads(slotgrid("workload", "list", "--json").stdout)} == {
        "tracelab-multi-turn",
        "tracelab-two-turn",
    }
    shown = slotgrid("workload", "show", "tracelab-two-turn").stdout
    assert "2.53% of waits" in shown
    assert json.loads(slotgrid("workload", "show", "tracelab-two-turn", "--json").stdout)["turns"] == 2
    assert "rbln-ca25-qwen3-4b" in slotgrid("profile", "list").stdout
    assert json.loads(slotgrid("profile", "list", "--json").stdout)[0]["id"] == "rbln-ca25-qwen3-4b"
    values = json.loads(slotgrid("profile", "show", "rbln-ca25-qwen3-4b", "--json").stdout)["values"]
    assert all(value["source"] for value in values)
    text = slotgrid("profile", "show", "rbln-ca25-qwen3-4b").stdout
    for part in ("memory.per_slot", "price.decode.fixed[bucket 8]", "measured range of price.decode.running: 1 to 8"):
        assert part in text
    assert "block 128 tokens" in text


def test_simulate(slotgrid: Command, tmp_path: Path, profile: sg.StackProfile) -> None:
    path = draw(slotgrid, tmp_path)
    arguments = ("simulate", path, "--profile", "rbln-ca25-qwen3-4b", "--buckets", "1,2,4,8")
    process = slotgrid(*arguments, "--json", "-o", tmp_path / "run")
    assert process.returncode == 0, process.stderr
    data = json.loads(process.stdout)
    run = sg.simulate(profile, sg.ServingConfig((1, 2, 4, 8)), sg.load_plan(path))
    assert data == run.to_dict()
    stable = {
        "device_time_s",
        "decode_s",
        "prefill_s",
        "stall_session_s",
        "wall_s",
        "decode_steps",
        "padding_ratio",
        "requests",
        "returns",
        "reused",
        "cached_tokens",
        "computed_tokens",
        "histogram",
    }
    assert stable <= set(data)
    assert sg.load_run(tmp_path / "run").to_dict() == data
    plain = slotgrid(*arguments, "--json", env={"SLOTGRID_ENGINE": "python"})
    assert plain.stdout == process.stdout
    switched = slotgrid(*arguments, "--padding", "none", "--turnaround", "2ms", "--json")
    assert json.loads(switched.stdout)["rules"] == "real+padding=none"
    text = slotgrid(*arguments, "--slots", 9)
    assert text.returncode == 0
    assert "device time" in text.stdout
    assert "slots 9" in text.stdout


def test_published_search(slotgrid: Command, tmp_path: Path) -> None:
    process = slotgrid(*PUBLISHED, "--rules", "paper", "--json", "-o", tmp_path / "s")
    assert process.returncode == 0, process.stderr
    data = json.loads(process.stdout)
    assert data["candidates"] == 2077
    assert data["best"]["buckets"] == [1, 4, 6, 8, 10, 16]
    assert (data["best"]["slots"], data["best"]["max_running"]) == (16, 16)
    assert round(data["best"]["ratio"], 6) == 0.920931
    assert round(data["best"]["ratio_evaluated"], 6) == 0.906644
    assert set(data["best"]["ratio_by_sessions"]) == {"6", "8", "10"}
    assert data["recommended"]["compile_s"] == min(tie["compile_s"] for tie in data["near_ties"])
    assert data["baseline"]["ratio"] == 1.0
    assert {"simulated", "top", "elapsed_s"} <= set(data)
    assert pl.read_parquet(tmp_path / "s" / "ledger.parquet").height == 2077
    assert "ledger:" in process.stderr


def test_search_report_ends_with_the_command(slotgrid: Command) -> None:
    process = slotgrid(*PUBLISHED, "--no-ledger")
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""  # no progress bar without a terminal
    lines = process.stdout.splitlines()
    assert lines[-1] == (
        "  optimum-rbln-cli --output-dir qwen3-4b-b1-4-6-8-10-16-s16 --model-id Qwen/Qwen3-4B --batch_size 16 "
        "--decoder_batch_sizes 1,4,6,8,10,16 --max_seq_len 8192 --num_devices 4"
    )
    text = process.stdout
    assert "2,077 candidates" in text
    assert "Recommended: buckets 1,4,6,8,10,16 with 16 KV slots" in text
    for part in ("472 s to compile", "13.1 GiB artifact", "7.10 GiB of the 15.7 GiB", "near-ties:", "N = 10:"):
        assert part in text
    assert "outside the measured range: decode steps of bucket 10 (measured 1 to 8)" in text


def test_search_in_a_narrow_terminal_keeps_ratios_and_command_whole(
    profile: sg.StackProfile, two_turn: sg.Workload
) -> None:
    space = sg.SearchSpace((8,), 4)
    result = sg.search(profile, space, two_turn, sessions=(4, 8), baseline=sg.ServingConfig((1, 2, 4, 8)), blocks=(0,))
    for width in (50, 80, 120):
        out = io.StringIO()
        search_report(result, space.describe(), 8192, 5, Console(file=out, width=width, markup=False))
        lines = out.getvalue().splitlines()
        assert "\u2026" not in out.getvalue()
        assert any(line.lstrip().startswith("optimum-rbln-cli") and "--num_devices 4" in line for line in lines)
        assert f"{result.best.ratio:.4f}" in out.getvalue()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((*SMALL, "--colour"), ["No such option", "--colour"]),
        (("serach",), ["No such command", "serach"]),
        ((*SMALL, "--sessions", "six"), ["--sessions: 'six'", "8-16"]),
        ((*SMALL, "--batch", "16-8"), ["--batch: '16-8'"]),
        ((*SMALL, "--baseline", "1,4,2"), ["buckets: 2 after 4"]),
        ((*SMALL, "--compile-budget", "30"), ["--compile-budget: '30' has no unit"]),
        ((*SMALL, "--memory-budget", "15GB"), ["--memory-budget: unknown unit 'GB'", "GiB"]),
        ((*SMALL, "--compile-budget", "1s"), ["budget: no candidate is left"]),
        ((*SMALL, "--explore-seeds", "1", "--eval-seeds", "1"), ["eval-seeds: 1 is also an exploration seed"]),
        ((*SMALL, "--resume"), ["no search to resume here"]),
        ((*SMALL, "--resume", "--no-ledger"), ["--resume"]),
        ((*SMALL, "--profile", "rbln"), ["profile 'rbln'", "built in: rbln-ca25-qwen3-4b"]),
        ((*SMALL, "--workload", "none.toml"), ["none.toml: No such file"]),
        (("plan", "show", "none.json"), ["none.json: No such file"]),
        (("plan", "draw", "tracelab-two-turn", "--sessions", "0", "--seed", "1", "-o", "x.json"), ["at least 1"]),
    ],
)
def test_bad_input_is_one_line(slotgrid: Command, arguments: tuple[str, ...], parts: list[str], tmp_path: Path) -> None:
    assert_one_line_error(slotgrid(*arguments), *parts)
    assert list(tmp_path.iterdir()) == []


def test_bad_simulations_are_one_line(slotgrid: Command, tmp_path: Path) -> None:
    path = draw(slotgrid, tmp_path)
    head = ("simulate", path, "--profile", "rbln-ca25-qwen3-4b", "--buckets")
    assert_one_line_error(slotgrid(*head, "1,2", "--max-running", 4), "the top bucket 2 is below max_running 4")
    assert_one_line_error(slotgrid(*head, "1,2", "--slots", 0), "slots: 0 is below 1")
    assert_one_line_error(slotgrid(*head, "1,2", "--slots", 1), "no usable slot")
    assert_one_line_error(slotgrid(*head, "1,2", "--release", "never"), "release: 'never'")
    path.write_text(path.read_text()[:400])
    assert_one_line_error(slotgrid(*head, "1,2"), "plan.json: line")
    path.write_text("")
    assert_one_line_error(slotgrid(*head, "1,2"), "plan.json: the file is empty")


def test_a_folder_that_cannot_be_written_is_one_line(slotgrid: Command, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    assert_one_line_error(slotgrid(*SMALL, "-o", tmp_path / "taken"), "taken", "cannot write")
    process = slotgrid("plan", "draw", "tracelab-two-turn", "--sessions", 2, "--seed", 1, "-o", "/proc/none/x.json")
    assert_one_line_error(process, "/proc/none/x.json: cannot write")


def test_a_full_disk_leaves_the_earlier_result(slotgrid: Command, tmp_path: Path) -> None:
    """The kernel refuses to let any file grow: the same error path as a disk without room."""
    folder = tmp_path / "s"
    assert slotgrid(*SMALL, "-o", folder).returncode == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    # compiled code could not be cached either, so this one runs as plain Python
    process = slotgrid(*SMALL, "--max-buckets", "3", "-o", folder, file_bytes=300, env={"SLOTGRID_ENGINE": "python"})
    assert_one_line_error(process, "cannot write", "File too large")
    after = {path.name: path.read_bytes() for path in folder.iterdir() if "partial" not in path.name}
    assert after == before


def test_closed_pipe_is_quiet(tmp_path: Path) -> None:
    process = subprocess.run(
        f"{sys.executable} -m slotgrid workload show tracelab-two-turn | true",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in process.stderr


def test_ctrl_c_keeps_a_ledger_that_resumes(slotgrid: Command, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    long = (*SEARCH, "--sessions", "12", "--batch", "16-19", "--explore-seeds", "1-20", "-o", str(folder))
    process = subprocess.Popen(
        [sys.executable, "-m", "slotgrid", *long],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "SLOTGRID_ENGINE": "python"},
    )
    # the partial state appears once the plans are drawn and the first candidates are under way
    while not (folder / "ledger.partial.json").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert out == ""
    assert "continue with --resume" in err
    assert "slotgrid: interrupted" in err
    assert "Traceback" not in err
    quick = (*long, "--resume", "--json")
    resumed = slotgrid(*quick)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["candidates"] == pl.read_parquet(folder / "ledger.parquet").height

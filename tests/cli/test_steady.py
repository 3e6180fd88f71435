"""Steady load, ensembles, open-loop plans and capacity through the real command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import slotgrid as sg
from slotgrid.cli.main import run
from tests.conftest import Command, assert_one_line_error

SIMULATE = ("--profile", "rbln-ca25-qwen3-4b", "--buckets", "1,2,4,8")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    sg.load_workload("tracelab-multi-turn").draw(clients=4, seed=3, cycle_s=5.0).save(path)
    return path


Inside = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def inside(capsys: pytest.CaptureFixture[str]) -> Inside:
    """The command line in this process: the same parsing and errors without a start for each."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        code = run([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return subprocess.CompletedProcess([], code, said.out, said.err)

    return call


def test_a_window_through_the_real_command_line(slotgrid: Command, plan: Path) -> None:
    window = slotgrid("simulate", plan, *SIMULATE, "--window", "60s", "--clock", "operating", "--json")
    assert window.returncode == 0, window.stderr
    data = json.loads(window.stdout)
    assert data["window"]["end_s"] - data["window"]["start_s"] == pytest.approx(60)
    assert data["ttft"]["p95_s"] > 0
    assert any("operating costs of BASE" in text for text in data["notes"])


def test_windows_and_ensembles(inside: Inside, plan: Path, tmp_path: Path) -> None:
    text = inside("simulate", plan, *SIMULATE, "--window", "60s", "-o", tmp_path / "run").stdout
    assert "device time" in text
    assert "TTFT, later turns" in text
    assert sg.load_run(tmp_path / "run").plan_id == "n4b0"
    data = json.loads(inside("simulate", plan, *SIMULATE, "--ensemble", 40, "--seed", 7, "--json").stdout)
    assert data["members"] == 40
    assert data["device_time_s"]["low"] <= data["device_time_s"]["mean"] <= data["device_time_s"]["high"]
    assert {row["turn"] > 0 for row in data["reuse_probability"]} == {True}
    text = inside("simulate", plan, *SIMULATE, "--ensemble", 40, "--seed", 7).stdout
    assert "returns are the same in every repeat" in text
    window = ("--window", "60s", "--ensemble", 3)
    data = json.loads(inside("simulate", plan, *SIMULATE, *window, "--json").stdout)
    assert data["reuse_rate"]["mean"] > 0
    assert data["reuse_rate"]["low"] is None
    assert "too few repeats" in inside("simulate", plan, *SIMULATE, *window).stdout


def test_the_window_of_a_saved_run_is_the_same(slotgrid: Command, inside: Inside, plan: Path, tmp_path: Path) -> None:
    profile = ("--profile", "rbln-ca25-qwen3-4b")
    direct = inside("simulate", plan, *SIMULATE, "--window", "60s", "-o", tmp_path / "run", "--json")
    saved = slotgrid("steady", tmp_path / "run", "--plan", plan, *profile, "--window", "60s", "--json")
    assert saved.returncode == 0, saved.stderr
    one, other = json.loads(direct.stdout), json.loads(saved.stdout)
    assert {key: other[key] for key in one if key not in ("notes", "extrapolated")} == {
        key: one[key] for key in one if key not in ("notes", "extrapolated")
    }
    foreign = tmp_path / "foreign.json"
    sg.load_workload("tracelab-multi-turn").draw(clients=4, seed=4, cycle_s=5.0).save(foreign)
    assert_one_line_error(inside("steady", tmp_path / "run", "--plan", foreign, *profile), "ran plan n4b0", "--plan")


def test_each_correction_can_be_left_out(inside: Inside, plan: Path) -> None:
    without = inside("simulate", plan, *SIMULATE, "--clock", "operating", "--without", "context, excess", "--json")
    assert any("without context, excess" in text for text in json.loads(without.stdout)["notes"])


def test_open_loop_plans(slotgrid: Command, inside: Inside, tmp_path: Path) -> None:
    path = tmp_path / "open.json"
    draw = ("plan", "draw", "tracelab-multi-turn", "--seed", 1, "-o", path)
    made = slotgrid(*draw, "--sessions", 30, "--arrivals-per-s", 0.2, "--json")
    assert json.loads(made.stdout)["clients"] == 30
    assert_one_line_error(inside("simulate", path, *SIMULATE, "--window", "60s"), "warm-up", "--warmup")
    assert inside("simulate", path, *SIMULATE, "--window", "60s", "--warmup", "20s").returncode == 0
    times = tmp_path / "times.txt"
    times.write_text("0\n4\n9.5\n")
    assert json.loads(inside(*draw, "--arrival-times", times, "--json").stdout)["clients"] == 3
    assert_one_line_error(inside(*draw, "--arrival-times", times, "--sessions", 4), "--sessions", "3 start times")
    assert_one_line_error(inside(*draw, "--arrivals-per-s", 0.2), "--sessions is missing")
    assert_one_line_error(inside(*draw, "--arrivals-per-s", 0.2, "--sessions", 3, "--cycle", "5s"), "--cycle")
    assert_one_line_error(inside(*draw), "--sessions is missing")


def test_bad_windows_and_ensembles_are_one_line(inside: Inside, plan: Path) -> None:
    for arguments, parts in (
        (("--window", "3000s"), ("sessions per client are needed", "has 16")),
        (("--window", "60"), ("--window", "no unit")),
        (("--warmup", "6s"), ("--warmup", "--window")),
        (("--ensemble", 0), ("0 members", "at least 2")),
        (("--ensemble", 1), ("1 members", "at least 2")),
        (("--clock", "wall"), ("price, operating",)),
        (("--without", "context"), ("choose clock operating",)),
        (("--ensemble", 5, "-o", "run"), ("--output",)),
        (("--seed", 5), ("--seed", "--ensemble")),
        (("--window", "1e300s"), ("1e+300",)),
    ):
        assert_one_line_error(inside("simulate", plan, *SIMULATE, *arguments), *parts)


def test_capacity(slotgrid: Command, inside: Inside) -> None:
    common = ("capacity", "--profile", "rbln-ca25-qwen3-4b", "--workload", "tracelab-multi-turn", "--seeds", "0-1")
    options = ("--buckets", "1,2,4", "--buckets", "1,2,4@6", "--window", "40s", "--most-agents", 6)
    found = slotgrid(*common, *options, "--ttft-p95", "500ms", "--itl-p95", "50ms", "--json")
    assert found.returncode == 0, found.stderr
    data = json.loads(found.stdout)
    assert [entry["slots"] for entry in data["capacities"]] == [4, 6]
    assert all("agents at TTFT p95 < 500 ms" in entry["sentence"] for entry in data["capacities"])
    text = inside(*common, *options, "--ttft-p95", "500ms")
    assert "agents at TTFT p95 < 500 ms (no interval from 2 replicates)" in text.stdout
    assert_one_line_error(inside(*common, *options, "--ttft-p95", "500"), "--ttft-p95", "no unit")
    assert_one_line_error(inside(*common, *options), "limits: none given")
    assert_one_line_error(inside(*common, *options, "--ttft-p95", "0ms"), "above 0")


def test_search_with_repeats(inside: Inside) -> None:
    found = inside(
        *("search", "--profile", "rbln-ca25-qwen3-4b", "--workload", "tracelab-two-turn", "--sessions", "6"),
        *("--batch", "8", "--max-buckets", "4", "--baseline", "1,2,4,8", "--ensemble", 40, "--clock", "operating"),
        *("--no-ledger", "--json"),
    )
    assert found.returncode == 0, found.stderr
    data = json.loads(found.stdout)
    assert data["ensemble"] == 40
    assert sum(entry["probability_best"] for entry in data["top"]) == pytest.approx(1, abs=0.05)
    assert data["best"]["ratio_interval"][0] <= data["best"]["ratio"] <= data["best"]["ratio_interval"][1]

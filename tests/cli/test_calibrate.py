"""``slotgrid calibrate`` through the real command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import slotgrid as sg
from tests.conftest import Command, assert_one_line_error
from tests.serve.client import PATIENCE_S, running


def start(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "slotgrid", "calibrate", *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_replays(folder: Path, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(list(folder.glob("*.json"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_killed_and_gone_on_the_rules_are_found(tiny: Path, tmp_path: Path, slotgrid: Command) -> None:
    arguments = ("--artifact", tiny, "-o", "p.toml", "--seed", "3", "--most-repeats", "5")
    # the terminal is closed
    process = start(*arguments, cwd=tmp_path)
    wait_for_replays(tmp_path / "p.calibration", 3)
    process.send_signal(signal.SIGHUP)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout, stderr.splitlines()[-1]) == (130, "", "slotgrid: interrupted")
    before = len(list((tmp_path / "p.calibration").glob("*.json")))
    process = start(*arguments, cwd=tmp_path)
    wait_for_replays(tmp_path / "p.calibration", before + 1)
    process.kill()
    process.communicate()
    assert not (tmp_path / "p.toml").exists()
    done = slotgrid("calibrate", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["replays"]["kept"] >= 3
    found = {entry["name"]: entry["value"] for entry in result["findings"]}
    assert found["reuse block"].startswith("16 tokens")
    assert found["generated tokens"] == "are not reusable"
    assert found["running together"] == "2"
    assert found["prefill beside streams"].startswith("exclusive")
    assert found["slots"] == "3: a prefix survives 1 other requests and is lost after 2"
    assert found["slots are taken"] == "by request, whatever its length"
    assert found["a request that hits"] == "takes a new slot"
    assert found["eviction order"] == "fifo by allocation"
    assert found["client turnaround"] == ""
    profile = sg.load_profile(tmp_path / "p.toml")
    assert profile.to_dict() == result["profile"]
    assert (profile.kv.slot_tokens, profile.kv.block_tokens, profile.kv.generated_reusable) == (128, 16, False)
    assert [bucket for bucket, _ in profile.price.decode.fixed_s] == [1, 2]
    for _, quantity in profile.provenance:
        assert quantity.kind == "derived" or (quantity.interval is not None and quantity.conditions)
    plan = sg.InputPlan.from_turns([[(40, 6, 0.0), (8, 4, 0.0)]] * 3)
    assert sg.simulate(profile, sg.ServingConfig((1, 2), slots=3), plan).device_time_s > 0
    again = slotgrid("calibrate", *arguments)
    assert_one_line_error(again, "p.calibration: this calibration is finished", "--again")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "give one of --base-url (a server) and --artifact"),
        (["--artifact", "TINY", "--base-url", "http://127.0.0.1:1"], 2, "give one of"),
        (["--base-url", "127.0.0.1"], 2, "expected an address like http://"),
        (["--base-url", "http://127.0.0.1:9"], 1, "http://127.0.0.1:9: no connection"),
        (["--base-url", "http://127.0.0.1:9", "--slots", "4"], 2, "--slots and --max-running belong to --artifact"),
        (["--artifact", "TINY", "--slots", "9"], 2, "compiled with 3"),
        (["--artifact", "TINY", "--events", "e.jsonl"], 2, "--events belongs to --base-url"),
        (["--artifact", "TINY", "--rules", "fair"], 2, "--rules: 'fair'; allowed: real, paper"),
        (["--artifact", "TINY", "--buckets", "4,2"], 2, "sizes must ascend"),
        (["--artifact", "TINY", "--max-seq-len", "4096"], 2, "4096"),
        (["--artifact", "none"], 2, "none"),
    ],
)
def test_bad_options_are_named(
    arguments: list[str],
    code: int,
    words: str,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from slotgrid.cli.main import run

    monkeypatch.chdir(tmp_path)
    given = [str(tiny) if argument == "TINY" else argument for argument in arguments]
    assert run(["calibrate", "-o", "p.toml", *given]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("slotgrid: error: ")
    assert words in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


# --- by hand: real times ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_over_http_stopped_with_ctrl_c_and_gone_on(tiny: Path, tmp_path: Path, slotgrid: Command) -> None:
    with running(tiny, tmp_path) as server:
        arguments = ("--base-url", server.url, "--events", server.events, "-o", "p.toml")
        process = start(*arguments, cwd=tmp_path)
        wait_for_replays(tmp_path / "p.calibration", 6)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, stderr.strip()) == (130, "slotgrid: interrupted")
        done = slotgrid("calibrate", *arguments, "--json")
        result = json.loads(done.stdout)
        found = {entry["name"]: entry["value"] for entry in result["findings"]}
        assert result["replays"]["kept"] >= 5
        assert found["prefill beside streams"].startswith("exclusive")
        assert found["eviction order"] == "fifo by allocation"
        server.stop()
    dead = slotgrid("calibrate", *arguments, "--again")
    assert dead.returncode == 1
    assert len(dead.stderr.splitlines()) == 1

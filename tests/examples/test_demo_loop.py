"""``make demo-loop``: its plan, its table, and that no server is left behind. The whole loop runs by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from examples.demo_loop import LENGTH, MARKER, compare, loop, make_plan, make_room, serving

from tests.serve.client import PATIENCE_S


def test_the_plan_is_the_same_each_time_and_fits() -> None:
    assert make_plan().content_sha256 == make_plan().content_sha256
    assert make_plan().longest_context_tokens <= LENGTH


def test_only_its_own_folder_is_removed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("all of it")
    with pytest.raises(SystemExit, match="mine: holds something else already; give a new folder"):
        loop(mine, "cpu")
    with pytest.raises(SystemExit, match=r"thesis\.txt: a file; give a folder"):
        make_room(mine / "thesis.txt")
    assert (mine / "thesis.txt").read_text() == "all of it"
    # a new or an empty folder, and then the same again
    made = tmp_path / "made"
    made.mkdir()
    make_room(made)
    (made / "profile.toml").write_text("old")
    make_room(made)
    assert [path.name for path in made.iterdir()] == [MARKER]


def test_predicted_stands_beside_measured_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    predicted = {"reused": 6, "device_time_s": 1.1, "wall_s": 3.0, "padding_ratio": 0.10}
    seen = {"reused": 5.0, "device_s": 1.0, "makespan_s": 4.0, "padding": 0.12}
    compare(predicted, {"run": seen}, returns=21)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert [line[-3:] for line in lines[1:]] == [
        ["6", "5", "+1"],
        ["1.100", "1.000", "+10.0%"],
        ["3.000", "4.000", "-25.0%"],
        ["0.100", "0.120", "-0.020"],
    ]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_the_server_ends_with_a_failure(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    whole = subprocess.Popen

    def watched(*arguments: object, **options: object) -> object:
        process = whole(*arguments, **options)  # type: ignore[call-overload]
        started.append(process.pid)
        return process

    monkeypatch.setattr(subprocess, "Popen", watched)

    def fail() -> None:
        with serving(tiny, tmp_path / "events.jsonl") as url:
            assert url.startswith("http://127.0.0.1:")
            assert alive(started[0])
            raise SystemExit("no luck")

    with pytest.raises(SystemExit, match="no luck"):
        fail()
    assert not alive(started[0])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_ends_the_loop_and_its_server(number: signal.Signals, tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "demo_loop.py"
    running = subprocess.Popen(
        [sys.executable, script, "out"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    events = tmp_path / "out" / "events.jsonl"
    deadline = time.monotonic() + PATIENCE_S
    while not (events.exists() and events.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pid = int(events.read_text().split('"pid": ')[1].split(",")[0].rstrip("}"))
    assert alive(pid)
    running.send_signal(number)
    _, stderr = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 130
    assert b"interrupted" in stderr
    assert not alive(pid)

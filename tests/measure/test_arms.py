"""Measuring arms on servers that are processes: a fresh one for each condition, whatever happens to the last."""

from __future__ import annotations

import json
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import slotgrid as sg
from slotgrid import files
from slotgrid.cli.main import run
from slotgrid.errors import InputError, RunError
from slotgrid.measure.arms import ConditionResult, load_arms, measure_arms
from slotgrid.measure.command import run_command
from slotgrid.measure.options import WindowRule
from slotgrid.measure.server_process import ServerProcess, end_leftover
from slotgrid.measure.validity import problems
from slotgrid.run import save_run
from tests.conftest import ROOT, Command, assert_one_line_error
from tests.measure.stub import PATIENCE_S
from tests.measure.test_replay import chain, plan_of, rows_of

STUB = Path(__file__).parent / "stub_server.py"
PLAN = plan_of([chain((20, 3, 0.0), (5, 2, 0.0))], [chain((30, 3, 0.0))])


def write_arms(folder: Path, modes: dict[str, str], plans: int = 1, top: str = "", each: str = "") -> Path:
    """An ARMS.toml for the double: an arm for each name, in the given mode."""
    text = f"plans = {[f'plan{r}.json' for r in range(plans)]}\nseed = 3\n{top}\n"
    for name, mode in modes.items():
        command = ["sleep", "1000"] if mode == "deaf" else [sys.executable, str(STUB), "{port}", mode]
        text += f'[[arm]]\nname = "{name}"\nstart = {json.dumps(command)}\n'
        text += f'env = {{ PYTHONPATH = "{ROOT}", ARM_SETTING = "{{arm}}-{{replicate}}" }}\n{each}\n'
    for r in range(plans):
        sg.InputPlan(f"p{r}", PLAN.clients).save(folder / f"plan{r}.json")
    (folder / "arms.toml").write_text(text)
    return folder / "arms.toml"


def measure(folder: Path, *args: Any, **options: Any) -> list[ConditionResult]:
    return measure_arms(arms=load_arms(write_arms(folder, *args, **options)), output=folder / "out")


def starts(folder: Path) -> list[list[str]]:
    """(pid, mode, port, setting) of every server that was started."""
    return [line.split() for line in (folder / "starts.txt").read_text().splitlines()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_every_arm_runs_every_plan_on_a_fresh_server(tmp_path: Path) -> None:
    compile_ = [sys.executable, "-c", "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(); "]
    compile_[2] += "(p / 'rbln_config.json').write_text('{\"batch_size\": 8}'); print('compiled')"
    each = f'artifact = "{{}}"\ncompile = {json.dumps([*compile_, "{artifact}"])}\nversions = ["echo", "stub 1.0"]'
    file = write_arms(tmp_path, {"BASE": "ok", "TUNED": "ok"}, plans=2)
    text = file.read_text()
    for name in ("BASE", "TUNED"):
        text = text.replace(f'name = "{name}"', f'name = "{name}"\n{each.replace("{}", f"made-{name}")}')
    file.write_text(text)
    arms = load_arms(file)
    results = measure_arms(arms=arms, output=tmp_path / "out")
    assert [result.reasons for result in results] == [()] * 4
    assert [(result.replicate, result.arm) for result in results] == [
        (r, name) for r, names in enumerate(arms.order) for name in names
    ]
    index = json.loads((tmp_path / "out" / "measure.json").read_text())
    assert (index["order"], index["seed"]) == (arms.order, 3)
    started = starts(tmp_path)
    assert [entry[3] for entry in started] == [f"{result.arm}-{result.replicate}" for result in results]
    assert len({entry[0] for entry in started}) == 4
    assert not any(alive(int(entry[0])) for entry in started)
    for result, (_, _, port, _) in zip(results, started, strict=True):
        folder = tmp_path / "out" / result.arm / f"r{result.replicate}"
        assert result.folder == str(folder)
        assert json.loads((folder / "condition.json").read_text()) == result.to_dict()
        assert (result.exit_code, result.ended, result.versions, result.attempts) == (-15, "TERM", "stub 1.0", 1)
        assert (result.port, result.plan_sha256) == (int(port), index["plans"][result.replicate]["sha256"])
        assert {
            "server.log",
            "plan.json",
            "run.json",
            "requests.jsonl",
            "metrics-before.prom",
            "metrics-after.prom",
        } <= {path.name for path in folder.iterdir()}
        assert json.loads((folder / "rbln_config.json").read_text()) == {"batch_size": 8}
        assert sg.diagnose(folder).run.requests.height == PLAN.turn_count
    compiled = json.loads((tmp_path / "out" / "BASE" / "compile.json").read_text())
    assert compiled["exit_code"] == 0
    assert (tmp_path / "out" / "BASE" / "compile.log").read_text() == "compiled\n"
    # called again: everything is read, nothing is started or compiled
    assert measure_arms(arms=arms, output=tmp_path / "out") == results
    assert len(starts(tmp_path)) == 4


def test_the_wanted_conditions_alone_in_the_order_of_all(tmp_path: Path) -> None:
    """Each is told of as soon as it is over; an arm that is not needed is not compiled either."""
    file = write_arms(tmp_path, {"A": "ok", "B": "ok", "C": "ok"}, plans=2)
    file.write_text(file.read_text().replace('name = "C"', 'name = "C"\ncompile = ["false"]'))
    arms = load_arms(file)
    wanted = {("A", 1), ("B", 0), ("B", 1)}
    told: list[tuple[str, int, int]] = []

    def over(result: ConditionResult) -> None:
        told.append((result.arm, result.replicate, len(starts(tmp_path))))

    results = measure_arms(arms=arms, output=tmp_path / "out", wanted=wanted, outcome=over)
    order = [(name, r) for r, names in enumerate(arms.order) for name in names if (name, r) in wanted]
    assert [(result.arm, result.replicate) for result in results] == order
    assert all(result.valid and result.position == arms.order[result.replicate].index(result.arm) for result in results)
    assert told == [(name, r, number) for number, (name, r) in enumerate(order, start=1)]
    assert not (tmp_path / "out/C").exists()
    # what is there is told of, too, where it lies now; the rest of the same measurement can follow
    (tmp_path / "out").rename(tmp_path / "moved")
    again = measure_arms(arms=arms, output=tmp_path / "moved", wanted={*wanted, ("A", 0)})
    assert [result.folder for result in again if (result.arm, result.replicate) in wanted] == [
        str(tmp_path / "moved" / name / f"r{r}") for name, r in order
    ]
    assert len(starts(tmp_path)) == 4


FAULTS = {
    "broken": "the server ended by itself (exit code 3): no device found (while starting)",
    "deaf": "the server was not ready within 0.3 s (http://127.0.0.1:{port}/health: no answer)",
    "dies": "the server ended by itself (exit code 7): device lost",
    "hangs": "2 requests: silence",
}


@pytest.mark.parametrize("mode", FAULTS)
def test_a_failing_server_is_named_run_once_more_and_the_rest_goes_on(mode: str, tmp_path: Path) -> None:
    file = write_arms(tmp_path, {"BAD": mode, "GOOD": "ok"}, top='silence = "300ms"')
    if mode == "deaf":
        # a limit of this arm alone
        file.write_text(file.read_text().replace('name = "BAD"', 'name = "BAD"\nready_timeout = "300ms"'))
    told: list[ConditionResult] = []
    results = measure_arms(arms=load_arms(file), output=tmp_path / "out", outcome=told.append)
    by_arm = {result.arm: result for result in results}
    # also of the first attempt
    assert sorted((result.arm, result.attempts) for result in told) == [("BAD", 1), ("BAD", 2), ("GOOD", 1)]
    bad = by_arm["BAD"]
    assert by_arm["GOOD"].valid
    assert (bad.valid, bad.attempts) == (False, 2)
    assert any(reason.startswith(FAULTS[mode].replace("{port}", str(bad.port))) for reason in bad.reasons)
    first = tmp_path / "out" / "BAD" / "r0.invalid-1"
    assert json.loads((first / "condition.json").read_text())["attempts"] == 1
    if mode != "deaf":
        assert [entry[1] for entry in starts(tmp_path)].count(mode) == 2
    assert not any(alive(int(entry[0])) for entry in starts(tmp_path))


class Greeting(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(4096)
        self.request.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


def test_a_readiness_answer_that_is_not_http_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    file = write_arms(tmp_path, {"BAD": "deaf", "GOOD": "ok"})
    with socketserver.TCPServer(("127.0.0.1", 0), Greeting) as other:
        thread = threading.Thread(target=other.serve_forever, daemon=True)
        thread.start()
        ready = f'ready = "http://127.0.0.1:{other.server_address[1]}/"\nready_timeout = "300ms"'
        file.write_text(file.read_text().replace('name = "BAD"', f'name = "BAD"\n{ready}'))
        by_arm = {result.arm: result for result in measure_arms(arms=load_arms(file), output=tmp_path / "out")}
        other.shutdown()
        thread.join(PATIENCE_S)
    assert by_arm["GOOD"].valid
    (reason,) = by_arm["BAD"].reasons
    assert reason.startswith("the server was not ready within 0.3 s")
    assert reason.endswith("the answer is not HTTP)")


def test_even_a_retried_http_error_makes_a_run_invalid_and_the_rerun_counts(tmp_path: Path) -> None:
    (result,) = measure(tmp_path, {"BASE": "fails-once"}, top="[replay]\nretries = 1")
    assert (result.valid, result.attempts) == (True, 2)
    first = json.loads((tmp_path / "out" / "BASE" / "r0.invalid-1" / "condition.json").read_text())
    assert any("HTTP 500" in reason for reason in first["reasons"])


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (result,) = measure(tmp_path, {"BASE": "ok"}, top=f"port = {port}")
    assert result.reasons == (f"port {port} cannot be used: Address already in use",)
    assert not (tmp_path / "starts.txt").exists()


def test_what_cannot_be_started_or_compiled_is_named(tmp_path: Path) -> None:
    sg.InputPlan("p0", PLAN.clients).save(tmp_path / "plan0.json")
    (tmp_path / "arms.toml").write_text(
        'plans = ["plan0.json"]\n'
        '[[arm]]\nname = "A"\nstart = "no-such-command --port {port}"\n'
        '[[arm]]\nname = "B"\nstart = "true"\ncompile = "false"\n'
    )
    notes: list[str] = []
    results = measure_arms(arms=load_arms(tmp_path / "arms.toml"), output=tmp_path / "out", note=notes.append)
    by_arm = {result.arm: result for result in results}
    assert by_arm["A"].reasons == ("the server cannot be started: no-such-command: No such file or directory",)
    assert by_arm["B"].reasons == ("compile failed with exit code 1: ",)
    assert by_arm["B"].attempts == 0
    assert "B: compiling" in notes


def test_commands_that_hang_are_ended_and_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    file = write_arms(tmp_path, {"GOOD": "ok", "STOP": "ok", "COMPILE": "ok"})
    text = file.read_text()
    for name, keys in (
        ("STOP", 'stop = "sleep 1000"\nstop_timeout = "100ms"'),
        ("COMPILE", 'compile = "sleep 1000"\ncompile_timeout = "100ms"'),
    ):
        text = text.replace(f'name = "{name}"', f'name = "{name}"\n{keys}')
    file.write_text(text)
    by_arm = {result.arm: result for result in measure_arms(arms=load_arms(file), output=tmp_path / "out")}
    assert by_arm["GOOD"].valid
    assert by_arm["STOP"].reasons == ("stop: sleep took longer than 0.1 s and was ended",)
    assert by_arm["COMPILE"].reasons == ("compile: sleep took longer than 0.1 s and was ended",)
    assert not any(alive(int(entry[0])) for entry in starts(tmp_path))


def test_versions_that_hang_make_the_condition_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotgrid.measure.arms.VERSIONS_TIMEOUT_S", 0.1)
    (result,) = measure(tmp_path, {"A": "ok"}, each='versions = "sleep 1000"')
    assert result.reasons == ("versions: sleep took longer than 0.1 s and was ended",)
    assert not (tmp_path / "starts.txt").exists()


def test_a_command_that_hangs_is_ended_with_its_group(tmp_path: Path) -> None:
    log, timeout_s = tmp_path / "log", 0.1
    # until it came far enough to have a child
    while not log.exists() or not log.read_text():
        with pytest.raises(RunError, match=r"^what: sh took longer than"):
            run_command(
                ["sh", "-c", "sleep 1000 & echo $!; wait"],
                what="what",
                cwd=tmp_path,
                env={},
                log=log,
                timeout_s=timeout_s,
            )
        timeout_s *= 2
    deadline = time.monotonic() + PATIENCE_S
    while alive(int(log.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not (tmp_path / "command.json").exists()


def test_the_stop_command_runs_also_for_a_server_that_was_never_ready(tmp_path: Path) -> None:
    (result,) = measure(tmp_path, {"A": "deaf"}, each='ready_timeout = "100ms"\nstop = ["touch", "{run_dir}/told"]')
    assert result.reasons[0].startswith("the server was not ready within 0.1 s")
    assert (tmp_path / "out" / "A" / "r0" / "told").exists()
    assert (tmp_path / "out" / "A" / "r0.invalid-1" / "told").exists()


def test_a_window_without_a_cycle_takes_that_of_each_plan(tmp_path: Path) -> None:
    file = write_arms(tmp_path, {"A": "ok"}, plans=2, top='[replay]\nwindow = "100ms"')
    turns = [chain((10, 1, 0.02), (5, 1, 0.0))] * 60
    for r, gap_s in enumerate((0.02, 0.05)):
        plan = plan_of(turns, turns, starts=(0.0, gap_s))
        sg.InputPlan(f"p{r}", plan.clients).save(tmp_path / f"plan{r}.json")
    results = measure_arms(arms=load_arms(file), output=tmp_path / "out")
    assert [result.reasons for result in results] == [(), ()]
    index = json.loads((tmp_path / "out" / "measure.json").read_text())
    assert [plan["cycle_s"] for plan in index["plans"]] == [0.04, 0.1]
    for result, cycle_s in zip(results, (0.04, 0.1), strict=True):
        details = json.loads((Path(result.folder) / "run.json").read_text())["details"]
        assert details["window"]["cycle_s"] == details["options"]["window"]["cycle_s"] == cycle_s
        assert details["window"]["start_s"] >= 3 * cycle_s
    check_window_problems(Path(results[0].folder), sg.load_plan(tmp_path / "plan0.json"))
    plan = sg.InputPlan("p", plan_of(turns, turns, turns, starts=(0.0, 0.1, 0.5)).clients)
    plan.save(tmp_path / "plan1.json")
    with pytest.raises(InputError, match=r"plan1\.json: .*clients do not start evenly spaced; give the cycle"):
        load_arms(file)


def check_window_problems(folder: Path, plan: sg.InputPlan) -> None:
    """Every message about a window, on a valid run that is changed."""
    saved = sg.load_run(folder)
    table, window = saved.requests, saved.details["window"]

    def found(requests: pl.DataFrame = table, **changes: Any) -> list[str]:
        save_run(replace(saved, requests=requests, details={**saved.details, **changes}), folder)
        return problems(folder, plan=plan, window=WindowRule(None, 0.1))

    assert found() == []
    start_s, end_s = window["start_s"], window["end_s"]
    assert saved.details["last_sent_s"] == table["arrival_s"].max()
    assert found(stopped_by="plan") == ["stopped by plan, not by its window"]
    (began,) = found(window={**window, "start_s": start_s - 1e-5})
    assert began.startswith("the window began at")
    assert began.endswith(f"its requests give {start_s:.6f} s")
    late_s = end_s + 1e-3
    assert found(last_sent_s=late_s) == [f"a request was sent at {late_s:.6f} s, after the end of the window"]
    assert found(window={**window, "end_s": start_s}, last_sent_s=0.0) == ["no request was sent in the window"]
    inside = table["arrival_s"].is_between(start_s, end_s, closed="left")
    unknown = table.with_columns(pl.when(inside).then(None).otherwise(pl.col("prompt_tokens")).alias("prompt_tokens"))
    assert found(unknown) == [f"{inside.sum()} evaluated requests have no prompt length"]
    (short,) = found(table.filter(pl.col("session") < 60))
    assert "two turns" in short
    assert found() == []


def test_a_server_that_ignores_term_is_killed_with_its_workers(tmp_path: Path) -> None:
    (result,) = measure(tmp_path, {"BASE": "stubborn"}, each='stop_timeout = "200ms"')
    assert (result.valid, result.exit_code, result.ended) == (True, -9, "KILL")
    worker = int((tmp_path / "worker.txt").read_text())
    deadline = time.monotonic() + PATIENCE_S
    while alive(worker):  # killed already; its adoption and burial may take a moment
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_full_disk_ends_the_measurement_and_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = files.write_json

    def full(path: Path, value: Any) -> None:
        if path.name == "condition.json":
            raise InputError(f"{path}: cannot write: No space left on device")
        write(path, value)

    monkeypatch.setattr(files, "write_json", full)
    with pytest.raises(RunError, match=r"condition\.json: cannot write: No space left on device"):
        measure(tmp_path, {"BASE": "ok"})
    ((pid, *_),) = starts(tmp_path)
    assert not alive(int(pid))
    monkeypatch.undo()
    # with room again the condition is measured anew
    (result,) = measure(tmp_path, {"BASE": "ok"})
    assert (result.valid, result.attempts) == (True, 1)


def test_only_the_very_process_that_was_started_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    server = ServerProcess(command, cwd=tmp_path, env={}, folder=tmp_path / "run", log=tmp_path / "log")
    known = json.loads((tmp_path / "run" / "server.json").read_text())
    # the same id, started at another time: somebody else's process
    (tmp_path / "run" / "server.json").write_text(json.dumps({**known, "started_ticks": known["started_ticks"] + 1}))
    assert end_leftover(tmp_path / "run", 5.0) is None
    assert server.exit_code is None
    (tmp_path / "run" / "server.json").write_text(json.dumps(known))
    assert f"ended the server {server.pid}" in (end_leftover(tmp_path / "run", 5.0) or "")
    assert server.stop(0.0) == (-15, "by itself")
    assert end_leftover(tmp_path / "nowhere", 1.0) is None


# --- stopped in the middle ------------------------------------------------------------------------------


def start_measuring(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "slotgrid", "measure", "arms.toml", "-o", "out", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_measurement_goes_on_where_it_was(number: signal.Signals, tmp_path: Path) -> None:
    file = write_arms(tmp_path, {"A": "hold", "B": "hold"})
    first, second = load_arms(file).order[0]
    (tmp_path / f"released-{first}-0").touch()
    process = start_measuring(tmp_path)
    # the first condition is finished, the second in the middle of its run
    wait_for(tmp_path / f"holding-{second}-0", process)
    done = (tmp_path / "out" / first / "r0" / "condition.json").read_bytes()
    process.send_signal(number)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    assert "Traceback" not in stderr
    pid = int(starts(tmp_path)[-1][0])
    # nothing can clean up behind SIGKILL; the next call does
    assert alive(pid) is (number == signal.SIGKILL)
    (tmp_path / f"released-{second}-0").touch()
    notes: list[str] = []
    results = measure_arms(arms=load_arms(file), output=tmp_path / "out", note=notes.append)
    assert [result.valid for result in results] == [True, True]
    assert not alive(pid)
    assert notes == ([f"ended the server {pid} that an earlier run left behind"] if number == signal.SIGKILL else [])
    assert (tmp_path / "out" / first / "r0" / "condition.json").read_bytes() == done
    assert [entry[3] for entry in starts(tmp_path)] == [f"{first}-0", f"{second}-0", f"{second}-0"]
    assert (tmp_path / "out" / second / "r0.interrupted-1" / "requests.jsonl").exists()
    # an interruption is not a run that failed
    assert results[1].attempts == 1


def test_a_second_ctrl_c_does_not_leave_a_server_that_ignores_term(tmp_path: Path) -> None:
    write_arms(tmp_path, {"A": "deaf-hold"}, each='stop_timeout = "1000s"\nstop = ["touch", "{run_dir}/told"]')
    process = start_measuring(tmp_path)
    wait_for(tmp_path / "holding-A-0", process)
    process.send_signal(signal.SIGINT)
    # its server was asked to end and does not want to
    wait_for(tmp_path / "asked-to-end-A-0", process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    ((pid, *_),) = starts(tmp_path)
    assert not alive(int(pid))
    # an interruption does not skip the arm's own way to stop it either
    assert (tmp_path / "out" / "A" / "r0" / "told").exists()


def test_a_compilation_that_was_left_behind_is_ended_before_another_begins(tmp_path: Path) -> None:
    (tmp_path / "compile.py").write_text(
        "import os, pathlib, signal\n"
        "if pathlib.Path('go').exists():\n"
        "    pathlib.Path('made').mkdir()\n"
        "else:\n"
        "    pathlib.Path('pid.part').write_text(str(os.getpid()))\n"
        "    os.rename('pid.part', 'pid')\n"
        "    signal.pause()\n"
    )
    each = f'artifact = "made"\ncompile = {json.dumps([sys.executable, "compile.py"])}'
    write_arms(tmp_path, {"A": "ok"}, each=each)
    process = start_measuring(tmp_path)
    wait_for(tmp_path / "pid", process)
    wait_for(tmp_path / "out" / "A" / "command.json", process)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    (tmp_path / "go").touch()
    notes: list[str] = []
    (result,) = measure_arms(arms=load_arms(tmp_path / "arms.toml"), output=tmp_path / "out", note=notes.append)
    assert notes == [f"ended the command {pid} that an earlier run left behind", "A: compiling"]
    assert result.valid
    assert not alive(pid)
    assert not (tmp_path / "out" / "A" / "command.json").exists()


# --- the command line and bad input ----------------------------------------------------------------------


def test_the_command_shows_the_order_and_measures(slotgrid: Command, tmp_path: Path) -> None:
    write_arms(tmp_path, {"A": "ok", "B": "broken"})
    shown = slotgrid("measure", "arms.toml", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "2 arms, 1 replicates, order drawn with seed 3" in shown.stdout
    assert not (tmp_path / "starts.txt").exists()
    done = slotgrid("measure", "arms.toml", "-o", "out")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "slotgrid: error: 1 of 2 conditions are not valid, the first B r0: the server ended by itself"
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["A", "r0", "yes", "1", "TERM,", "-15"] in [row[:6] for row in rows]


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_arms(tmp_path, {"A": "ok"}, plans=2)
    arguments = ["measure", str(tmp_path / "arms.toml"), "--json"]
    assert run([*arguments, "--dry-run"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["order"] == [["A"], ["A"]]
    assert [plan["plan_id"] for plan in planned["plans"]] == ["p0", "p1"]
    assert run([*arguments, "-o", str(tmp_path / "out")]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["valid"], [entry["replicate"] for entry in data["conditions"]]) == (True, [0, 1])


def test_another_measurement_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    measure(tmp_path, {"A": "ok"})
    for change in ({"seed = 3": "seed = 4"}, {'name = "A"': 'name = "Z"'}):
        file = write_arms(tmp_path, {"A": "ok"})
        for old, new in change.items():
            file.write_text(file.read_text().replace(old, new))
        with pytest.raises(InputError, match="belongs to another measurement"):
            measure_arms(arms=load_arms(file), output=tmp_path / "out")
    file = write_arms(tmp_path, {"A": "ok"})
    sg.InputPlan("other", PLAN.clients).save(tmp_path / "plan0.json")
    with pytest.raises(InputError, match="other plans"):
        measure_arms(arms=load_arms(file), output=tmp_path / "out")
    with pytest.raises(InputError, match="holds something else already"):
        measure_arms(arms=load_arms(tmp_path / "arms.toml"), output=tmp_path)


GOOD = 'plans = ["plan0.json"]\n[[arm]]\nname = "A"\nstart = "serve --port {port}"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("plans = [", "arms.toml:"),
        (GOOD.replace("plans", "plan"), "plans is missing"),
        (GOOD.replace('["plan0.json"]', "[]"), "expected a list of texts"),
        (GOOD.replace("plan0", "plan7"), "plan7.json: No such file"),
        ('plans = ["plan0.json"]', "arm is missing"),
        (GOOD + 'speed = "fast"\n', "arm[0].speed: unknown key"),
        (GOOD.replace("{port}", "{prot}"), "{prot} in '{prot}' is not known; allowed: {port}, {artifact}"),
        (GOOD + 'ready = "/{prot}"\n', "{prot} in '/{prot}' is not known"),
        (GOOD + 'versions = "pip freeze {prot}"\n', "{prot} in '{prot}' is not known"),
        (GOOD + 'versions = "list {artifact}"\n', "needs artifact, which is not given"),
        *(
            (
                GOOD + f'compile = "make {{{name}}}"\n',
                f"{{{name}}} in '{{{name}}}' is not there while compiling; allowed: {{artifact}}, {{arm}}",
            )
            for name in ("port", "run_dir", "replicate")
        ),
        (GOOD.replace("{port}", "{artifact}"), "needs artifact, which is not given"),
        (GOOD.replace('"A"', '"a/b"'), "the name becomes a folder"),
        (GOOD + '[[arm]]\nname = "A"\nstart = "x"\n', "'A' is there twice"),
        (GOOD.replace('"serve --port {port}"', '"serve \'"'), "No closing quotation"),
        (GOOD.replace('"serve --port {port}"', "3"), "expected a list of texts"),
        (GOOD + 'ready_timeout = "3"\n', "has no unit"),
        (GOOD + 'base_url = "http://[::1"\n', "arm A: base_url: 'http://[::1'; expected an address"),
        (GOOD + 'base_url = "http://x:{port}?a=1"\n', "has a query or a fragment"),
        (GOOD + "env = { A = 3 }\n", "expected a table of texts"),
        ("seed = -1\n" + GOOD, "at least 0"),
        (GOOD + '[replay]\ncycle = "3s"\n', "give window, too"),
        (GOOD + '[replay]\nprompts = "x"\n', "allowed: auto, ids, text"),
        ('format = "slotgrid-arms/9"\n' + GOOD, "allowed: slotgrid-arms/1"),
    ],
)
def test_a_bad_file_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan0.json")
    (tmp_path / "arms.toml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_arms(tmp_path / "arms.toml")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_commands_are_one_line(slotgrid: Command) -> None:
    assert_one_line_error(slotgrid("measure", "arms.toml", "-o", "out"), "arms.toml: No such file")


# --- may the run be used --------------------------------------------------------------------------------


def test_each_check_of_a_finished_run_finds_what_it_is_for(tmp_path: Path) -> None:
    (result,) = measure(tmp_path, {"A": "ok"})
    folder = Path(result.folder)
    plan = sg.load_plan(tmp_path / "plan0.json")
    assert problems(folder, plan=plan, window=None) == []
    saved = json.loads((folder / "run.json").read_text())

    def found(**changes: Any) -> str:
        data = {**saved, **changes.pop("top", {}), "details": {**saved["details"], **changes}}
        (folder / "run.json").write_text(json.dumps(data))
        return "; ".join(problems(folder, plan=plan, window=None))

    assert found(stopped_by="window") == "stopped by window, not by its plan"
    assert found(invalid_reasons=["no"], stopped_by="x") == "no"
    assert found(http_errors=2) == "2 HTTP errors, retried or not"
    assert "registered is" in found(top={"plan_sha256": "0"})
    assert found() == ""
    other = sg.InputPlan("p0", PLAN.clients[:1])
    other.save(folder / "plan.json")
    assert "was changed after the run" in found()
    plan.save(folder / "plan.json")
    longer = sg.InputPlan("p0", (*PLAN.clients, PLAN.clients[0]))
    longer.save(folder / "plan.json")
    found(top={"plan_sha256": longer.content_sha256})
    assert problems(folder, plan=longer, window=None) == ["3 of 5 turns have a result"]
    (folder / "run.json").unlink()
    assert "run.json" in "; ".join(problems(folder, plan=plan, window=None))
    assert len(rows_of(folder)) == 3

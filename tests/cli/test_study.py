"""``slotgrid study``, ``saturate`` and ``null`` as their users type them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from slotgrid import files
from slotgrid._version import __version__
from slotgrid.cli.main import run
from slotgrid.errors import InputError
from slotgrid.report import page
from slotgrid.study import manifest
from tests.conftest import DATA, Command, assert_one_line_error, read_csv
from tests.study.small import PLACES, SIMULATED, measured, registered, write_study

# records of finished runs, not of those that are being written
DONE = "runs/*/*/[!.]*/record.json"
PUBLISHED = """\
format = "slotgrid-study/1"
title = "The published comparison"
profile = "rbln-ca25-qwen3-4b"
rules = "paper"
clock = "price"
turnaround = "0s"
[[arm]]
name = "BASE"
buckets = [1, 2, 4, 8]
[[arm]]
name = "BATCHONLY"
buckets = [1, 2, 4, 8, 16]
[[arm]]
name = "TUNED"
buckets = [1, 4, 6, 8, 10, 16]
[[plans]]
name = "first"
workload = "tracelab-two-turn"
sessions = [6, 8]
exploratory = [10]
seeds = [20261000]
blocks = [0, 1, 2]
[[plans]]
name = "second"
workload = "tracelab-two-turn"
sessions = [6]
seeds = [20261100]
blocks = [0, 1, 2]
[search]
none = true
"""


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process, in an empty folder: as ``slotgrid``, without the seconds each start takes."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        code = run([*map(str, arguments)])
        out, error = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, error)

    return call


def test_published_predictions(typed: Command, tmp_path: Path) -> None:
    """Registering the published study gives the published predictions, and --json nothing else on stdout."""
    (tmp_path / "study.toml").write_text(PUBLISHED)
    process = typed("study", "register", ".", "--json")
    assert process.returncode == 0, process.stderr
    data = json.loads(process.stdout)
    assert "no git commit was found here" not in process.stdout
    sums: dict[tuple[str, int, str], float] = {}
    for rows in data["predictions"].values():
        for row in rows:
            key = (row["replicate"][1:9], row["sessions"], row["arm"])
            sums[key] = sums.get(key, 0.0) + row["device_s"]
    for row in read_csv("t07_predicted_cost_ratios.csv"):
        seed, n = row["plan_seed"], int(row["n_sessions"])
        assert round(sums[seed, n, row["config"]] / sums[seed, n, "BASE"], 4) == float(row["predicted_busy_ratio"])


def test_from_init_to_report(slotgrid: Command, tmp_path: Path) -> None:
    """The whole procedure on stand-in runs, through the real command line."""
    process = slotgrid("study", "init", "mine")
    assert process.returncode == 0
    assert "slotgrid study register mine" in process.stdout
    write_study(tmp_path / "mine")
    process = slotgrid("study", "register", "mine")
    assert process.returncode == 0, process.stderr
    assert "Registered predictions" in process.stdout
    assert "Entry 1 registered at 20" in process.stdout
    process = slotgrid("study", "measure", "mine")
    assert (process.stdout, process.returncode) == ("8 runs added (simulated), 0 were there\n", 0)
    assert process.stderr == "simulated stand-ins: their verdict says nothing about hardware\n"
    first = slotgrid("study", "verdict", "mine")
    assert first.returncode == 0, first.stderr
    assert "These runs are simulated stand-ins, not measurements." in first.stdout
    assert "The rule of each decision" in first.stdout
    assert "page written to mine/verdicts/main/verdict.html" in first.stderr
    process = slotgrid("study", "report", "mine", "--compile-time", "8m", "--json")
    page = tmp_path / json.loads(process.stdout)["page"]
    assert page.read_text().startswith("<!doctype html>")


def test_every_step_in_its_order(typed: Command, tmp_path: Path) -> None:
    """What comes too early or twice is one line; what was decided is shown again."""
    assert typed("study", "init", "mine").returncode == 0
    assert_one_line_error(typed("study", "init", "mine"), "study.toml", "already there")
    assert_one_line_error(typed("study", "verdict", "mine"), "nothing is registered")
    write_study(tmp_path / "mine")
    assert typed("study", "register", "mine").returncode == 0
    assert_one_line_error(typed("study", "register", "mine"), "never registered again")
    assert_one_line_error(typed("study", "verdict", "mine"), "8 runs are missing: n3-s5-b0 base")
    assert_one_line_error(typed("saturate", "mine"), "set main has no verdict")
    assert typed("study", "measure", "mine").returncode == 0
    first, again = typed("study", "verdict", "mine"), typed("study", "verdict", "mine")
    assert again.stdout == first.stdout
    assert "a data set is judged once, this is the stored verdict" in again.stderr
    assert "page" not in again.stderr
    page = tmp_path / "mine/verdicts/main/verdict.html"
    whole = page.read_text()
    page.write_text(whole.replace("withheld", "passed").replace("failed", "passed") + "<!-- edited -->")
    process = typed("study", "verdict", "mine")
    assert process.stderr.endswith("verdict.html; the one there was changed after it was written\n")
    assert page.read_text() == whole
    as_json = json.loads(typed("study", "verdict", "mine", "--json").stdout)
    assert as_json == json.loads((tmp_path / "mine/verdicts/main/verdict.json").read_text())
    found = json.loads(typed("saturate", "mine", "--json").stdout)
    assert (found["basis"], found["pairs"][0]["cells"], found["costs"][0]["slots"]) == ("simulated", 2, 2)
    assert (found["pairs"][0]["rule"], found["exploratory_left_out"]) == ("2 cells; at least 5 needed", [4])
    assert json.loads(typed("saturate", "mine", "--predicted", "--json").stdout)["basis"] == "predicted"
    text = typed("saturate", "mine", "--channel", "b").stdout
    assert "channel B" in text
    assert "Exploratory N decide nothing and are left out: N = 4." in text
    assert "The data do not tell where more slots stop paying: the last step, base to wide, is undecided" in text
    runs = sorted((tmp_path / "mine/runs/main").glob("n3-s5-b0/*/run"))
    assert_one_line_error(typed("study", "ingest", "mine", runs[0]), "has a run already; it is never overwritten")
    (tmp_path / "mine/study.toml").write_text("format = 'slotgrid-study/1'")
    assert_one_line_error(typed("study", "verdict", "mine"), "study.toml: changed after it was registered")


def test_a_verdicts_page_is_not_accused_of_what_it_was_not(
    typed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renamed, copied, or looked at with another version: the page stays as it was written, and nothing changes."""
    write_study(tmp_path / "mine")
    for command in ("register", "measure", "verdict"):
        assert typed("study", command, "mine").returncode == 0
    (tmp_path / "mine").rename(tmp_path / "copy")
    kept = {path: path.read_bytes() for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "code_hashes", lambda: {"plan.py": "another version"})
        patch.setattr(page, "__version__", "another version")
        assert "page" not in typed("study", "verdict", "copy").stderr
        assert {path: path.read_bytes() for path in (tmp_path / "copy").rglob("*") if path.is_file()} == kept
        # one that is made anew says nothing of the code that is here now, nor of the new name of the folder
        html = tmp_path / "copy/verdicts/main/verdict.html"
        html.unlink()
        assert typed("study", "verdict", "copy").stderr.endswith("page written to copy/verdicts/main/verdict.html\n")
        assert html.read_text() == kept[html].decode().replace(f"slotgrid {__version__}", "slotgrid another version")
        assert "<title>Verdict on main: mine</title>" in html.read_text()
    # the one of the other version is as good
    assert "page" not in typed("study", "verdict", "copy").stderr
    assert typed("study", "report", "copy").returncode == 0


def test_a_page_that_the_log_does_not_know_is_made_anew_without_a_word_against_it(
    typed: Command, tmp_path: Path
) -> None:
    """As of a version that kept no hash."""
    write_study(tmp_path / "mine")
    for command in ("register", "measure", "verdict"):
        assert typed("study", command, "mine").returncode == 0
    log = tmp_path / "mine/log.jsonl"
    *lines, last = log.read_bytes().splitlines(keepends=True)
    assert json.loads(last)["what"] == "page"
    log.write_bytes(b"".join(lines))
    html = tmp_path / "mine/verdicts/main/verdict.html"
    html.write_text(html.read_text() + "<!-- older -->")
    assert typed("study", "verdict", "mine").stderr.endswith("verdict.html; the one there was of an earlier version\n")
    assert "older" not in html.read_text()


def test_a_set_that_cannot_be_measured_is_left_out(
    typed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are made, the reason and the way out are said, and the call ends with 1."""
    folder = write_study(tmp_path / "a")
    assert typed("study", "register", "a").returncode == 0
    path = folder / "study.toml"
    addition = path.read_text()[path.read_text().index("[[plans]]") :].replace('"main"', '"next"').replace("[5]", "[6]")
    path.write_text(path.read_text().replace("[[plans]]", "[criteria]\nlargest_error = 0.05\n[[plans]]", 1) + addition)
    # as if the code had changed in between
    before = manifest.code_hashes
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "code_hashes", lambda: {**before(), "plan.py": "changed"})
        assert typed("study", "register", "a", "--amend", "wider").returncode == 0
        process = typed("study", "measure", "a")
        assert (process.returncode, process.stdout) == (1, f"{PLACES} runs added (simulated), 0 were there\n")
        assert "left out: slotgrid/plan.py: changed after entry 1 was registered" in process.stderr
        assert process.stderr.endswith("1 sets could not be measured, 8 runs are missing; the lines above say more\n")
        assert_one_line_error(typed("study", "measure", "a"), "--other-code REASON")
    assert "--other-arms" in typed("study", "measure", "--help").stdout


def test_amendment_and_ingest(slotgrid: Command, typed: Command, tmp_path: Path) -> None:
    write_study(tmp_path / "a")
    assert typed("study", "register", "a").returncode == 0
    path = tmp_path / "a/study.toml"
    path.write_text(path.read_text().replace("[[plans]]", "[criteria]\nlargest_error = 0.05\n[[plans]]", 1))
    assert_one_line_error(typed("study", "measure", "a"), "study.toml: changed after it was registered", "--amend")
    assert_one_line_error(typed("study", "register", "a", "--amend", "wider"), "no new [[plans]] set")
    addition = path.read_text()[path.read_text().index("[[plans]]") :].replace('"main"', '"next"').replace("[5]", "[6]")
    path.write_text(path.read_text() + addition)
    process = typed("study", "register", "a", "--amend", "wider", "--json")
    assert (json.loads(process.stdout)["entry"], json.loads(process.stdout)["sets"]) == (2, ["next"])
    assert_one_line_error(typed("study", "verdict", "a"), "choose one with --set (main, next)")
    process = typed("simulate", "a/registered/0002/plans/next/n3-s6-b0.json", "--profile", "rbln-ca25-qwen3-4b",
                       "--buckets", "1,2,4", "-o", "run")  # fmt: skip
    assert process.returncode == 0, process.stderr
    process = slotgrid("study", "ingest", "a", "run")
    assert process.returncode == 0, process.stderr
    assert "set next, N = 3, replicate s6-b0, arm wide: simulated run kept in" in process.stdout
    assert "15 runs are missing" in process.stdout
    assert_one_line_error(typed("study", "ingest", "a", "nowhere"), "nowhere")


def test_killed_while_measuring(typed: Command, tmp_path: Path) -> None:
    """SIGKILL in the middle: what was there stays byte by byte, the rest comes with the next call."""
    folder = write_study(tmp_path / "a")
    path = folder / "study.toml"
    path.write_text(path.read_text().replace("sessions = [3]", "sessions = [3, 5, 6, 7, 8, 9, 10, 11, 12]"))
    assert typed("study", "register", "a").returncode == 0
    process = subprocess.Popen([sys.executable, "-m", "slotgrid", "study", "measure", "a"], cwd=tmp_path)
    while not list(folder.glob(DONE)):
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {file: file.read_bytes() for file in folder.glob(DONE)}
    assert 0 < len(before) < 40
    found = json.loads(typed("study", "measure", "a", "--json").stdout)
    assert (len(found["added"]), found["there_before"]) == (40 - len(before), len(before))
    assert all(file.read_bytes() == kept for file, kept in before.items())
    assert not list(folder.glob("runs/*/*/.*"))


def test_report_verifies_what_it_shows(typed: Command, tmp_path: Path) -> None:
    """A run, a line or a verdict that is not what it was: named, and no page."""
    folder = write_study(tmp_path / "a")
    for command in ("register", "measure", "verdict"):
        assert typed("study", command, "a").returncode == 0
    run = folder / "runs/main/n3-s5-b1/wide/run/requests.parquet"
    log = folder / "log.jsonl"
    for path, words in (
        (run, "wide/run/requests.parquet: changed after it was recorded"),
        (log, "log.jsonl: line 11: changed after it was written"),
    ):
        kept = path.read_bytes()
        path.write_bytes(kept[:-1] + b" " + kept[-1:])
        assert_one_line_error(typed("study", "report", "a"), words)
        path.write_bytes(kept)
    kept = folder / "verdicts/main"
    kept.rename(tmp_path / "aside")
    assert_one_line_error(
        typed("study", "report", "a"), "log.jsonl: line 10 names verdict verdicts/main, which is gone"
    )
    assert_one_line_error(typed("saturate", "a"), "log.jsonl: line 10 names verdict verdicts/main, which is gone")
    assert not (folder / "report").exists()
    (tmp_path / "aside").rename(kept)
    assert typed("study", "report", "a").returncode == 0


def test_a_stored_verdict_on_a_disk_that_is_only_read(
    typed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown; the page, which is not what it gives, stays and that is said."""
    folder = measured(tmp_path / "mine")
    first = typed("study", "verdict", "mine", "--json")
    page = folder / "verdicts/main/verdict.html"
    page.write_text("edited")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    def refuse(*arguments: Any, **options: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    real = os.open
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    monkeypatch.setattr(
        os,
        "open",
        lambda path, flags, *rest, **more: (
            refuse()
            if flags & (os.O_WRONLY | os.O_RDWR) and str(folder) in str(path)
            else real(path, flags, *rest, **more)
        ),
    )
    again = typed("study", "verdict", folder, "--json")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert "this is the stored verdict" in again.stderr
    assert (
        f"the page is not written: {folder}/log.jsonl: cannot write: Permission denied; the one there was changed"
        in again.stderr
    )
    assert page.read_text() == "edited"
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("place", ["registered", "registered/0001/page", "runs/main", "verdicts/x", "measuring"])
def test_no_report_among_what_is_kept(place: str, typed: Command, tmp_path: Path) -> None:
    folder = registered(tmp_path / "mine")
    (tmp_path / "link").symlink_to(folder / "registered")
    for output in (f"mine/{place}", *(["link"] if place == "registered" else [])):
        kept = place.split("/")[0]
        assert_one_line_error(
            typed("study", "report", "mine", "-o", output), f"--output: {output} is inside", f"mine/{kept}, which the"
        )
    assert typed("study", "report", "mine", "-o", "mine/pages/runs").returncode == 0
    assert typed("study", "report", "mine", "-o", "runs").returncode == 0


def test_a_directory_that_git_ignores(typed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    (tmp_path / ".gitignore").write_text("mine/\n")
    for arguments in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=x", "-c", "user.email=x@example.invalid", "commit", "-q", "-m", "one"],
    ):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    write_study(tmp_path / "mine")
    assert "git ignores the directory; end that and commit it" in typed("study", "register", "mine").stderr
    assert json.loads((tmp_path / "mine/registered/0001/manifest.json").read_text())["git"]["clean"] is None


def test_two_at_once_and_a_kill_between_line_and_place(typed: Command, tmp_path: Path) -> None:
    """The second command says that another is at work; after SIGKILL of the first it finishes what that one began."""
    folder = write_study(tmp_path / "a")
    assert typed("study", "register", "a").returncode == 0
    code = (
        "import os, sys, signal\n"
        "from slotgrid.study import store\n"
        "from slotgrid.cli.main import run\n"
        "def held(*_):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
        "store.put_in_place = held\n"
        "run(['study', 'measure', 'a'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    second = typed("study", "measure", "a")
    assert (second.returncode, second.stdout) == (1, "")
    assert second.stderr == "slotgrid: error: another command is at work in a\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert typed("study", "report", "a").returncode == 0
    third = typed("study", "measure", "a")
    assert third.stdout == "7 runs added (simulated), 1 were there\n"
    said = "a: a command was killed: run runs/main/n3-s5-b0/base was in the log already and is moved to its place\n"
    assert said in third.stderr
    assert len(list(folder.glob(DONE))) == PLACES


def test_full_disk_while_registering(slotgrid: Command, typed: Command, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: one line, nothing registered, and it goes on afterwards."""
    write_study(tmp_path / "a")
    process = slotgrid("study", "register", "a", file_bytes=3000)
    assert_one_line_error(process, "registered/.0001.partial", "cannot write", "File too large")
    assert not (tmp_path / "a/registered/0001").exists()
    assert typed("study", "register", "a").returncode == 0


def test_interrupted_while_registering(typed: Command, tmp_path: Path) -> None:
    write_study(tmp_path / "a", runs=SIMULATED)
    path = tmp_path / "a/study.toml"
    path.write_text(path.read_text().replace("sessions = [3]", "sessions = [5, 6, 7, 8, 9, 10, 11, 12]"))
    process = subprocess.Popen(
        [sys.executable, "-m", "slotgrid", "study", "register", "a"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    while not [f for f in tmp_path.glob("a/registered/.0001.partial/.so-far.jsonl") if f.stat().st_size]:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert (process.returncode, error) == (130, "slotgrid: interrupted\n")
    assert_one_line_error(typed("study", "report", "a"), "nothing is registered")
    assert typed("study", "register", "a").returncode == 0


def test_saturate_a_table(slotgrid: Command, typed: Command, tmp_path: Path) -> None:
    """The published cells as CSV, to the published intervals; the costs come from a profile."""
    buckets = {"8": "1,2,4,8", "16": "1,2,4,8,16", "24": "1,2,4,8,16,24", "32": "1,2,4,8,16,32"}
    lines = ["sessions,replicate,slots,device_s,buckets"]
    rows = read_csv("s06b_saturation_by_n_and_repeat.csv")
    for row in rows:
        slots = row["batch_size_arm"][1:]
        lines.append(f'{row["n_sessions"]},{row["repeat"]},{slots},{row["cost_ratio_a"]},"{buckets[slots]}"')
        if slots == "16":
            lines.append(f'{row["n_sessions"]},{row["repeat"]},8,1.0,"{buckets["8"]}"')
    (tmp_path / "cells.csv").write_text("\n".join(lines))
    arguments = ("saturate", "cells.csv", "--profile", "rbln-ca25-qwen3-4b", "--seed", "20261200")
    found = json.loads(typed(*arguments, "--json").stdout)
    assert [pair["decision"] for pair in found["pairs"]] == ["still gaining", "saturated", "saturated"]
    assert found["pairs"][0]["low"] == pytest.approx(0.8428, abs=1.1e-4)
    assert found["enough"] == "16 slots"
    text = slotgrid(*arguments).stdout
    assert "More slots stop paying at 16 slots: 16 slots, 7.10 GiB of a device, 410 s to compile" in text
    assert "median 0.9072 [0.8428, 0.9633], width 0.1205: below 1" in text
    assert_one_line_error(typed("saturate", "cells.csv", "--set", "x"), "--set", "cells.csv is not one")
    assert_one_line_error(typed("saturate", "cells.csv", "--channel", "c"), "--channel", "allowed: a, b")
    assert_one_line_error(typed("saturate", "none.csv"), "none.csv", "No such file")


def test_null_runs(slotgrid: Command, typed: Command, tmp_path: Path) -> None:
    table = tmp_path / "t12.csv"
    table.write_text((DATA / "t12_null_channel_repeats.csv").read_text().replace("n_sessions", "sessions"))
    found = json.loads(typed("null", table, "--json").stdout)["groups"]
    assert [(group["label"], group["class"], round(group["difference"]["q95"], 4)) for group in found] == [
        ("N = 6", "C3", 0.0604),
        ("N = 8", "C2", 0.0320),
    ]
    text = slotgrid("null", table, "--runs-per-sum", "3").stdout
    assert "2,100 pairs of sums of 3, 10 runs" in text
    assert "class C1: 95th percentile 0.0167 of 2,100 channel differences <= 0.02" in text
    assert_one_line_error(typed("null", tmp_path), "--profile")
    (tmp_path / "few.csv").write_text("repeat,channel_a_s,channel_b_s\na,1,1\nb,1,1.1\n")
    assert_one_line_error(typed("null", "few.csv"), "2 runs; at least 3")
    assert_one_line_error(typed("null", table, "--profile", "x"), "--profile: prices run directories; a CSV has")
    assert {group["source"] for group in found} == {None}


def test_null_of_simulated_runs(typed: Command, tmp_path: Path) -> None:
    """Run directories: said to be simulated, and a copy is refused with both paths."""
    for name, seed in (("a", 3), ("b", 4), ("c", 5)):
        write_study(tmp_path / name, runs=f'runs = "simulated"\nsimulated = {{ scatter_seed = {seed} }}')
        assert typed("study", "register", name).returncode == 0
        assert typed("study", "measure", name).returncode == 0
    runs = [f"{name}/runs/main/n3-s5-b0/base/run" for name in "abc"]
    profile = ("--profile", "rbln-ca25-qwen3-4b")
    text = typed("null", *runs, *profile).stdout
    assert "1,2, simulated" in text
    assert "simulated runs: this says nothing about hardware" in text
    (group,) = json.loads(typed("null", *runs, *profile, "--json").stdout)["groups"]
    assert (group["source"], group["runs"], group["pairs"]) == ("simulated", 3, 3)
    (tmp_path / "copy").symlink_to(tmp_path / runs[1])
    assert_one_line_error(typed("null", *runs, "copy", *profile), "copy: the same run as b/runs", "a copy is no repeat")


def test_help_and_typos(typed: Command) -> None:
    for command in (["study", "--help"], ["study", "verdict", "--help"], ["saturate", "--help"], ["null", "--help"]):
        assert typed(*command).returncode == 0
    assert_one_line_error(typed("study", "verdit", "x"), "verdit")
    for command in (["register"], ["measure"], ["ingest"], ["verdict"], ["report"]):
        more = ["run"] if command == ["ingest"] else []
        assert_one_line_error(typed("study", *command, "nowhere", *more), "nowhere: no such directory")
    assert_one_line_error(typed("saturate", "nowhere", "--set", "main"), "nowhere: No such file or directory")
    assert "all of them unless given" in " ".join(typed("study", "measure", "--help").stdout.split())


def test_a_stored_verdict_is_shown_where_its_page_cannot_be_written(
    typed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_study(tmp_path / "mine")
    for command in ("register", "measure", "verdict"):
        assert typed("study", command, "mine").returncode == 0
    (tmp_path / "mine/verdicts/main/verdict.html").unlink()

    def full(*_: object) -> None:
        raise InputError("verdict.html: cannot write: No space left on device")

    monkeypatch.setattr(files, "write_text", full)
    process = typed("study", "verdict", "mine")
    assert process.returncode == 0
    assert "the page is not written: verdict.html: cannot write" in process.stderr
    assert "The rule of each decision" in process.stdout

"""The log: a chain that is only added to; and what lies in a study is what the log names."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotgrid.errors import InputError
from slotgrid.run import save_run
from slotgrid.study import collect, log, store
from slotgrid.study.audit import audit
from slotgrid.study.collect import ingest, measure
from slotgrid.study.log import append, read_log
from slotgrid.study.manifest import Cell
from slotgrid.study.register import register
from slotgrid.study.study import open_study
from slotgrid.study.verdict import verdict
from tests.study.small import (
    LATER,
    NOW,
    PLACES,
    forge_log,
    hardware_run,
    measured,
    registered,
    text,
    write_study,
)

RUN = "runs/main/n3-s5-b1/wide"


def later() -> str:
    return LATER


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = measured(tmp_path_factory.mktemp("judged") / "study")
    verdict(folder, now=later)
    return folder


@pytest.fixture
def study(judged: Path, tmp_path: Path) -> Path:
    """A study with registration, eight runs and a verdict, of its own."""
    return Path(shutil.copytree(judged, tmp_path / "study"))


# --- the chain ---------------------------------------------------------------------------------------------------


def test_what_the_log_says(study: Path) -> None:
    found = read_log(study)
    assert [line.what for line in found.lines] == ["registration", *["run"] * PLACES, "verdict"]
    assert [line.number for line in found.lines] == list(range(1, PLACES + 3))
    first, run, last = found.lines[0], found.lines[1], found.lines[-1]
    assert first.data["file_sha256"] == open_study(study).entries[0].sha256
    assert (first.time, first.place) == (NOW, "registered/0001")
    assert run.data["source"] == "simulated"
    assert (run.data["set"], run.data["sessions"], run.data["replicate"]) == ("main", 3, "s5-b0")
    data = json.loads((study / "verdicts/main/verdict.json").read_text())
    assert data["log"] == {"entries": PLACES + 1, "sha256": last.data["previous_sha256"]}


def test_an_edited_line_is_named(study: Path) -> None:
    path = study / "log.jsonl"
    rows = path.read_text().splitlines()
    for edit, words in (
        (lambda rows: [rows[0].replace("2026-03-01", "2026-02-01"), *rows[1:]], "line 1: changed after it was written"),
        (lambda rows: [*rows[:-1], rows[-1].replace("main", "MAIN")], "line 10: changed after it was written"),
        (lambda rows: [*rows[:-1], rows[-1].replace(": ", ":", 1)], "line 10: changed after it was written"),
        (lambda rows: [*rows[:3], *rows[4:]], "line 4: does not follow the line before it"),
        (lambda rows: [rows[0], rows[2], rows[1], *rows[3:]], "line 2: does not follow the line before it"),
        (lambda rows: rows[1:], 'line 1: expected "format"'),
        (lambda rows: [*rows, "{}"], "line 11: not a line of the log; it has line, time"),
        (lambda rows: [*rows, ""], "line 11: not JSON"),
    ):
        path.write_text("\n".join(edit(rows)) + "\n")
        with pytest.raises(InputError) as error:
            open_study(study)
        assert str(error.value).startswith(f"{path}: {words}")
    path.write_text("\n".join(rows) + "\n")
    open_study(study)


def test_a_line_that_cannot_be_written_is_taken_back(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = study / "log.jsonl", os.write
    before = path.read_bytes()

    def full(handle: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, data[:-10])

    with monkeypatch.context() as patch:
        patch.setattr(log.os, "write", full)
        with pytest.raises(InputError, match=r"log\.jsonl: cannot write: No space left on device"):
            append(study, "refused", LATER, reason="x")
    assert path.read_bytes() == before
    assert append(study, "refused", LATER, reason="x").number == 11


def test_a_line_is_on_the_disk_when_it_is_added(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync comes after the whole line, and before append returns."""
    path, sizes, real = study / "log.jsonl", [], os.fsync

    def seen(handle: int) -> None:
        if os.path.samestat(os.fstat(handle), path.stat()):
            sizes.append(path.stat().st_size)
        real(handle)

    monkeypatch.setattr(os, "fsync", seen)
    append(study, "refused", LATER, reason="x")
    assert sizes == [path.stat().st_size]


# --- the log against what is there -------------------------------------------------------------------------------

COMMANDS: dict[str, Callable[[Path], Any]] = {
    "register": lambda folder: register(folder, now=later, amend="more"),
    "measure": lambda folder: measure(folder, now=later),
    "ingest": lambda folder: ingest(folder, [folder / RUN / "run"], now=later),
    "verdict": lambda folder: verdict(folder, now=later),
    "report": open_study,
}


def remove(folder: Path, place: str) -> None:
    shutil.rmtree(folder / place)


def edit(folder: Path, place: str) -> None:
    path = folder / place
    path.write_bytes(path.read_bytes() + b" ")


def add(folder: Path, place: str) -> None:
    shutil.copytree(folder / place, (folder / place).with_name("more"))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        (remove, RUN, f"log.jsonl: line 4 names run {RUN}, which is gone"),
        (remove, "verdicts/main", "log.jsonl: line 10 names verdict verdicts/main, which is gone"),
        (remove, "registered/0001", "log.jsonl: line 1 names registration registered/0001, which is gone"),
        (edit, f"{RUN}/run/run.json", "wide/run/run.json: changed after it was recorded"),
        (edit, f"{RUN}/record.json", "wide/record.json: changed or replaced after log.jsonl line 4 named it"),
        (edit, "verdicts/main/verdict.json", "verdict.json: changed or replaced after log.jsonl line 10 named it"),
        (add, RUN, "n3-s5-b1/more: is not in log.jsonl"),
        (add, "verdicts/main", "verdicts/more: is not in log.jsonl"),
    ],
)
def test_every_command_checks(
    change: Callable[[Path, str], None], place: str, words: str, command: str, study: Path
) -> None:
    change(study, place)
    before = (study / "log.jsonl").read_bytes()
    with pytest.raises(InputError) as error:
        COMMANDS[command](study)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert (study / "log.jsonl").read_bytes() == before


def test_a_study_without_its_log(study: Path) -> None:
    (study / "log.jsonl").unlink()
    with pytest.raises(
        InputError, match=r"log\.jsonl: is gone or empty, although .*registered/0001 is there; put it back"
    ):
        open_study(study)


def test_a_verdict_knows_the_log_before_it(study: Path) -> None:
    """A line slipped in before the verdict, the chain made anew: the verdict was decided on another log."""
    path = study / "log.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join(rows[:-1]))
    append(study, "refused", LATER, reason="slipped in")
    last = json.loads(rows[-1])
    named = {key: last[key] for key in ("place", "set", "file_sha256")}
    append(study, "verdict", LATER, **named)
    with pytest.raises(InputError, match=r"verdict\.json: was decided on another log than the lines before line 11"):
        open_study(study)


def test_removing_the_end_with_its_files_is_not_seen(study: Path) -> None:
    """What the documents say: only the history of a repository shows it."""
    shutil.rmtree(study / "verdicts/main")
    forge_log(study)
    assert len(open_study(study).log.lines) == PLACES + 1


def test_a_command_that_goes_on_is_no_fault(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between reading the log and looking at the runs another command adds one: the reader looks again."""
    folder = measured(study.parent / "other")
    real, looks = log.read_log, []
    kept = folder.parent / "kept"
    (folder / RUN).rename(kept)
    whole = (folder / "log.jsonl").read_bytes()
    forge_log(folder)

    def read(where: Path) -> log.Log:
        found = real(where)
        looks.append(len(found.lines))
        if len(looks) == 1:
            kept.rename(folder / RUN)
            (folder / "log.jsonl").write_bytes(whole)
        return found

    monkeypatch.setattr(log, "read_log", read)
    assert len(audit(folder).lines) == PLACES + 1
    assert looks[0] == PLACES


def test_a_line_cut_by_hand_is_not_taken_for_a_kill(study: Path) -> None:
    """What it named is in its place: no kill leaves that, so nothing is removed."""
    path = study / "log.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    before = path.read_bytes()
    for command in COMMANDS.values():
        with pytest.raises(InputError, match=r"verdicts/main: is not in log\.jsonl"):
            command(study)
    assert path.read_bytes() == before


# --- refused runs ------------------------------------------------------------------------------------------------


def test_a_refused_run_stays_in_the_log(tmp_path: Path) -> None:
    folder = registered(tmp_path / "study", runs="")
    entry = open_study(folder).entries[0]
    run = hardware_run(entry, Cell("main", 3, "s5-b0"), "base", details={"started_at": LATER, "valid": False})
    save_run(run, tmp_path / "run")
    for _ in range(2):
        with pytest.raises(InputError, match="marked invalid: no reason is given"):
            ingest(folder, [tmp_path / "run"], now=later)
    found = [line for line in read_log(folder).lines if line.what == "refused"]
    assert len(found) == 1  # the same run, the same reason
    assert "marked invalid" in found[0].data["reason"]
    assert found[0].data["origin"] == str(tmp_path / "run")
    open_study(folder)


# --- killed at any point -----------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL: nothing is cleaned up after it (see ``kill``)."""


def before_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log, "append", stop)


def in_the_line(patch: pytest.MonkeyPatch) -> None:
    real = os.write

    def half(handle: int, data: bytes) -> int:
        real(handle, data[: len(data) // 2])
        raise Killed

    patch.setattr(log.os, "write", half)


def before_the_newline(patch: pytest.MonkeyPatch) -> None:
    real = os.write

    def most(handle: int, data: bytes) -> int:
        real(handle, data[:-1])
        raise Killed

    patch.setattr(log.os, "write", most)


def before_the_rename(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store, "put_in_place", stop)


def after_the_rename(patch: pytest.MonkeyPatch) -> None:
    real = store.put_in_place

    def then(partial: Path, path: Path) -> None:
        real(partial, path)
        raise Killed

    patch.setattr(store, "put_in_place", then)


def stop(*_: Any, **__: Any) -> None:
    raise Killed


def kill(patch: pytest.MonkeyPatch, point: Callable[[pytest.MonkeyPatch], None], call: Callable[[], Any]) -> None:
    """Call until the point is reached; what tidies up after an exception does nothing, as after a kill."""
    point(patch)
    patch.setattr(store.shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(Killed):
        call()


POINTS = [before_the_log, in_the_line, before_the_newline, before_the_rename, after_the_rename]
CUT = "the last line of log.jsonl was cut off after"
MOVED = "was in the log already and is moved to its place"


def check_said(point: Callable[..., None], said: list[str], folder: Path, first: bool = False) -> None:
    """A cut line and a run on its way are said, and stand in the log; the rest needs no word."""
    words = {in_the_line: CUT, before_the_newline: CUT, before_the_rename: MOVED}.get(point)
    assert len(said) == (words is not None)
    assert words is None or words in said[0]
    continued = [line for line in read_log(folder).lines if line.what == "continued"]
    assert all((line.data["cut"] is not None) == (words == CUT) for line in continued)
    # the cut first line of a log was of a registration that is made anew
    assert len(continued) == (words is not None and not (first and words == CUT))


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_registering(point: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, said = write_study(tmp_path / "study"), []
    with monkeypatch.context() as patch:
        kill(patch, point, lambda: register(folder, now=lambda: NOW))
    if point is after_the_rename:
        with pytest.raises(InputError, match="it is never registered again"):
            register(folder, now=later, note=said.append)
    else:
        entry = register(folder, now=later, note=said.append)
        assert entry.registered_at == (NOW if point is before_the_rename else LATER)
    check_said(point, said, folder, first=True)
    assert len(measure(folder, now=later).added) == PLACES
    assert [path.name for path in (folder / "registered").iterdir()] == ["0001"]


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_amending(point: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, said = registered(tmp_path / "study"), []
    (folder / "study.toml").write_text(text(sets=(("main", [5]), ("next", [6]))))
    with monkeypatch.context() as patch:
        kill(patch, point, lambda: register(folder, now=lambda: NOW, amend="more data"))
    if point is not after_the_rename:
        register(folder, now=later, amend="more data", note=said.append)
    check_said(point, said, folder)
    assert [entry.data["sets"] for entry in open_study(folder).entries] == [["main"], ["next"]]


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_measuring(point: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, said, real, made = registered(tmp_path / "study"), [], collect.stand_in_run, []

    def third(*arguments: Any) -> Any:
        made.append(1)
        if len(made) == 3:
            point(patch)
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(collect, "stand_in_run", third)
        kill(patch, lambda _: None, lambda: measure(folder, now=later))
    there = open_study(folder)  # a report is possible at any moment
    assert len(there.log.lines) == 3 + (point in (before_the_rename, after_the_rename))
    found = measure(folder, now=later, note=said.append)
    assert (found.there_before, len(found.added)) == ((3, 5) if len(there.log.lines) == 4 else (2, 6))
    check_said(point, said, folder)
    assert verdict(folder, now=later).fresh
    assert not list(folder.glob("runs/*/*/.*"))


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_bringing_in(point: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same call again brings in the rest."""
    folder, said, runs = registered(tmp_path / "study", runs=""), [], []
    entry = open_study(folder).entries[0]
    for arm in ("base", "wide"):
        runs.append(tmp_path / arm)
        save_run(hardware_run(entry, Cell("main", 3, "s5-b0"), arm), runs[-1])
    with monkeypatch.context() as patch:
        kill(patch, point, lambda: ingest(folder, runs, now=later))
    found = ingest(folder, runs, now=later, note=said.append)
    check_said(point, said, folder)
    there = int(point in (before_the_rename, after_the_rename))
    assert (len(found.added), found.there_before, found.missing) == (2 - there, there, PLACES - 2)


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_judging(
    point: Callable[..., None], judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = Path(shutil.copytree(judged, tmp_path / "study")), []
    shutil.rmtree(folder / "verdicts")
    forge_log(folder)
    with monkeypatch.context() as patch:
        kill(patch, point, lambda: verdict(folder, now=lambda: NOW.replace("03-01", "03-03")))
    open_study(folder)
    found = verdict(folder, now=lambda: "2026-03-04T00:00:00+00:00", note=said.append)
    assert found.fresh == (point not in (before_the_rename, after_the_rename))
    assert found.data["decided_at"][:10] == ("2026-03-04" if found.fresh else "2026-03-03")
    check_said(point, said, folder)
    assert verdict(folder, now=later).data == found.data


def test_an_interrupt_between_line_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, after which everything is tidied up, must not tidy up what the log names already."""
    folder = registered(tmp_path / "study")
    with monkeypatch.context() as patch:
        patch.setattr(store, "put_in_place", interrupt)
        with pytest.raises(KeyboardInterrupt):
            measure(folder, now=later)
    assert measure(folder, now=later).there_before == 1


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_what_is_on_its_way_is_not_believed_when_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = registered(tmp_path / "study")
    with monkeypatch.context() as patch:
        kill(patch, before_the_rename, lambda: measure(folder, now=later))
    edit(folder, "runs/main/n3-s5-b0/.base.partial/record.json")
    with pytest.raises(InputError, match=r"line 2 names run runs/main/n3-s5-b0/base, which is gone"):
        measure(folder, now=later)

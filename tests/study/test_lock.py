"""One command at a time works on a study; a killed one leaves no lock."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotgrid.errors import RunError
from slotgrid.study.collect import ingest, measure
from slotgrid.study.lock import working
from slotgrid.study.register import register
from slotgrid.study.study import open_study
from slotgrid.study.verdict import verdict
from tests.study.small import LATER, NOW, PLACES, registered, write_study

HOLD = """
import sys
from pathlib import Path
from slotgrid.study.lock import working
with working(Path(sys.argv[1]), now=lambda: ""):
    print("held", flush=True)
    sys.stdin.read()
"""
COMMANDS: dict[str, Callable[[Path], Any]] = {
    "register": lambda folder: register(folder, now=lambda: LATER, amend="more"),
    "measure": lambda folder: measure(folder, now=lambda: LATER),
    "ingest": lambda folder: ingest(folder, [folder], now=lambda: LATER),
    "verdict": lambda folder: verdict(folder, now=lambda: LATER),
}


@contextlib.contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process works on the study."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_two_commands_at_once(tmp_path: Path) -> None:
    folder = registered(tmp_path / "study")
    before = (folder / "log.jsonl").read_bytes()
    with held(folder) as other:
        for command in COMMANDS.values():
            with pytest.raises(RunError) as error:
                command(folder)
            assert str(error.value) == f"another command is at work in {folder}"
            assert error.value.exit_code == 1
        assert (folder / "log.jsonl").read_bytes() == before
        open_study(folder)  # reading is possible all the time
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert len(measure(folder, now=lambda: LATER).added) == PLACES


def test_the_first_registration_is_locked_too(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study")
    with held(folder), pytest.raises(RunError, match="another command is at work in"):
        register(folder, now=lambda: NOW)
    assert register(folder, now=lambda: NOW).number == 1


def test_nothing_is_left_where_nothing_was_registered(tmp_path: Path) -> None:
    with working(tmp_path, now=lambda: NOW):
        assert (tmp_path / "log.jsonl").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_its_holder_removed_is_not_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened just before the holder, who registered nothing, removed it: another file is the lock then."""
    real, opened = os.open, []

    def overtaken(path: Any, *arguments: Any) -> int:
        handle = real(path, *arguments)
        opened.append(handle)
        if len(opened) == 1:
            os.unlink(path)
        return handle

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", overtaken)
        context = working(tmp_path, now=lambda: NOW)
        context.__enter__()
    assert len(opened) == 2
    with pytest.raises(RunError, match="another command is at work"), working(tmp_path, now=lambda: NOW):
        pass
    context.__exit__(None, None, None)

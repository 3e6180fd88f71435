"""Bytes that are no UTF-8, in what a study keeps: refused before anything is written, and harmless where they lie."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.report.study_page import save_report
from slotgrid.run import load_run, save_run
from slotgrid.study import register as registering
from slotgrid.study import study
from slotgrid.study.collect import ingest, measure
from slotgrid.study.manifest import Cell, code_hashes
from slotgrid.study.overview import overview
from slotgrid.study.register import register
from slotgrid.study.study import open_study
from slotgrid.study.template import init_study
from slotgrid.study.verdict import verdict
from tests.study.small import LATER, NOW, hardware_run, registered, text, write_study

# "Gründe" in Latin-1, as Python reads it from the command line
REASON = b"Gr\xfcnde".decode("utf-8", "surrogateescape")


def refused(call: Any, folder: Path, where: str) -> None:
    """One line, and not a byte of the study differs."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value).startswith(f"{where}: '")
    assert "Gr\\udcfcnde' is not UTF-8 text" in str(error.value)
    str(error.value).encode()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = registered(tmp_path / "study")
    (folder / "study.toml").write_text(text(sets=(("main", [5]), ("more", [6]))))
    refused(lambda: register(folder, now=lambda: NOW, amend=REASON), folder, "--amend")
    register(folder, now=lambda: NOW, amend="more")
    monkeypatch.setattr(study.manifest, "code_hashes", lambda: {**code_hashes(), "engine/new.py": "1"})
    refused(lambda: measure(folder, now=lambda: LATER, other_code=REASON), folder, "--other-code")


def test_runs(tmp_path: Path) -> None:
    folder = registered(tmp_path / "study", runs="")
    run = hardware_run(open_study(folder).entries[0], Cell("main", 3, "s5-b0"), "base")
    save_run(run, tmp_path / "run")
    refused(
        lambda: ingest(folder, [tmp_path / "run"], now=lambda: LATER, started=REASON, arm="base"), folder, "--started"
    )
    bad = tmp_path / REASON
    shutil.copytree(tmp_path / "run", bad)
    refused(lambda: ingest(folder, [bad], now=lambda: LATER), folder, "run directory")
    with pytest.raises(InputError, match=r"steps\.parquet: cannot .*: a name in the path is not UTF-8 text"):
        load_run(bad)
    with pytest.raises(InputError, match=r"steps\.parquet: cannot write: a name in the path is not UTF-8 text"):
        save_run(run, tmp_path / f"{REASON}2")


def test_folders(tmp_path: Path) -> None:
    folder = write_study(tmp_path / REASON)
    refused(lambda: register(folder, now=lambda: NOW), folder, "study directory")
    assert not (folder / "log.jsonl").exists()
    refused(lambda: init_study(tmp_path / "new" / REASON), tmp_path, "study directory")


def test_a_study_that_holds_them_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason from an earlier version, in a folder that was renamed since."""
    folder = registered(tmp_path / "study")
    (folder / "study.toml").write_text(text(sets=(("main", [5]), ("more", [6]))))
    with monkeypatch.context() as patch:
        patch.setattr(registering, "check_text", lambda *_: None)
        register(folder, now=lambda: NOW, amend=REASON)
    measure(folder, now=lambda: LATER, plan_set="main")
    verdict(folder, now=lambda: LATER, plan_set="main")
    folder = folder.rename(tmp_path / REASON)
    page = save_report(overview(open_study(folder)), tmp_path / "report")[0].read_bytes().decode()
    assert "Gr\\udcfcnde" in page
    assert not verdict(folder, now=lambda: LATER, plan_set="main").fresh


def test_a_text_is_written_whatever_it_holds(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a", f"ü {REASON}\n")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "ü Gr\\udcfcnde\n"

"""CSV input of saturate and null, break-even, and notes that are merged."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.errors import InputError
from slotgrid.measure.surroundings import git_ignores, git_state, now
from slotgrid.study.breakeven import arm_cost, break_even_runs
from slotgrid.study.csv_input import read_cells, read_repeats
from slotgrid.study.decisions import decisions_of
from slotgrid.study.notes import merge_notes
from slotgrid.study.settings import MEASURED, Arm

CELLS = 'sessions,replicate,slots,device_s,buckets\n6,a,8,10.0,"1,2,4,8"\n6,a,16,9.5,"1,2,4,8,16"\n'


def test_cells(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    path.write_text("\ufeff" + CELLS)
    cells, configs = read_cells(path)
    assert cells == {"8 slots": {(6, "a"): 10.0}, "16 slots": {(6, "a"): 9.5}}
    assert configs["16 slots"] == sg.ServingConfig((1, 2, 4, 8, 16))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "column sessions is missing; needed: sessions, replicate, slots, device_s"),
        ("sessions,replicate,slots,device_s\n", "no rows"),
        ("sessions,replicate,slots,device_s\n6,a,8\n", "line 2: not as many cells as the header"),
        ("sessions,replicate,slots,device_s\n6,a,8,1,1\n", "line 2: not as many cells as the header"),
        ("sessions,replicate,slots,device_s\n6,a,8,nan\n", "line 2: device_s is 'nan'"),
        ("sessions,replicate,slots,device_s\n6,a,8,-1\n", "line 2: device_s is '-1'"),
        ("sessions,replicate,slots,device_s\nsix,a,8,1\n", "line 2: sessions is 'six'"),
        ("sessions,replicate,slots,device_s\n6,a,8,1\n6,a,8,1\n", "8 slots is there twice"),
        ("sessions,replicate,slots,device_s,arm\n6,a,8,1,x\n6,b,9,1,x\n", "line 3: arm x has 9 slots, before 8"),
        ("sessions,replicate,slots,device_s,arm\n6,a,8,1,x\n6,a,8,1,y\n", "x and y both have 8 slots"),
        ("sessions,replicate,slots,device_s,buckets\n6,a,8,1,wide\n", "buckets: 'wide'"),
    ],
)
def test_bad_cells_are_named(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_cells(path)
    assert words in str(error.value)


def test_bad_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "repeats.csv"
    with pytest.raises(InputError, match=r"repeats\.csv: No such file"):
        read_repeats(path)
    path.write_bytes(b"repeat,channel_a_s\xff")
    with pytest.raises(InputError, match="not UTF-8 text at byte 18"):
        read_repeats(path)
    path.write_text("repeat,channel_a_s\n")
    with pytest.raises(InputError, match="column channel_b_s is missing"):
        read_repeats(path)


def test_repeats_by_group(tmp_path: Path) -> None:
    path = tmp_path / "repeats.csv"
    path.write_text("repeat,sessions,channel_a_s,channel_b_s\na,6,1,1.1\na,8,2,2.1\nb,6,1,1.2\n")
    groups = read_repeats(path)
    assert {name: len(rows) for name, rows in groups.items()} == {"N = 6": 2, "N = 8": 1}


def test_break_even(profile: sg.StackProfile) -> None:
    assert break_even_runs(100.0, 3.0) == 34
    assert break_even_runs(100.0, 0.0) is None
    assert break_even_runs(100.0, -1.0) is None
    assert break_even_runs(None, 1.0) is None
    config = sg.ServingConfig((1, 2, 4, 8, 16))
    arm = Arm("x", config, MEASURED, None, None)
    cost = arm_cost(arm, profile)
    assert (cost.compile_s, cost.compile_from) == (pytest.approx(42.3 + 61.33 * 6), "profile")
    assert cost.memory_gib_per_device == pytest.approx(2.6 + 0.28125 * 16)
    assert arm_cost(Arm("x", config, MEASURED, None, 300.0), profile).compile_from == "study.toml"
    assert arm_cost(Arm("x", config, MEASURED, None, 300.0), profile, 60.0).compile_s == 60.0


def test_what_was_decided_on_a_saving() -> None:
    """On whole runs the comparison's decision; in steady load one criterion for all, where arms can be told apart."""
    rows = [{"sessions": n, "arm": "x", "decision": word} for n, word in ((6, "withheld"), (8, "passed"))]
    assert decisions_of({"comparisons": rows}) == {(6, "x"): "withheld", (8, "x"): "passed"}
    for verdict in ("passed", "failed", "not confirmed", "not judged"):
        steady = {
            "baseline": "base",
            "findings": [{"criterion": "reuse", "verdict": "passed"}, {"criterion": "cost ratio", "verdict": verdict}],
            "cells": [{"sessions": n, "exploratory": n == 10} for n in (6, 8, 10)],
            "pairs": [
                {"sessions": n, "x": x, "y": y, "resolved": n != 8}
                for n in (6, 8, 10)
                for x, y in (("base", "x"), ("x", "y"))
            ],
        }
        assert decisions_of(steady) == {(6, "x"): verdict, (8, "x"): "unresolved", (10, "x"): "exploratory"}


@given(st.floats(1.0, 1e5), st.floats(1e-3, 1e3))
def test_break_even_is_the_first_run_that_pays(compile_s: float, saved_s: float) -> None:
    runs = break_even_runs(compile_s, saved_s)
    assert runs is not None
    assert runs * saved_s >= compile_s * (1 - 1e-12)
    assert (runs - 1) * saved_s < compile_s


def test_notes_of_many_runs_are_one_each() -> None:
    found = merge_notes(
        [
            "prefills of 149 to 330 tokens (measured 500 to 6000)",
            "prefills of 81 to 200 tokens (measured 500 to 6000)",
            "decode steps with up to 9 running (measured 1 to 8)",
            "decode steps with up to 10 running (measured 1 to 8)",
            "decode steps of bucket 16 (measured 1 to 8)",
        ]
    )
    assert found == (
        "prefills of 81 to 330 tokens (measured 500 to 6000)",
        "decode steps with up to 10 running (measured 1 to 8)",
        "decode steps of bucket 16 (measured 1 to 8)",
    )


def test_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit where there is one; nothing where git or a repository is missing."""
    import subprocess

    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None
    latin = tmp_path / b"gr\xfcn".decode("utf-8", "surrogateescape")
    assert git_state(latin) is None
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "x")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "x@example.invalid")
    for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    state = git_state(tmp_path)
    assert state is not None
    assert len(state["commit"]) == 40
    assert state["clean"] is True
    (tmp_path / ".gitignore").write_text("left/\n")
    (tmp_path / "left").mkdir()
    assert git_ignores(tmp_path / "left" / "study.toml")
    assert not git_ignores(tmp_path / "study.toml")
    state = git_state(tmp_path)
    assert state is not None
    assert state["clean"] is False
    monkeypatch.setenv("PATH", "")
    assert git_state(tmp_path) is None
    assert not git_ignores(tmp_path / "left" / "study.toml")
    assert now().endswith("+00:00")

"""Files are written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import slotgrid as sg
from slotgrid import files


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    files.write_json(path, {"a": 1})

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(sg.InputError, match=r"result\.json: cannot write: No space left on device"):
        files.write_together({path: fail})
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, float("nan"))
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(sg.InputError, match=r"file/x\.json: cannot write"):
        files.write_json(tmp_path / "file" / "x.json", 1)


def test_files_that_belong_together_change_together(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    files.write_together({first: files.json_writer(1), second: files.json_writer(1)})

    def fail(temporary: Path) -> None:
        raise OSError(28, "No space left on device")

    for writers in ({first: files.json_writer(2), second: fail}, {first: fail, second: files.json_writer(2)}):
        with pytest.raises(sg.InputError, match="No space left"):
            files.write_together(writers)
        assert (first.read_text(), second.read_text()) == ("1\n", "1\n")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_table_of_another_owner_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    files.write_together({path: files.table_writer(pl.DataFrame({"a": [1]}), owner="x")})
    assert files.read_table(path, owner="x", owner_file="s.json")["a"].to_list() == [1]
    with pytest.raises(sg.InputError, match=r"t\.parquet: does not belong to the s\.json beside it"):
        files.read_table(path, owner="y", owner_file="s.json")

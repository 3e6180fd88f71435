"""Files are written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

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
        files.write_with(path, fail)
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, float("nan"))
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(sg.InputError, match=r"file/x\.json: cannot write"):
        files.write_json(tmp_path / "file" / "x.json", 1)

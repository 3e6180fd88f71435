"""Writing once: what is there stays, and what is half there is not there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from slotgrid.cli import saturate as command
from slotgrid.errors import InputError
from slotgrid.study import saturation
from slotgrid.study.store import copy_tree, new_folder, write_new


@pytest.mark.parametrize("links", [True, False])
def test_a_file_is_written_once(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a file system without hard links."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "new" / "file.json"
    assert write_new(path, b"first")
    assert not write_new(path, b"second")
    assert path.read_bytes() == b"first"
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "there"

    def stopped() -> None:
        with new_folder(target) as partial:
            (partial / "a").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert list(tmp_path.iterdir()) == []
    with new_folder(target) as partial:
        (partial / "a").write_text("whole")
        assert not target.exists()
    assert (target / "a").read_text() == "whole"
    with pytest.raises(InputError, match="there: already there; it is never overwritten"), new_folder(target):
        pass
    assert (target / "a").read_text() == "whole"


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "there"

    def overtaken() -> None:
        with new_folder(target) as partial:
            (partial / "a").write_text("mine")
            target.mkdir()
            (target / "a").write_text("theirs")

    with pytest.raises(InputError, match="never overwritten"):
        overtaken()
    assert (target / "a").read_text() == "theirs"


def test_what_cannot_be_written_or_copied_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/x: cannot write: (Not a directory|File exists)"):
        write_new(tmp_path / "file" / "x", b"")
    with pytest.raises(InputError, match=r"cannot write"), new_folder(tmp_path / "file" / "x"):
        pass
    with pytest.raises(InputError, match=r"nothing: cannot copy: No such file"):
        copy_tree(tmp_path / "nothing", tmp_path / "copy")
    source = tmp_path / "source"
    source.mkdir()
    (source / "broken").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"broken: cannot copy"):
        copy_tree(source, tmp_path / "copy")


def test_the_commands_defaults_are_the_rooms() -> None:
    """Stated twice, so that the help page needs no heavy import."""
    assert (command.RESAMPLES, command.SEED) == (saturation.RESAMPLES, saturation.SEED)

"""Writing once: files and directories that appear whole and are never replaced."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.errors import InputError

# what a study is written in
STUDY_FILE = "study.toml"
_PARTIAL = ".partial"


def write_new(path: Path, data: bytes) -> bool:
    """Write a file that must not exist; False when it does. Whole or not at all.

    Raises InputError naming the file when the folder cannot be written or the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(name, 0o644)
            return _take_place(name, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name)
    except OSError as error:
        raise InputError(f"{path}: cannot write: {error.strerror or error}") from None


def _take_place(name: str, path: Path) -> bool:
    """A link, unlike a rename, fails where something is; not every file system has links."""
    try:
        os.link(name, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        if path.exists():
            return False
        os.rename(name, path)
    return True


def json_bytes(value: Any) -> bytes:
    """The bytes of a JSON file; NaN is refused at once."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


@contextlib.contextmanager
def new_folder(path: Path, *, keep: bool = False) -> Iterator[Path]:
    """Give a folder beside ``path`` to fill; on success it becomes ``path``, which must not exist.

    What a killed command left there is removed first, or with ``keep`` given again; an error removes it likewise.
    Raises InputError when ``path`` is there or cannot be written.
    """
    partial = path.with_name(f".{path.name}{_PARTIAL}")
    if path.exists():
        raise InputError(f"{path}: already there; it is never overwritten")
    try:
        if not keep and partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True, exist_ok=True)
        yield partial
        _sync(partial)
        os.rename(partial, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise InputError(f"{path}: already there; it is never overwritten") from None
        raise InputError(f"{error.filename or path}: cannot write: {error.strerror or error}") from None
    finally:
        if not keep:
            shutil.rmtree(partial, ignore_errors=True)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a run directory file by file, following links. Raises InputError naming what cannot be read or written."""
    try:
        shutil.copytree(source, target)
    except shutil.Error as error:
        first = error.args[0][0]
        raise InputError(f"{first[0]}: cannot copy: {first[2]}") from None
    except OSError as error:
        raise InputError(f"{error.filename or source}: cannot copy: {error.strerror or error}") from None


def read_object(path: Path, format_name: str) -> dict[str, Any]:
    """A JSON object of the named format. Raises InputError when it is something else."""
    data = files.read_json(path)
    if not isinstance(data, dict) or data.get("format") != format_name:
        raise InputError(f'{path}: expected "format": "{format_name}"')
    return data


def _sync(folder: Path) -> None:
    """Bring every file to the disk, so that a crash after the rename finds them whole."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

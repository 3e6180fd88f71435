"""Writing once: files and directories that appear whole and are never replaced."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.errors import InputError

# what a study is written in
STUDY_FILE = "study.toml"
_PARTIAL = ".partial"


def check_folder(path: Path) -> None:
    """Raise InputError when there is no such directory."""
    if not path.is_dir():
        kind = "is a file" if path.exists() else "no such directory"
        raise InputError(f"{path}: {kind}; expected a study directory")


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
def new_folder(path: Path, *, keep: bool = False, announce: Callable[[Path], object] | None = None) -> Iterator[Path]:
    """Give a folder beside ``path`` to fill; on success it becomes ``path``, where nothing but an empty one may be.

    What a killed command left there is removed first, or with ``keep`` given again; an error removes it likewise.
    announce: called with the folder when it is complete and on the disk, just before it takes its place; from then on
    it is not removed. Raises InputError when ``path`` is there or cannot be written.
    """
    partial = partial_of(path)
    announced = False
    if is_taken(path):
        raise InputError(f"{path}: already there; it is never overwritten")
    try:
        if not keep and partial.exists():
            shutil.rmtree(partial)
        made = [folder for folder in (partial, *partial.parents) if not folder.exists()]
        partial.mkdir(parents=True, exist_ok=True)
        for folder in made:
            sync(folder.parent)
        yield partial
        _sync(partial)
        if announce is not None:
            announced = True
            announce(partial)
        put_in_place(partial, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise InputError(f"{path}: already there; it is never overwritten") from None
        raise InputError(f"{error.filename or path}: cannot write: {error.strerror or error}") from None
    finally:
        if not keep and not announced:
            shutil.rmtree(partial, ignore_errors=True)


def partial_of(path: Path) -> Path:
    """The hidden folder beside ``path`` that is filled before it takes its place."""
    return path.with_name(f".{path.name}{_PARTIAL}")


def is_taken(path: Path) -> bool:
    """Whether something is there. An empty folder, as a crash may leave it, is nothing."""
    return path.exists() and not (path.is_dir() and next(path.iterdir(), None) is None)


def put_in_place(partial: Path, path: Path) -> None:
    """Rename a complete folder; it has its place on the disk too when this returns."""
    os.rename(partial, path)
    sync(path.parent)


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
    """Bring every file and name to the disk, so that a crash after the rename finds them whole."""
    for path in (*folder.rglob("*"), folder):
        if path.is_file() or path.is_dir():
            sync(path)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""One command at a time works on a study."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from slotgrid.errors import InputError, RunError
from slotgrid.study import log
from slotgrid.study.audit import recover
from slotgrid.study.texts import check_text


@contextlib.contextmanager
def working(
    folder: Path, *, now: Callable[[], str], note: Callable[[str], None] | None = None
) -> Iterator[Path | None]:
    """Hold the study while a command works on it, and first finish what a killed one began; gives what that was.

    ``note`` gets a sentence about it. Raises RunError when another command is at work, InputError when the folder has a
    name that cannot be kept.
    """
    check_text(folder.resolve(), "study directory")
    with _locked(folder):
        finished, said = recover(folder, now)
        for text in said:
            if note is not None:
                note(text)
        yield finished


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The log itself is locked: the operating system forgets that when the command ends, however it ends."""
    if not folder.is_dir():
        # what is missing is named by whoever looks for it
        yield
        return
    path = folder / log.FILE
    handle = _open_locked(path, folder)
    try:
        yield
    finally:
        # nothing was registered: nothing is left behind
        with contextlib.suppress(OSError):
            if os.fstat(handle).st_size == 0:
                path.unlink()
        os.close(handle)


def _open_locked(path: Path, folder: Path) -> int:
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"{path}: cannot write: {error.strerror or error}") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # the one who held it may have removed the file meanwhile
            if path.exists() and os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise RunError(f"another command is at work in {folder}") from None
        except OSError as error:
            os.close(handle)
            raise InputError(f"{path}: cannot be locked: {error.strerror or error}") from None
        os.close(handle)

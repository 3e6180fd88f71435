"""A command that ends by itself: in its own process group, with a limit, and known to a later call when this one is
killed."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slotgrid import files
from slotgrid.errors import InputError, RunError
from slotgrid.measure.server_process import COMMAND, identity, kill_group, start_group


def run_command(
    command: Sequence[str], *, what: str, cwd: Path, env: Mapping[str, str], log: Path, timeout_s: float
) -> int:
    """Run to the end and return the exit code; output goes to ``log``. Whatever interrupts it ends its whole group.

    Beside the log ``command.json`` names the process while it runs. Raises RunError, beginning with ``what``, for a
    command that cannot be started or takes longer than ``timeout_s``.
    """
    note = log.parent / COMMAND
    try:
        with open(log, "wb") as stream:
            process = start_group(command, cwd=cwd, env=env, output=stream)
    except OSError as error:
        raise RunError(f"{what}: {command[0]}: {error.strerror or error}") from None
    try:
        try:
            files.write_json(note, {**identity(process.pid), "command": list(command)})
        except InputError as error:
            raise RunError(f"{what}: {error}") from None
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise RunError(f"{what}: {command[0]} took longer than {timeout_s:g} s and was ended") from None
    finally:
        if process.returncode is None:
            kill_group(process.pid)
            process.wait()
        with contextlib.suppress(OSError):
            note.unlink()

"""A server as a child process: started in a group of its own, watched, and ended by its own ids, never by name."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from slotgrid import files
from slotgrid.errors import InputError, RunError

# what of a process tells it from a later one with the same id
PROCESS = "server.json"
# the same of a command that ends by itself
COMMAND = "command.json"
_LOOK_S = 0.1
_ANSWER_S = 5.0


class ServerProcess:
    """A running server. Its output goes to ``log``; ``folder/server.json`` says which process it is, so that a later
    run can end it when this one was killed. Raises RunError when it cannot be started."""

    def __init__(self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str], folder: Path, log: Path) -> None:
        self.command = list(command)
        self.log = log
        folder.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as stream:
            try:
                self._process = start_group(self.command, cwd=cwd, env=env, output=stream)
            except OSError as error:
                raise RunError(f"the server cannot be started: {command[0]}: {error.strerror or error}") from None
        try:
            files.write_json(folder / PROCESS, {**identity(self._process.pid), "command": self.command})
        except BaseException:
            self.stop(0.0)
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number when a signal ended it."""
        return self._process.poll()

    def death(self) -> str | None:
        """What to say when the server is gone, with the last line it wrote; None while it runs."""
        code = self.exit_code
        if code is None:
            return None
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        last = last_line(self.log)
        return f"the server ended by itself ({how})" + (f": {last}" if last else "")

    def wait_ready(self, url: str, timeout_s: float) -> None:
        """Wait until ``url`` answers 200. Raises RunError when the server ends before or takes too long."""
        deadline = time.monotonic() + timeout_s
        said = "no answer"
        while True:
            death = self.death()
            if death is not None:
                raise RunError(f"{death} (while starting)")
            answer = _status(url)
            if answer == 200:
                return
            if answer is not None:
                said = answer if isinstance(answer, str) else f"status {answer}"
            if time.monotonic() >= deadline:
                raise RunError(f"the server was not ready within {timeout_s:g} s ({url}: {said})")
            time.sleep(_LOOK_S)

    def stop(self, timeout_s: float) -> tuple[int, str]:
        """End the server and everything in its process group: TERM, after ``timeout_s`` KILL.

        Returns its exit code and how it ended: "by itself", "TERM" or "KILL".
        """
        how = "by itself"
        if self.exit_code is None:
            how = "TERM"
            _signal_group(self.pid, signal.SIGTERM)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                how = "KILL"
            finally:
                # also when a second ctrl-c does not want to wait for TERM
                self._kill()
        else:
            self._kill()
        return self._process.wait(), how

    def _kill(self) -> None:
        # workers that outlived their leader, too
        kill_group(self.pid)
        self._process.wait()


def end_leftover(folder: Path, timeout_s: float) -> str | None:
    """End what ``folder/server.json`` or ``folder/command.json`` name if it still runs: that very process, not one that
    got its id later. Returns what was done, None when there was nothing to do."""
    done = []
    for name, what in ((PROCESS, "server"), (COMMAND, "command")):
        pid = _running(folder / name)
        if pid is None:
            continue
        _signal_group(pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while _alive(pid) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        kill_group(pid)
        done.append(f"ended the {what} {pid} that an earlier run left behind")
    return "; ".join(done) or None


def _running(path: Path) -> int | None:
    """The process that a file names, if it is still that one."""
    if not path.exists():
        return None
    try:
        known = files.read_json(path)
    except InputError:
        return None
    if not isinstance(known, dict) or not isinstance(known.get("pid"), int) or known.get("started_ticks") is None:
        return None
    pid: int = known["pid"]
    return pid if identity(pid) == {key: known.get(key) for key in ("pid", "started_ticks", "boot")} else None


def free_port(wanted: int) -> int:
    """A port nobody listens on: ``wanted``, or any when it is 0. Raises RunError when ``wanted`` is in use."""
    try:
        with socket.create_server(("127.0.0.1", wanted)) as listener:
            port: int = listener.getsockname()[1]
            return port
    except OSError as error:
        # the socket module adds the address to the reason
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise RunError(f"port {wanted} cannot be used: {reason}") from None
    except OverflowError:
        raise RunError(f"port {wanted} cannot be used: allowed are 0 to 65535") from None


def last_line(path: Path) -> str:
    """The last line of text in a file, cut to 200 characters; empty when there is none."""
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - 4096))
            lines = stream.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((" ".join(line.split())[:200] for line in reversed(lines) if line.strip()), "")


def _status(url: str) -> int | str | None:
    """The status, what came instead of one, or None when nothing came."""
    # a proxy of the environment has no business between us and a server on this machine
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_ANSWER_S) as response:
            status: int = response.status
            return status
    except urllib.error.HTTPError as error:
        return error.code
    except http.client.HTTPException:
        return "the answer is not HTTP"
    except (OSError, ValueError):
        return None


def start_group(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own, with nothing to read. Raises OSError when it cannot be started."""
    return subprocess.Popen(
        list(command),
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def kill_group(pid: int) -> None:
    """End a process group at once."""
    _signal_group(pid, signal.SIGKILL)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def identity(pid: int) -> dict[str, Any]:
    """A process id with when it was started; started_ticks is None where the system does not say (or it is gone)."""
    started, boot = None, None
    with contextlib.suppress(OSError, IndexError, ValueError):
        # the name in brackets may hold spaces; the start time is the 20th field after it
        started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"pid": pid, "started_ticks": started, "boot": boot}


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"

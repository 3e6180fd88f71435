"""What surrounds a measurement: the clock and the git commit of a directory."""

from __future__ import annotations

import contextlib
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_LONGEST_S = 20


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def git_state(folder: str | Path) -> dict[str, Any] | None:
    """{"commit", "clean"} of the repository that holds the folder; None without git, repository or commit."""

    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain")
    return {"commit": commit, "clean": None if changes is None else changes == ""}


def git_ignores(path: str | Path) -> bool:
    """Whether a repository is told to leave the file out; then it is clean whatever becomes of the file."""
    found = Path(path).resolve()
    return _git(found.parent, "check-ignore", "--", found.name) is not None


def _git(folder: str | Path, *arguments: str) -> str | None:
    """What git says about a folder; None without git, where it fails, or where its answer is no."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        found = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            # git quotes the path as it is
            errors="replace",
            timeout=_LONGEST_S,
            check=False,
        )
        return found.stdout.strip() if found.returncode == 0 else None
    return None

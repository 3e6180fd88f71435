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

    def ask(*arguments: str) -> str | None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            found = subprocess.run(
                ["git", "-C", str(folder), *arguments],
                capture_output=True,
                text=True,
                timeout=_LONGEST_S,
                check=False,
            )
            return found.stdout.strip() if found.returncode == 0 else None
        return None

    commit = ask("rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    changes = ask("status", "--porcelain")
    return {"commit": commit, "clean": None if changes is None else changes == ""}

"""The page beside a verdict: the log keeps the hash of what was written, which tells a changed page from an old one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from slotgrid import files
from slotgrid.study import log
from slotgrid.study.lock import working
from slotgrid.study.log import Log
from slotgrid.study.manifest import sha256_of
from slotgrid.study.study import Study


def is_kept(study: Study, plan_set: str, path: Path) -> bool:
    """Whether the page lies there as it was written once. A page of an earlier version stays: only verdict.json counts,
    and a page that is made anew by each version would change a study that nobody touched."""
    return path.is_file() and sha256_of(path) in _written(study.log, plan_set)


def said_of(study: Study, plan_set: str, path: Path) -> str:
    """What is to be said of a page that is not kept; "" where none is there."""
    if not path.is_file():
        return ""
    if _written(study.log, plan_set):
        return "; the one there was changed after it was written"
    return "; the one there was of an earlier version"


def keep_page(folder: str | Path, plan_set: str, path: Path, text: str, *, now: Callable[[], str]) -> None:
    """Write the page and put its hash into the log.

    Raises InputError when it cannot be written, RunError when another command is at work on the study.
    """
    with working(Path(folder), now=now):
        known = _written(log.read_log(Path(folder)), plan_set)
        sha256 = hashlib.sha256(files.utf8_bytes(text)).hexdigest()
        if sha256 not in known:
            log.append(Path(folder), log.PAGE, now(), set=plan_set, file_sha256=sha256)
        files.write_text(path, text)


def _written(found: Log, plan_set: str) -> set[str]:
    return {
        str(line.data["file_sha256"])
        for line in found.lines
        if line.what == log.PAGE and line.data.get("set") == plan_set
    }

"""The log against what lies in the study: everything it names is there and unchanged, and nothing else is.

Order of adding something: a hidden folder is filled and brought to the disk, the log gets its line, the folder takes
its place. What a killed command leaves is told from that: no line, no harm (the folder is made anew); a cut line, the
same; a line and the hidden folder: :func:`recover` moves it to its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.study import log, store
from slotgrid.study.log import Line, Log
from slotgrid.study.manifest import MANIFEST, sha256_of
from slotgrid.study.strangers import FOREIGN, line_ends_hint

# of a run in the study: the run directory and what is recorded beside it
RUN, RECORD, RECORD_FORMAT = "run", "record.json", "slotgrid-study-run/1"
VERDICT_FILE = "verdict.json"
# what vouches for a folder the log names
FILE_OF = {
    log.REGISTRATION: MANIFEST,
    log.AMENDMENT: MANIFEST,
    log.RUN: RECORD,
    log.VERDICT: VERDICT_FILE,
}
# where such folders lie, and how deep
_PLACES = ("registered/*", "runs/*/*/*", "verdicts/*")


def audit(folder: Path) -> Log:
    """Check the chain and everything it names; the log. Raises InputError naming what is gone, changed or not in it.

    What the last line announces may still be on its way: then it does not count as there.
    """
    while True:
        found = log.read_log(folder)
        try:
            _check(folder, found)
        except InputError:
            # a command that is at work meanwhile has added a line, and what it names
            if log.read_log(folder).head != found.head:
                continue
            raise
        return found


def recover(folder: Path, now: Callable[[], str]) -> tuple[Path | None, list[str]]:
    """Finish what a killed command began; what it finished, and what was done, for people. It stands in the log too.

    Only the command that holds the lock of the study may call it.
    """
    found = log.read_log(folder)
    last = found.lines[-1] if found.lines else None
    waiting = last is not None and last.place is not None and _is_waiting(folder, last)
    if not found.cut and not waiting:
        return None, []
    # what does not fit a killed command is not to be changed, but named
    audit(folder)
    said = []
    finished = None
    cut = log.cut_line(folder, found)
    if found.cut:
        said.append(f"the last line of {log.FILE} was cut off after {found.cut} bytes and is left out")
    if last is not None and waiting:
        finished = folder / str(last.place)
        store.put_in_place(store.partial_of(finished), finished)
        said.append(f"{last.what} {last.place} was in the log already and is moved to its place")
    # it takes the place of the cut line; of a first line nothing is left to follow
    if found.lines:
        log.append(folder, log.CONTINUED, now(), text="; ".join(said), cut=cut)
    return finished, [f"{folder}: a command was killed: {text}" for text in said]


def read_record(path: Path) -> dict[str, Any]:
    """A record as it is written. Raises InputError naming the key whose value is missing or of another kind."""
    data = store.read_object(path, RECORD_FORMAT)
    for key in ("files", "source", "added_at"):
        if key not in data:
            raise InputError(f"{path}: {key} is missing")
    for key in ("source", "added_at", "started_at", "started_stated", "how", "content"):
        value = data.get(key)
        if not isinstance(value, str) and not (value is None and key not in ("source", "added_at", "how")):
            raise InputError(f"{path}: {key} is {value!r}; expected a text")
    hashes = data["files"]
    if not isinstance(hashes, dict) or not all(isinstance(told, str) for told in hashes.values()):
        raise InputError(f"{path}: files is {type(hashes).__name__}; expected a hash for each file name")
    return data


def check_run_files(folder: Path, data: Mapping[str, Any]) -> None:
    """Raise InputError naming a file of the run in ``folder`` that is not as its record says."""
    base = folder / RUN
    for name, told in data["files"].items():
        path = base / name
        if not path.is_file():
            raise InputError(f"{path}: is gone; it was recorded on {data['added_at']}, put it back")
        if sha256_of(path) != told:
            hint = line_ends_hint(path, told)
            raise InputError(f"{path}: changed after it was recorded on {data['added_at']}{hint}")
    for path in base.rglob("*"):
        if path.is_file() and path.relative_to(base).as_posix() not in data["files"]:
            raise InputError(f"{path}: was not there when the run was recorded on {data['added_at']}; {FOREIGN}")


def _check(folder: Path, found: Log) -> None:
    named = set()
    for line in found.lines:
        if line.place is not None:
            named.add(line.place)
            _check_named(folder, found, line)
    for path in _places(folder):
        if not found.lines:
            raise InputError(f"{folder / log.FILE}: is gone or empty, although {path} is there; put it back")
        if path.relative_to(folder).as_posix() not in named:
            raise InputError(f"{path}: is not in {log.FILE}; whatever comes into a study is logged ({FOREIGN})")


def _check_named(folder: Path, found: Log, line: Line) -> None:
    where = f"{folder / log.FILE}: {line.named}"
    if line.what not in FILE_OF:
        raise InputError(f"{where}; only {', '.join(FILE_OF)} have a place")
    target = folder / str(line.place)
    path = target / FILE_OF[line.what]
    if not path.is_file():
        # the second look: it may have taken its place between the first and the one for its hidden folder
        if (line is found.lines[-1] and _is_waiting(folder, line)) or path.is_file():
            return
        raise InputError(f"{where}, which is gone; put it back, nothing that was logged is left out")
    if sha256_of(path) != line.data.get("file_sha256"):
        hint = line_ends_hint(path, str(line.data.get("file_sha256")))
        raise InputError(
            f"{path}: changed or replaced after {log.FILE} line {line.number} named it on {line.time}{hint}"
        )
    if line.what == log.RUN:
        check_run_files(target, read_record(path))
    if line.what == log.VERDICT and _told_log(path) != Log(found.lines[: line.number - 1]).summary():
        raise InputError(f"{path}: was decided on another log than the lines before line {line.number}")


def _told_log(path: Path) -> Any:
    data = files.read_json(path)
    return data.get("log") if isinstance(data, dict) else None


def _is_waiting(folder: Path, line: Line) -> bool:
    """Whether what the line names lies complete in its hidden folder, and not yet in its place."""
    target = folder / str(line.place)
    path = store.partial_of(target) / FILE_OF.get(line.what, "")
    return not store.is_taken(target) and path.is_file() and sha256_of(path) == line.data.get("file_sha256")


def _places(folder: Path) -> Iterator[Path]:
    for pattern in _PLACES:
        for path in sorted(folder.glob(pattern)):
            if not any(part.startswith(".") for part in path.relative_to(folder).parts) and store.is_taken(path):
                yield path

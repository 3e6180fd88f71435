"""The one log line of the published analysis, written into ``model_base.py`` of vllm-rbln 0.11.x and taken out again.

For people who prefer a patched file to the plugin (``observe``). Every write is preceded and followed by a hash
check; a file that is not byte for byte known is never touched.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.stacks.rbln import releases

# the statement before the line: the last of the block that chooses the bucket
_ANCHOR = b"                        request_nums, self.decoder_batch_sizes\n                    )\n"
# the number of rows, not of ids, since a server may decode without ids
LOG_LINE = (
    b'                logger.debug("[BUCKET] request_nums=%d padded_batch_size=%d", '
    b"block_tables.shape[0], padded_batch_size)\n"
)
ORIGINAL_SHA256 = releases.FILES["0.11.1"][releases.MODEL_BASE]
PATCHED_SHA256 = "e643048209ec6162bfc6ebe667fd5d360ad66dfc5f4c61330ecf6814960e25cd"
BACKUP_SUFFIX = ".slotgrid-original"

State = Literal["original", "patched", "unknown"]


@dataclass(frozen=True)
class PatchStatus:
    """State of one ``model_base.py``: its hash (hex), the releases that ship the original, the backup beside it."""

    file: str
    sha256: str
    state: State
    releases: tuple[str, ...]
    backup: str | None

    def to_dict(self) -> dict[str, Any]:
        """The change as JSON values."""
        return {
            "file": self.file,
            "sha256": self.sha256,
            "state": self.state,
            "releases": list(self.releases),
            "backup": self.backup,
        }


def installed_file() -> Path:
    """``model_base.py`` of the vllm-rbln in this environment, without importing it. Raises InputError without one."""
    spec = importlib.util.find_spec("vllm_rbln")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("vllm-rbln is not installed in this environment; name the file with --file")
    return Path(next(iter(spec.submodule_search_locations))).parent / releases.MODEL_BASE


def status(path: Path) -> PatchStatus:
    """What a file is. Raises InputError when it cannot be read."""
    return _status_of(path, files.read_bytes(path))


def apply(path: Path) -> PatchStatus:
    """Write the log line, keeping the original beside the file.

    Raises InputError, and changes nothing, unless the file is the original of a 0.11.x release.
    """
    data = files.read_bytes(path)
    found = _status_of(path, data)
    if found.state == "patched":
        raise InputError(f"{path}: already patched; nothing was changed")
    if "0.12.0" in found.releases:
        raise InputError(f"{path}: is of vllm-rbln 0.12.0; the line is for 0.11.x, use SLOTGRID_OBSERVE instead")
    if found.state != "original":
        raise InputError(f"{path}: unknown SHA-256 {found.sha256}; expected {ORIGINAL_SHA256} (vllm-rbln 0.11.x)")
    patched = data.replace(_ANCHOR, _ANCHOR + LOG_LINE)
    _check(patched, PATCHED_SHA256, path)
    backup = _backup(path)
    if backup.exists() and _sha256(files.read_bytes(backup)) != ORIGINAL_SHA256:
        raise InputError(f"{backup}: exists and is not the original; move it away first")
    mode = path.stat().st_mode
    _write(backup, data, mode)
    _write(path, patched, mode)
    return _confirmed(path, "patched")


def revert(path: Path) -> PatchStatus:
    """Take the log line out again: byte for byte the original; the backup goes.

    Raises InputError, and changes nothing, unless the file is the patched one.
    """
    data = files.read_bytes(path)
    found = _status_of(path, data)
    if found.state == "original":
        raise InputError(f"{path}: not patched; nothing was changed")
    if found.state != "patched":
        raise InputError(f"{path}: unknown SHA-256 {found.sha256}; expected the patched file {PATCHED_SHA256}")
    original = data.replace(LOG_LINE, b"")
    _check(original, ORIGINAL_SHA256, path)
    _write(path, original, path.stat().st_mode)
    confirmed = _confirmed(path, "original")
    backup = _backup(path)
    if backup.exists() and files.read_bytes(backup) == original:
        backup.unlink()
        confirmed = status(path)
    return confirmed


def _status_of(path: Path, data: bytes) -> PatchStatus:
    digest = _sha256(data)
    known = releases.releases_of(releases.MODEL_BASE, digest)
    state: State = "original" if known else "unknown"
    if digest == PATCHED_SHA256:
        state, known = "patched", releases.releases_of(releases.MODEL_BASE, ORIGINAL_SHA256)
    backup = _backup(path)
    return PatchStatus(str(path), digest, state, known, str(backup) if backup.exists() else None)


def _check(data: bytes, expected: str, path: Path) -> None:
    """Refuse to write what is not the expected file or not Python."""
    if _sha256(data) != expected:
        raise InputError(f"{path}: the change would give SHA-256 {_sha256(data)}, not {expected}; nothing was changed")
    try:
        ast.parse(data)
    except SyntaxError as error:
        raise InputError(f"{path}: the change would not be Python ({error.msg}); nothing was changed") from None


def _confirmed(path: Path, state: State) -> PatchStatus:
    found = status(path)
    if found.state != state:
        raise InputError(f"{path}: reads back with SHA-256 {found.sha256}; something else writes this file")
    return found


def _write(path: Path, data: bytes, mode: int) -> None:
    with files.replacing(path) as temporary, open(temporary, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(path, mode & 0o7777)


def _backup(path: Path) -> Path:
    return path.with_name(path.name + BACKUP_SUFFIX)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

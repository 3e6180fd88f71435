"""What other programs do to the files of a study, and how a message can name it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from slotgrid import files

# git's file that keeps it from changing line ends; without it a clone may differ from what was registered
ATTRIBUTES = ".gitattributes"
ATTRIBUTES_TEXT = "# every file here is vouched for by its hash: git must not change line ends\n* -text\n"
# said of a file that is too much
FOREIGN = "what another program left there (.DS_Store, an editor's backup) can be removed"
CHANGED_LINE_ENDS = (
    f"; only its line ends differ, as git makes them with core.autocrlf: write '* -text' into {ATTRIBUTES} of the "
    "study and check the files out again"
)


def line_ends_hint(path: Path, sha256: str) -> str:
    """A sentence when the file has the hash once its line ends are made plain again, else nothing."""
    data = files.read_bytes(path)
    plain = data.replace(b"\r\n", b"\n")
    return CHANGED_LINE_ENDS if plain != data and hashlib.sha256(plain).hexdigest() == sha256 else ""

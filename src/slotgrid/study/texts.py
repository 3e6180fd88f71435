"""Texts that a study keeps."""

from __future__ import annotations

from pathlib import Path

from slotgrid.errors import InputError


def check_text(text: str | Path | None, where: str) -> None:
    """Raise InputError naming ``where`` when a text or path, as typed, holds bytes that are not UTF-8.

    Python carries those as lone surrogates, and what a study keeps is shown later on pages, which are UTF-8.
    """
    if text is None:
        return
    try:
        str(text).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{where}: {str(text)!r} is not UTF-8 text; a study keeps it, so write or name it in UTF-8"
        ) from None

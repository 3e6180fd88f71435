"""Requests of a log and of its client, joined by id: the client's id begins the server's, on whole dash parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slotgrid.errors import InputError
from slotgrid.run.readers.names import Ints, Names

# an id the client chose itself (X-Request-ID) stands behind one of these in the server's log
_PREFIXES = (b"cmpl-", b"chatcmpl-", b"resp-")


def join(ids: Names, kept: Ints, log_ids: Names, first_row: str, log_name: str, warn: Callable[[str], None]) -> Ints:
    """For each row (by its id) the index of its log request, -1 where there is none; kept: rows that count.

    Raises InputError when rows and log share not a single request. What is left over on either side is a warning.
    """
    found = np.full(len(ids), -1, np.int32)
    if not ids.any_present:
        warn(f"the request rows carry no server request ids, so they cannot be joined with {log_name}")
        return found
    taken = np.zeros(len(log_ids), bool)
    shared = 0
    for form in _FORMS:
        if taken.all():
            break
        left = (r for r in range(len(taken)) if not taken[r])
        names = ((r, name) for r in left if (name := log_ids.raw(r)) is not None)
        for i, r in ids.find(names, form):
            taken[r] = True
            if found[i] >= 0:
                shared += 1
            else:
                found[i] = r
    ids.forget_lookup()
    missing = int((found[kept] < 0).sum())
    spare = int((~taken).sum())
    if missing == len(kept) and len(log_ids):
        raise InputError(
            f"{first_row}: none of the {len(kept)} request rows has a line in {log_name}; "
            "rows and log are of different runs"
        )
    if missing and len(log_ids):
        warn(f"{missing} request rows have no log line")
    if spare:
        warn(
            f"{spare} requests of {log_name} have no request row (warm-up or other clients?); "
            "their steps are counted, their prefill is not"
        )
    if shared:
        warn(f"{shared} requests of {log_name} share a client id with another one (several prompts in one call?)")
    return found


def _without_last(parts: int) -> Callable[[bytes], bytes | None]:
    def form(name: bytes) -> bytes | None:
        pieces = name.rsplit(b"-", parts)
        return pieces[0] if len(pieces) == parts + 1 else None

    return form


def _without_prefix(form: Callable[[bytes], bytes | None]) -> Callable[[bytes], bytes | None]:
    def bare(name: bytes) -> bytes | None:
        made = form(name)
        prefix = next((p for p in _PREFIXES if made is not None and made.startswith(p)), None)
        return None if made is None or prefix is None else made[len(prefix) :]

    return bare


_DASHED = (_without_last(2), _without_last(1), _without_last(0))
# what the client may have called it, the usual form first
_FORMS = (*_DASHED, *(_without_prefix(form) for form in _DASHED))

"""Requests of a log and of its client, joined by id: the client's id begins the server's, on whole dash parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slotgrid.errors import InputError
from slotgrid.run.readers.rows import RequestRow

# an id the client chose itself (X-Request-ID) stands behind one of these in the server's log
_PREFIXES = ("cmpl-", "chatcmpl-", "resp-")


def join(rows: Sequence[RequestRow], log_ids: Sequence[str], log_name: str, warn: Callable[[str], None]) -> list[int]:
    """For each row the index of its log request, -1 where there is none.

    Raises InputError when rows and log share not a single request. What is left over on either side is a warning.
    """
    by_id: dict[str, int] = {row.request_id: i for i, row in enumerate(rows) if row.request_id is not None}
    found = [-1] * len(rows)
    spare = shared = 0
    for r, name in enumerate(log_ids):
        i = next((by_id[key] for key in _candidates(name) if key in by_id), None)
        if i is None:
            spare += 1
        elif found[i] >= 0:
            shared += 1
        else:
            found[i] = r
    if not by_id:
        warn(f"the request rows carry no server request ids, so they cannot be joined with {log_name}")
        return found
    missing = sum(index < 0 for index in found)
    if missing == len(rows) and log_ids:
        raise InputError(
            f"{rows[0].where}: none of the {len(rows)} request rows has a line in {log_name}; "
            "rows and log are of different runs"
        )
    if missing and log_ids:
        warn(f"{missing} request rows have no log line")
    if spare:
        warn(f"{spare} requests of {log_name} have no request row (warm-up or other clients?); their steps are counted")
    if shared:
        warn(f"{shared} requests of {log_name} share a client id with another one (several prompts in one call?)")
    return found


def _candidates(name: str) -> list[str]:
    """What the client may have called it, longest first."""
    forms = [name]
    for _ in range(2):
        head, dash, _ = forms[-1].rpartition("-")
        if dash:
            forms.append(head)
    return forms + [form.removeprefix(prefix) for form in forms for prefix in _PREFIXES if form.startswith(prefix)]

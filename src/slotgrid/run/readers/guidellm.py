"""guidellm's report (``benchmarks.json``).

Written against guidellm 0.8.1 (``GenerativeBenchmarksReport``): ``benchmarks`` is a list, each with
``requests: {"successful", "incomplete", "errored"}`` of request statistics: ``response_id`` (the server's id),
``info`` with ``conversation_id``, ``turn_index`` and ``timings``, and the computed ``prompt_tokens``,
``cached_tokens``, ``output_tokens``. Only the first and last token have times. A report with several benchmarks holds
several loads on one server; which one to read cannot be told, so it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slotgrid.errors import InputError
from slotgrid.run.readers.rows import Fields, RequestRow

NAME = "guidellm report"


def is_report(data: Mapping[str, Any]) -> bool:
    """Whether parsed JSON looks like a guidellm report."""
    return isinstance(data.get("benchmarks"), list)


def read_report(data: Mapping[str, Any], where: str) -> Iterator[RequestRow]:
    """Rows of a report with one benchmark. Raises InputError naming benchmark, list and entry."""
    benchmarks = data["benchmarks"]
    if len(benchmarks) != 1:
        raise InputError(f"{where}: {len(benchmarks)} benchmarks; a run is one of them, save each in its own report")
    requests = benchmarks[0].get("requests") if isinstance(benchmarks[0], Mapping) else None
    if not isinstance(requests, Mapping):
        raise InputError(f"{where}: benchmarks[0].requests is not an object of successful, incomplete and errored")
    for status in ("successful", "incomplete", "errored"):
        entries = requests.get(status) or []
        if not isinstance(entries, list):
            raise InputError(f"{where}: benchmarks[0].requests.{status} is not a list")
        for i, entry in enumerate(entries):
            at = f"{where}: requests.{status}[{i}]"
            if not isinstance(entry, Mapping) or not isinstance(entry.get("info"), Mapping):
                raise InputError(f"{at}: not a request with info")
            yield _row(entry, at, None if status == "successful" else status)


def _row(entry: Mapping[str, Any], where: str, failed: str | None) -> RequestRow:
    f, info = Fields(entry, where), Fields(entry["info"], f"{where}: info")
    timings = entry["info"].get("timings")
    if not isinstance(timings, Mapping):
        raise InputError(f"{where}: info.timings is not an object")
    times = Fields(timings, f"{where}: info.timings")
    conversation = info.text("conversation_id", needed=False)
    return RequestRow(
        where=where,
        request_id=f.text("response_id", needed=False) or f.text("request_id", needed=False),
        session=conversation,
        order=None,
        turn=info.whole("turn_index", needed=False) if conversation is not None else None,
        prompt_tokens=f.whole("prompt_tokens", nullable=True),
        output_tokens=f.whole("output_tokens", nullable=True),
        cached_tokens=f.whole("cached_tokens", needed=False),
        arrival_s=times.seconds("request_start", nullable=True),
        first_token_s=times.seconds("first_token_iteration", needed=False),
        finish_s=times.seconds("request_end", nullable=True),
        failed=failed,
    )

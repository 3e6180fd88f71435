"""Answers that leave out how much was cached: when the server's counters show that it was nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def settle_misses(rows: Sequence[dict[str, Any]], counters: Mapping[str, float]) -> int:
    """Write 0 for ``cached_tokens`` where a row has none and the counters leave nothing over; returns how many.

    vLLM 0.22 leaves the field out of an answer that reused nothing. rows: all of a replay. counters: what the server
    counted in that time, by the names of :mod:`slotgrid.run.readers.metrics`. Nothing is written unless the server
    reports hits, counted these prompts and no others, and counted exactly the cached tokens that the other answers
    report: then there are none left for these.
    """
    unsaid = [row for row in rows if row["cached_tokens"] is None]
    said = sum(row["cached_tokens"] or 0 for row in rows)
    whole = all(row["error"] is None and row["retries"] == 0 and row["prompt_tokens"] is not None for row in rows)
    if not unsaid or not said or not whole:
        return 0
    prompts = sum(row["prompt_tokens"] for row in rows)
    if counters.get("prompt_tokens") != prompts or counters.get("prompt_tokens_cached") != said:
        return 0
    for row in unsaid:
        row["cached_tokens"] = 0
    return len(unsaid)

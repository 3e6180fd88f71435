"""From a scored ledger to near-ties and one recommendation. Near-ties are a set, never a false winner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slotgrid.search.uncertain import LIKELY

if TYPE_CHECKING:
    import polars as pl


def near_tie_rows(ledger: pl.DataFrame, near_tie: float) -> list[int]:
    """Rows with an explored ratio within ``near_tie`` of the smallest, by ratio, ties in ledger order.

    Where the ledger holds repeats, also rows that are at least as good as the best in 5 % of them.
    """
    ratio = ledger["ratio"].to_numpy()
    order = np.argsort(ratio, kind="stable")
    likely = np.zeros(len(ratio), np.bool_)
    if "probability_not_behind" in ledger.columns:
        likely = ledger["probability_not_behind"].to_numpy() >= LIKELY
    return [int(row) for row in order if ratio[row] - ratio[order[0]] <= near_tie or likely[row]]


def recommend(ledger: pl.DataFrame, near_tie: float) -> int:
    """The near-tie with the fewest compile seconds, then least memory, then smallest ratio, then lexicographic
    buckets. Costs nobody measured count as equal."""
    rows = near_tie_rows(ledger, near_tie)
    compile_s, memory = ledger["compile_s"], ledger["memory_gib_per_device"]
    ratio, buckets = ledger["ratio"], ledger["buckets"]
    return min(
        rows,
        key=lambda row: (
            compile_s[row] or 0.0,
            memory[row] or 0.0,
            ratio[row],
            [int(size) for size in buckets[row].split(",")],
        ),
    )

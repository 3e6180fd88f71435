"""The request table of a measured run: from rows joined with a log, or from a log alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slotgrid.run.readers.log_tables import LogTables, nullable
from slotgrid.run.readers.names import Names
from slotgrid.run.readers.row_table import Ints, RowTable
from slotgrid.run.readers.vllm_rbln_log import LogScan

if TYPE_CHECKING:
    import polars as pl

_STRETCH = 65_536
# as text the ids of more requests than this would take more memory than all that is known of them
MOST_IDS = 250_000


def request_table(
    table: RowTable,
    kept: Ints,
    log_of: Ints,
    session: Ints,
    cached: Ints,
    logged: LogTables | None,
) -> pl.DataFrame:
    """The requests of a run in plan order; ``kept`` rows with their log request, session and cached tokens (-1 not
    known). The columns of ``table`` are freed as they are used."""
    import polars as pl

    # plan order
    turn = np.where(session >= 0, table.take("turn")[kept], np.int32(-1))
    order = np.lexsort((turn, session)).astype(np.int32)
    rows, r = kept[order], log_of[order]

    def of_log(name: str) -> pl.Series:
        if logged is None or not len(logged.slot):
            return pl.Series([None], dtype=pl.Int32).new_from_index(0, len(rows))
        return nullable(np.where(r >= 0, getattr(logged, name)[r], np.int32(-1)))

    prompt, reused = table.take("prompt_tokens")[rows], cached[order]
    known = (prompt >= 0) & (reused >= 0)
    # each column of the rows is freed once it is in the table
    columns: dict[str, pl.Series | None] = {
        "session": nullable(session[order]),
        "turn": nullable(turn[order]),
        "prompt_tokens": nullable(prompt),
        "cached_tokens": nullable(reused),
        "computed_tokens": nullable(prompt - reused, known),
        "output_tokens": nullable(table.take("output_tokens")[rows]),
        "arrival_s": nullable(table.take("arrival_s")[rows]),
        "first_token_s": nullable(table.take("first_token_s")[rows]),
        "finish_s": nullable(table.take("finish_s")[rows]),
        "request_id": _strings(table.ids, rows) if len(table) <= MOST_IDS else None,
        "slot": of_log("slot"),
        "admit_order": of_log("admit_order"),
        "finish_order": of_log("finish_order"),
        "planned_new_tokens": nullable(table.take("planned_new_tokens")[rows]),
        "planned_output_tokens": nullable(table.take("planned_output_tokens")[rows]),
    }
    if table.gaps:
        gaps = (table.gaps.get(i) for i in rows.tolist())
        lists = [None if times is None else pl.Series(times) for times in gaps]
        columns["token_gaps_s"] = pl.Series(lists, dtype=pl.List(pl.Float32))
    del prompt, reused, known
    # of what no row says anything a column takes no memory
    empty = {name for name, column in columns.items() if column is not None and column.null_count() == len(column)}
    return _in_order({name: None if name in empty else column for name, column in columns.items()}, len(rows))


def requests_of_log(scan: LogScan | None, logged: LogTables | None) -> pl.DataFrame:
    """Without rows: the log names requests, but neither their sessions nor their lengths."""

    count = 0 if scan is None else len(scan.requests)
    columns: dict[str, pl.Series | None] = dict.fromkeys(("session", "turn", "prompt_tokens", "cached_tokens"))
    columns |= dict.fromkeys(("computed_tokens", "output_tokens", "arrival_s", "first_token_s", "finish_s"))
    if scan is not None and logged is not None:
        if lookups_readable(scan):
            columns["cached_tokens"] = nullable(logged.cached_tokens)
        columns["request_id"] = _strings(scan.requests, np.arange(count)) if count <= MOST_IDS else None
        for name in ("slot", "admit_order", "finish_order"):
            columns[name] = nullable(getattr(logged, name))
    return _in_order(columns, count)


def lookups_readable(scan: LogScan) -> bool:
    """Whether the log's prefix lookups were there and could all be read."""
    return scan.pfx_lines > 0 and not any("CACHE" in tag or "ALLOC" in tag for tag in scan.unread)


def _in_order(columns: dict[str, pl.Series | None], height: int) -> pl.DataFrame:
    """The request table; None is a column of which nothing is known. Admissions have no clock in a log, and that
    column stands before the first token's."""
    import polars as pl

    known = {name: column for name, column in columns.items() if column is not None}
    table = pl.DataFrame(known) if known else pl.DataFrame({"": pl.repeat(0, height, dtype=pl.Int8, eager=True)})
    unknown = [name for name in (*columns, "admit_s") if name not in known]
    table = table.with_columns(pl.lit(None, dtype=_type_of(name)).alias(name) for name in unknown)
    names = list(columns)
    at = names.index("first_token_s")
    return table.select(*names[:at], "admit_s", *names[at:])


def _type_of(column: str) -> pl.DataType:
    import polars as pl

    if column == "request_id":
        return pl.String()
    if column == "token_gaps_s":
        return pl.List(pl.Float32)
    return pl.Float64() if column.endswith("_s") else pl.Int32()


def _strings(names: Names, rows: Ints) -> pl.Series:
    """The names of these rows, made a stretch at a time: as Python text all of them would need much memory."""
    import polars as pl

    parts = [
        pl.Series([names[i] for i in rows[begin : begin + _STRETCH].tolist()], dtype=pl.String)
        for begin in range(0, max(len(rows), 1), _STRETCH)
    ]
    return pl.concat(parts)

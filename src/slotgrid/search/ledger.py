"""The ledger: one row per candidate, kept on disk while a search runs so that it can be continued."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotgrid import files
from slotgrid.errors import InputError

if TYPE_CHECKING:
    import polars as pl

PARQUET, CSV, STATE = "ledger.parquet", "ledger.csv", "search.json"
PARTIAL, PARTIAL_STATE = "ledger.partial.parquet", "ledger.partial.json"


def seconds_column(phase: str, sessions: int) -> str:
    """Name of the column with the summed device seconds of one phase ("explore", "evaluate") and N."""
    return f"{phase}_s_n{sessions}"


def reused_column(phase: str, sessions: int) -> str:
    """Name of the column with the reuses of one phase and N."""
    return f"{phase}_reused_n{sessions}"


class LedgerFolder:
    """The folder of one search: the finished ledger, and beside it the partial one of a search that runs.

    ``fingerprint`` identifies a search (profile, plans, rules, space); a ledger of another search is never
    continued. The finished files of an earlier search stay until the new ones replace them.
    """

    def __init__(self, folder: str | Path, fingerprint: str) -> None:
        self.folder = Path(folder)
        self.fingerprint = fingerprint

    def start(self, *, resume: bool) -> pl.DataFrame | None:
        """Rows to continue from, or None. Raises InputError when the folder holds nothing of this search."""
        if resume:
            found = False
            for state_name, rows_name in ((PARTIAL_STATE, PARTIAL), (STATE, PARQUET)):
                state_path = self.folder / state_name
                if state_path.exists():
                    found = True
                    state = files.read_json(state_path)
                    if isinstance(state, dict) and state.get("fingerprint") == self.fingerprint:
                        return self._rows(rows_name, state_name)
            if not found:
                raise InputError(f"{self.folder}: no search to resume here; run it once without --resume")
            raise InputError(
                f"{self.folder}: holds another search (profile, plans, rules or space differ); "
                "choose another folder with -o or drop --resume"
            )
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (self.folder / PARTIAL).unlink()
        files.write_json(self.folder / PARTIAL_STATE, {"fingerprint": self.fingerprint})
        return None

    def checkpoint(self, rows: pl.DataFrame) -> None:
        """Keep the rows finished so far."""
        files.write_together({self.folder / PARTIAL: files.table_writer(rows, owner=self.fingerprint)})

    def finish(self, ledger: pl.DataFrame, state: dict[str, Any]) -> None:
        """Write the whole ledger as Parquet and CSV and what it belongs to; drop the partial one."""
        files.write_together(
            {
                self.folder / STATE: files.json_writer({"fingerprint": self.fingerprint, **state}),
                self.folder / CSV: files.csv_writer(ledger),
                self.folder / PARQUET: files.table_writer(ledger, owner=self.fingerprint),
            }
        )
        for name in (PARTIAL, PARTIAL_STATE):
            with contextlib.suppress(FileNotFoundError):
                (self.folder / name).unlink()

    def _rows(self, name: str, state_name: str) -> pl.DataFrame | None:
        path = self.folder / name
        return files.read_table(path, owner=self.fingerprint, owner_file=state_name) if path.exists() else None


def finished_rows(rows: pl.DataFrame | None, labels: Sequence[str]) -> pl.DataFrame | None:
    """The leading rows whose labels match the enumeration, or None when there are none."""
    if rows is None:
        return None
    kept = min(rows.height, len(labels))
    if rows["config"].head(kept).to_list() != list(labels[:kept]):
        return None
    return rows.head(kept)

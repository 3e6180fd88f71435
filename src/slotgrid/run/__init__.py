"""Runs: tables and metrics of one execution, whatever made it."""

from typing import TYPE_CHECKING

from slotgrid.run.run import Run
from slotgrid.run.store import load_run, save_run

if TYPE_CHECKING:
    from slotgrid.run.readers import read_run

__all__ = ["Run", "load_run", "read_run", "save_run"]


def __getattr__(name: str) -> object:
    # the readers are needed by few who need a Run
    if name == "read_run":
        from slotgrid.run.readers import read_run

        return read_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

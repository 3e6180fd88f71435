"""Runs: tables and metrics of one execution, whatever made it."""

from slotgrid.run.run import Run
from slotgrid.run.store import load_run, save_run

__all__ = ["Run", "load_run", "save_run"]

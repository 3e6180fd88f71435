"""A run as a directory: run.json and one Parquet file per table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid._version import __version__
from slotgrid.config import ServingConfig
from slotgrid.errors import InputError
from slotgrid.run.run import Run

FORMAT = "slotgrid-run/1"
TABLES = ("steps", "requests", "evictions")
_PLAIN = (
    "decode_s",
    "prefill_s",
    "stall_session_s",
    "wall_s",
    "source",
    "rules",
    "turnaround_s",
    "plan_id",
    "plan_sha256",
    "profile_id",
    "profile_sha256",
)


def save_run(run: Run, folder: str | Path) -> None:
    """Write ``run.json`` and the tables; ``run.json`` comes last, so a folder that has it is whole."""
    target = Path(folder)
    absent = [name for name in TABLES if getattr(run, name) is None]
    for name in TABLES:
        if name in absent:
            # a table of an earlier run in this folder must not pass for this one's
            (target / f"{name}.parquet").unlink(missing_ok=True)
        else:
            files.write_table(target / f"{name}.parquet", getattr(run, name).write_parquet)
    config = None if run.config is None else run.config.to_dict()
    data: dict[str, Any] = {"format": FORMAT, "slotgrid": __version__, "config": config, "not_observed": absent}
    data.update({key: getattr(run, key) for key in _PLAIN})
    data.update(extrapolated=list(run.extrapolated), notes=list(run.notes), details=dict(run.details))
    files.write_json(target / "run.json", data)


def load_run(folder: str | Path) -> Run:
    """Read a folder written by :func:`save_run`. Raises InputError naming the file that is missing or wrong."""
    import polars as pl

    target = Path(folder)
    data = files.read_json(target / "run.json")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f'{target / "run.json"}: not a run; expected "format": "{FORMAT}"')
    tables: dict[str, Any] = dict.fromkeys(TABLES)
    for name in TABLES:
        if name in data.get("not_observed", ()) and name != "requests":
            continue
        path = target / f"{name}.parquet"
        try:
            tables[name] = pl.read_parquet(path)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise InputError(f"{path}: cannot read: {str(error).splitlines()[0]}") from None
    try:
        return Run(
            config=None if data["config"] is None else ServingConfig.from_dict(data["config"]),
            steps=tables["steps"],
            requests=tables["requests"],
            evictions=tables["evictions"],
            **{key: data[key] for key in _PLAIN},
            extrapolated=tuple(data["extrapolated"]),
            notes=tuple(data["notes"]),
            details=data["details"],
        )
    except KeyError as error:
        raise InputError(f"{target / 'run.json'}: {error.args[0]} is missing") from None

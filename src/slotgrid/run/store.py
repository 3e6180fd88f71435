"""A run as a directory: run.json and one Parquet file per table."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

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
    """Write ``run.json`` and the tables, all or none; each table carries the id that ``run.json`` names, so tables of
    two runs are never read as one."""
    target = Path(folder)
    absent = [name for name in TABLES if getattr(run, name) is None]
    owner = uuid4().hex
    config = None if run.config is None else run.config.to_dict()
    data: dict[str, Any] = {
        "format": FORMAT,
        "slotgrid": __version__,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("numpy", "polars")}},
        "tables": owner,
        "config": config,
        "not_observed": absent,
    }
    data.update({key: getattr(run, key) for key in _PLAIN})
    data.update(extrapolated=list(run.extrapolated), notes=list(run.notes), details=dict(run.details))
    writers = {target / "run.json": files.json_writer(data)}
    for name in TABLES:
        if name not in absent:
            writers[target / f"{name}.parquet"] = files.table_writer(getattr(run, name), owner=owner)
    files.write_together(writers)
    for name in absent:
        # a table of an earlier run in this folder must not pass for this one's
        (target / f"{name}.parquet").unlink(missing_ok=True)


def load_run(folder: str | Path) -> Run:
    """Read a folder written by :func:`save_run`. Raises InputError naming the file that is missing or wrong."""
    target = Path(folder)
    data = files.read_json(target / "run.json")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f'{target / "run.json"}: not a run; expected "format": "{FORMAT}"')
    tables: dict[str, Any] = dict.fromkeys(TABLES)
    for name in TABLES:
        if name in data.get("not_observed", ()) and name != "requests":
            continue
        tables[name] = files.read_table(target / f"{name}.parquet", owner=data.get("tables"), owner_file="run.json")
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
    except (TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{target / 'run.json'}: a value has the wrong type: {error}") from None

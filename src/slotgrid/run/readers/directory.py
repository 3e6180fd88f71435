"""A run directory: which file is what, by name and by content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.plan import InputPlan, plan_from_json
from slotgrid.run.readers import guidellm, vllm_bench
from slotgrid.run.readers.aiperf import AIPERF
from slotgrid.run.readers.row_table import RowTable
from slotgrid.run.readers.rows import MULTI_TURN, OURS, TWO_TURN, Fields, Shape, gaps_of
from slotgrid.run.readers.stream import Meter, json_lines

Ints = npt.NDArray[np.signedinteger[Any]]

EXPECTED = (
    "a server log (*.log, also rotated or gzip), request rows (*.jsonl, or the JSON of vllm bench serve or guidellm), "
    "/metrics snapshots (*.prom), an event log (events.jsonl) or a run written by slotgrid (run.json)"
)
# the multi-turn keys include two-turn ones, and ours would match neither
_SHAPES: tuple[Shape, ...] = (MULTI_TURN, TWO_TURN, OURS, AIPERF)
_NOT_READ = {
    *("expected.json", "provenance.json"),
    # of a condition of slotgrid measure
    *("condition.json", "server.json", "artifact.json", "versions.txt", "stop.txt"),
}


@dataclass
class Found:
    """The files of a run directory by kind."""

    folder: Path
    run_json: Path | None = None
    plan: Path | None = None
    rbln_config: Path | None = None
    logs: dict[str, list[Path]] = field(default_factory=dict)
    events: list[Path] = field(default_factory=list)
    rows: list[Path] = field(default_factory=list)
    tokens: list[Path] = field(default_factory=list)
    results: list[Path] = field(default_factory=list)
    metrics: list[Path] = field(default_factory=list)
    windows: list[Path] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def read_bytes(self) -> int:
        """Bytes the readers will go through."""
        pieces = [path for group in self.logs.values() for path in group]
        return sum(path.stat().st_size for path in (*pieces, *self.rows, *self.tokens, *self.metrics))


def look(folder: Path) -> Found:
    """Sort the files of a directory. Raises InputError when it is none or has nothing to read."""
    if not folder.is_dir():
        kind = "a file" if folder.exists() else "no such directory"
        raise InputError(f"{folder}: {kind}; give the directory of one run, with {EXPECTED}")
    found = Found(folder)
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None
    for path in entries:
        if path.is_file() and not path.name.startswith("."):
            _sort(path, found)
    if not (found.run_json or found.events or found.logs or found.rows or found.results or found.metrics):
        what = "the directory is empty" if not entries else "nothing in it can be diagnosed"
        raise InputError(f"{folder}: {what}; expected {EXPECTED}")
    return found


def _sort(path: Path, found: Found) -> None:
    name = path.name.removesuffix(".gz")
    stem = name.split(".")[0]
    if name == "run.json":
        found.run_json = path
    elif name == "rbln_config.json":
        found.rbln_config = path
    elif name in _NOT_READ or name.endswith(".parquet"):
        pass
    elif name.endswith(".jsonl"):
        {"tokens": found.tokens, "events": found.events}.get(stem, found.rows).append(path)
    elif stem == "windows" and name.endswith(".json"):
        found.windows.append(path)
    elif stem == "plan" and name.endswith(".json"):
        if found.plan is not None:
            raise InputError(f"{path}: a second plan beside {found.plan.name}; one run has one plan")
        found.plan = path
    elif name.endswith(".json"):
        if stem != "meta":
            found.results.append(path)
    elif name.endswith(".prom") or (stem.startswith("metrics") and name.endswith((".txt", ".metrics"))):
        found.metrics.append(path)
    elif ".log" in name or name.endswith((".out", ".err")):
        found.logs.setdefault(name.split(".log")[0].split(".out")[0].split(".err")[0], []).append(path)
    else:
        found.left.append(path.name)


def read_plan(path: Path) -> tuple[InputPlan, dict[str, Any]]:
    """The plan and the JSON it came from."""
    data = files.read_json(path)
    return plan_from_json(data, str(path)), data


def read_window(found: Found, kinds: list[str], warn: Callable[[str], None]) -> dict[str, Any] | None:
    """The evaluation window a steady-load client wrote beside its rows: start_s, end_s on the clock of the rows.

    Raises InputError when its numbers are missing or out of order. A window of a run that did not last to its end is
    left out with a warning.
    """
    if not found.windows:
        return None
    path = found.windows[0]
    if len(found.windows) > 1:
        raise InputError(f"{found.windows[1]}: a second window beside {path.name}; one run has one")
    if kinds != [MULTI_TURN.name]:
        warn(f"{path.name}: not used; it belongs to rows of the multi-turn runner, whose clock it is on")
        return None
    data = files.read_json(path)
    if not isinstance(data, dict):
        raise InputError(f"{path}: not a JSON object")
    fields = Fields(data, str(path))
    start, end = fields.seconds("warmup_end_s"), fields.seconds("eval_end_s")
    assert start is not None
    assert end is not None
    if not 0 <= start < end:
        raise InputError(f"{path}: eval_end_s is {end:g}, not above warmup_end_s {start:g}")
    reason = fields.text("stopped_by", needed=False)
    if reason is not None and reason != "window":
        warn(f"{path.name}: not used; the run was stopped by {reason}, not by the end of its window")
        return None
    return {"start_s": start, "end_s": end, "file": path.name}


def read_rows(found: Found, meter: Meter, warn: Callable[[str], None]) -> tuple[RowTable, Ints, list[str]]:
    """All request rows of the directory, which of them count, and the kinds of files they came from.

    A row that is there twice with equal values counts once, with a warning. Raises InputError for a shape that is not
    known, rows of several kinds, and two different rows with the same id.
    """
    table = RowTable()
    kinds: list[str] = []
    for path in found.rows:
        shape: Shape | None = None
        name = str(path)
        for number, data in json_lines(path, meter, warn):
            where = f"{name}: line {number}"
            if shape is None or not shape.keys <= data.keys():
                shape = _shape(data, where)
            if shape.name not in kinds:
                kinds.append(shape.name)
            table.add(shape.read(data, where), name, number)
    for path in found.results:
        report = _result(path)
        if report is None:
            found.left.append(path.name)
            continue
        is_bench = vllm_bench.is_result(report)
        kinds.append(vllm_bench.NAME if is_bench else guidellm.NAME)
        rows = (vllm_bench.read_result if is_bench else guidellm.read_report)(report, str(path))
        for number, row in enumerate(rows, start=1):
            table.add(row, path, number)
    if len(kinds) > 1:
        raise InputError(f"{found.folder}: request rows of several kinds ({', '.join(kinds)}); one client made a run")
    _add_tokens(found, table, meter, warn)
    return table, _unique(table, warn), kinds


def _shape(data: dict[str, Any], where: str) -> Shape:
    for shape in _SHAPES:
        if shape.keys <= data.keys():
            return shape
    known = "; ".join(f"{shape.name} with {', '.join(sorted(shape.keys))}" for shape in _SHAPES)
    raise InputError(f"{where}: not a request row of a known shape ({known})")


def _result(path: Path) -> dict[str, Any] | None:
    data = files.read_json(path)
    if isinstance(data, dict) and (vllm_bench.is_result(data) or guidellm.is_report(data)):
        return data
    return None


def _add_tokens(found: Found, table: RowTable, meter: Meter, warn: Callable[[str], None]) -> None:
    """Token times in their own file: request_id, t (seconds, one entry a chunk)."""
    if not found.tokens:
        return
    by_id = {name: i for i, name in enumerate(table.ids) if name is not None}
    first = table.seconds("first_token_s")
    strangers = 0
    for path in found.tokens:
        for number, data in json_lines(path, meter, warn):
            times = Fields(data, f"{path}: line {number}").numbers("t")
            if times is None:
                raise InputError(f"{path}: line {number}: t is missing; expected a list of seconds")
            index = by_id.get(str(data.get("request_id")))
            if index is None:
                strangers += 1
            elif times:
                table.gaps[index] = gaps_of(times)
                if np.isnan(first[index]):
                    first[index] = times[0]
    if strangers:
        warn(f"{strangers} entries of token times have no request row")


def _unique(table: RowTable, warn: Callable[[str], None]) -> Ints:
    """Indices of the rows without repeated ones."""
    kept = np.ones(len(table), bool)
    for first, later in table.ids.doubles():
        if not table.same(first, later):
            raise InputError(
                f"{table.where(later)}: request_id {table.ids[later]!r} was already at {table.where(first)} with other "
                "values; ids must be unique"
            )
        kept[later] = False
    doubles = int((~kept).sum())
    if doubles:
        warn(f"{doubles} request rows are there twice with equal values; each was read once")
    return np.flatnonzero(kept).astype(np.int32)


def stated_config(found: Found, plan_data: dict[str, Any] | None) -> dict[str, Any]:
    """buckets, slots, max_running as an artifact's rbln_config.json or a sample's plan states them."""
    if found.rbln_config is not None:
        data = files.read_json(found.rbln_config)
        batch = data.get("batch_size") if isinstance(data, dict) else None
        if isinstance(batch, int):
            sizes = data.get("decoder_batch_sizes") or [batch]
            return {
                "buckets": sorted(sizes),
                "slots": data.get("kvcache_num_blocks") or batch,
                "max_running": batch,
                "where": found.rbln_config.name,
            }
    if plan_data is not None and isinstance(plan_data.get("buckets"), list):
        assert found.plan is not None
        return {
            "buckets": plan_data["buckets"],
            "slots": plan_data.get("slots"),
            "max_running": None,
            "where": found.plan.name,
        }
    return {}

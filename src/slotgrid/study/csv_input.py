"""CSV tables that ``saturate`` and ``null`` take instead of a study or run directories."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from slotgrid import files
from slotgrid.config import ServingConfig
from slotgrid.errors import InputError
from slotgrid.study.null import Repeat
from slotgrid.study.saturation import Cell, cells_of, slot_order

CELL_COLUMNS = ("sessions", "replicate", "slots", "device_s")
REPEAT_COLUMNS = ("repeat", "channel_a_s", "channel_b_s")


def read_cells(path: Path) -> tuple[dict[str, dict[Cell, float]], dict[str, ServingConfig]]:
    """Device seconds (or ratios to a common baseline) by arm and cell, arms in order of slots, and the configurations
    of arms whose rows have ``buckets`` ("1,2,4,8").

    Columns: sessions, replicate, slots, device_s; optional arm (else named by its slots) and buckets. Raises InputError
    naming file and line.
    """
    rows: list[tuple[str, int, str, float]] = []
    slots: dict[str, int] = {}
    configs: dict[str, ServingConfig] = {}
    for line, row in _rows(path, CELL_COLUMNS):
        count = _whole(row["slots"], path, line, "slots")
        arm = row.get("arm") or f"{count} slots"
        if slots.setdefault(arm, count) != count:
            raise InputError(f"{path}: line {line}: arm {arm} has {count} slots, before {slots[arm]}")
        if row.get("buckets"):
            configs[arm] = ServingConfig.parse(row["buckets"], slots=count)
        sessions = _whole(row["sessions"], path, line, "sessions")
        rows.append((arm, sessions, row["replicate"], _seconds(row["device_s"], path, line, "device_s")))
    found = cells_of(rows)
    return {arm: found[arm] for arm in slot_order(slots)}, configs


def read_repeats(path: Path) -> dict[str, list[Repeat]]:
    """Untreated repeats by group. Columns: repeat, channel_a_s, channel_b_s; optional sessions or group.

    Raises InputError naming file and line, also when two rows of a group have both channels alike: two executions never
    agree to the last digit, and a copy would make the repeats look closer together than they are.
    """
    groups: dict[str, list[Repeat]] = {}
    lines: dict[tuple[str, float, float], int] = {}
    for line, row in _rows(path, REPEAT_COLUMNS):
        name = row.get("group") or ""
        if not name and row.get("sessions"):
            name = f"N = {row['sessions']}"
        a_s, b_s = (_seconds(row[key], path, line, key) for key in REPEAT_COLUMNS[1:])
        before = lines.setdefault((name, a_s, b_s), line)
        if before != line:
            raise InputError(
                f"{path}: line {line}: both channels are those of line {before}, and a copy is no repeat; leave it "
                "out, or give the seconds with more digits"
            )
        groups.setdefault(name, []).append(Repeat(row["repeat"], a_s, b_s))
    return groups


def _rows(path: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    try:
        text = files.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text at byte {error.start}; expected CSV") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    header = reader.fieldnames or []
    missing = [name for name in columns if name not in header]
    if missing:
        raise InputError(f"{path}: column {missing[0]} is missing; needed: {', '.join(columns)}")
    rows = []
    for row in reader:
        if None in row or any(row[name] is None for name in columns):
            raise InputError(f"{path}: line {reader.line_num}: not as many cells as the header has")
        rows.append((reader.line_num, row))
    if not rows:
        raise InputError(f"{path}: no rows")
    return rows


def _whole(text: str, path: Path, line: int, name: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise InputError(f"{path}: line {line}: {name} is {text!r}; expected a whole number of at least 1")
    return value


def _seconds(text: str, path: Path, line: int, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{path}: line {line}: {name} is {text!r}; expected a finite number of at least 0")
    return value

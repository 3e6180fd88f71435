"""A small study: two arms, few tokens, a workload of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import slotgrid as sg
from slotgrid.study import log
from slotgrid.study.audit import FILE_OF
from slotgrid.study.collect import measure
from slotgrid.study.manifest import Cell, Entry, sha256_of
from slotgrid.study.register import register

WORKLOAD = """\
format = "slotgrid-workload/1"
id = "small"
max_seq_len = 2048
turns = 3
plan_id = "n{clients}b{block}"
first_new_tokens = { kind = "uniform", low = 300, high = 700 }
later_new_tokens = { kind = "uniform", low = 8, high = 64 }
output_tokens = { kind = "uniform", low = 8, high = 24 }
tool_wait = { kind = "uniform", low_s = 0.1, high_s = 2.0 }
[search]
explore_seeds = [1, 2]
evaluate_seeds = [11]
"""
ARMS = """\
[[arm]]
name = "base"
buckets = [1, 2]
{runs}
[[arm]]
name = "wide"
buckets = [1, 2, 4]
{runs}
"""
SET = """\
[[plans]]
name = "{name}"
workload = "small.toml"
sessions = [3]
exploratory = [4]
seeds = {seeds}
blocks = [0, 1]
"""
SIMULATED = 'runs = "simulated"\nsimulated = { rules = "paper", turnaround = "30ms" }'
SEARCH = "[search]\nnone = true\n"
PLACES = 8  # two N, two blocks, two arms


def text(*, runs: str = SIMULATED, sets: tuple[tuple[str, list[int]], ...] = (("main", [5]),), more: str = "") -> str:
    """study.toml; ``more`` are further tables."""
    body = "".join(SET.format(name=name, seeds=seeds) for name, seeds in sets)
    search = "" if "[search]" in more else SEARCH
    return f'format = "slotgrid-study/1"\nprofile = "rbln-ca25-qwen3-4b"\n{ARMS.format(runs=runs)}{search}{body}{more}'


def write_study(folder: Path, **options: Any) -> Path:
    """A study directory that is not registered yet."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.toml").write_text(WORKLOAD)
    (folder / "study.toml").write_text(text(**options))
    return folder


def make_steady(folder: Path) -> None:
    """The written study becomes one of a single exploratory cell in steady load, with a short window."""
    path = folder / "study.toml"
    path.write_text(
        path.read_text()
        .replace("small.toml", "tracelab-multi-turn")
        .replace("sessions = [3]\nexploratory = [4]", "sessions = []\nexploratory = [3]")
        .replace("seeds = [5]", 'seeds = [905]\nload = "steady"\nwindow = "10s"')
        .replace("blocks = [0, 1]", "")
    )


def ticking(start: int = 0) -> Callable[[], str]:
    """A clock that moves one second each time it is read."""
    count = itertools.count(start)
    return lambda: f"2026-03-01T{next(count) // 3600:02d}:00:{next(count) % 60:02d}+00:00"


NOW = "2026-03-01T00:00:00+00:00"
LATER = "2026-03-02T09:00:00+00:00"


def registered(folder: Path, **options: Any) -> Path:
    """A registered study."""
    write_study(folder, **options)
    register(folder, now=lambda: NOW)
    return folder


def measured(folder: Path, **options: Any) -> Path:
    """A study with all its (simulated) runs."""
    registered(folder, **options)
    measure(folder, now=lambda: LATER)
    return folder


def forge_log(folder: Path) -> None:
    """The log made anew to fit whatever lies in the study now: what somebody who rewrites every hash would do."""
    path = folder / log.FILE
    lines = log.read_log(folder).lines
    path.unlink()
    for line in lines:
        drop = ("line", "time", "what", "format", "previous_sha256", "sha256")
        facts = {key: value for key, value in line.data.items() if key not in drop}
        if line.place is not None:
            named = folder / line.place / FILE_OF[line.what]
            if not named.exists():
                continue
            facts["file_sha256"] = sha256_of(named)
        log.append(folder, line.what, line.time, **facts)


def rewrite_record(path: Path, **changes: Any) -> None:
    """A record changed together with its voucher and the log."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    path.with_suffix(".sha256").write_text(f"{sha256_of(path)}  record.json\n")
    forge_log(path.parents[4])


def hardware_run(entry: Entry, cell: Cell, arm: str, **changes: Any) -> sg.Run:
    """A run as a replay on hardware would leave it: the simulator's tables, called measured, with its start."""
    run = sg.simulate(entry.profile, entry.settings.arm(arm).config, entry.plan(cell), rules="paper")
    details = {"started_at": LATER, "valid": True, "invalid_reasons": []}
    shift_s = len(arm) / 1000  # no two executions have the same clock
    requests = run.requests.with_columns(run.requests["finish_s"] + shift_s)
    return replace(run, **{"source": "measured", "details": details, "requests": requests, **changes})

"""Speed and memory of the core, as medians and ratios. Run by hand: ``make bench``.

Prints a Markdown table for docs/performance.md. Nothing here is a test: a shared machine gives no absolute limits.
"""

from __future__ import annotations

import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import slotgrid as sg
from slotgrid.engine.batch import Jobs, StepTables, simulate_jobs, simulate_jobs_parallel
from slotgrid.engine.prepare import flatten, lay_out
from slotgrid.search import SearchSpace

SEARCH = (
    *("search", "--profile", "rbln-ca25-qwen3-4b", "--workload", "tracelab-two-turn", "--sessions", "6,8,10"),
    *("--batch", "8,10,12,16", "--max-buckets", "6", "--compile-budget", "30m", "--baseline", "1,2,4,8"),
    "--no-ledger",
)


def timed(function: Callable[[], object], repeats: int) -> float:
    """Median seconds of ``repeats`` calls after one that is not counted."""
    function()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def command(arguments: Sequence[str], **environment: str) -> tuple[float, float]:
    """Seconds and peak MB of one command line in its own process."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "slotgrid", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def published_search(row: Callable[[str, str, str], None]) -> None:
    """The kernel on every simulation of the published search, none shared."""
    profile, workload = sg.load_profile("rbln-ca25-qwen3-4b"), sg.load_workload("tracelab-two-turn")
    plans = [
        workload.draw(clients=n, seed=seed, block=block)
        for n in (6, 8, 10)
        for seed in workload.explore_seeds
        for block in workload.blocks
    ]
    batch = lay_out([flatten(plan, profile, 0.0, False) for plan in plans])
    configs = list(SearchSpace((8, 10, 12, 16), max_buckets=6))
    table = np.zeros((len(configs), 17))
    for i, config in enumerate(configs):
        table[i, : config.max_running + 1] = profile.price.decode.step_s(config)
    count = len(plans)
    jobs = Jobs(
        plan=np.tile(np.arange(count), len(configs)),
        table=np.repeat(np.arange(len(configs)), count),
        capacity=np.repeat([config.slots for config in configs], count),
        max_running=np.repeat([config.max_running for config in configs], count),
        padding=np.zeros(count * len(configs), np.bool_),
    )
    tables = StepTables(table, table, 0.0, 0.0)
    totals = simulate_jobs(batch, tables, jobs, release_at_once=False)
    steps = int(totals.ints[:, 0].sum())
    serial = timed(lambda: simulate_jobs(batch, tables, jobs, release_at_once=False), 15)
    row(f"kernel, {len(jobs):,} simulations, {steps / 1e6:.1f} M decode steps, one core", f"{serial:.3f} s", "0.15 s")
    parallel = timed(lambda: simulate_jobs_parallel(batch, tables, jobs, release_at_once=False, threads=2), 15)
    row("the same on two threads, as a ratio", f"{parallel / serial:.2f}", "")
    few = jobs.part(0, 54)
    plain = timed(lambda: simulate_jobs(batch, tables, few, release_at_once=False, compiled=False), 3)
    compiled = timed(lambda: simulate_jobs(batch, tables, few, release_at_once=False), 15)
    row("plain Python over compiled, same source, 54 simulations", f"{plain / compiled:.0f} x", "")


def ensembles(row: Callable[[str, str, str], None]) -> None:
    """200 repeats of the paper's plans for eight clients on the baseline, drawing included."""
    profile, workload = sg.load_profile("rbln-ca25-qwen3-4b"), sg.load_workload("tracelab-two-turn")
    plans = [workload.draw(clients=8, seed=20261000, block=block) for block in range(3)]
    config = sg.ServingConfig((1, 2, 4, 8))

    def run() -> None:
        for plan in plans:
            sg.simulate(profile, config, plan, clock="operating", ensemble=200)

    run()
    row("ensembles of 200 for the three N = 8 plans", f"{timed(run, 15) * 1000:.0f} ms", "50 ms")


def long_logs(row: Callable[[str, str, str], None]) -> None:
    """Turns per second with many sessions and slots; the rate should be flat in both."""
    profile, rng = sg.load_profile("rbln-ca25-qwen3-4b"), random.Random(1)
    for sessions in (10_000, 100_000):
        plan = sg.InputPlan.from_turns(
            [
                [[rng.randint(800, 1600), rng.randint(32, 256), 10 * rng.random()], [8, rng.randint(32, 256), 0.0]]
                for _ in range(sessions)
            ]
        )
        batch = lay_out([flatten(plan, profile, 0.0008, False)])
        for slots in (64, 256):
            config = sg.ServingConfig((1, 4, 16, 64) if slots == 64 else (1, 4, 16, 64, slots))
            step_s = profile.price.decode.step_s(config)[None, :]
            one = np.array([0])
            jobs = Jobs(one, one, np.array([slots]), np.array([slots]), np.array([True]))
            tables = StepTables(step_s, step_s, 0.0, 0.0)
            seconds = timed(lambda: simulate_jobs(batch, tables, jobs, release_at_once=True), 5)  # noqa: B023
            rate = plan.turn_count / seconds / 1e6
            row(f"turns per second, {sessions:,} sessions, {slots} slots", f"{rate:.1f} M", "2 M")


def commands(row: Callable[[str, str, str], None]) -> None:
    """Whole commands in their own process."""
    help_s = statistics.median(command(["--help"])[0] for _ in range(7))
    row("`slotgrid --help`", f"{help_s:.2f} s", "0.3 s")
    cache = Path(tempfile.mkdtemp())
    try:
        first_s, first_mb = command(SEARCH, NUMBA_CACHE_DIR=str(cache))
        later = [command(SEARCH, NUMBA_CACHE_DIR=str(cache)) for _ in range(5)]
    finally:
        shutil.rmtree(cache)
    row("`slotgrid search`, published space, first run", f"{first_s:.1f} s", "12 s")
    row("the same once compiled code is cached", f"{statistics.median(s for s, _ in later):.2f} s", "3 s")
    row("peak memory of the first / later runs", f"{first_mb:.0f} / {max(mb for _, mb in later):.0f} MB", "350 MB")


def main() -> None:
    lines = ["| what | median | asked: at most / at least |", "|---|---|---|"]

    def row(what: str, value: str, asked: str) -> None:
        lines.append(f"| {what} | {value} | {asked} |")
        print(lines[-1], file=sys.stderr)

    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    commands(row)
    published_search(row)
    ensembles(row)
    long_logs(row)
    row("peak memory of this benchmark", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB", "")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

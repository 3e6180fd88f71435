"""Open-loop arrivals: sessions that start by themselves, at random or at recorded times, whoever is still busy.

Each session is a client of its own; within it the loop stays closed (a turn waits for the answer before it).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from pathlib import Path

from slotgrid import files
from slotgrid.errors import InputError
from slotgrid.plan import Client, InputPlan
from slotgrid.workload.seeds import derive_seed
from slotgrid.workload.workload import Workload


def poisson_starts(*, rate_per_s: float, sessions: int, seed: int, name: str = "arrivals") -> tuple[float, ...]:
    """Start times in seconds of ``sessions`` sessions of a Poisson process; the same arguments give the same times."""
    if not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise InputError(f"arrivals per second: {rate_per_s!r}; allowed: a finite number above 0")
    if sessions < 1:
        raise InputError(f"sessions: {sessions}; allowed: at least 1")
    rng = random.Random(derive_seed(seed, f"{name}/poisson"))
    return tuple(itertools.accumulate(rng.expovariate(rate_per_s) for _ in range(sessions)))


def read_starts(path: str | Path) -> tuple[float, ...]:
    """Start times from a text file, one number of seconds per line (blank lines and ``#`` comments allowed).

    Times are counted from the first. Raises InputError naming the line when one is not a number or goes back.
    """
    times: list[float] = []
    for number, line in enumerate(files.read_bytes(str(path)).decode("utf-8", "replace").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{path}, line {number}: {text!r}; expected a number of seconds")
        if times and value < times[-1]:
            raise InputError(f"{path}, line {number}: {text} after {times[-1]:g}; times must not go back")
        times.append(value)
    if not times:
        raise InputError(f"{path}: no start times; expected one number of seconds per line")
    return tuple(time - times[0] for time in times)


def draw_open(
    workload: Workload, start_s: Sequence[float], *, seed: int, block: int = 0, plan_id: str | None = None
) -> InputPlan:
    """A plan whose session i starts at ``start_s[i]`` with all its turns, drawn as in :meth:`Workload.draw`."""
    closed = workload.draw(
        clients=len(start_s), seed=seed, block=block, plan_id=plan_id, sessions_per_client=1, whole_first=True
    )
    clients = tuple(Client(at, client.sessions) for at, client in zip(start_s, closed.clients, strict=True))
    return InputPlan(closed.plan_id, clients, workload.max_seq_len)

"""Client turnaround: from the end of an answer to the next request, besides the tool wait.

Decides: what this client and its connection take. In process nothing takes time between steps, so it is not observable.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from slotgrid.measure.calibrate.bench import Bench
from slotgrid.measure.calibrate.plans import conversation
from slotgrid.measure.calibrate.rows import Seen
from slotgrid.measure.calibrate.statistics import Estimate, Refusal, mean_estimate, trimmed_mean

_TURNS = 12


def probe(bench: Bench, rounds: int) -> Estimate | Refusal:
    """One short conversation a round, without waits."""
    if bench.target.known.clock == "cpu":
        return Refusal("not observable in process: no time passes between steps")
    means = []
    for r in range(rounds):
        name = f"turnaround-r{r}"
        means.append(between_turns(bench.replay(name, conversation(bench.id(name), [(4, 2)] * _TURNS))))
    return mean_estimate(means)


def between_turns(rows: Sequence[Seen]) -> float:
    """Mean seconds from an answer to the next request of one conversation without waits."""
    return trimmed_mean([max(0.0, after.arrival_s - before.finish_s) for before, after in pairwise(rows)])

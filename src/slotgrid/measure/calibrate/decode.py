"""Decode steps: n streams in lock step for every n up to the top, with short and with long contexts.

Decides: the step time of every n with its interval, the buckets where steps in the times show them, the fixed part of
each bucket, the part per request and the part per context token. Cannot tell the part per request from the fixed parts
where every n has a bucket of its own, nor buckets that cost the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slotgrid.measure.calibrate.bench import Bench
from slotgrid.measure.calibrate.buckets import Buckets, detect
from slotgrid.measure.calibrate.plans import together
from slotgrid.measure.calibrate.rows import Seen
from slotgrid.measure.calibrate.statistics import (
    Estimate,
    Refusal,
    mean_estimate,
    trimmed_mean,
)

PROMPT_TOKENS = 16
OUTPUT_TOKENS = 24
_FEWEST_STEPS = 8
_LONGEST_CONTEXT = 4096
# wider intervals are measured again while repeats are left
_WANTED_WITHIN = 0.05
# and what is wider than this at the end is no answer
ALLOWED_WITHIN = 0.5


@dataclass(frozen=True)
class LevelRun:
    """One replay: the mean step of ``streams`` requests in lock step, and their summed context, mean over the steps."""

    streams: int
    context_tokens: float
    step_s: float
    steps: int


@dataclass(frozen=True)
class Levels:
    """All replays, and by n the step at short context: an estimate, or why there is none."""

    runs: tuple[LevelRun, ...]
    step: dict[int, Estimate | Refusal]
    rounds: int


def probe(
    bench: Bench,
    *,
    top: int,
    max_seq_len: int,
    rounds: int,
    most_rounds: int,
    buckets_known: bool,
    after_round: Callable[[int], object] = lambda _: None,
) -> Levels | Refusal:
    """Rounds over all n in an order of their own, until every interval is narrow (and the times settle the buckets,
    where they are not known), or no rounds are left. after_round: what else to measure between them, by round."""
    output = min(OUTPUT_TOKENS, max_seq_len - PROMPT_TOKENS)
    if output < _FEWEST_STEPS + 2:
        return Refusal(f"a sequence of at most {max_seq_len} tokens is too short for steps in lock step")
    long_prompt = min(_LONGEST_CONTEXT, max_seq_len - output)
    runs: list[LevelRun] = []
    done = 0
    while done < rounds or (done < most_rounds and not _settled(runs, top, buckets_known)):
        # negative: at long context
        todo = [*range(1, top + 1)]
        if long_prompt >= 4 * PROMPT_TOKENS:
            todo += sorted({-1, -top})
        for n in bench.order(todo, f"decode-{done}"):
            name = f"decode-n{abs(n)}{'-long' if n < 0 else ''}-r{done}"
            prompt = long_prompt if n < 0 else PROMPT_TOKENS
            plan = together(bench.id(name), streams=abs(n), prompt_tokens=prompt, output_tokens=output)
            found = lock_step(bench.replay(name, plan))
            if found is not None:
                runs.append(found)
        after_round(done)
        done += 1
    return Levels(tuple(runs), estimates(runs, top), done)


def lock_step(rows: Sequence[Seen]) -> LevelRun | None:
    """The steps while all requests generate; None when that was never long enough."""
    start = max(row.first_token_s for row in rows)
    end = min(row.token_times_s[-1] for row in rows)
    gaps, context = [], 0.0
    for row in rows:
        times = row.times_s
        inside = np.flatnonzero((times >= start) & (times <= end))
        if len(inside) < _FEWEST_STEPS:
            return None
        gaps.append(np.diff(times[inside]))
        # a step's context: the prompt and the tokens there are before it
        context += row.prompt_tokens + float(inside[:-1].mean()) + 1
    return LevelRun(len(rows), context, trimmed_mean(np.concatenate(gaps)), min(map(len, gaps)))


def short_runs(runs: Sequence[LevelRun]) -> list[LevelRun]:
    """Those at short context."""
    return [run for run in runs if run.context_tokens < 2 * run.streams * (PROMPT_TOKENS + OUTPUT_TOKENS)]


def estimates(runs: Sequence[LevelRun], top: int) -> dict[int, Estimate | Refusal]:
    """By n the step at short context."""
    found: dict[int, Estimate | Refusal] = {}
    steps = steps_of(runs)
    for n in range(1, top + 1):
        if n in steps:
            found[n] = mean_estimate(steps[n], within=ALLOWED_WITHIN)
        else:
            found[n] = Refusal(f"{n} streams never generated together (the running limit?)")
    return found


def steps_of(runs: Sequence[LevelRun]) -> dict[int, list[float]]:
    """By n the steps at short context, one a replay."""
    found: dict[int, list[float]] = {}
    for run in short_runs(runs):
        found.setdefault(run.streams, []).append(run.step_s)
    return found


def _settled(runs: Sequence[LevelRun], top: int, buckets_known: bool) -> bool:
    found = estimates(runs, top)
    if not all(isinstance(e, Estimate) and e.relative <= _WANTED_WITHIN for e in found.values()):
        return False
    if buckets_known:
        return True
    detected = detect(steps_of(runs))
    return isinstance(detected, Buckets) and detected.decided

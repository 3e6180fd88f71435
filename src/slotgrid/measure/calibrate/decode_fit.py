"""step(n) = fixed[bucket] + per_request * n + per_context_token * context, fitted to replays in lock step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slotgrid.config import ServingConfig
from slotgrid.measure.calibrate.decode import ALLOWED_WITHIN, LevelRun
from slotgrid.measure.calibrate.statistics import FEWEST_REPEATS, Estimate, Refusal, linear_fit

# a term that adds less than this share of a step where it is largest is no term
_MATTERS = 1e-3


@dataclass(frozen=True)
class DecodeFit:
    """Seconds with intervals. per_request, per_context_token: None where they are not distinguishable from 0 or
    were not varied; ``request`` and ``context`` say which. The fixed parts then hold them.

    running, context_tokens: what was measured. worst, rms: relative residuals.
    """

    fixed: tuple[tuple[int, Estimate], ...]
    per_request: Estimate | None
    per_context_token: Estimate | None
    request: str
    context: str
    running: tuple[int, int]
    context_tokens: tuple[float, float]
    worst: float
    rms: float
    runs: int


def fit(runs: Sequence[LevelRun], buckets: Sequence[int]) -> DecodeFit | Refusal:
    """Least squares of relative residuals over all replays. Refuses a bucket with fewer than three replays, or an
    interval of more than half its mean step either way."""
    runs = [run for run in runs if run.streams <= buckets[-1]]
    config = ServingConfig(buckets)
    bucket_of = [config.bucket_for(run.streams) for run in runs]
    for bucket in buckets:
        count = bucket_of.count(bucket)
        if count < FEWEST_REPEATS:
            return Refusal(
                f"bucket {bucket}: {count} replays in lock step, at least {FEWEST_REPEATS} are needed",
                count,
                FEWEST_REPEATS - count,
            )
    fixed = [np.array([float(b == bucket) for b in bucket_of]) for bucket in buckets]
    streams = np.array([float(run.streams) for run in runs])
    context = np.array([run.context_tokens for run in runs])
    step = np.array([run.step_s for run in runs])
    separable = _separable(runs, bucket_of)
    per_stream = context / streams
    varied = bool(per_stream.max() > 3 * per_stream.min())
    terms = ([streams] if separable else []) + ([context] if varied else [])
    line = linear_fit(np.stack([*fixed, *terms], 1), step)
    if isinstance(line, Refusal):
        return line
    request = line.parameters[len(buckets)] if separable else None
    per_token = line.parameters[-1] if varied else None
    said_request = "every measured count has a bucket of its own" if request is None else _interval(request, 1e3, "ms")
    said_context = "contexts were all about as long" if per_token is None else _interval(per_token, 1e6, "us a token")
    # what is not distinguishable from nothing would only carry noise into the fixed parts; tokens cannot cost less
    least = _MATTERS * step.mean()
    if request is not None and (
        request.low <= 0 <= request.high or max(-request.low, request.high) * streams.max() < least
    ):
        said_request += ", not distinguishable from 0"
        request = None
    if per_token is not None and (per_token.low <= 0 or per_token.high * context.max() < least):
        said_context += ", not distinguishable from 0" if per_token.high >= 0 else ", below 0"
        per_token = None
    terms = ([streams] if request is not None else []) + ([context] if per_token is not None else [])
    columns = np.stack([*fixed, *terms], 1)
    line = linear_fit(columns, step)
    if isinstance(line, Refusal):
        return line
    for bucket, part in zip(buckets, line.parameters, strict=False):
        if part.value <= 0:
            return Refusal(
                f"bucket {bucket}: its fixed part comes out at {part.value * 1e3:.3g} ms", len(runs), len(runs)
            )
        # of the bucket's mean step: its fixed part alone is less certain where a part per request stands beside it
        usual = columns[np.array(bucket_of) == bucket].mean(0)
        share = line.half_width(usual) / float(usual @ [p.value for p in line.parameters])
        if share > ALLOWED_WITHIN:
            repeats = min(Counter(run.streams for run in runs).values())
            return Refusal(
                f"bucket {bucket}: the interval is {share:.0%} either way, allowed is {ALLOWED_WITHIN:.0%}",
                len(runs),
                # intervals shrink with the root of the repeats
                math.ceil(repeats * ((share / ALLOWED_WITHIN) ** 2 - 1)),
            )
    return DecodeFit(
        fixed=tuple(zip(buckets, line.parameters, strict=False)),
        per_request=None if request is None else line.parameters[len(buckets)],
        per_context_token=None if per_token is None else line.parameters[-1],
        request=said_request,
        context=said_context,
        running=(min(run.streams for run in runs), max(run.streams for run in runs)),
        context_tokens=(float(per_stream.min()), float(per_stream.max())),
        worst=line.worst,
        rms=line.rms,
        runs=len(runs),
    )


def _interval(term: Estimate, factor: float, unit: str) -> str:
    shown = term.scaled(factor)
    return f"{shown.value:.4g} {unit} [{shown.low:.4g}, {shown.high:.4g}]"


def _separable(runs: Sequence[LevelRun], bucket_of: Sequence[int]) -> bool:
    """Whether some bucket was measured with more than one running count."""
    counts: dict[int, set[int]] = {}
    for run, bucket in zip(runs, bucket_of, strict=True):
        counts.setdefault(bucket, set()).add(run.streams)
    return any(len(found) > 1 for found in counts.values())

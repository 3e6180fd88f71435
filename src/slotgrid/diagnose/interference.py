"""Interference: a prefill runs alone, and every request that decodes waits for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slotgrid.diagnose.order import ADMIT, EventOrder
from slotgrid.profile import StackProfile
from slotgrid.run import Run

Floats = npt.NDArray[np.float64]

# a gap between tokens counts as a spike above this many times the run's median gap
SPIKE_FACTOR = 2.0
_LONGEST = 10
_QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))


@dataclass(frozen=True)
class Stalls:
    """prefill_s: all prefill; beside_decode_s: the part while others decoded; stall_session_s: prefill seconds times
    requests waiting; waited_s: seconds by request row (NaN not known); longest: rows that waited longest."""

    prefill_s: float
    beside_decode_s: float
    stall_session_s: float
    waited_s: Floats
    longest: tuple[int, ...]


@dataclass(frozen=True)
class TokenGaps:
    """Inter-token gaps over all requests. spikes: gaps above SPIKE_FACTOR times the median; spike_excess_s: their
    seconds above the median; requests_hit: requests with at least one."""

    gaps: int
    quantiles_s: dict[str, float]
    spikes: int
    requests_hit: int
    requests: int
    spike_excess_s: float


def stalls(run: Run, order: EventOrder | None, profile: StackProfile | None) -> Stalls | None:
    """Waiting caused by prefills, priced by the profile; a simulated run without one brings its own durations.
    None when the order of admissions or the prefill lengths are not known."""
    if run.steps is None:
        return None
    prefill = run.steps.filter(run.steps["kind"] == "prefill")
    if profile is not None:
        if prefill["computed_tokens"].has_nulls():
            return None
        seconds = profile.price.prefill.seconds(prefill["computed_tokens"].to_numpy())
    elif prefill["duration_s"].has_nulls():
        return None
    else:
        seconds = prefill["duration_s"].to_numpy()
    waiting = prefill["running"].to_numpy()
    waited = np.full(run.requests.height, np.nan)
    if order is not None and len(seconds) == int((order.kind == ADMIT).sum()):
        waited = _waited(order, seconds)
    longest = _longest(waited)
    return Stalls(
        prefill_s=float(seconds.sum()),
        beside_decode_s=float(seconds[waiting > 0].sum()),
        stall_session_s=float((seconds * waiting).sum()),
        waited_s=waited,
        longest=tuple(longest.tolist()),
    )


def _longest(waited: Floats) -> npt.NDArray[np.intp]:
    """The rows that waited longest, in the order of the table where equal; NaN is nobody."""
    known = np.flatnonzero(~np.isnan(waited))
    if len(known) > _LONGEST:
        least = np.partition(waited[known], len(known) - _LONGEST)[len(known) - _LONGEST]
        known = known[waited[known] >= least]
    return known[np.argsort(-waited[known], kind="stable")][:_LONGEST]


def _waited(order: EventOrder, seconds: Floats) -> Floats:
    """Seconds each request waited: the prefills admitted after its own and before its release."""
    is_admission = order.kind == ADMIT
    # prefill seconds of the first so many admissions, and admissions up to and with each event
    until = np.concatenate([[0.0], np.cumsum(seconds)])
    admissions = np.cumsum(is_admission, dtype=np.int32)
    del is_admission
    known = (order.admitted >= 0) & (order.released >= 0)
    waited = np.full(len(order.admitted), np.nan)
    waited[known] = until[admissions[order.released[known]]] - until[admissions[order.admitted[known]]]
    # a difference of sums leaves rounding where nobody was waited for
    waited[known & (np.abs(waited) < 1e-12)] = 0.0
    return waited


def quantiles(values: Floats) -> dict[str, float]:
    """p50, p95, p99 and max of an array with at least one entry."""
    return {name: float(np.quantile(values, q)) for name, q in _QUANTILES}


def time_to_first_token(run: Run) -> Floats | None:
    """Seconds from sending to the first token of each request that has both; None when none does."""
    waits = (run.requests["first_token_s"] - run.requests["arrival_s"]).drop_nulls().to_numpy()
    return waits if len(waits) else None


def token_gaps(run: Run) -> TokenGaps | None:
    """Gaps between tokens: from the rows' token times, or from the steps of a simulated run. None without either."""
    if "token_gaps_s" in run.requests.columns:
        lists = run.requests["token_gaps_s"].drop_nulls()
        counts = lists.list.len().to_numpy()
        flat = lists.explode().drop_nulls().to_numpy().astype(float)
    elif run.source == "simulated" and run.steps is not None:
        counts, flat = _simulated_gaps(run)
    else:
        return None
    if not len(flat):
        return None
    median = float(np.median(flat))
    spike = flat > SPIKE_FACTOR * median
    owner = np.repeat(np.arange(len(counts)), counts)
    return TokenGaps(
        gaps=len(flat),
        quantiles_s=quantiles(flat),
        spikes=int(spike.sum()),
        requests_hit=len(np.unique(owner[spike])),
        requests=len(counts),
        spike_excess_s=float((flat[spike] - median).sum()),
    )


def _simulated_gaps(run: Run) -> tuple[npt.NDArray[np.int64], Floats]:
    """A request's tokens come at its first token and at the end of each decode step it takes part in."""
    assert run.steps is not None
    decode = run.steps.filter(run.steps["kind"] == "decode")
    ends = np.sort((decode["start_s"] + decode["duration_s"]).to_numpy())
    first, finish = run.requests["first_token_s"].to_numpy(), run.requests["finish_s"].to_numpy()
    count = run.requests["output_tokens"].to_numpy() - 1
    stop = np.searchsorted(ends, finish + 1e-9, "right")
    parts = [
        np.diff(np.concatenate([[begin], ends[end - n : end]])) if n else np.empty(0)
        for begin, end, n in zip(first, stop, count, strict=True)
    ]
    return count.astype(np.int64), np.concatenate(parts) if parts else np.empty(0)

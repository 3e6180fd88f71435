"""Two cost channels: device time rebuilt from steps and tokens, and what the clients saw.

Channel A = sum over decode steps of the priced step + sum over requests of the priced prefill of prompt - cached.
Channel B = length of the union of the in-flight intervals [sent, done]; it needs no cost model.
Residual r = B - A. Two runs agree when their ratios in both channels differ by at most
tau = max(0.02, r_base / B_base).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slotgrid.diagnose.order import ADMIT, EventOrder
from slotgrid.diagnose.padding import Histogram
from slotgrid.profile import DecodeCost, StackProfile
from slotgrid.run import Run

Floats = npt.NDArray[np.float64]

LEAST_TAU = 0.02


@dataclass(frozen=True)
class ChannelA:
    """Priced seconds; None where the run does not show what is needed (the missing list says what)."""

    decode_s: float | None
    prefill_s: float | None
    missing: tuple[str, ...] = ()

    @property
    def total_s(self) -> float | None:
        """Seconds of decode and prefill; None where one is not known."""
        return None if self.decode_s is None or self.prefill_s is None else self.decode_s + self.prefill_s


@dataclass(frozen=True)
class Agreement:
    """Ratios run / baseline in both channels, their difference and the tolerance."""

    ratio_a: float
    ratio_b: float
    tau: float

    @property
    def difference(self) -> float:
        """Between the ratios of the two channels."""
        return abs(self.ratio_a - self.ratio_b)

    @property
    def agree(self) -> bool:
        """Whether the channels differ by no more than the tolerance."""
        return self.difference <= self.tau


def step_s(decode: DecodeCost, running: int, bucket: int) -> float:
    """Seconds of one decode step without the context term. Raises UnmeasuredError where the bucket has no price."""
    return decode.fixed(bucket) + decode.base_s.value + decode.per_request_s.value * running


def decode_s(decode: DecodeCost, histogram: Histogram) -> float:
    """Seconds of all steps of a histogram without the context term."""
    return sum(steps * step_s(decode, running, bucket) for (running, bucket), steps in histogram.items())


def context_tokens(run: Run, order: EventOrder | None) -> int | None:
    """Sum over decode steps of the context lengths of the requests in them; None when it cannot be rebuilt.

    A request's context at its k-th step (from 0) is its prompt and the k + 1 tokens it already has.
    """
    if order is None or run.requests["prompt_tokens"].has_nulls() or run.requests.is_empty():
        return None
    strangers = (order.kind == ADMIT) & (order.request < 0)
    if strangers.any() or (order.admitted < 0).any() or (order.released < 0).any():
        return None
    before = order.steps_before()
    steps = before[order.released] - before[order.admitted]
    prompt = run.requests["prompt_tokens"].to_numpy()
    return int((steps * (prompt + 1) + steps * (steps - 1) // 2).sum())


def channel_a(
    run: Run, order: EventOrder | None, histogram: Histogram | None, profile: StackProfile | None
) -> ChannelA:
    """Device time by the profile's price; without a profile what a simulated run already carries."""
    if profile is None:
        if run.decode_s is None or run.prefill_s is None:
            return ChannelA(None, None, ("a profile",))
        return ChannelA(run.decode_s, run.prefill_s)
    price = profile.price
    missing = []
    decode: float | None = None
    if histogram is None:
        missing.append("the step distribution")
    elif (hole := _not_covered(run)) is not None:
        # part of the steps beside the prefill of all requests would be a number of nothing
        missing.append(hole)
    else:
        decode = decode_s(price.decode, histogram)
        if price.decode.context_s:
            tokens = context_tokens(run, order)
            if tokens is None:
                missing.append("prompt lengths of all requests in the steps (the price has a context term)")
                decode = None
            else:
                decode += price.decode.context_s * tokens
    prefill: float | None = None
    computed = run.requests["computed_tokens"]
    if computed.is_empty() or computed.has_nulls():
        missing.append("the computed tokens of every request")
    else:
        prefill = float(price.prefill.seconds(computed.to_numpy()).sum())
    return ChannelA(decode, prefill, tuple(missing))


def _not_covered(run: Run) -> str | None:
    """What of the run its log lacks, as what would be needed; None when nothing is known to be missing."""
    covered, requests = run.details.get("log_covers") or (0, 0)
    if covered < requests:
        return f"a log of all requests (it covers {covered:,} of {requests:,})"
    unread = run.details.get("unread_step_lines") or 0
    return f"readable [BUCKET] lines ({unread:,} are not)" if unread else None


def unmeasured(decode: DecodeCost, buckets: Iterable[int]) -> dict[int, str]:
    """Which of these buckets nobody measured, and where their price is from: interpolated between measured sizes or
    extrapolated beyond them."""
    sizes = [size for size, _ in decode.fixed_s]
    found = {}
    for bucket in sorted(set(buckets) - set(sizes)):
        found[bucket] = "interpolated" if sizes[0] < bucket < sizes[-1] else "extrapolated"
    return found


def union_s(starts: Floats, ends: Floats) -> float:
    """Length of the union of the intervals [start, end] (two float arrays of equal length)."""
    if not len(starts):
        return 0.0
    order = np.argsort(starts, kind="stable")
    begin = starts[order]
    reach = np.maximum.accumulate(ends[order])
    # a new stretch begins where the next start lies beyond everything before
    fresh = np.flatnonzero(begin[1:] > reach[:-1]) + 1
    opened = np.concatenate([[0], fresh])
    closed = np.concatenate([fresh, [len(order)]]) - 1
    return float((reach[closed] - begin[opened]).sum())


def channel_b_s(run: Run) -> float | None:
    """Seconds with at least one request in flight as the clients saw it; None unless every row has both times."""
    sent, done = run.requests["arrival_s"], run.requests["finish_s"]
    if run.requests.is_empty() or sent.has_nulls() or done.has_nulls():
        return None
    return union_s(sent.to_numpy(), done.to_numpy())


def agreement(a_s: float, b_s: float, base_a_s: float, base_b_s: float) -> Agreement | None:
    """Whether both channels tell the same ratio; None when the baseline took no time in one of them."""
    if base_a_s <= 0 or base_b_s <= 0:
        return None
    tau = max(LEAST_TAU, (base_b_s - base_a_s) / base_b_s)
    return Agreement(a_s / base_a_s, b_s / base_b_s, tau)


def extrapolated(run: Run, histogram: Histogram | None, profile: StackProfile | None) -> tuple[str, ...]:
    """What was priced outside the measured range."""
    if profile is None:
        return run.extrapolated
    notes = []
    if histogram:
        notes += profile.price.decode.beyond({b for _, b in histogram}, sorted({n for n, _ in histogram}))
    computed = run.requests["computed_tokens"].drop_nulls().to_numpy().astype(np.int64)
    notes += profile.price.prefill.beyond(computed)
    return tuple(notes)

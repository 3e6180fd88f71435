"""Steady load: what a run does per turn inside its evaluation window.

Requests belong to the window by their arrival, steps by their start. Device time per turn is the priced decode of the
window's steps plus the priced prefill of its requests, over those requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.errors import InputError
from slotgrid.plan import InputPlan
from slotgrid.run.run import Run
from slotgrid.run.window import EVALUATION_S, Window, check_lasting, warmup_end_s

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# seconds of decode steps by running count, bucket and context tokens; seconds of prefills by computed tokens
DecodePrice = Callable[[Ints, Ints, Ints], Floats]
PrefillPrice = Callable[[Ints], Floats]

PERCENTILES = (50, 95, 99)
# about three centuries, as in plans
_LONGEST_S = 1e10
# A window in which fewer of the arriving turns finish is no steady load.
_KEEPS_UP = 0.9


@dataclass(frozen=True)
class Spread:
    """50th, 95th and 99th percentile of ``count`` values in seconds (lower of the two neighbours: a value that
    occurred)."""

    p50_s: float
    p95_s: float
    p99_s: float
    count: int
    # what they were taken from: values ascending, and how many lie up to each
    _values_s: Floats = field(repr=False, compare=False)
    _upto: Ints = field(repr=False, compare=False)

    def within(self, limit_s: float) -> int:
        """How many of the values are at most ``limit_s``."""
        at = int(np.searchsorted(self._values_s, limit_s, "right"))
        return int(self._upto[at - 1]) if at else 0

    @classmethod
    def of(cls, values_s: Floats, weights: Ints | None = None) -> Spread | None:
        """Percentiles of float64[K], each counted ``weights`` times; None without any."""
        if weights is None:
            weights = np.ones(len(values_s), np.int64)
        kept = weights > 0
        order = np.argsort(values_s[kept], kind="stable")
        values, upto = values_s[kept][order], np.cumsum(weights[kept][order])
        if not len(values):
            return None
        total = int(upto[-1])
        p50, p95, p99 = (float(values[np.searchsorted(upto, q * total / 100)]) for q in PERCENTILES)
        return cls(p50, p95, p99, total, values, upto)

    def to_dict(self) -> dict[str, Any]:
        """The percentiles as JSON values."""
        return {"p50_s": self.p50_s, "p95_s": self.p95_s, "p99_s": self.p99_s, "count": self.count}


def pooled_p95_s(spreads: Sequence[Spread | None]) -> float | None:
    """95th percentile over the values of several windows together; None without any."""
    known = [spread for spread in spreads if spread is not None]
    if not known:
        return None
    counts = [np.diff(spread._upto, prepend=0) for spread in known]
    pooled = Spread.of(np.concatenate([spread._values_s for spread in known]), np.concatenate(counts))
    return None if pooled is None else pooled.p95_s


@dataclass(frozen=True)
class SteadyLoad:
    """One run inside its window. None is not observed.

    requests: turns that arrived in the window; later_turns: of those the ones that continue a session. finished: turns
    that finished in it; generated_tokens: tokens that came out in it, whenever their turn arrived.
    histogram: [running, bucket, steps] of the decode steps in the window. idle_share: time nothing ran.
    queue_mean, queue_share: requests waiting on average over time; share of the time at least one waits.
    queue: 50th, 95th and 99th percentile over time of how many wait.
    stall_session_s: session-seconds others waited for prefills that started in the window.
    """

    window: Window
    requests: int
    later_turns: int
    reused: int | None
    decode_s: float | None
    prefill_s: float | None
    stall_session_s: float | None
    histogram: tuple[tuple[int, int, int], ...] | None
    idle_share: float | None
    queue_mean: float | None
    queue_share: float | None
    queue: tuple[int, int, int] | None
    ttft: Spread | None
    ttft_later: Spread | None
    inter_token: Spread | None
    finished: int | None
    generated_tokens: int | None

    @property
    def keeps_up(self) -> bool | None:
        """Whether turns finish about as fast as they arrive; if not, nothing here is a steady state."""
        return None if self.finished is None else self.finished >= _KEEPS_UP * self.requests

    @property
    def turns_per_s(self) -> float | None:
        """Turns finished a second."""
        return None if self.finished is None else self.finished / self.window.seconds

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens generated a second."""
        return None if self.generated_tokens is None else self.generated_tokens / self.window.seconds

    @property
    def reuse_rate(self) -> float | None:
        """Reused over later turns."""
        return None if self.reused is None or not self.later_turns else self.reused / self.later_turns

    @property
    def device_time_s(self) -> float | None:
        """Priced decode of the window's steps plus priced prefill of its requests."""
        return None if self.decode_s is None or self.prefill_s is None else self.decode_s + self.prefill_s

    @property
    def device_time_per_turn_s(self) -> float | None:
        """Device time over the requests of the window."""
        return None if self.device_time_s is None or not self.requests else self.device_time_s / self.requests

    @property
    def stall_per_turn_s(self) -> float | None:
        """Session-seconds of stall over the requests of the window."""
        return None if self.stall_session_s is None or not self.requests else self.stall_session_s / self.requests

    @property
    def occupancy(self) -> dict[int, float] | None:
        """Share of the window's decode steps by running count."""
        if not self.histogram:
            return None
        total = sum(steps for _, _, steps in self.histogram)
        shares: dict[int, float] = {}
        for running, _, steps in self.histogram:
            shares[running] = shares.get(running, 0.0) + steps / total
        return shares

    @property
    def padding_ratio(self) -> float | None:
        """1 - (sum of running) / (sum of buckets) over the window's decode steps."""
        if not self.histogram:
            return None
        return 1 - sum(n * steps for n, _, steps in self.histogram) / sum(b * steps for _, b, steps in self.histogram)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        spreads = {"ttft": self.ttft, "ttft_later_turns": self.ttft_later, "inter_token": self.inter_token}
        return {
            "window": {"start_s": self.window.start_s, "end_s": self.window.end_s},
            "requests": self.requests,
            "later_turns": self.later_turns,
            "reused": self.reused,
            "reuse_rate": self.reuse_rate,
            "device_time_s": self.device_time_s,
            "decode_s": self.decode_s,
            "prefill_s": self.prefill_s,
            "device_time_per_turn_s": self.device_time_per_turn_s,
            "stall_session_s": self.stall_session_s,
            "stall_per_turn_s": self.stall_per_turn_s,
            "padding_ratio": self.padding_ratio,
            "occupancy": None if self.occupancy is None else {str(n): share for n, share in self.occupancy.items()},
            "histogram": None if self.histogram is None else [list(row) for row in self.histogram],
            "idle_share": self.idle_share,
            "queue_mean": self.queue_mean,
            "queue_share": self.queue_share,
            "queue": None if self.queue is None else dict(zip(("p50", "p95", "p99"), self.queue, strict=True)),
            "finished": self.finished,
            "keeps_up": self.keeps_up,
            "turns_per_s": self.turns_per_s,
            "output_tokens_per_s": self.tokens_per_s,
            **{name: None if spread is None else spread.to_dict() for name, spread in spreads.items()},
        }

    def __repr__(self) -> str:
        cost = self.device_time_per_turn_s
        parts = [f"{self.requests} turns in {self.window.seconds:g} s"]
        if cost is not None:
            parts.append(f"device time {cost:.4f} s a turn")
        if self.reuse_rate is not None:
            parts.append(f"reuse {self.reuse_rate:.1%}")
        if self.ttft is not None:
            parts.append(f"TTFT p95 {self.ttft.p95_s:.3f} s")
        return f"SteadyLoad({', '.join(parts)})"


def find_window(
    run: Run,
    plan: InputPlan,
    *,
    cycle_s: float | None = None,
    evaluation_s: float = EVALUATION_S,
    warmup_s: float | None = None,
) -> Window:
    """The evaluation window of a run of ``plan``.

    cycle_s: the plan's cycle; None takes it from the staggered starts. warmup_s: a fixed warm-up instead of the rule;
    an open-loop plan (a client per session) needs one. Raises InputError when a client never finishes two turns or the
    plan ends inside the window.
    """
    for name, value in (("window", evaluation_s), ("warm-up", warmup_s), ("cycle", cycle_s)):
        if value is not None and not 0 <= value <= _LONGEST_S:
            raise InputError(f"{name}: {value:g} s; allowed: 0 to {_LONGEST_S:g} s")
    if evaluation_s == 0:
        raise InputError("window: 0 s; allowed: more than 0")
    if warmup_s is not None and cycle_s is not None:
        raise InputError("cycle: belongs to the rule that finds the warm-up; give one of both")
    session, turn, finish = (run.requests[name] for name in ("session", "turn", "finish_s"))
    if session.has_nulls() or turn.has_nulls() or finish.null_count() == len(finish):
        raise InputError("window: finish times or sessions are not observed in this run; a window needs both")
    last_session = int(session.to_numpy().max())
    if last_session >= plan.session_count:
        raise InputError(f"window: the run has session {last_session}, the plan only {plan.session_count} sessions")
    clients = len(plan.clients)
    if not plan.renews:
        return _open_window(plan, evaluation_s, warmup_s)
    client = _clients(plan)[session.to_numpy()]
    # what was in flight when a run ended has no finish
    finish_s = finish.cast(float).fill_null(np.inf).to_numpy()
    done = np.isfinite(finish_s)
    if warmup_s is None:
        found = warmup_end_s(client[done], finish_s[done], clients, plan.cycle_s if cycle_s is None else cycle_s)
        if found is None:
            raise InputError("window: a client finished fewer than two turns; the warm-up needs two of every client")
        warmup_s = found
    window = Window(warmup_s, warmup_s + evaluation_s)
    # a client has run out only when the last turn of its last session is over
    last = np.full(clients, np.inf)
    ends = {}
    for i, (c, planned) in enumerate(plan.sessions()):
        ends[c] = (i, len(planned.turns) - 1)
    final = np.array([ends[c] for c in range(clients)])
    is_final = (session.to_numpy() == final[client, 0]) & (turn.to_numpy() == final[client, 1])
    last[client[is_final]] = finish_s[is_final]
    check_lasting(window, last, min(len(c.sessions) for c in plan.clients))
    return window


def _open_window(plan: InputPlan, evaluation_s: float, warmup_s: float | None) -> Window:
    """Sessions that arrive by themselves: a given warm-up, and a plan that goes on arriving until the end."""
    if warmup_s is None:
        raise InputError("warm-up: every client of this plan has one session (open loop); give its seconds (--warmup)")
    window = Window(warmup_s, warmup_s + evaluation_s)
    last_s = max(client.start_s for client in plan.clients)
    if last_s == 0:
        raise InputError("window: all sessions of this plan start together and none is renewed; no steady load")
    if last_s < window.end_s:
        needed = int(np.ceil(1.1 * len(plan.clients) * window.end_s / last_s))
        raise InputError(
            f"window: the last session starts at {last_s:.1f} s, the window ends at {window.end_s:.1f} s; "
            f"about {needed} sessions are needed, the plan has {len(plan.clients)}"
        )
    return window


def steady_load(
    run: Run,
    window: Window,
    *,
    decode_price: DecodePrice,
    prefill_price: PrefillPrice,
    context_priced: bool = False,
) -> SteadyLoad:
    """What ``run`` does inside ``window``; prices as functions (:class:`profile.CostModel` gives both).

    context_priced: decode_price depends on the context tokens. A step without a clock (logs give an order only) belongs
    to the window when it lies between the admissions of the window's first and last request; its context is not known.
    Raises InputError when arrivals are not observed.
    """
    requests = run.requests
    if requests["arrival_s"].has_nulls():
        raise InputError("window: arrival times are not observed in this run")
    arrival = requests["arrival_s"].to_numpy()
    inside = window.covers(arrival)
    later = inside & (requests["turn"].to_numpy() > 0)
    cached, computed = requests["cached_tokens"], requests["computed_tokens"]
    reused = None if cached.filter(later).has_nulls() else int((cached.filter(later) > 0).sum())
    prefill_s = None
    if not computed.filter(inside).has_nulls():
        prefill_s = float(prefill_price(computed.filter(inside).to_numpy().astype(np.int64)).sum())
    first = requests["first_token_s"].cast(float).to_numpy()
    ttft = first - arrival
    seen = inside & np.isfinite(ttft)
    steps = _steps(run, window, inside)
    queue = _queue(arrival, requests["admit_s"].cast(float).to_numpy(), window)
    finish = requests["finish_s"].cast(float).fill_null(np.nan).to_numpy()
    timed = steps is not None and steps.idle_share is not None
    return SteadyLoad(
        window=window,
        requests=int(inside.sum()),
        later_turns=int(later.sum()),
        reused=reused,
        decode_s=None if steps is None else steps.decode_s(decode_price, context_priced),
        prefill_s=prefill_s,
        stall_session_s=None if steps is None else steps.stall_session_s,
        histogram=None if steps is None else steps.histogram,
        idle_share=None if steps is None else steps.idle_share,
        queue_mean=None if queue is None else queue[0],
        queue_share=None if queue is None else queue[1],
        queue=None if queue is None else queue[2],
        ttft=Spread.of(ttft[seen]),
        ttft_later=Spread.of(ttft[seen & later]),
        inter_token=_inter_token(run, window, first),
        finished=int(window.covers(finish).sum()),
        generated_tokens=(
            int((steps.running * steps.repeats).sum() + window.covers(first).sum())
            if steps is not None and timed
            else None
        ),
    )


@dataclass(frozen=True)
class _WindowSteps:
    running: Ints
    bucket: Ints
    repeats: Ints
    context_tokens: Ints | None
    stall_session_s: float | None
    idle_share: float | None

    def decode_s(self, price: DecodePrice, context_priced: bool) -> float | None:
        context = self.context_tokens
        if context is None:
            if context_priced:
                return None
            context = np.zeros(len(self.running), np.int64)
        return float((price(self.running, self.bucket, context) * self.repeats).sum())

    @property
    def histogram(self) -> tuple[tuple[int, int, int], ...]:
        pairs, at = np.unique(np.stack([self.running, self.bucket]), axis=1, return_inverse=True)
        steps = np.bincount(at.ravel(), self.repeats, minlength=pairs.shape[1]).astype(int)
        return tuple((int(n), int(b), int(s)) for n, b, s in zip(*pairs, steps, strict=True))


def _clients(plan: InputPlan) -> Ints:
    """Client index of every session, int64[S]."""
    return np.fromiter((c for c, _ in plan.sessions()), np.int64, plan.session_count)


def _steps(run: Run, window: Window, inside: npt.NDArray[np.bool_]) -> _WindowSteps | None:
    """The window's decode steps and the stall of its prefills; None when steps are not observed."""
    if run.steps is None or run.histogram is None:
        return None
    steps = run.steps
    decode = (steps["kind"] == "decode").to_numpy()
    context: Ints | None
    stall: float | None
    idle: float | None
    if not steps["start_s"].has_nulls():
        start = steps["start_s"].to_numpy()
        kept = window.covers(start)
        duration = steps["duration_s"].to_numpy()
        waits = ~decode & kept
        stall = float((duration[waits] * steps["running"].to_numpy()[waits]).sum())
        busy = np.minimum(start + duration, window.end_s) - np.maximum(start, window.start_s)
        idle = 1 - float(np.maximum(busy, 0).sum()) / window.seconds
        context = _context(run, start[decode])[kept[decode]]
    else:
        order = run.requests["admit_order"] if "admit_order" in run.requests.columns else None
        if order is None or order.filter(inside).drop_nulls().is_empty():
            return None
        chosen = order.filter(inside).drop_nulls().to_numpy()
        position = steps["order"].to_numpy()
        kept = (position >= chosen.min()) & (position <= chosen.max())
        stall, idle, context = None, None, None
    chosen = decode & kept
    repeats = steps["repeats"].to_numpy()[chosen] if "repeats" in steps.columns else np.ones(chosen.sum(), np.int64)
    return _WindowSteps(
        steps["running"].to_numpy()[chosen],
        steps["bucket"].to_numpy()[chosen],
        repeats,
        context,
        stall,
        idle,
    )


def _context(run: Run, decode_start_s: Floats) -> Ints:
    """Context tokens of the requests in each decode step: prompt plus the output they already have, summed."""
    first = run.requests["first_token_s"].cast(float).to_numpy()
    known = np.isfinite(first)
    begin = np.searchsorted(decode_start_s, first[known] - 1e-12)
    outputs = run.requests["output_tokens"].to_numpy()[known].astype(np.int64)
    prompts = run.requests["prompt_tokens"].to_numpy()[known].astype(np.int64)
    count = len(decode_start_s)
    end = np.minimum(begin + outputs - 1, count)
    constant, active = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    np.add.at(constant, begin, prompts + 1 - begin)
    np.add.at(constant, end, -(prompts + 1 - begin))
    np.add.at(active, begin, 1)
    np.add.at(active, end, -1)
    context: Ints = np.cumsum(constant)[:count] + np.cumsum(active)[:count] * np.arange(count)
    return context


def _queue(arrival_s: Floats, admit_s: Floats, window: Window) -> tuple[float, float, tuple[int, int, int]] | None:
    """Waiting requests over the time of the window: mean, share with at least one, percentiles; None when an
    admission that matters was not observed."""
    before_end = arrival_s < window.end_s
    arrival_s, admit_s = arrival_s[before_end], admit_s[before_end]
    if not np.isfinite(admit_s).all():
        return None
    begin, end = np.clip(arrival_s, window.start_s, window.end_s), np.clip(admit_s, window.start_s, window.end_s)
    mean = float((end - begin).sum()) / window.seconds
    kept = end > begin
    times = np.concatenate([[window.start_s], begin[kept], end[kept], [window.end_s]])
    change = np.concatenate([[0], np.ones(kept.sum(), np.int64), -np.ones(kept.sum(), np.int64), [0]])
    order = np.argsort(times, kind="stable")
    waiting, lasting = np.cumsum(change[order])[:-1], np.diff(times[order])
    by_count = np.argsort(waiting, kind="stable")
    upto = np.cumsum(lasting[by_count])
    at = [min(int(np.searchsorted(upto, q / 100 * upto[-1])), len(upto) - 1) for q in PERCENTILES]
    p50, p95, p99 = (int(waiting[by_count][i]) for i in at)
    return mean, float(lasting[waiting > 0].sum()) / window.seconds, (p50, p95, p99)


def _inter_token(run: Run, window: Window, first_token_s: Floats) -> Spread | None:
    """Gaps between a request's tokens that come in the window, stalls by prefills of others included."""
    if "token_gaps_s" in run.requests.columns:
        gaps = run.requests["token_gaps_s"].drop_nulls()
        if gaps.is_empty():
            return None
        kept = []
        for row, start in zip(run.requests["token_gaps_s"], first_token_s, strict=True):
            if row is not None and np.isfinite(start):
                own = row.to_numpy()
                kept.append(own[window.covers(start + np.cumsum(own))])
        return Spread.of(np.concatenate(kept)) if kept else None
    if run.steps is None or run.steps["start_s"].has_nulls() or not np.isfinite(first_token_s).all():
        return None
    decode = run.steps.filter(run.steps["kind"] == "decode")
    start = decode["start_s"].to_numpy()
    end = start + decode["duration_s"].to_numpy()
    if not len(end):
        return None
    lasting = run.requests["output_tokens"].to_numpy() > 1
    own_step = np.searchsorted(start, first_token_s[lasting] - 1e-12)
    joined = np.bincount(own_step, minlength=len(end))
    since_last = np.concatenate([[0.0], np.diff(end)])
    values = np.concatenate([since_last, end[own_step] - first_token_s[lasting]])
    times = np.concatenate([end, end[own_step]])
    weights = np.concatenate([decode["running"].to_numpy() - joined, np.ones(len(own_step), np.int64)])
    inside = window.covers(times)
    return Spread.of(values[inside], weights[inside])

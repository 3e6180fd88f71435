"""Prompts that come in beside running streams: how long each stream stops, and whether in one piece.

Decides: the time a prefill takes from every stream, its largest piece, and whether prefills are exclusive (one whole
stop, and the streams' next tokens a step after the prompt's first) or mixed into decode steps (several pieces, or one
step that gives the streams their tokens together with the prompt's first). A replay without injections in the same
round is the control. The answer holds up to the longest prompt injected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slotgrid.measure.calibrate.bench import Bench
from slotgrid.measure.calibrate.plans import beside
from slotgrid.measure.calibrate.prefill import is_cold
from slotgrid.measure.calibrate.rows import Seen
from slotgrid.measure.calibrate.statistics import Estimate, Refusal, mean_estimate, trimmed_mean

PROMPT_TOKENS = 16
_SIZES = (16, 500, 2000, 6000)
MOST_STREAMS = 4
# steps between two injections, beyond what they take
_SPACE_STEPS = 8
_NEAR_STEPS = 16
# shares of a stop in its largest gap: above the first it is one piece, above the second several of unequal length
_WHOLE = 0.8
_MOST = 0.6
# tokens this share of a step apart came from two steps
_APART = 0.5


@dataclass(frozen=True)
class Stop:
    """One injection beside streams: medians over the streams.

    tokens: computed. planned: those that were asked for; text has about as many.
    total_s: time the streams lost. largest_s: largest loss between two tokens. wait_s: until its own first token.
    step_s: a step of the streams without it. apart_s: from its first token to the nearest token of a stream.
    """

    tokens: int
    total_s: float
    largest_s: float
    wait_s: float
    step_s: float
    apart_s: float
    planned: int

    @property
    def apart(self) -> float:
        """About 1 where a stream's nearest token is of another step, about 0 where it is of the same."""
        return self.apart_s / min(self.step_s, max(self.total_s, 1e-9))


@dataclass(frozen=True)
class Stall:
    """By planned prompt length: seconds lost by every stream, the share in one piece; over all lengths, what prefills
    are.

    exclusive: None when undecided, with ``undecided`` saying why. pieces: a mixed one takes several steps. control:
    largest gap over the step without any injection. streams: how many ran beside. computed: tokens computed by planned
    length, where they are others.
    """

    lost: dict[int, Estimate | Refusal]
    share: dict[int, Estimate | Refusal]
    exclusive: bool | None
    pieces: bool
    undecided: str
    control: Estimate | Refusal
    streams: int
    samples: int
    computed: dict[int, int] = field(default_factory=dict)

    def tokens(self, planned: int) -> int:
        """Tokens computed for prompts of a planned length."""
        return self.computed.get(planned, planned)

    @property
    def unequal(self) -> bool:
        """Several pieces, one of which is most of it: a prompt of 3,000 tokens as 2,048 and 952."""
        longest = self.share.get(max(self.lost))
        return self.pieces and isinstance(longest, Estimate) and longest.value > _MOST

    @property
    def decided(self) -> bool:
        """Every length has an interval, and what prefills are is settled."""
        return self.exclusive is not None and all(isinstance(lost, Estimate) for lost in self.lost.values())


def probe(
    bench: Bench,
    *,
    top: int,
    max_seq_len: int,
    step_s: float,
    prefill_s: dict[int, float],
    chunk_tokens: int,
    rounds: int,
    most_rounds: int,
) -> Stall | Refusal:
    """Each round: a control, then the same streams with every length injected once, one after another.

    step_s: a step with that many streams; prefill_s: seconds by length, both as measured on the idle server.
    """
    streams = min(MOST_STREAMS, top - 1)
    if streams < 1:
        return Refusal("one request at a time: nothing can run beside a prefill")
    lengths = sorted({q for q in prefill_s if q in _SIZES} | {max(prefill_s)})
    begin = streams * prefill_s[min(prefill_s)]
    space = _SPACE_STEPS * step_s
    stops: list[Stop] = []
    controls: list[float] = []
    found: Stall | Refusal = Refusal("nothing was measured")
    for r in range(most_rounds):
        order = bench.order(lengths, f"stall-{r}")
        injections, at = [], begin + 2 * space
        for q in order:
            injections.append((at, q))
            at += prefill_s[q] + space
        # more than enough: the prefills themselves leave no time for steps
        output = min(max_seq_len - PROMPT_TOKENS, round((at - begin) / step_s) + 4 * _SPACE_STEPS)

        def run(name: str, injections: list[tuple[float, int]], output: int = output) -> list[Seen]:
            plan = beside(
                bench.id(name),
                streams=streams,
                prompt_tokens=PROMPT_TOKENS,
                output_tokens=output,
                injections=injections,
            )
            return bench.replay(name, plan)

        controls.append(largest_gap(run(f"stall-control-r{r}", [])))
        stops += find_stops(run(f"stall-r{r}", injections), streams, planned=order)
        found = estimate(stops, controls, streams=streams, chunk_tokens=chunk_tokens)
        if r + 1 >= rounds and isinstance(found, Stall) and found.decided:
            break
    return found


def find_stops(rows: Sequence[Seen], streams: int, planned: Sequence[int] | None = None) -> list[Stop]:
    """The injections (rows after the first ``streams``) that met all streams running, and no other injection. planned:
    their lengths as asked for, None where they are what came."""
    running, injected = rows[:streams], rows[streams:]
    start = max(row.first_token_s for row in running)
    end = min(row.token_times_s[-1] for row in running)
    spans = [(row.arrival_s, row.first_token_s) for row in injected]
    found = []
    for i, row in enumerate(injected):
        arrival, first = spans[i]
        alone = all(b < arrival or first < a for j, (a, b) in enumerate(spans) if j != i)
        if not (start <= arrival and first <= end and alone and is_cold(row)):
            continue
        total, largest, steps, apart = [], [], [], []
        for stream in running:
            times = stream.times_s
            before, after = times[:-1], times[1:]
            gaps = after - before
            quiet = before >= start
            for a, b in spans:
                quiet &= (after <= a) | (before >= b)
            hit = (after > arrival) & (before < first)
            if not quiet.any() or not hit.any():
                break
            # steps close by: contexts grow, and machines change their pace
            near = np.flatnonzero(quiet)
            near = near[np.argsort(np.abs(before[near] - arrival), kind="stable")][:_NEAR_STEPS]
            step = trimmed_mean(gaps[near])
            total.append(float((gaps[hit] - step).sum()))
            largest.append(float((gaps[hit] - step).max()))
            steps.append(step)
            apart.append(float(np.abs(times - first).min()))
        else:
            found.append(
                Stop(
                    row.prompt_tokens - (row.cached_tokens or 0),
                    float(np.median(total)),
                    float(np.median(largest)),
                    row.wait_s,
                    float(np.median(steps)),
                    float(np.median(apart)),
                    row.prompt_tokens if planned is None else planned[i],
                )
            )
    return found


def largest_gap(rows: Sequence[Seen]) -> float:
    """The largest gap of a stream over its mean step, while all run: what happens without any injection."""
    start = max(row.first_token_s for row in rows)
    worst = []
    for row in rows:
        times = row.times_s
        gaps = np.diff(times[times >= start])
        if len(gaps):
            worst.append(float(gaps.max() / trimmed_mean(gaps)))
    return max(worst, default=1.0)


def estimate(stops: Sequence[Stop], controls: Sequence[float], *, streams: int, chunk_tokens: int) -> Stall | Refusal:
    """What the stops say. Only prompts of more than one chunk can show whether a prefill is one piece."""
    if not stops:
        return Refusal("no prompt came in while all streams were running; more repeats are needed", 0, 3)
    by_length = {q: [s for s in stops if s.planned == q] for q in sorted({stop.planned for stop in stops})}
    lengths = list(by_length)
    lost = {q: mean_estimate([s.total_s for s in same]) for q, same in by_length.items()}
    share = {
        q: mean_estimate([s.largest_s / s.total_s for s in same if s.total_s > 0]) for q, same in by_length.items()
    }
    computed = {q: round(float(np.median([s.tokens for s in same]))) for q, same in by_length.items()}
    long = [q for q in lengths if q > chunk_tokens]
    pieces, undecided = _in_pieces(long, share, chunk_tokens)
    exclusive = None if pieces is None else not pieces
    if exclusive:
        # in one piece: a step of its own, or one step with the streams' tokens in it
        exclusive, undecided = _of_its_own([s.apart for s in stops if s.planned in long])
    return Stall(
        lost, share, exclusive, bool(pieces), undecided, mean_estimate(controls), streams, len(stops), computed
    )


def _of_its_own(apart: Sequence[float]) -> tuple[bool | None, str]:
    """Whether the streams' next tokens are of another step than the prompt's first. A busy machine moves tokens by less
    than a step and widens the interval: then it is enough that every single stop says the same."""
    found = mean_estimate(apart)
    if isinstance(found, Refusal):
        return None, str(found)
    if found.low > _APART or min(apart) > _APART:
        return True, ""
    if found.high < _APART:
        return False, ""
    return None, (
        f"in one piece, but whether streams get tokens together with the prompt's first is open: {found.value:.0%} "
        f"of a step apart [{found.low:.0%}, {found.high:.0%}]; more repeats are needed"
    )


def _in_pieces(long: Sequence[int], share: dict[int, Estimate | Refusal], chunk_tokens: int) -> tuple[bool | None, str]:
    """Whether the longest prompt stops streams several times; None, and why, when that is open."""
    if not long:
        return None, f"no prompt was longer than one chunk of {chunk_tokens} tokens"
    longest = share[long[-1]]
    if isinstance(longest, Refusal):
        return None, f"prompts of {long[-1]} tokens: {longest}"
    if longest.low > _WHOLE:
        return False, ""
    # pieces of unequal length can hold most of it in one, and more repeats would not move that
    if longest.high < _WHOLE:
        return True, ""
    return None, (
        f"{longest.value:.0%} of the time lost to {long[-1]} tokens is in one piece "
        f"[{longest.low:.0%}, {longest.high:.0%}]: neither above nor below {_WHOLE:.0%}; "
        f"about {longest.samples} more repeats would decide it"
    )

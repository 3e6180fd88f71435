"""Prefill time of an idle server by prompt length, and of few tokens on top of a long cached prefix.

Decides: seconds by computed tokens and their form (chunk, per chunk, per token, constant). Over HTTP the constant holds
the client's and the server's overhead; the stall probe tells how much of it stops other streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slotgrid.measure.calibrate.bench import Bench
from slotgrid.measure.calibrate.plans import Ask, in_order
from slotgrid.measure.calibrate.rows import Seen
from slotgrid.measure.calibrate.statistics import Estimate, Refusal, mean_estimate

# around the edges of usual chunks, and in between
_SIZES = (16, 48, 64, 65, 96, 128, 129, 192, 256, 257, 320, 400, 500, 512, 513, 640, 800, 1000, 1500, 2000, 2048, 2049)
_LONG_SIZES = (3000, 4000, 6000, 8000, 12000)
_FEW = 8
# share of a prompt that may be cached
_COLD = 0.1


@dataclass(frozen=True)
class IdlePrefill:
    """One prompt on an idle server: tokens computed, seconds to the first token, and its round.

    planned_tokens: the length that was asked for, None where it is the same. Text has about as many tokens as planned,
    and each prompt another count: what is a repeat of what goes by the plan.
    """

    tokens: int
    seconds: float
    round: int
    planned_tokens: int | None = None

    @property
    def planned(self) -> int:
        return self.tokens if self.planned_tokens is None else self.planned_tokens


@dataclass(frozen=True)
class OnCached:
    """Few tokens on top of a cached prefix against as many on an idle server without one: seconds more, and ratio."""

    cached_tokens: int
    computed_tokens: int
    extra_s: Estimate | Refusal
    ratio: Estimate | Refusal


def sizes(max_seq_len: int) -> list[int]:
    """Prompt lengths that fit, the longest included."""
    room = max_seq_len - 1
    return sorted({q for q in (*_SIZES, *_LONG_SIZES) if q <= room} | {room})


def probe(bench: Bench, *, max_seq_len: int, rounds: int) -> list[IdlePrefill]:
    """Each round sends every length once, one after another, in an order of its own."""
    return [entry for r in range(rounds) for entry in one_round(bench, max_seq_len, r)]


def one_round(bench: Bench, max_seq_len: int, r: int) -> list[IdlePrefill]:
    """A round of :func:`probe`; asked for again it is the same."""
    name = f"prefill-r{r}"
    order = bench.order(sizes(max_seq_len), name)
    rows = bench.replay(name, in_order(bench.id(name), [Ask(q) for q in order]))
    return [
        IdlePrefill(row.prompt_tokens - (row.cached_tokens or 0), row.wait_s, r, q)
        for q, row in zip(order, rows, strict=True)
        if is_cold(row)
    ]


def is_cold(row: Seen) -> bool:
    """Whether a prompt was as good as computed whole. In blocks of 1 token the one that begins every text is a hit."""
    return (row.cached_tokens or 0) <= _COLD * row.prompt_tokens


def probe_cached(bench: Bench, *, max_seq_len: int, block_tokens: int, rounds: int) -> list[OnCached] | Refusal:
    """Prefixes of a quarter, half and nearly the whole length, and a few tokens on top of each; beside it the same
    tokens without a prefix."""
    room = max_seq_len - 1 - _FEW
    prefixes = sorted({room * part // 8 // block_tokens * block_tokens for part in (2, 4, 8)} - {0})
    if not prefixes:
        return Refusal(f"sequences of {max_seq_len} tokens hold no whole block of {block_tokens} and a few tokens more")
    pairs: dict[int, list[tuple[float, float]]] = {p: [] for p in prefixes}
    computed = {}
    for r in range(rounds):
        name = f"cached-r{r}"
        asks = []
        order = bench.order(prefixes, name)
        for p in order:
            asks += [Ask(0, f"p{p}", p), Ask(_FEW, f"p{p}", p), Ask(_FEW)]
        rows = bench.replay(name, in_order(bench.id(name), asks))
        for i, p in enumerate(order):
            back, cold = rows[3 * i + 1], rows[3 * i + 2]
            few = back.prompt_tokens - (back.cached_tokens or 0)
            if (back.cached_tokens or 0) >= p and few == cold.prompt_tokens - (cold.cached_tokens or 0):
                pairs[p].append((back.wait_s, cold.wait_s))
                computed[p] = few
    found = []
    for p in prefixes:
        if p in computed:
            extra = mean_estimate([back - cold for back, cold in pairs[p]])
            ratio = mean_estimate([back / cold for back, cold in pairs[p]])
            found.append(OnCached(p, computed[p], extra, ratio))
    return found or Refusal("no prefix was found again, so nothing was computed on top of one")


def by_round(found: Sequence[IdlePrefill], tokens: int) -> list[float]:
    """Seconds of one planned length over the rounds."""
    return [entry.seconds for entry in found if entry.planned == tokens]

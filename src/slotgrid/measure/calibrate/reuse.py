"""The reuse unit and rule: which prefix lengths hit, in which block, and whether generated tokens stay reusable.

Decides: the block, whether whole blocks up to the last prompt token but one are reused, whether generated tokens are.
Cannot decide anything where the server does not say ``cached_tokens``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slotgrid.measure.calibrate.bench import Bench
from slotgrid.measure.calibrate.plans import Ask, conversation, in_order
from slotgrid.measure.calibrate.rows import Seen
from slotgrid.measure.calibrate.statistics import Refusal

NOT_OBSERVABLE = (
    "not observable: the server does not report cached_tokens (vLLM: start it with --enable-prompt-tokens-details; "
    "where nothing is reused, as without prefix caching, it says nothing either)"
)
REPEATS = 2
# neither multiples of usual blocks nor of each other
_SCAN = (37, 75, 150, 290, 430, 700, 1500, 3000)


@dataclass(frozen=True)
class Return:
    """A request right after one whose prompt it begins with. Lengths in tokens."""

    previous_prompt: int
    previous_output: int
    prompt: int
    cached: int | None


@dataclass(frozen=True)
class Reuse:
    """What the returns show. block_tokens: the unit. generated_reusable: None when it was not decided."""

    block_tokens: int
    generated_reusable: bool | None
    samples: int
    longest_tokens: int
    undecided: str = ""


def probe(bench: Bench, max_seq_len: int) -> Reuse | Refusal:
    """Replay returns of many lengths, then of lengths around a block's edge."""
    room = max_seq_len - 2
    lengths = [p for p in _SCAN if p + 2 <= room] or [max(1, room // 2)]
    returns: list[Return] = []
    for r in range(REPEATS):
        returns += _returns(bench, f"reuse-scan-r{r}", lengths)
    found = estimate(returns)
    if isinstance(found, Refusal):
        return found
    block = found.block_tokens
    edges = [p for p in (block - 1, block, 2 * block - 1, 2 * block) if 1 < p <= room - 2]
    half = max(1, block // 2)
    generated = min(2 * block, max_seq_len - block - half - 2)
    for r in range(REPEATS):
        returns += _returns(bench, f"reuse-edge-r{r}", edges)
        if generated > half:
            turns = [(block + half, generated), (1, 1)]
            rows = bench.replay(f"reuse-generated-r{r}", conversation(bench.id(f"reuse-generated-r{r}"), turns))
            returns.append(_return(rows[0], rows[1], generated))
    return estimate(returns)


def _returns(bench: Bench, name: str, lengths: Sequence[int]) -> list[Return]:
    """For each length: a prompt, the same with one more token, and the same again."""
    asks = []
    for p in lengths:
        asks += [Ask(0, f"p{p}", p), Ask(1, f"p{p}", p), Ask(0, f"p{p}", p)]
    rows = bench.replay(name, in_order(bench.id(name), asks))
    returns = []
    for i in range(0, len(rows), 3):
        # the third shares with both before it no more than its own prompt
        returns += [_return(rows[i], rows[i + 1], 1), _return(rows[i], rows[i + 2], 1)]
    return returns


def _return(before: Seen, row: Seen, output: int) -> Return:
    return Return(before.prompt_tokens, output, row.prompt_tokens, row.cached_tokens)


def estimate(returns: Sequence[Return]) -> Reuse | Refusal:
    """The block and the rule that explain every return, or why there is none."""
    count = len(returns)
    known = [r for r in returns if r.cached is not None]
    if not known:
        return Refusal(NOT_OBSERVABLE, count)
    # some servers leave the field out where nothing was cached
    filled = [Return(r.previous_prompt, r.previous_output, r.prompt, r.cached or 0) for r in returns]
    plain = [r for r in filled if r.previous_output == 1]
    longest = max(min(r.previous_prompt, r.prompt - 1) for r in filled)
    block = math.gcd(*(r.cached or 0 for r in plain))
    if block == 0:
        return Refusal(
            f"no prefix of up to {longest} tokens was found again right after it was computed: the server reuses "
            "nothing, its block is longer, or it writes 0 where it does not know",
            count,
        )
    for r in plain:
        expected = min(r.previous_prompt, r.prompt - 1) // block * block
        if r.cached != expected:
            return Refusal(
                f"no block explains all returns: a prompt of {r.prompt} tokens after one of {r.previous_prompt} reused "
                f"{r.cached}, whole blocks of {block} would be {expected}",
                count,
            )
    generated, undecided = _generated(filled, block)
    return Reuse(block, generated, count, longest, undecided)


def _generated(returns: Sequence[Return], block: int) -> tuple[bool | None, str]:
    """Whether generated tokens are reused, or why that is open."""
    seen: set[bool] = set()
    for r in returns:
        without = min(r.previous_prompt, r.prompt - 1) // block * block
        with_them = min(r.previous_prompt + r.previous_output - 1, r.prompt - 1) // block * block
        if with_them == without:
            continue
        if r.cached not in (without, with_them):
            return None, (
                f"a prompt of {r.prompt} tokens after {r.previous_prompt} + {r.previous_output} generated reused "
                f"{r.cached}; {without} without and {with_them} with the generated ones would be expected"
            )
        seen.add(r.cached == with_them)
    if len(seen) == 1:
        return seen.pop(), ""
    return None, "no answer was long enough to tell" if not seen else "repeats disagree; more repeats are needed"

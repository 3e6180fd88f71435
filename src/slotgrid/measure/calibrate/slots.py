"""Slots and eviction: how many other requests a prefix survives, in which order prefixes go, what a hit does to it.

Decides: the cliff (the fewest other requests after which a prefix is lost), whether it counts requests or tokens,
whether a request with a hit takes a new slot, and whether prefixes go by allocation (FIFO) or by use (LRU). All
requests are sent one after another and generate one token, so nothing else holds a slot. Cannot decide anything where
the server does not say ``cached_tokens``, nor beyond the most requests that were tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slotgrid.measure.calibrate.bench import Bench
from slotgrid.measure.calibrate.plans import Ask, in_order
from slotgrid.measure.calibrate.statistics import Refusal

REPEATS = 2
OTHER_TOKENS = 24
# at least, where blocks are short: many times what every text begins with
_PREFIX_TOKENS = 32
# enough where blocks are short
_LONGER_TOKENS = 192

FIFO = "fifo by allocation"
LRU = "lru by use"


@dataclass(frozen=True)
class Slots:
    """cliff: others after which the prefix is lost; it survives one fewer.

    by_request: the cliff does not move with the length of the others; None when that was not decided.
    takes_slot: a request that hits takes a new slot. order: FIFO or LRU. Both None when not decided, see ``open``.
    """

    cliff: int
    by_request: bool | None
    takes_slot: bool | None
    order: str | None
    open: tuple[str, ...]
    samples: int

    @property
    def slots(self) -> int:
        """The prefix and the others that it survives; and one more where a returning request takes a slot of its own
        before it looks for its prefix. See ``certain``."""
        return self.cliff if self.takes_slot is False else self.cliff + 1

    @property
    def certain(self) -> bool:
        """Whether ``slots`` is known. Not where repeats disagreed about what a returning request does. Nor unless the
        cliff was seen to count requests: where longer ones take more it is of a pool of blocks, and counts only
        requests as short as the probe's; where that stayed open, or no longer one fits a sequence, it may be."""
        return self.cliff < 2 or (self.by_request is True and self.takes_slot is not None)

    def pool_tokens(self, block_tokens: int) -> int:
        """Tokens in the blocks of the prefix and of the others it survives: about what the pool holds."""
        others = (self.cliff - 1) * math.ceil(OTHER_TOKENS / block_tokens)
        return block_tokens * (_prefix_blocks(block_tokens) + others)


class UndecidedError(Exception):
    """Repeats of the same sequence disagree."""


# name and requests of a sequence -> whether the last request found its prefix
Hits = Callable[[str, Sequence[Ask]], bool]


def probe(bench: Bench, *, max_seq_len: int, block_tokens: int, most_slots: int) -> Slots | Refusal:
    """Replay sequences until the cliff is found, then the ones that tell the orders apart."""
    count = 0
    prefix = min(block_tokens * _prefix_blocks(block_tokens), max_seq_len - 3)

    def hits(name: str, asks: Sequence[Ask]) -> bool:
        nonlocal count
        seen = []
        for r in range(REPEATS):
            full = f"slots-{name}-r{r}"
            cached = bench.replay(full, in_order(bench.id(full), asks))[-1].cached_tokens
            count += 1
            # the server reports hits, as the reuse probe has seen; some leave a miss out, and in blocks of 1 token the
            # one that begins every text is always found
            seen.append(2 * (cached or 0) >= prefix)
        if len(set(seen)) > 1:
            raise UndecidedError(
                f"{sum(seen)} of {REPEATS} repeats of {name} found the prefix; is there other traffic?"
            )
        return seen[0]

    longer = longer_tokens(block_tokens, max_seq_len)
    try:
        return decide(hits, prefix_tokens=prefix, longer_tokens=longer, most=most_slots, samples=lambda: count)
    except UndecidedError as error:
        return Refusal(str(error), count)


def _prefix_blocks(block_tokens: int) -> int:
    return max(2, math.ceil(_PREFIX_TOKENS / block_tokens))


def longer_tokens(block_tokens: int, max_seq_len: int) -> int | None:
    """Tokens of requests that take more blocks than the usual others: three at least. None where they do not fit."""
    longer = min(max(_LONGER_TOKENS, 2 * block_tokens + 1), max_seq_len - 2)
    return longer if longer >= max(2 * block_tokens + 1, 2 * OTHER_TOKENS) else None


def decide(
    hits: Hits, *, prefix_tokens: int, longer_tokens: int | None, most: int, samples: Callable[[], int] = lambda: 0
) -> Slots | Refusal:
    """The rules behind a server that answers sequences. longer_tokens: of others that take more blocks, None where such
    a request does not fit. Raises UndecidedError when repeats disagree about the cliff; a question beside it that they
    disagree about stays open."""

    def known(name: str) -> Ask:
        """The first request of a prefix."""
        return Ask(0, name, prefix_tokens)

    def back(name: str, times: int = 1) -> list[Ask]:
        return [Ask(1, name, prefix_tokens)] * times

    def others(count: int, tokens: int = OTHER_TOKENS) -> list[Ask]:
        return [Ask(tokens)] * count

    def survives(count: int, tokens: int = OTHER_TOKENS) -> bool:
        return hits(f"after{count}x{tokens}", [known("y"), *others(count, tokens), *back("y")])

    if not survives(0):
        return Refusal("no prefix is found again at once: nothing can be said about eviction", samples())
    low, high = 0, 1
    while survives(high):
        if high >= most:
            return Refusal(
                f"the prefix survived {high} other requests, the most that were tried (--most-slots)", samples()
            )
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if survives(middle) else (low, middle)
    cliff, open_questions = high, []

    def asked(question: Callable[[], bool]) -> bool | None:
        try:
            return question()
        except UndecidedError as error:
            open_questions.append(str(error))
            return None

    # fewer of the longer ones would already be too many if tokens counted
    by_request: bool | None = None
    if cliff < 2:
        open_questions.append("one other request is enough to lose a prefix: whether its length matters cannot be seen")
    elif longer_tokens is None:
        open_questions.append(
            "no request of more than two blocks fits a sequence: whether length matters cannot be seen"
        )
    else:
        by_request = asked(lambda: survives(cliff - 1, longer_tokens))
    takes_slot: bool | None = None
    order: str | None = None
    if cliff < 2:
        open_questions.append("one other request is enough to lose a prefix: its order of eviction cannot be seen")
    else:
        # X returns again and again: if each return takes a slot, Y is lost as after that many others
        stays = asked(lambda: hits("returns", [known("x"), known("y"), *back("x", cliff), *back("y")]))
        takes_slot = None if stays is None else not stays
        if takes_slot is None:
            open_questions.append("whether a hit takes a slot is open, and the order of eviction with it")
        elif takes_slot:
            # a used X would stay and Y would have to go one request earlier
            kept = asked(
                lambda: hits("used-before", [known("x"), known("y"), *back("x"), *others(cliff - 2), *back("y")])
            )
            order = None if kept is None else FIFO if kept else LRU
        else:
            # Y was used half way: by use it lives on from there, by allocation its time has run out
            used = [known("y"), *others(cliff - 1), *back("y"), *others(cliff - 1), *back("y")]
            kept = asked(lambda: hits("used-itself", used))
            order = None if kept is None else LRU if kept else FIFO
    return Slots(cliff, by_request, takes_slot, order, tuple(open_questions), samples())

"""The summary in words. Each sentence carries the rule that made it and the numbers it rests on.

The verdict follows one rule: frequent losses and much recomputed prefill ask for more slots first; else, where fitted
buckets save enough, the buckets should follow the observed counts; else nothing worth a compilation is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# a loss is frequent from this share of the returns on
FREQUENT_LOSS = 0.25
# recomputed prefill is much from this share of device time on (of computed tokens where there is no price)
MUCH_RECOMPUTED = 0.02
MUCH_RECOMPUTED_TOKENS = 0.10
# other buckets are worth it from this share of device time on (of computed rows where there is no price)
WORTH_FITTING = 0.01
WORTH_FITTING_ROWS = 0.05


@dataclass(frozen=True)
class Sentence:
    """text: what to tell a person. rule: why it is said. numbers: what it rests on."""

    topic: str
    text: str
    rule: str
    numbers: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON values."""
        return {"topic": self.topic, "text": self.text, "rule": self.rule, "numbers": dict(self.numbers)}


@dataclass(frozen=True)
class Facts:
    """The numbers the sentences are made of; None is not observed.

    recomputed_s: additional prefill of all losses (incremental). saved_s: decode seconds a fitted list of the same
    length saves; floor_saved_s: the same with a bucket for every running count. *_rows: the same in computed rows.
    enough_slots: fewest slots of the survival curve that keep the most, and how many that is.
    """

    returns: int | None
    lost_returns: int | None
    lost_tokens: int | None
    computed_tokens: int | None
    recomputed_s: float | None
    device_s: float | None
    causes: Mapping[str, int]
    slots: int | None
    enough_slots: tuple[int, int] | None
    padding_ratio: float | None
    buckets: tuple[int, ...] | None
    fitted: tuple[int, ...] | None
    saved_s: float | None
    floor_saved_s: float | None
    saved_rows: float | None
    floor_saved_rows: float | None
    stall_session_s: float | None
    beside_decode_s: float | None
    longest_wait_s: float | None


def summarize(facts: Facts) -> tuple[Sentence, ...]:
    """The sentences, the verdict last."""
    sentences = [_reuse(facts), _padding(facts)]
    if facts.stall_session_s is not None:
        sentences.append(_interference(facts))
    sentences.append(_verdict(facts))
    return tuple(sentences)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _percent(value: float) -> str:
    return f"{value * 100:.1f} %"


def _list(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes))


def loss_share(facts: Facts) -> float | None:
    """Lost returns over returns; 0 when there are none."""
    if facts.returns is None or facts.lost_returns is None:
        return None
    return facts.lost_returns / facts.returns if facts.returns else 0.0


def _reuse(facts: Facts) -> Sentence:
    rule = "lost: a return computed tokens its previous turn had left in a slot"
    if facts.returns is None:
        return Sentence("reuse", "Reuse is not observable: the request rows name no sessions.", rule, {})
    if facts.lost_returns is None or facts.lost_tokens is None:
        text = f"Reuse is not observable: the cached tokens of the {facts.returns} returns are not all known."
        return Sentence("reuse", text, rule, {"returns": facts.returns})
    if facts.returns == 0:
        return Sentence("reuse", "No request continues a session: there is nothing to reuse.", rule, {"returns": 0})
    if facts.lost_returns == 0:
        text = f"All {facts.returns} returns found their prefix in a slot."
        return Sentence("reuse", text, rule, {"returns": facts.returns, "lost_returns": 0})
    text = (
        f"{facts.lost_returns} of {facts.returns} returns lost prefix tokens: {facts.lost_tokens:,} tokens were "
        "computed again"
    )
    if facts.recomputed_s is not None:
        text += f", {facts.recomputed_s:.3f} s more prefill"
        share = _share(facts.recomputed_s, facts.device_s)
        if share is not None:
            text += f" ({_percent(share)} of device time)"
    named = [f"{count} by {_CAUSE_WORDS[name]}" for name, count in facts.causes.items() if count]
    if named:
        text += f"; lost {', '.join(named)}"
    return Sentence(
        "reuse",
        text + ".",
        rule,
        {
            "returns": facts.returns,
            "lost_returns": facts.lost_returns,
            "lost_tokens": facts.lost_tokens,
            "recomputed_s": facts.recomputed_s,
            "device_s": facts.device_s,
            **{f"lost_by_{name}": count for name, count in facts.causes.items()},
        },
    )


_CAUSE_WORDS = {"admission": "admission", "padding": "the padding slot", "unknown": "a cause the log does not tell"}


def _padding(facts: Facts) -> Sentence:
    rule = "the other list has the same number of sizes and the same top, and is the cheapest for the observed counts"
    if facts.padding_ratio is None:
        return Sentence("padding", "The step distribution is not observed, so nothing is known of padding.", rule, {})
    text = f"{_percent(facts.padding_ratio)} of the rows computed in decode steps are padding"
    numbers: dict[str, Any] = {"padding_ratio": facts.padding_ratio}
    if facts.fitted is not None:
        numbers.update(
            buckets=None if facts.buckets is None else list(facts.buckets),
            fitted=list(facts.fitted),
            saved_s=facts.saved_s,
            saved_rows=facts.saved_rows,
        )
        if facts.fitted == facts.buckets:
            text += "; no list of as many sizes fits the observed counts better"
        elif facts.saved_s is not None:
            share = _share(facts.saved_s, facts.device_s)
            text += f"; buckets {_list(facts.fitted)} would save {facts.saved_s:.3f} s of decode on the same steps"
            text += f" ({_percent(share)} of device time)" if share is not None else ""
        elif facts.saved_rows is not None:
            text += f"; buckets {_list(facts.fitted)} would compute {_percent(facts.saved_rows)} fewer rows"
    return Sentence("padding", text + ".", rule, numbers)


def _interference(facts: Facts) -> Sentence:
    assert facts.stall_session_s is not None
    text = f"Requests that decoded waited {facts.stall_session_s:.3f} session-seconds for prefills of others"
    if facts.beside_decode_s is not None:
        text += f" ({facts.beside_decode_s:.3f} s of prefill ran beside decoding requests)"
    if facts.longest_wait_s is not None:
        text += f"; the longest wait of one request was {facts.longest_wait_s:.3f} s"
    return Sentence(
        "interference",
        text + ".",
        "a prefill stops every request that decodes for its whole length; never added to device time",
        {
            "stall_session_s": facts.stall_session_s,
            "prefill_beside_decode_s": facts.beside_decode_s,
            "longest_wait_s": facts.longest_wait_s,
        },
    )


def _verdict(facts: Facts) -> Sentence:
    loss = loss_share(facts)
    priced = facts.device_s is not None and facts.device_s > 0
    if priced:
        recomputed = 0.0 if facts.lost_returns == 0 else _share(facts.recomputed_s, facts.device_s)
        fitting = _share(facts.saved_s, facts.device_s)
        floor = _share(facts.floor_saved_s, facts.device_s)
        much, worth = MUCH_RECOMPUTED, WORTH_FITTING
        of_prefill = of_decode = "of device time"
    else:
        recomputed = 0.0 if facts.lost_returns == 0 else _share(facts.lost_tokens, facts.computed_tokens)
        fitting, floor = facts.saved_rows, facts.floor_saved_rows
        # without a profile tokens and rows stand for seconds
        much, worth = MUCH_RECOMPUTED_TOKENS, WORTH_FITTING_ROWS
        of_prefill, of_decode = "of the computed prompt tokens", "of the computed decode rows"
    rule = (
        f"losses frequent (>= {_percent(FREQUENT_LOSS)} of returns) and recomputed prefill >= {_percent(much)} "
        f"{of_prefill}: slots first; else fitted buckets save >= {_percent(worth)} {of_decode}: buckets; else fine"
    )
    numbers = {
        "loss_share": loss,
        "recomputed_share": recomputed,
        "fitting_share": fitting,
        "floor_share": floor,
        "priced": priced,
    }
    if loss is not None and recomputed is not None and loss >= FREQUENT_LOSS and recomputed >= much:
        text = (
            f"More slots first: {_percent(loss)} of returns lose their prefix and {_percent(recomputed)} {of_prefill}"
        )
        text += " is prefill computed again"
        if facts.enough_slots is not None and facts.slots is not None and facts.enough_slots[0] > facts.slots:
            slots, kept = facts.enough_slots
            text += f"; in the same order of events {slots} slots instead of {facts.slots} keep {kept}"
            text += f" of {facts.returns}"
            numbers |= {"slots": facts.slots, "enough_slots": slots, "kept_with_enough": kept}
        return Sentence("verdict", text + ".", rule, numbers)
    open_questions = []
    if loss is None or recomputed is None:
        open_questions.append("whether more slots help cannot be told, reuse is not observable or not priced")
    if fitting is None:
        open_questions.append("whether other buckets help cannot be told, steps are not observed or not priced")
    rest = "".join(f"; {question}" for question in open_questions)
    if fitting is not None and fitting >= worth and facts.fitted is not None:
        lead = "Fit"
        if loss is not None:
            lead = f"Reuse is mostly kept or cheap to lose ({_percent(1 - loss)} of returns lose none): fit"
        text = f"{lead} the buckets to the observed counts: {_list(facts.fitted)} saves {_percent(fitting)} {of_decode}"
        return Sentence("verdict", f"{text}{rest}.", rule, numbers)
    if open_questions:
        known = (
            "Nothing worth a compilation was found in what is observed" if len(open_questions) == 1 else "No verdict"
        )
        return Sentence("verdict", f"{known}{rest}.", rule, numbers)
    assert recomputed is not None
    if priced:
        bound = recomputed + (floor or 0.0)
        numbers["bound_share"] = bound
        gain = f"{_percent(bound)} of device time on these steps"
    else:
        gain = f"{_percent(recomputed)} {of_prefill} and {_percent(floor or 0.0)} {of_decode}"
    text = f"The configuration is fine: slots and buckets have nothing to gain above {gain}"
    if priced:
        text += (
            f" ({_percent(recomputed)} recomputed prefill, {_percent(floor or 0.0)} with a bucket for every observed "
            "count)"
        )
    return Sentence("verdict", f"{text}.", rule, numbers)

"""What was found as profile TOML: every value with unit, interval, samples and conditions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slotgrid.measure.calibrate.prefill_fit import PrefillFit
from slotgrid.measure.calibrate.reuse import Reuse
from slotgrid.measure.calibrate.session import Found
from slotgrid.measure.calibrate.stall import Stall
from slotgrid.measure.calibrate.statistics import Estimate, Refusal
from slotgrid.profile import Finding
from slotgrid.profile.stack_profile import FORMAT


@dataclass(frozen=True)
class Head:
    """What a profile says of itself."""

    id: str
    description: str
    stack: str
    model_id: str
    hardware: str
    software: str
    rules: str
    source: str
    conditions: str


@dataclass(frozen=True)
class Stated:
    """What the user says where the server does not show it; None where the user does not either."""

    block_tokens: int | None = None
    generated_reusable: bool | None = None


def missing(found: Found, stated: Stated) -> list[str]:
    """What a profile cannot do without and was not found, each with its reason."""
    gaps = []
    if isinstance(found.decode, Refusal):
        gaps.append(f"decode cost: {found.decode}")
    if isinstance(found.prefill, Refusal):
        gaps.append(f"prefill cost: {found.prefill}")
    if isinstance(found.reuse, Refusal):
        if stated.block_tokens is None or stated.generated_reusable is None:
            gaps.append(f"reuse: {found.reuse}; or state it with --block-tokens and --generated-reusable")
    elif found.reuse.generated_reusable is None and stated.generated_reusable is None:
        gaps.append(f"generated tokens: {found.reuse.undecided}; or state it with --generated-reusable")
    return gaps


def overhead(prefill: PrefillFit, stall: Stall | Refusal) -> Estimate | None:
    """Seconds to the first token beyond what a prefill takes from other streams: the client's, the connection's and the
    server's, which take no device time. None where prefills are not known to stop streams in one piece, too few were
    seen, or what they take is less certain than the constant is long: then nothing can be taken off it."""
    if isinstance(stall, Refusal) or stall.exclusive is None or stall.pieces:
        return None
    known = [(q, lost) for q, lost in stall.lost.items() if isinstance(lost, Estimate)]
    if not known:
        return None
    # the shortest prompt: the misfit of the form is smallest there
    q, lost = known[0]
    if lost.high - lost.low > prefill.constant.value:
        return None
    beyond = prefill.seconds(stall.tokens(q)) - lost.value
    return Estimate(beyond, beyond - lost.half_width, beyond + lost.half_width, lost.samples)


def less(constant: Estimate, beyond: Estimate) -> Estimate:
    """What is left of a cost: the least where most is taken off, and the other way round; never below 0."""
    value, low, high = constant.value - beyond.value, constant.low - beyond.high, constant.high - beyond.low
    return Estimate(max(0.0, value), max(0.0, low), max(0.0, high), constant.samples)


def profile_text(
    head: Head, found: Found, stated: Stated, *, slot_tokens: int, clock: str, findings: Sequence[Finding]
) -> str:
    """The profile; call it when nothing is :func:`missing`."""
    return "\n".join(_lines(head, found, stated, slot_tokens, clock, findings)) + "\n"


def _lines(
    head: Head, found: Found, stated: Stated, slot_tokens: int, clock: str, findings: Sequence[Finding]
) -> Iterator[str]:
    decode, prefill, reuse = found.decode, found.prefill, found.reuse
    assert not isinstance(decode, Refusal)
    assert not isinstance(prefill, Refusal)
    yield f"format = {_text(FORMAT)}"
    for key in ("id", "description", "stack", "model_id", "hardware", "software", "rules"):
        if getattr(head, key):
            yield f"{key} = {_text(getattr(head, key))}"
    if isinstance(found.turnaround, Estimate):
        yield f"turnaround = {_inline(found.turnaround, 'ms', head, 'answer to next request, one client')}"
    yield from ("", "[price.decode]")
    low, high = decode.context_tokens
    context = f"contexts of {low:.0f} to {high:.0f} tokens"
    yield f"base = {_zero('ms', head, 'counted in the fixed parts')}"
    if decode.per_request is None:
        yield f"per_request = {_zero('ms', head, 'not separable from the fixed parts, counted there')}"
    else:
        yield f"per_request = {_inline(decode.per_request, 'ms', head, context)}"
    if decode.per_context_token is not None:
        yield f"per_context_token = {_inline(decode.per_context_token, 'us', head, context)}"
    yield f"running_range = [{decode.running[0]}, {decode.running[1]}]"
    yield f"context_range = [{math.floor(low)}, {math.ceil(high)}]"
    for bucket, estimate in decode.fixed:
        yield from ("[[price.decode.fixed]]", f"bucket = {bucket}", *_pairs(estimate, "ms", head, context))
    yield from ("", "[price.prefill]", f"chunk_tokens = {prefill.chunk_tokens}")
    alone = "prompts alone on an idle server"
    yield f"per_chunk = {_inline(prefill.per_chunk, 'ms', head, alone)}"
    yield f"per_token = {_inline(prefill.per_token, 'us', head, alone)}"
    beyond = overhead(prefill, found.stall) if clock == "wall" else None
    constant = prefill.constant
    if beyond is not None:
        constant = less(constant, beyond)
        alone += f", less {beyond.value * 1e3:.3f} ms to the first token that stop no other stream"
    elif clock == "wall":
        alone += ", with whatever stops no other stream (not certain enough to take off)"
    yield f"constant = {_inline(constant, 'ms', head, alone)}"
    yield f"computed_tokens_range = [{prefill.tokens[0]}, {prefill.tokens[1]}]"
    yield from ("", "[kv]", f"slot_tokens = {slot_tokens}", *_kv(reuse, stated))
    for finding in findings:
        yield from ("", "[[finding]]", f"name = {_text(finding.name)}")
        if finding.value:
            yield f"value = {_text(finding.value)}"
        if finding.reason:
            yield f"reason = {_text(finding.reason)}"
        yield f"samples = {finding.samples}"
        yield f"conditions = {_text(finding.conditions)}"


def _kv(reuse: Reuse | Refusal, stated: Stated) -> Iterator[str]:
    measured = not isinstance(reuse, Refusal)
    block = reuse.block_tokens if not isinstance(reuse, Refusal) else stated.block_tokens
    generated = stated.generated_reusable
    if not isinstance(reuse, Refusal) and reuse.generated_reusable is not None:
        generated = reuse.generated_reusable
    yield f"block_tokens = {block}"
    yield f"generated_reusable = {str(generated).lower()}"
    yield f"source = {_text('returns of many lengths' if measured else 'stated by the user, not measured')}"


def _text(value: str) -> str:
    # every JSON string is a TOML string, except for DEL, which JSON leaves as it is
    return json.dumps(value).replace("\x7f", "\\u007f")


_PER_SECOND = {"ms": 1e3, "us": 1e6}


def _pairs(estimate: Estimate, unit: str, head: Head, conditions: str) -> list[str]:
    shown = estimate.scaled(_PER_SECOND[unit])
    return [
        f"value = {shown.value:.6g}",
        f"unit = {_text(unit)}",
        'kind = "measured"',
        f"source = {_text(head.source)}",
        f"interval = [{shown.low:.6g}, {shown.high:.6g}]",
        f"samples = {shown.samples}",
        f"conditions = {_text(f'{conditions}; {head.conditions}')}",
    ]


def _inline(estimate: Estimate, unit: str, head: Head, conditions: str) -> str:
    return "{ " + ", ".join(_pairs(estimate, unit, head, conditions)) + " }"


def _zero(unit: str, head: Head, why: str) -> str:
    return f'{{ value = 0, unit = {_text(unit)}, kind = "derived", source = {_text(f"{head.source}: {why}")} }}'

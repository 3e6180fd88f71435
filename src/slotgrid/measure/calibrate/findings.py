"""What was found, as findings: the answer in words, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slotgrid.measure.calibrate.prefill import OnCached
from slotgrid.measure.calibrate.prefill_fit import PrefillFit
from slotgrid.measure.calibrate.session import Asked, Found
from slotgrid.measure.calibrate.slots import OTHER_TOKENS, Slots
from slotgrid.measure.calibrate.stall import Stall
from slotgrid.measure.calibrate.statistics import Estimate, Refusal
from slotgrid.profile import Finding


class Add(Protocol):
    """Takes a name, the answer or why there is none, its samples and what it was measured under."""

    def __call__(self, name: str, value: str | Refusal, samples: int = 0, under: str = "") -> None: ...


def findings(found: Found, asked: Asked, conditions: str) -> tuple[Finding, ...]:
    """Everything that was asked, in the order of the probes."""
    made: list[Finding] = []

    def add(name: str, value: str | Refusal, samples: int = 0, under: str = "") -> None:
        said = f"{under}; {conditions}" if under else conditions
        if isinstance(value, Refusal):
            made.append(Finding(name, "", value.samples, said, str(value)))
        else:
            made.append(Finding(name, value, samples, said))

    reuse = found.reuse
    if isinstance(reuse, Refusal):
        add("reuse block", reuse)
        add("generated tokens", reuse)
    else:
        up_to = f"prefixes of up to {reuse.longest_tokens} tokens"
        add("reuse block", f"{reuse.block_tokens} tokens, whole blocks, never the last token", reuse.samples, up_to)
        words = {True: "stay reusable", False: "are not reusable"}
        generated = reuse.generated_reusable
        add("generated tokens", words[generated] if generated is not None else Refusal(reuse.undecided), reuse.samples)
    limit = found.limit
    more = "" if limit.reached else " or more"
    together: str | Refusal = f"{limit.most}{more}"
    if limit.open:
        together = Refusal(
            f"{limit.most} of {limit.tried} were seen together, but none waited for another to finish", 1
        )
    add("running together", together, 1, f"{limit.tried} streams sent at once")
    _decode(found, asked, add)
    _prefill(found, add)
    _slots(found.slots, None if isinstance(reuse, Refusal) else reuse.block_tokens, add)
    if isinstance(found.turnaround, Refusal):
        add("client turnaround", found.turnaround)
    else:
        add("client turnaround", milliseconds(found.turnaround), found.turnaround.samples)
    return tuple(made)


def _decode(found: Found, asked: Asked, add: Add) -> None:
    if isinstance(found.levels, Refusal):
        add("decode steps", found.levels)
        return
    for n, step in found.levels.step.items():
        add(f"step of {n}", step if isinstance(step, Refusal) else milliseconds(step), getattr(step, "samples", 0))
    detected = found.detected
    if isinstance(detected, Refusal):
        add("buckets in the times", detected)
    else:
        text = ",".join(map(str, detected.buckets))
        if detected.open_edges:
            edges = ", ".join(map(str, detected.open_edges))
            reason = f"most likely {text}, but whether a bucket ends at {edges} is open"
            add("buckets in the times", Refusal(reason, found.levels.rounds, detected.more_repeats))
        else:
            unseen = f"{text} (a rise below {detected.smallest_step:.0%} would not be seen)"
            add("buckets in the times", unseen, found.levels.rounds)
    if asked.buckets is not None:
        add("buckets", ",".join(map(str, asked.buckets)) + " (stated, used)", 1)
    fit = found.decode
    if isinstance(fit, Refusal):
        add("decode cost", fit)
        return
    low, high = fit.context_tokens
    context: str | Refusal = fit.context
    if fit.per_context_token is None:
        context = Refusal(f"{fit.context}: left out", fit.runs)
    add("part per context token", context, fit.runs, f"contexts of {low:.0f} to {high:.0f} tokens")
    request: str | Refusal = fit.request
    if fit.per_request is None:
        request = Refusal(f"{fit.request}: counted in the fixed parts", fit.runs)
    add("part per request", request, fit.runs)
    add("decode residual", f"{fit.rms:.1%} (largest {fit.worst:.1%})", fit.runs)


def _prefill(found: Found, add: Add) -> None:
    fit = found.prefill
    if isinstance(fit, Refusal):
        add("prefill cost", fit)
    else:
        also = f"; the times do not tell it from {', '.join(map(str, fit.also))}" if fit.also else ""
        add("prefill chunk", f"{fit.chunk_tokens} tokens{also}", fit.samples)
        add("prefill residual", f"{fit.rms:.1%} (largest {fit.worst:.1%})", fit.samples)
    stall = found.stall
    if isinstance(stall, Refusal):
        add("prefill beside streams", stall)
    else:
        _stall(stall, fit, add)
    cached = found.cached
    if isinstance(cached, Refusal):
        add("prefill on cached context", cached)
    else:
        _on_cached(cached, add)


def _stall(stall: Stall, fit: PrefillFit | Refusal, add: Add) -> None:
    beside = f"{stall.streams} streams"
    longest = max(stall.lost)
    if stall.exclusive is None:
        add("prefill beside streams", Refusal(stall.undecided, stall.samples), under=beside)
    else:
        if stall.exclusive:
            words = "exclusive: every stream stops for the whole prefill, in one piece"
        elif stall.unequal:
            words = "mixed into decode steps: streams stop in several pieces of unequal length"
        elif stall.pieces:
            words = "mixed into decode steps: streams slow down over several steps"
        else:
            words = "mixed into one decode step: streams get their tokens that late, together with the prompt's first"
        add("prefill beside streams", words, stall.samples, f"{beside}, up to {longest} tokens")
    for q, lost in stall.lost.items():
        if isinstance(lost, Refusal):
            add(f"stall of {q} tokens", lost, under=beside)
            continue
        share = stall.share[q]
        text = milliseconds(lost)
        if isinstance(share, Estimate):
            text += f", {min(share.value, 1.0):.0%} in one piece"
        if isinstance(fit, PrefillFit):
            text += f", {lost.value / fit.seconds(stall.tokens(q)):.2f} x the same prompt alone"
        add(f"stall of {q} tokens", text, lost.samples, beside)
    control = stall.control
    if isinstance(control, Refusal):
        add("control without injection", control)
    else:
        add("control without injection", f"largest gap {control.value:.2f} x a step", control.samples, beside)


def _on_cached(cached: Sequence[OnCached], add: Add) -> None:
    for entry in cached:
        name = f"{entry.computed_tokens} tokens on {entry.cached_tokens} cached"
        if isinstance(entry.ratio, Refusal) or isinstance(entry.extra_s, Refusal):
            add(name, entry.ratio if isinstance(entry.ratio, Refusal) else Refusal(str(entry.extra_s)))
            continue
        ratio = entry.ratio
        add(
            name,
            f"{ratio.value:.2f} x the same tokens alone [{ratio.low:.2f}, {ratio.high:.2f}], "
            f"{milliseconds(entry.extra_s)} more",
            ratio.samples,
        )


def _slots(found: Slots | Refusal, block_tokens: int | None, add: Add) -> None:
    if isinstance(found, Refusal):
        add("slots", found)
        add("eviction order", found)
        return
    if found.by_request is False and block_tokens is not None:
        count = f"none, a pool of blocks for about {found.pool_tokens(block_tokens):,} tokens"
        others = f"{found.cliff - 1} other requests of {OTHER_TOKENS} tokens"
    else:
        settled = found.cliff < 2 or found.takes_slot is not None
        count = str(found.slots) if settled else f"{found.cliff} or {found.cliff + 1}"
        others = f"{found.cliff - 1} other requests"
        if found.by_request is None and found.cliff > 1:
            count += ", if requests count and not tokens"
            others += f" of {OTHER_TOKENS} tokens"
    add("slots", f"{count}: a prefix survives {others} and is lost after {found.cliff}", found.samples)
    reason = Refusal("; ".join(found.open), found.samples)

    def either(name: str, answer: bool | None, yes: str, no: str) -> None:
        add(name, reason if answer is None else yes if answer else no, found.samples)

    either(
        "slots are taken", found.by_request, "by request, whatever its length", "by tokens: longer requests take more"
    )
    place = "blocks" if found.by_request is False else "slot"
    new = place if place == "blocks" else "a new slot"
    either("a request that hits", found.takes_slot, f"takes {new}", f"stays in the {place} it found")
    add("eviction order", found.order or reason, found.samples)


def milliseconds(value: Estimate) -> str:
    return f"{value.value * 1e3:.3f} ms [{value.low * 1e3:.3f}, {value.high * 1e3:.3f}]"

"""All probes in order, and what they found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slotgrid.measure.calibrate import decode, limit, prefill, reuse, slots, stall, turnaround
from slotgrid.measure.calibrate.bench import Bench
from slotgrid.measure.calibrate.buckets import Buckets, detect
from slotgrid.measure.calibrate.decode import Levels
from slotgrid.measure.calibrate.decode_fit import DecodeFit
from slotgrid.measure.calibrate.decode_fit import fit as fit_decode
from slotgrid.measure.calibrate.limit import RunningLimit
from slotgrid.measure.calibrate.prefill import IdlePrefill, OnCached
from slotgrid.measure.calibrate.prefill_fit import PrefillFit
from slotgrid.measure.calibrate.prefill_fit import fit as fit_prefill
from slotgrid.measure.calibrate.reuse import NOT_OBSERVABLE, Reuse
from slotgrid.measure.calibrate.slots import Slots
from slotgrid.measure.calibrate.stall import Stall
from slotgrid.measure.calibrate.statistics import FEWEST_REPEATS, Estimate, Refusal


@dataclass(frozen=True)
class Asked:
    """What the user says, and how much is measured.

    max_seq_len: tokens a sequence may have. buckets: compiled sizes, None to detect them. top: most streams to measure,
    None for the running limit. rounds: repeats at least, most_rounds: at most. most_streams, most_slots: where the
    search for the limits ends.
    """

    max_seq_len: int
    buckets: tuple[int, ...] | None = None
    top: int | None = None
    rounds: int = 3
    most_rounds: int = 6
    most_streams: int = 64
    most_slots: int = 128


@dataclass(frozen=True)
class Found:
    """What the probes found; a Refusal says why something is missing."""

    reuse: Reuse | Refusal
    limit: RunningLimit
    levels: Levels | Refusal
    detected: Buckets | Refusal
    buckets: tuple[int, ...] | None
    decode: DecodeFit | Refusal
    prefill: PrefillFit | Refusal
    stall: Stall | Refusal
    cached: Sequence[OnCached] | Refusal
    slots: Slots | Refusal
    turnaround: Estimate | Refusal


def run_probes(bench: Bench, asked: Asked) -> Found:
    """Every probe once; each decides with what the ones before it found."""
    length = asked.max_seq_len
    bench.say("reuse: which prefix lengths hit")
    reused = reuse.probe(bench, length)
    block = reused.block_tokens if isinstance(reused, Reuse) else None
    bench.say("running limit: how many streams generate together")
    running = limit.probe(bench, min(asked.most_streams, 2 * asked.top) if asked.top else asked.most_streams)
    top = running.most if asked.top is None else min(asked.top, running.most)
    bench.say(f"decode: 1 to {top} streams in lock step, and prompts of many lengths after each round")
    levels = decode.probe(
        bench,
        top=top,
        max_seq_len=length,
        rounds=asked.rounds,
        most_rounds=asked.most_rounds,
        buckets_known=asked.buckets is not None,
        # a machine that is slow for a minute must not make one of them dear against the other
        after_round=lambda r: prefill.one_round(bench, length, r),
    )
    detected, sizes, decoded = _decode(levels, top, asked)
    rounds = asked.rounds if isinstance(levels, Refusal) else max(asked.rounds, levels.rounds)
    measured = prefill.probe(bench, max_seq_len=length, rounds=rounds)
    prefilled = fit_prefill(measured, prefer_chunk=block)
    bench.say("stall: prompts beside running streams, and a control without")
    stalled = _stall(bench, asked, levels, measured, prefilled, top)
    cached: Sequence[OnCached] | Refusal = Refusal(NOT_OBSERVABLE)
    slot_rules: Slots | Refusal = Refusal("no reuse was seen, so no loss of it can be")
    if block is not None:
        bench.say("prefill on long cached context")
        cached = prefill.probe_cached(bench, max_seq_len=length, block_tokens=block, rounds=asked.rounds)
        bench.say("slots: how many other requests a prefix survives, and in which order prefixes go")
        slot_rules = slots.probe(bench, max_seq_len=length, block_tokens=block, most_slots=asked.most_slots)
    bench.say("client turnaround")
    gap = turnaround.probe(bench, asked.rounds)
    return Found(
        reuse=reused,
        limit=running,
        levels=levels,
        detected=detected,
        buckets=sizes,
        decode=decoded,
        prefill=prefilled,
        stall=stalled,
        cached=cached,
        slots=slot_rules,
        turnaround=gap,
    )


def _decode(
    levels: Levels | Refusal, top: int, asked: Asked
) -> tuple[Buckets | Refusal, tuple[int, ...] | None, DecodeFit | Refusal]:
    """Detected buckets, those that are used (the stated ones first), and the fit with them."""
    if isinstance(levels, Refusal):
        return levels, None, levels
    steps = decode.steps_of(levels.runs)
    detected = detect(steps)
    for n, found in levels.step.items():
        # a count whose replays scatter is no reason: the fit has those of the whole bucket, and judges them
        if isinstance(found, Refusal) and len(steps.get(n, ())) < FEWEST_REPEATS:
            return detected, None, Refusal(f"{n} in lock step: {found}", found.samples)
    if asked.buckets is not None:
        sizes = tuple(b for b in asked.buckets if b < top)
        # the bucket that the largest measured count runs in
        sizes += tuple(b for b in asked.buckets if b >= top)[:1]
    elif isinstance(detected, Refusal):
        return detected, None, detected
    elif detected.open_edges:
        reason = f"the times do not settle the buckets (most likely {','.join(map(str, detected.buckets))})"
        return detected, None, Refusal(f"{reason}, state them with --buckets", levels.rounds, detected.more_repeats)
    else:
        sizes = detected.buckets
    if not sizes or sizes[-1] < top:
        return detected, None, Refusal(f"{top} streams ran together, but the largest bucket given is {sizes[-1:]}")
    return detected, sizes, fit_decode(levels.runs, sizes)


def _stall(
    bench: Bench,
    asked: Asked,
    levels: Levels | Refusal,
    measured: Sequence[IdlePrefill],
    prefilled: PrefillFit | Refusal,
    top: int,
) -> Stall | Refusal:
    if isinstance(levels, Refusal):
        return levels
    seconds = {q: max(prefill.by_round(measured, q)) for q in {entry.planned for entry in measured}}
    if not seconds:
        return Refusal("no prompt was computed alone")
    return stall.probe(
        bench,
        top=top,
        max_seq_len=asked.max_seq_len,
        step_s=_beside_step_s(levels, top),
        prefill_s=seconds,
        chunk_tokens=prefilled.chunk_tokens if isinstance(prefilled, PrefillFit) else 1,
        rounds=asked.rounds,
        most_rounds=asked.most_rounds,
    )


def _beside_step_s(levels: Levels, top: int) -> float:
    """About what a step takes with as many streams as the stall probe runs."""
    count = min(stall.MOST_STREAMS, top)
    steps = [run.step_s for run in levels.runs if run.streams == count] or [run.step_s for run in levels.runs]
    return float(sum(steps) / len(steps))

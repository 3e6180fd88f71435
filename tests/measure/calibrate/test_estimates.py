"""The estimates as pure functions of rows that were made from known costs, right and wrong ones."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotgrid.measure.calibrate import (
    buckets,
    decode,
    decode_fit,
    limit,
    prefill,
    prefill_fit,
    reuse,
    slots,
    stall,
    turnaround,
)
from slotgrid.measure.calibrate.plans import Ask
from slotgrid.measure.calibrate.prefill import IdlePrefill, by_round
from slotgrid.measure.calibrate.profile_text import less, overhead
from slotgrid.measure.calibrate.reuse import Return
from slotgrid.measure.calibrate.rows import Seen
from slotgrid.measure.calibrate.statistics import Estimate, Refusal, linear_fit, mean_estimate, repeats_needed
from slotgrid.plan import InputPlan


def row(times: Sequence[float], arrival: float = 0.0, prompt: int = 16, session: int = 0) -> Seen:
    return Seen(session, 0, prompt, 0, arrival, times[-1], tuple(times))


# --- statistics --------------------------------------------------------------------------------------------


def test_three_equal_values_are_an_answer_and_two_are_not() -> None:
    assert mean_estimate([2.0, 2.0, 2.0]) == Estimate(2.0, 2.0, 2.0, 3)
    refused = mean_estimate([2.0, 2.0])
    assert isinstance(refused, Refusal)
    assert str(refused) == "2 measurements, at least 3 are needed; about 1 more repeat would decide it"


def test_the_interval_is_students() -> None:
    found = mean_estimate([9.0, 10.0, 11.0])
    assert isinstance(found, Estimate)
    # t(0.975, 2) = 4.3027, standard deviation 1
    assert found.high == pytest.approx(10 + 4.30265 / math.sqrt(3), rel=1e-5)
    refused = mean_estimate([9.0, 10.0, 11.0], within=0.05)
    assert isinstance(refused, Refusal)
    # at this spread 18 values give half a width of 0.497
    assert (refused.samples, refused.more_repeats) == (3, 15)
    assert repeats_needed(1.0, 0.5) == 18


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(20, 60))
def test_robust_lines_pass_through_outliers(seed: int, count: int) -> None:
    import numpy as np

    draw = random.Random(seed)
    x = np.array([draw.uniform(1, 10) for _ in range(count)])
    y = 3 + 2 * x
    y[: count // 10] *= 3
    line = linear_fit(np.stack([np.ones(count), x], 1), y)
    assert not isinstance(line, Refusal)
    assert [p.value for p in line.parameters] == pytest.approx([3, 2], rel=0.1)


def test_scatter_does_not_pull_a_line_down() -> None:
    """300 fits of buckets whose replays scatter by 20 %: right on average, and the intervals hold what they say."""
    import numpy as np

    draw = random.Random(1)
    true = np.array([9e-3, 10e-3, 12e-3, 18e-3])
    bucket = np.array([0, 1, 2, 2, 3, 3, 3, 3] * 4)
    columns = np.eye(4)[bucket]
    off, held = [], 0
    for _ in range(300):
        line = linear_fit(columns, np.array([true[b] * max(0.3, draw.gauss(1, 0.2)) for b in bucket]))
        assert not isinstance(line, Refusal)
        off.append([p.value / t - 1 for p, t in zip(line.parameters, true, strict=True)])
        held += sum(p.low <= t <= p.high for p, t in zip(line.parameters, true, strict=True))
    assert np.abs(np.mean(off, 0)).max() < 0.015
    assert held / 1200 > 0.91


def test_what_is_taken_off_the_constant_widens_its_interval() -> None:
    left = less(Estimate(0.010, 0.008, 0.013, 5), Estimate(0.004, 0.003, 0.006, 3))
    assert (left.value, left.low, left.high, left.samples) == pytest.approx((0.006, 0.002, 0.010, 5))
    none = less(Estimate(0.010, 0.008, 0.013, 5), Estimate(0.02, 0.012, 0.03, 3))
    assert (none.value, none.low, none.high) == pytest.approx((0.0, 0.0, 0.001))


@pytest.mark.parametrize(("half_s", "taken"), [(0.0009, True), (0.0011, False)])
def test_nothing_is_taken_off_a_constant_that_is_shorter_than_the_doubt(half_s: float, taken: bool) -> None:
    constant = Estimate(0.002, 0.001, 0.003, 3)
    alone = prefill_fit.PrefillFit(
        64, (), Estimate(0.03, 0.03, 0.03, 3), Estimate(0, 0, 0, 3), constant, (1, 99), 0.0, 0.0, 3
    )
    lost = Estimate(0.031, 0.031 - half_s, 0.031 + half_s, 3)
    beside = stall.Stall({20: lost}, {}, True, False, "", Refusal("none"), 2, 3)
    found = overhead(alone, beside)
    assert (found is not None) is taken
    if found is not None:
        assert (found.value, found.low, found.high) == pytest.approx((0.001, 0.001 - half_s, 0.001 + half_s))
    # mixed into one step it stops the streams as long; in several pieces, or where that is open, nothing is known of it
    assert overhead(alone, replace(beside, exclusive=False)) == found
    assert overhead(alone, replace(beside, exclusive=False, pieces=True)) is None
    assert overhead(alone, replace(beside, exclusive=None)) is None


# --- decode ------------------------------------------------------------------------------------------------


def test_lock_step_counts_only_steps_of_all_streams() -> None:
    steps = list(itertools.accumulate([1.0] + [0.1] * 20))
    early = row([0.2, 0.5, *steps])
    late = row(steps, prompt=40)
    found = decode.lock_step([early, late])
    assert found is not None
    assert (found.streams, found.steps) == (2, 20)
    assert found.step_s == pytest.approx(0.1)
    # mean over the steps: prompt + tokens there are; the early one is two tokens ahead
    assert found.context_tokens == pytest.approx(16 + 2 + 40 + 2 * (1 + 9.5))


def test_streams_that_never_ran_together_show_nothing() -> None:
    first = row([0.1 * i for i in range(1, 20)])
    second = row([5 + 0.1 * i for i in range(1, 20)])
    assert decode.lock_step([first, second]) is None
    assert limit.most_together([first, second]) == 1
    found = decode.estimates([], 1)[1]
    assert isinstance(found, Refusal)
    assert "never generated together" in found.reason


class Scripted:
    """A bench whose replays are written down; it notes which were asked for."""

    def __init__(self, *answers: list[Seen]) -> None:
        self.answers = list(answers)
        self.names: list[str] = []

    def id(self, name: str) -> str:
        return name

    def replay(self, name: str, plan: object) -> list[Seen]:
        self.names.append(name)
        return self.answers[min(len(self.names), len(self.answers)) - 1]


# two at once; the same one after the other because the second was sent late; and because it had to wait
OVERLAP = [row([0.1, 0.2, 0.3]), row([0.15, 0.25, 0.35])]
SENT_LATE = [row([0.1, 0.2, 0.3]), replace(row([0.5, 0.6]), arrival_s=0.4)]
WAITED = [row([0.1, 0.2, 0.3]), row([0.4, 0.5])]


def test_the_running_limit_is_reached_when_a_request_waited_for_another() -> None:
    assert [limit.waited(rows) for rows in (OVERLAP, SENT_LATE, WAITED)] == [False, False, True]
    found = limit.probe(Scripted(WAITED), 8)  # type: ignore[arg-type]
    assert (found.most, found.tried, found.reached, found.open) == (1, 2, True, False)


def test_streams_that_did_not_overlap_are_sent_again_and_conclude_nothing() -> None:
    bench = Scripted(SENT_LATE, SENT_LATE, OVERLAP)
    found = limit.probe(bench, 2)  # type: ignore[arg-type]
    assert (found.most, found.reached, found.open) == (2, False, False)
    assert bench.names == ["limit-n2", "limit-n2-r1", "limit-n2-r2"]
    bench = Scripted(SENT_LATE)
    found = limit.probe(bench, 8)  # type: ignore[arg-type]
    assert (found.most, found.tried, found.reached, found.open) == (1, 2, False, True)
    assert len(bench.names) == limit.REPEATS


@settings(max_examples=10)
@given(
    st.sets(st.integers(1, 11), max_size=4),
    st.floats(0.0, 0.01),
    st.integers(0, 10_000),
)
def test_buckets_are_found_in_the_times(inner: set[int], slope: float, seed: int) -> None:
    """Each bucket a tenth dearer than the one before, 12 on top, noise of half a percent."""
    edges = [*sorted(inner), 12]
    draw = random.Random(seed)
    cost = {b: 1.10**i for i, b in enumerate(edges)}
    steps = {}
    for n in range(1, 13):
        level = cost[next(b for b in edges if b >= n)] + slope * n
        steps[n] = [level * draw.gauss(1, 0.005) for _ in range(4)]
    found = buckets.detect(steps)
    assert isinstance(found, buckets.Buckets)
    # what is not open is right
    assert set(found.buckets) - set(found.open_edges) <= set(edges)
    assert set(edges) - set(found.open_edges) <= set(found.buckets)
    assert found.decided or len(found.open_edges) < 6


def test_nothing_is_concluded_where_an_edge_could_not_be_seen() -> None:
    draw = random.Random(3)
    steps = {n: [(1.0 if n < 3 else 1.2) * draw.gauss(1, 0.3) for _ in range(3)] for n in range(1, 5)}
    found = buckets.detect(steps)
    assert isinstance(found, buckets.Buckets)
    assert not found.decided
    assert found.more_repeats is not None
    assert found.more_repeats > 20
    refused = buckets.detect({1: [1.0, 1.0], 3: [1.0, 1.0]})
    assert isinstance(refused, Refusal)
    assert "no step time for 2 running" in refused.reason


def runs(f: dict[int, float], beta: float, c: float, noise: float = 0.0) -> list[decode.LevelRun]:
    draw = random.Random(5)
    found = []
    for n in range(1, 9):
        bucket = next(b for b in f if b >= n)
        for context, _ in itertools.product((30.0, 2000.0), range(3)):
            step = f[bucket] + beta * n + c * n * context
            found.append(decode.LevelRun(n, n * context, step * draw.gauss(1, noise), 20))
    return found


def test_fixed_parts_slope_and_context_term_are_told_apart() -> None:
    fit = decode_fit.fit(runs({1: 9e-3, 2: 10e-3, 4: 11e-3, 8: 13e-3}, 1e-4, 1.5e-7), (1, 2, 4, 8))
    assert isinstance(fit, decode_fit.DecodeFit)
    assert [e.value for _, e in fit.fixed] == pytest.approx([9e-3, 10e-3, 11e-3, 13e-3])
    assert fit.per_request is not None
    assert fit.per_context_token is not None
    assert fit.per_request.value == pytest.approx(1e-4)
    assert fit.per_context_token.value == pytest.approx(1.5e-7)
    assert (fit.running, fit.context_tokens) == ((1, 8), (30.0, 2000.0))


def test_terms_that_noise_explains_are_left_out_and_said() -> None:
    fit = decode_fit.fit(runs({1: 9e-3, 2: 10e-3, 4: 11e-3, 8: 13e-3}, 0.0, 0.0, noise=0.01), (1, 2, 4, 8))
    assert isinstance(fit, decode_fit.DecodeFit)
    assert (fit.per_request, fit.per_context_token) == (None, None)
    assert "not distinguishable from 0" in fit.request
    assert "not distinguishable from 0" in fit.context
    for (_, estimate), true in zip(fit.fixed, (9e-3, 10e-3, 11e-3, 13e-3), strict=True):
        assert estimate.value == pytest.approx(true, rel=0.02)


def test_a_bucket_needs_three_replays() -> None:
    few = [run for run in runs({1: 1.0, 2: 1.0, 8: 1.0}, 0, 0) if run.streams != 2]
    refused = decode_fit.fit(few, (1, 2, 8))
    assert isinstance(refused, Refusal)
    assert str(refused).startswith("bucket 2: 0 replays in lock step")
    assert refused.more_repeats == 3


def test_a_wild_replay_counts_less_and_a_wild_bucket_is_no_answer() -> None:
    true = {1: 9e-3, 2: 10e-3, 4: 11e-3, 8: 13e-3}
    steady = runs(true, 0.0, 0.0, noise=0.01)
    wild = replace(steady[-1], step_s=5 * steady[-1].step_s)
    fit = decode_fit.fit([*steady[:-1], wild], (1, 2, 4, 8))
    assert isinstance(fit, decode_fit.DecodeFit)
    assert [estimate.value for _, estimate in fit.fixed] == pytest.approx(list(true.values()), rel=0.05)
    scattered = [replace(run, step_s=run.step_s * (0.2, 1.0, 3.0)[i % 3]) for i, run in enumerate(steady)]
    refused = decode_fit.fit(scattered, (1, 2, 4, 8))
    assert isinstance(refused, Refusal)
    assert "either way, allowed is 50%" in str(refused)
    assert (refused.more_repeats or 0) >= 1


# --- prefill -----------------------------------------------------------------------------------------------

LENGTHS = (16, 64, 65, 128, 129, 256, 257, 500, 1000, 2000, 2048, 2049)


def idle(chunk: int, per_chunk: float, per_token: float, constant: float, noise: float = 0.0) -> list[IdlePrefill]:
    draw = random.Random(7)
    return [
        IdlePrefill(q, (-(-q // chunk) * (per_chunk + per_token * q) + constant) * draw.gauss(1, noise), r)
        for q in LENGTHS
        for r in range(3)
    ]


@pytest.mark.parametrize("chunk", [64, 128, 256])
def test_the_published_form_is_found_with_its_chunk(chunk: int) -> None:
    fit = prefill_fit.fit(idle(chunk, 21.206e-3, 6.399e-7, 0.0, noise=0.005))
    assert isinstance(fit, prefill_fit.PrefillFit)
    assert (fit.chunk_tokens, fit.also) == (chunk, ())
    assert fit.per_chunk.value == pytest.approx(21.206e-3, rel=0.02)
    assert fit.per_token.value == pytest.approx(6.399e-7, rel=0.2)
    assert fit.seconds(6000 // 3) == pytest.approx(-(-2000 // chunk) * (21.206e-3 + 6.399e-7 * 2000), rel=0.01)
    assert fit.constant.low <= 0.0 <= fit.constant.high


def test_a_round_is_one_measurement_of_the_machines_mood() -> None:
    """All prompts of a round are dearer or cheaper by the same factor: the intervals hold the true cost about as often
    as they say, though each prompt alone fits its round to the digit."""
    draw = random.Random(11)
    held = 0
    for _ in range(200):
        mood = [draw.gauss(1, 0.15) for _ in range(4)]
        rows = [IdlePrefill(q, -(-q // 128) * 0.02 * mood[r], r) for q in LENGTHS for r in range(4)]
        fit = prefill_fit.fit(rows, prefer_chunk=128)
        assert isinstance(fit, prefill_fit.PrefillFit)
        held += fit.per_chunk.low <= 0.02 <= fit.per_chunk.high
    assert 0.9 < held / 200 <= 1.0


def test_a_chunk_the_times_do_not_show_is_the_reuse_block() -> None:
    """With noise of a third the times tell little; the preferred chunk is taken as long as they do not contradict."""
    fit = prefill_fit.fit(idle(128, 20e-3, 0.0, 0.0, noise=0.35), prefer_chunk=128)
    assert isinstance(fit, prefill_fit.PrefillFit)
    assert fit.chunk_tokens == 128
    assert fit.also


@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_no_part_of_a_prefill_is_below_0(seed: int) -> None:
    draw = random.Random(seed)
    noisy = [IdlePrefill(e.tokens, e.seconds * draw.lognormvariate(0, 0.5), e.round) for e in idle(64, 0.01, 0, 0)]
    fit = prefill_fit.fit(noisy, prefer_chunk=64)
    assert isinstance(fit, prefill_fit.PrefillFit)
    for part in (fit.per_chunk, fit.per_token, fit.constant):
        assert part.value >= 0


def test_two_repeats_are_too_few() -> None:
    refused = prefill_fit.fit([entry for entry in idle(128, 0.02, 0, 0) if entry.round < 2])
    assert isinstance(refused, Refusal)
    assert (refused.samples, refused.more_repeats) == (2, 1)


def test_repeats_of_text_go_by_the_planned_length() -> None:
    """Each prompt has another count of tokens: three rounds are three repeats, and the form is of what was computed."""
    draw = random.Random(3)
    text = []
    for q in LENGTHS:
        for r in range(3):
            tokens = q + draw.randint(0, 1 + q // 20)
            text.append(IdlePrefill(tokens, -(-tokens // 128) * 20e-3 + 1e-3, r, q))
    assert len({entry.tokens for entry in text}) > 2 * len(LENGTHS)
    fit = prefill_fit.fit(text)
    assert isinstance(fit, prefill_fit.PrefillFit)
    assert (fit.chunk_tokens, fit.also) == (128, ())
    assert (fit.per_chunk.value, fit.constant.value) == pytest.approx((20e-3, 1e-3))
    assert fit.tokens == (min(entry.tokens for entry in text), max(entry.tokens for entry in text))
    assert len(by_round(text, 2049)) == 3
    refused = prefill_fit.fit([entry for entry in text if entry.round < 2])
    assert isinstance(refused, Refusal)
    assert (refused.samples, refused.more_repeats) == (2, 1)


def beside(pieces: int | tuple[float, ...], total: float, step: float = 0.010, *, own: bool = True) -> list[Seen]:
    """Two streams of 60 steps; a prompt of 1,000 tokens comes in at 0.2 s and costs ``total`` in so many pieces, or in
    pieces of these shares. Its first token comes a step before the next ones of the streams where the last piece is a
    step of its ``own``."""
    shares = (1 / pieces,) * pieces if isinstance(pieces, int) else pieces
    gaps = [step] * 60
    for i, part in enumerate(shares):
        gaps[20 + i] += total * part
    times = list(itertools.accumulate(gaps))
    first = times[20 + len(shares) - 1] - own * step
    return [row(times), row(times, session=1), row([first], arrival=0.2, prompt=1000, session=2)]


@pytest.mark.parametrize(("pieces", "own", "exclusive"), [(1, True, True), (1, False, False), (8, False, False)])
def test_a_whole_stop_and_a_mixed_prefill_are_told_apart(pieces: int, own: bool, exclusive: bool) -> None:
    """In one step with the streams' tokens, as vLLM does it with prompts up to its batch of tokens; or in several."""
    stops = [stop for _ in range(3) for stop in stall.find_stops(beside(pieces, 0.16, own=own), 2)]
    assert [stop.total_s for stop in stops] == pytest.approx([0.16] * 3)
    found = stall.estimate(stops, [1.0, 1.0, 1.0], streams=2, chunk_tokens=128)
    assert isinstance(found, stall.Stall)
    assert (found.exclusive, found.pieces) == (exclusive, pieces > 1)
    share = found.share[1000]
    assert isinstance(share, Estimate)
    assert share.value == pytest.approx(1 / pieces)


@pytest.mark.parametrize(("shares", "unequal"), [((0.68, 0.32), True), ((0.55, 0.45), False)])
def test_pieces_of_unequal_length_are_pieces(shares: tuple[float, ...], unequal: bool) -> None:
    """A step that takes 2,048 tokens of a prompt of 3,000: as many repeats as one likes give 68 % in one piece."""
    stops = [stop for _ in range(3) for stop in stall.find_stops(beside(shares, 0.16, own=False), 2)]
    found = stall.estimate(stops, [1.0, 1.0, 1.0], streams=2, chunk_tokens=128)
    assert isinstance(found, stall.Stall)
    assert (found.exclusive, found.pieces, found.unequal, found.undecided) == (False, True, unequal, "")
    assert found.decided


def test_between_whole_and_mixed_nothing_is_concluded() -> None:
    stops = [stop for pieces in (1, 2, 1) for stop in stall.find_stops(beside(pieces, 0.16), 2)]
    found = stall.estimate(stops, [1.0, 1.0, 1.0], streams=2, chunk_tokens=128)
    assert isinstance(found, stall.Stall)
    assert found.exclusive is None
    assert "neither above nor below 80%" in found.undecided
    short = stall.estimate(stops, [1.0, 1.0, 1.0], streams=2, chunk_tokens=2048)
    assert isinstance(short, stall.Stall)
    assert short.undecided == "no prompt was longer than one chunk of 2048 tokens"


@pytest.mark.parametrize(
    ("own", "share"), [("100", "33%"), ("110", "67%"), ("10101", "60%")], ids=["one", "two", "most of five"]
)
def test_a_first_token_between_two_steps_leaves_the_rule_open(own: str, share: str) -> None:
    """Also where more of the stops say exclusive: one that says mixed leaves an interval that says nothing."""
    stops = [stop for step in own for stop in stall.find_stops(beside(1, 0.16, own=step == "1"), 2)]
    found = stall.estimate(stops, [1.0, 1.0, 1.0], streams=2, chunk_tokens=128)
    assert isinstance(found, stall.Stall)
    assert (found.exclusive, found.decided) == (None, False)
    assert (
        f"whether streams get tokens together with the prompt's first is open: {share} of a step apart"
        in found.undecided
    )


@pytest.mark.parametrize("apart", [(0.6, 0.6, 1.9), (1.0, 1.0, 1.0, 1.0, 1.0, 0.4)], ids=["wide", "one moved"])
def test_tokens_that_a_busy_machine_moved_do_not_lose_the_rule(apart: tuple[float, ...]) -> None:
    """By less than a step: either no stop says mixed, or the others make the interval narrow enough."""
    whole = stall.find_stops(beside(1, 0.16), 2)[0]
    stops = [replace(whole, apart_s=moved * whole.step_s) for moved in apart]
    found = stall.estimate(stops, [1.0, 1.0, 1.0], streams=2, chunk_tokens=128)
    assert isinstance(found, stall.Stall)
    assert (found.exclusive, found.decided) == (True, True)


def test_prompts_that_met_no_running_streams_do_not_count() -> None:
    rows = beside(1, 0.16)
    late = row([9.1], arrival=9.0, prompt=1000, session=2)
    assert stall.find_stops([*rows[:2], late], 2) == []
    refused = stall.estimate([], [], streams=2, chunk_tokens=1)
    assert isinstance(refused, Refusal)


# --- rules -------------------------------------------------------------------------------------------------


def returns(block: int, *, generated: bool, last: int = 1, unknown: bool = False) -> list[Return]:
    found = []
    for previous, output, prompt in ((37, 1, 38), (150, 1, 151), (290, 1, 290), (700, 1, 701), (200, 300, 501)):
        left = previous + (output - 1 if generated else 0)
        cached = min(left, prompt - last) // block * block
        found.append(Return(previous, output, prompt, None if unknown else cached))
    return found


@pytest.mark.parametrize("block", [16, 64, 128])
@pytest.mark.parametrize("generated", [True, False])
def test_block_and_generated_tokens(block: int, generated: bool) -> None:
    edges = [
        Return(b * k + d, 1, b * k + d + 1, (b * k + d) // b * b) for b in (block,) for k in (1, 2) for d in (-1, 0)
    ]
    found = reuse.estimate(returns(block, generated=generated) + edges)
    assert isinstance(found, reuse.Reuse)
    assert (found.block_tokens, found.generated_reusable) == (block, generated)


def test_missing_fields_are_not_zeros() -> None:
    refused = reuse.estimate(returns(128, generated=False, unknown=True))
    assert isinstance(refused, Refusal)
    assert refused.reason.startswith("not observable")
    zeros = reuse.estimate([Return(300, 1, 301, 0), Return(500, 1, 501, 0)])
    assert isinstance(zeros, Refusal)
    assert "or it writes 0 where it does not know" in zeros.reason


def test_what_no_block_explains_is_refused() -> None:
    odd = [Return(300, 1, 301, 256), Return(300, 1, 301, 128), Return(700, 1, 701, 640)]
    refused = reuse.estimate(odd)
    assert isinstance(refused, Refusal)
    assert "no block explains all returns" in refused.reason


def pool(blocks: int, per_request: int) -> slots.Hits:
    """A server whose memory is a pool of blocks, least recently used first, as on a GPU: in place, by tokens."""

    def hits(name: str, asks: Sequence[Ask]) -> bool:
        held: dict[str, int] = {}
        hit = False
        for i, ask in enumerate(asks):
            key = ask.prefix or f"own{i}"
            hit = key in held
            held[key] = held.pop(key, -(-(ask.prefix_tokens + ask.own_tokens) // per_request))
            while sum(held.values()) > blocks:
                del held[next(iter(held))]
        return hit

    return hits


def test_a_pool_of_blocks_counts_tokens() -> None:
    found = slots.decide(pool(20, 16), prefix_tokens=32, longer_tokens=160, most=64)
    assert isinstance(found, slots.Slots)
    assert found.by_request is False
    assert (found.takes_slot, found.order) == (False, slots.LRU)
    # what the pool holds, and no number of slots
    assert (found.pool_tokens(16), found.certain) == (20 * 16, False)
    endless = slots.decide(lambda name, asks: True, prefix_tokens=32, longer_tokens=160, most=8)
    assert isinstance(endless, Refusal)
    assert "survived 8 other requests" in endless.reason
    never = slots.decide(lambda name, asks: False, prefix_tokens=32, longer_tokens=160, most=8)
    assert isinstance(never, Refusal)


@pytest.mark.parametrize(
    ("block", "length", "tokens"), [(16, 4096, 192), (128, 4096, 257), (16, 128, 126), (128, 258, None), (16, 49, None)]
)
def test_longer_requests_take_more_than_two_blocks_or_there_are_none(block: int, length: int, tokens: int) -> None:
    assert slots.longer_tokens(block, length) == tokens


def test_length_is_open_where_no_longer_request_fits() -> None:
    found = slots.decide(pool(20, 16), prefix_tokens=32, longer_tokens=None, most=64)
    assert isinstance(found, slots.Slots)
    assert (found.by_request, found.takes_slot, found.order) == (None, False, slots.LRU)
    # what it counts may be blocks
    assert found.certain is False
    assert found.open == ("no request of more than two blocks fits a sequence: whether length matters cannot be seen",)


@pytest.mark.parametrize("disputed", ["x160", "returns", "used-itself"])
def test_one_open_question_keeps_the_answers_to_the_others(disputed: str) -> None:
    whole = pool(20, 16)

    def hits(name: str, asks: Sequence[Ask]) -> bool:
        if name.endswith(disputed):
            raise slots.UndecidedError(f"1 of 2 repeats of {name} found the prefix")
        return whole(name, asks)

    clear = slots.decide(whole, prefix_tokens=32, longer_tokens=160, most=64)
    found = slots.decide(hits, prefix_tokens=32, longer_tokens=160, most=64)
    assert isinstance(clear, slots.Slots)
    assert isinstance(found, slots.Slots)
    assert found.cliff == clear.cliff
    assert found.by_request == (None if disputed == "x160" else False)
    assert found.takes_slot == (None if disputed == "returns" else False)
    assert found.order == (slots.LRU if disputed == "x160" else None)
    # by tokens there are no slots to be certain of, and where the length is open there may be none
    assert found.certain is False
    assert "1 of 2 repeats" in found.open[0]
    # the cliff itself cannot be left open
    with pytest.raises(slots.UndecidedError):
        slots.decide(lambda name, asks: hits(disputed, asks), prefix_tokens=32, longer_tokens=160, most=64)


class BeginsText:
    """A bench over a server with blocks of 1 token that begins every prompt with the same one: each finds at least
    that. It keeps the last prompts, so many; 1 ms for each token computed."""

    def __init__(self, kept: int) -> None:
        self.kept = kept

    def id(self, name: str) -> str:
        return name

    def order(self, values: Sequence[int], name: str) -> list[int]:
        return list(values)

    def replay(self, name: str, plan: InputPlan) -> list[Seen]:
        prefixes: list[str | None] = []
        rows = []
        for i, (_, session) in enumerate(plan.sessions()):
            prompt, cached = 1 + session.turns[0].new_tokens, 1
            if session.prefix_id is not None and session.prefix_id in prefixes[-self.kept :]:
                cached = min(1 + session.prefix_tokens, prompt - 1)
            prefixes.append(session.prefix_id)
            rows.append(Seen(i, 0, prompt, cached, i, i + 1, (i + 1e-3 * (prompt - cached),)))
        return rows


def test_the_token_that_begins_every_text_is_no_hit() -> None:
    bench: Any = BeginsText(8)
    measured = prefill.probe(bench, max_seq_len=1024, rounds=3)
    assert len(measured) == 3 * len(prefill.sizes(1024))
    fit = prefill_fit.fit(measured, prefer_chunk=1)
    assert isinstance(fit, prefill_fit.PrefillFit)
    # what was computed is the prompt without it
    assert fit.tokens == (16, 1023)
    assert fit.per_chunk.value == pytest.approx(1e-3)
    cached = prefill.probe_cached(bench, max_seq_len=1024, block_tokens=1, rounds=3)
    assert [(entry.cached_tokens, entry.computed_tokens) for entry in cached] == [(253, 8), (507, 8), (1015, 8)]
    found = slots.probe(bench, max_seq_len=1024, block_tokens=1, most_slots=32)
    assert isinstance(found, slots.Slots)
    assert (found.cliff, found.by_request) == (8, True)
    # 32 tokens of the prefix and 24 of each other
    assert found.pool_tokens(1) == 32 + 7 * 24
    *streams, injected = beside(1, 0.16)
    stops = stall.find_stops([*streams, replace(injected, cached_tokens=1)], 2)
    assert [(stop.tokens, stop.planned) for stop in stops] == [(999, 1000)]
    assert stall.find_stops([*streams, replace(injected, cached_tokens=101)], 2) == []


def test_turnaround_is_between_answer_and_next_request() -> None:
    rows = [row([1.0 + i, 1.2 + i], arrival=0.5 + i) for i in range(5)]
    assert turnaround.between_turns(rows) == pytest.approx(0.3)

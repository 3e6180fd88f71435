"""What a static engine does, seen on the real one: padding, reuse cliffs, stalls. Times are CPU time."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median

import pytest

from slotgrid.serve.artifact import Artifact
from slotgrid.serve.executor import Executor
from tests.serve.attempts import in_one_of_three
from tests.serve.conftest import Bench

MakeBench = Callable[..., Bench]


def tokens(seed: int, count: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(300, 8192) for _ in range(count)]


@pytest.mark.parametrize("slots", [8, 4])
def test_the_reuse_cliff_stands_at_slots_minus_one(bench: MakeBench, slots: int) -> None:
    """A return finds its prefix after slots - 2 other requests and not after slots - 1: one target, m others and the
    return itself must fit."""
    cached = {}
    for others in (slots - 3, slots - 2, slots - 1, slots):
        b = bench(slots=slots, max_running=slots)
        prompt = tokens(1, 200)
        answer = b.ask(prompt)
        for i in range(others):
            b.ask(tokens(100 + i, 40))
        b.ask([*prompt, *answer, 5, 6])
        hits = [event["cached_tokens"] for event in b.events("hit")]
        cached[others] = hits[0] if hits else 0
    assert cached == {slots - 3: 128, slots - 2: 128, slots - 1: 0, slots: 0}


def test_reused_and_recomputed_outputs_are_identical(bench: MakeBench) -> None:
    first = tokens(2, 300)
    longer = [*first, *tokens(3, 60)]
    reusing = bench()
    reusing.ask(first, 4)
    beside = reusing.add(tokens(4, 50), 30)
    again = reusing.add(longer, 24)
    outputs = reusing.run()
    (hit,) = reusing.events("hit")
    assert (hit["request"], hit["slot"], hit["cached_tokens"]) == (again, 0, 256)
    assert outputs[again] == bench().ask(longer, 24)
    assert outputs[beside] == bench().ask(tokens(4, 50), 30)


def test_reuse_skips_prefill_work(bench: MakeBench) -> None:
    b = bench()
    prompt = tokens(5, 900)
    b.ask(prompt)
    b.ask([*prompt, 7])
    seconds = [(end["t_ns"] - start["t_ns"]) for start, end in _steps(b, "prefill")]
    computed = [start["computed_tokens"] for start, _ in _steps(b, "prefill")]
    assert computed == [900, 5]
    # eight chunks against one and a copy
    assert seconds[1] < 0.35 * seconds[0]


def test_a_prefill_stalls_every_decoding_stream_for_its_length(bench: MakeBench) -> None:
    def check() -> None:
        b = bench()
        streams = [b.add(tokens(10 + i, 40), 60) for i in range(4)]
        for _ in range(4 + 5):
            b.step()
        b.add(tokens(20, 1000), 1)
        b.run()
        (start, end) = _steps(b, "prefill")[-1]
        assert (start["computed_tokens"], start["running"]) == (1000, 4)
        prefill_ns = end["t_ns"] - start["t_ns"]
        decodes = _steps(b, "decode")
        before = max(e["t_ns"] for s, e in decodes if e["t_ns"] <= start["t_ns"])
        after = min((e for s, e in decodes if s["t_ns"] >= end["t_ns"]), key=lambda e: e["t_ns"])
        after_start = next(s for s, e in decodes if e["step"] == after["step"])
        # every stream has a token in the step before and in the one after, none between
        assert after_start["running"] == len(streams)
        spike = (after["t_ns"] - before) / prefill_ns
        assert 0.9 < spike < 1.3
        usual = median(e["t_ns"] - s["t_ns"] for s, e in decodes)
        assert after["t_ns"] - before > 5 * usual

    in_one_of_three(check)


def test_step_time_depends_on_the_bucket_and_not_on_real_rows(executor: Executor) -> None:
    import time

    def step_ns(bucket: int, rows: int) -> int:
        begin = time.process_time_ns()
        executor.decode(bucket, [5] * rows, list(range(rows)), [600] * rows)
        return time.process_time_ns() - begin

    # taken in turns, so that a slow moment of the machine meets all alike; the first call of a turn is not counted,
    # it finds the caches as the last one of another bucket left them
    def turn() -> list[int]:
        step_ns(8, 8)
        return [step_ns(8, 1), step_ns(8, 5), step_ns(8, 8), step_ns(4, 4), step_ns(1, 1)]

    def check() -> None:
        one_of_8, five_of_8, all_of_8, all_of_4, alone = (
            median(column) for column in zip(*(turn() for _ in range(60)), strict=True)
        )
        assert one_of_8 == pytest.approx(all_of_8, rel=0.10)
        assert five_of_8 == pytest.approx(all_of_8, rel=0.10)
        assert all_of_8 > 1.15 * all_of_4 > 1.15 * 1.15 * alone

    in_one_of_three(check)


def test_a_shape_that_was_not_compiled_cannot_run(executor: Executor, made: Artifact) -> None:
    with pytest.raises(Exception, match="decode batch 3 was not compiled; this artifact has 1, 2, 4, 8"):
        executor.decode(3, [1], [0], [0])
    with pytest.raises(Exception, match="3 requests do not fit a decode batch of 2"):
        executor.decode(2, [1, 2, 3], [0, 1, 2], [0, 0, 0])
    with pytest.raises(ValueError, match="broadcast"):
        executor.prefill_chunk([1] * (made.prefill_chunk + 1), 0, 0)


def test_nothing_is_compiled_while_serving(bench: MakeBench) -> None:
    import jax

    seen: list[str] = []

    def listen(name: str, seconds: float, **_: object) -> None:
        if "compile" in name:
            seen.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        b = bench()
        for i in range(6):
            b.add(tokens(30 + i, 100 + 60 * i), 5)
        b.run()
        b.ask([*tokens(35, 400), 9], 3)
        assert seen == []
        jax.jit(lambda x: x * 3)(1.0)
        # the listener does hear compilations
        assert seen != []
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def _steps(b: Bench, kind: str) -> list[tuple[dict[str, int], dict[str, int]]]:
    starts = {event["step"]: event for event in b.events("step_start") if event["kind"] == kind}
    ends = {event["step"]: event for event in b.events("step_end") if event["step"] in starts}
    return [(starts[step], ends[step]) for step in sorted(ends)]

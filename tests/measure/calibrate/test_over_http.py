"""The rules of a real server over HTTP, and what happens when it is not there."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from statistics import mean, median

import pytest

import slotgrid as sg
from slotgrid.measure.calibrate import reuse, slots
from slotgrid.measure.calibrate.bench import Bench
from slotgrid.measure.calibrate.calibrate import calibrate, require_profile
from slotgrid.measure.calibrate.over_http import HttpTarget, config_of_events
from slotgrid.measure.calibrate.plans import Ask, in_order, together
from slotgrid.measure.calibrate.session import Asked
from slotgrid.measure.http import Endpoint
from slotgrid.measure.replay import replay_over_http, server_traits
from tests.conftest import ROOT
from tests.measure.calibrate.unseen import InTurns, unseen, unseen_small
from tests.measure.stub import Exchange, Stub, serving
from tests.serve.attempts import in_one_of_three
from tests.serve.client import running


def test_rules_of_a_real_server(tiny: Path, tmp_path: Path) -> None:
    with running(tiny, tmp_path) as server:
        config = config_of_events(server.events)
        assert config == sg.ServingConfig((1, 2), slots=3)
        target = HttpTarget(Endpoint(server.url), config=config)
        assert (target.known.max_seq_len, target.known.clock, target.known.config) == (128, "wall", config)
        bench = Bench(target, tmp_path / "c", asked={})
        reused = reuse.probe(bench, 128)
        assert isinstance(reused, reuse.Reuse)
        assert (reused.block_tokens, reused.generated_reusable) == (16, False)
        found = slots.probe(bench, max_seq_len=128, block_tokens=16, most_slots=16)
        assert isinstance(found, slots.Slots)
        assert (found.cliff, found.slots, found.by_request) == (2, 3, True)
        assert (found.takes_slot, found.order) == (True, slots.FIFO)
        # a replay that was cut off left its folder; the replay is made again
        plan = sg.InputPlan.from_turns([[(20, 3, 0.0), (5, 2, 0.0)]], plan_id=bench.id("x"))
        (tmp_path / "c" / "x").mkdir()
        (tmp_path / "c" / "x" / "requests.jsonl").write_text("{")
        first, second = bench.replay("x", plan)
        assert (first.prompt_tokens, len(first.token_times_s), second.prompt_tokens) == (20, 3, 28)
        assert (first.cached_tokens, second.cached_tokens) == (0, 16)
        assert first.arrival_s < first.first_token_s < first.finish_s <= second.arrival_s
        server.stop()
        with pytest.raises(sg.SlotgridError, match=r"no connection.*whole replays are kept in") as caught:
            bench.replay("gone", plan)
        assert caught.value.exit_code == 1
        assert not (tmp_path / "c" / "gone.json").exists()


@pytest.mark.parametrize("ids", [True, False])
def test_tokens_that_come_together_are_no_steps(ids: bool, tmp_path: Path) -> None:
    """A stream interval of two, or a proxy that collects: steps would come out wrong and look certain."""

    async def in_pairs(exchange: Exchange) -> None:
        count = exchange.body["max_tokens"]
        await exchange.begin()
        for number in range(0, count, 2):
            some = range(number, min(number + 2, count))
            choice = {"index": 0, "text": "".join(f" w{n}" for n in some), "finish_reason": None}
            if ids:
                choice["token_ids"] = [5000 + n for n in some]
            if number + 2 >= count:
                choice["finish_reason"] = "length"
            await exchange.event({"id": "x", "choices": [choice]})
            await asyncio.sleep(0.002)
        await exchange.end(count)

    with serving(Stub(behave=in_pairs, probe=in_pairs)) as stub:
        bench = Bench(HttpTarget(Endpoint(stub.url)), tmp_path / "c", asked={})
        plan = together(bench.id("x"), streams=1, prompt_tokens=16, output_tokens=24)
        # a busy client may read two events at once
        with pytest.raises(sg.SlotgridError, match=r"24 tokens came at (\d|1[0-2]) times: several.*--stream-interval"):
            bench.replay("x", plan)


def test_a_replay_begun_again_sends_other_prompts(tmp_path: Path) -> None:
    """The server still holds what was sent of the one that did not end."""
    cut = True

    async def breaks_at_the_third(exchange: Exchange) -> None:
        nonlocal cut
        if cut and exchange.index == 2:
            cut = False
            exchange.reset()
            return
        await exchange.answer()

    with serving(Stub(behave=breaks_at_the_third)) as stub:
        bench = Bench(HttpTarget(Endpoint(stub.url)), tmp_path / "c", asked={})
        plan = in_order(bench.id("x"), [Ask(8, "p", 64), Ask(8, "p", 64), Ask(100), Ask(50)])
        with pytest.raises(sg.SlotgridError, match="whole replays are kept in"):
            bench.replay("x", plan)
        begun = [tuple(exchange.body["prompt"]) for exchange in stub.asked]
        rows = bench.replay("x", plan)
        again = [tuple(exchange.body["prompt"]) for exchange in stub.asked][len(begun) :]
    assert [row.prompt_tokens for row in rows] == list(map(len, again)) == [72, 72, 100, 50]
    # inside the replay the prefix is still shared
    assert again[0][:64] == again[1][:64]
    for old, new in itertools.product(begun, again):
        assert old[:8] != new[:8]
    assert bench.replay("x", plan) == rows


PACED = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tests.serve.paced"


def steps_in(log: bytes) -> tuple[dict[tuple[str, int], list[float]], int]:
    """Seconds of each step by (kind, running requests or computed tokens), and hits, straight from a server's log."""
    events = [json.loads(line) for line in log.splitlines()]
    begun = {event["step"]: event for event in events if event["event"] == "step_start"}
    found: dict[tuple[str, int], list[float]] = {}
    for event in events:
        if event["event"] == "step_end":
            start = begun[event["step"]]
            key = (start["kind"], start["running" if start["kind"] == "decode" else "computed_tokens"])
            found.setdefault(key, []).append((event["t_ns"] - start["t_ns"]) * 1e-9)
    return found, sum(event["event"] == "hit" for event in events)


def test_a_profile_made_over_http_predicts_new_inputs(tiny: Path, tmp_path: Path) -> None:
    """Rules; steps and prefills within 10 % of the server's own log; and on a plan the calibration has not seen reuse
    within the spread of repeats and device time within 10 %. The server's steps take a stated time."""
    rules = {"reuse block": "16", "running together": "2", "slots": "3: a prefix survives 1 other requests"}
    attempts = itertools.count()

    def check() -> None:
        folder = tmp_path / str(next(attempts))
        check_a_profile(tiny, folder, PACED, unseen_small, rules, prefills=(16, 48, 96))

    in_one_of_three(check)


@pytest.mark.slow
def test_a_profile_of_a_server_that_computes_predicts_new_inputs(artifact: Path, tmp_path: Path) -> None:
    """The same where everything else on the machine slows the steps."""
    rules = {
        "reuse block": "128",
        "running together": "8",
        "slots": "8: a prefix survives 6 other requests",
    }
    attempts = itertools.count()

    def check() -> None:
        folder = tmp_path / str(next(attempts))
        check_a_profile(artifact, folder, "pass", unseen, rules, prefills=(64, 257, 1000))

    in_one_of_three(check)


def check_a_profile(
    artifact: Path,
    folder: Path,
    before: str,
    plan: Callable[[int], sg.InputPlan],
    rules: dict[str, str],
    prefills: tuple[int, ...],
) -> None:
    folder.mkdir()
    device_s, reused = [], []
    logged: dict[tuple[str, int], list[float]] = {}
    with running(artifact, folder, before=before) as server:
        config, endpoint = config_of_events(server.events), Endpoint(server.url)
        traits = server_traits(endpoint)

        def since(written: int) -> tuple[dict[tuple[str, int], list[float]], int]:
            return steps_in(server.events.read_bytes()[written:])

        def replay_unseen(number: int) -> None:
            written = server.events.stat().st_size
            run = replay_over_http(plan=plan(number), base_url=endpoint, traits=traits)
            assert run.details["valid"], run.details["invalid_reasons"]
            steps, hits = since(written)
            device_s.append(sum(map(sum, steps.values())))
            reused.append(hits)

        @contextmanager
        def around(probe: sg.InputPlan) -> Iterator[None]:
            written = server.events.stat().st_size
            yield
            if re.search("-(decode-n[0-9]+|prefill)-r", probe.plan_id):
                for key, seconds in since(written)[0].items():
                    logged.setdefault(key, []).extend(seconds)

        # a calibration without doubts about two running streams makes some 40 replays
        target = InTurns(HttpTarget(endpoint, config=config), replay_unseen, 14, around)
        asked = Asked(max_seq_len=target.known.max_seq_len or 0)
        result = calibrate(target=target, output=folder / "p.toml", asked=asked)
    assert len(reused) >= 3
    found = {finding.name: finding.value for finding in result.findings}
    for name, beginning in rules.items():
        assert found[name].startswith(beginning), found[name]
    assert found["generated tokens"] == "are not reusable"
    assert found["prefill beside streams"].startswith("exclusive")
    assert found["slots are taken"] == "by request, whatever its length"
    assert found["a request that hits"] == "takes a new slot"
    assert found["eviction order"] == "fifo by allocation"
    profile = require_profile(result, "p.toml")
    step_s = profile.price.decode.step_s(config)
    ratio = {
        bucket: median(seconds / step_s[n] for n in counts for seconds in logged["decode", n])
        for bucket, counts in groupby(range(1, config.max_running + 1), config.bucket_for)
    }
    predicted = sg.simulate(profile, config, plan(0))
    print(f"reused: predicted {predicted.reused}, measured {reused}; device: {predicted.device_time_s:.3f}, {device_s}")
    print("steps:", ", ".join(f"{1 / found - 1:+.1%}" for found in ratio.values()))
    assert list(ratio) == list(config.buckets)
    assert ratio == pytest.approx(dict.fromkeys(config.buckets, 1.0), rel=0.10)
    for tokens in prefills:
        seconds = float(profile.price.prefill.seconds(tokens))
        assert seconds == pytest.approx(median(logged["prefill", tokens]), rel=0.10), tokens
    assert 0 < predicted.reused < predicted.returns
    assert min(reused) <= predicted.reused <= max(reused)
    assert predicted.device_time_s == pytest.approx(mean(device_s), rel=0.10)


@pytest.mark.parametrize("text", ["", "{}", '{"event": "start", "t_ns": 1, "pid": 1}', "[1]", "{"])
def test_logs_without_a_configuration_are_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(text)
    with pytest.raises(sg.InputError, match=r"e\.jsonl"):
        config_of_events(path)
    with pytest.raises(sg.InputError, match="No such file"):
        config_of_events(tmp_path / "none")

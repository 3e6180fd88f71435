"""The rules of a real server over HTTP, and what happens when it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

import slotgrid as sg
from slotgrid.measure.calibrate import reuse, slots
from slotgrid.measure.calibrate.bench import Bench
from slotgrid.measure.calibrate.over_http import HttpTarget, config_of_events
from slotgrid.measure.http import Endpoint
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


@pytest.mark.parametrize("text", ["", "{}", '{"event": "start", "t_ns": 1, "pid": 1}', "[1]", "{"])
def test_logs_without_a_configuration_are_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(text)
    with pytest.raises(sg.InputError, match=r"e\.jsonl"):
        config_of_events(path)
    with pytest.raises(sg.InputError, match="No such file"):
        config_of_events(tmp_path / "none")

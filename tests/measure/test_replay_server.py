"""Plans replayed over HTTP against the real static engine; the run joined with the server's own event log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import slotgrid as sg
from slotgrid.run.readers.event_log import run_from_events
from tests.conftest import Command
from tests.measure.test_inprocess import SMALL
from tests.measure.test_replay import chain, plan_of, rows_of
from tests.serve.client import Server, running


@pytest.fixture(scope="module")
def server(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests here; starting it takes longer than they do."""
    with running(artifact, tmp_path_factory.mktemp("server")) as started:
        yield started


def test_a_replay_of_the_static_engine_and_its_event_log_say_the_same(
    slotgrid: Command, server: Server, tmp_path: Path
) -> None:
    SMALL.save(tmp_path / "plan.json")
    done = slotgrid("replay", "plan.json", "--base-url", server.url, "-o", "run", "--json")
    assert done.returncode == 0, done.stderr
    # another client afterwards, whose steps are not this run's
    server.post("/v1/completions", {"prompt": [300] * 200, "max_tokens": 5})
    printed = json.loads(done.stdout)
    assert (printed["requests"], printed["replay"]["valid"], printed["plan_sha256"]) == (18, True, SMALL.content_sha256)
    assert printed["replay"]["server"]["tokens"] == {"low": 1000, "high": 8000}
    alone = sg.load_run(tmp_path / "run")
    assert alone.steps is None
    shutil.copy(server.events, tmp_path / "run" / "events.jsonl")
    result = sg.diagnose(tmp_path / "run")
    run = result.run
    assert run.steps is not None
    assert run.evictions is not None
    assert run.config == sg.ServingConfig((1, 2, 4, 8), slots=8)
    # both sides count the same reuse, request by request
    assert run.requests["cached_tokens"].to_list() == alone.requests["cached_tokens"].to_list()
    assert run.reused == printed["reused"]
    # every request's first token comes from its own prefill, the others from decode steps
    prefill, decode = (run.steps.filter(pl.col("kind") == kind) for kind in ("prefill", "decode"))
    assert sorted(prefill.select("session", "turn").rows()) == run.requests.select("session", "turn").rows()
    assert prefill["computed_tokens"].sum() == run.computed_tokens
    assert decode["running"].sum() == (run.requests["output_tokens"] - 1).sum()
    # the server's times lie between what the client saw
    assert (run.requests["admit_s"] >= run.requests["arrival_s"]).all()
    assert (run.requests["admit_s"] <= run.requests["first_token_s"]).all()
    assert run.details["clock_slack_s"] > 0
    assert not any("other requests" in note for note in run.notes)
    # the order of events tells the same story as the counters: the replay of it agrees with every return
    data = result.to_dict()
    assert (data["decode_steps"], data["reuse_observable"]) == (decode.height, True)
    everything = run_from_events(server.events)
    assert everything.steps is not None
    assert everything.steps.height > run.steps.height


def test_text_prompts_work_on_the_static_engine_too(slotgrid: Command, server: Server, tmp_path: Path) -> None:
    plan_of([chain((40, 6, 0.0), (8, 5, 0.0))]).save(tmp_path / "plan.json")
    done = slotgrid("replay", "plan.json", "--base-url", server.url, "-o", "run", "--prompts", "text", "--json")
    assert done.returncode == 0, done.stderr
    model = slotgrid("replay", "plan.json", "--base-url", server.url, "-o", "other", "--model", "llama")
    assert model.returncode == 1
    assert "the model 'llama' does not exist" in model.stderr
    first, second = rows_of(tmp_path / "run")
    assert first["output_tokens"] == 6
    # about as many tokens as planned: a word of these is several tokens of the tiny model
    assert first["prompt_tokens"] == pytest.approx(40, rel=0.3)
    assert second["prompt_tokens"] > first["prompt_tokens"]
    assert "the seam between pieces" in json.loads(done.stdout)["notes"][-1]


def test_events_of_another_run_are_refused(slotgrid: Command, server: Server, tmp_path: Path) -> None:
    plan_of([chain((40, 2, 0.0))]).save(tmp_path / "plan.json")
    done = slotgrid("replay", "plan.json", "--base-url", server.url, "-o", "run", "--json")
    assert done.returncode == 0, done.stderr
    other = server.events.read_text().replace(json.loads(done.stdout)["replay"]["request_tag"], "another")
    (tmp_path / "run" / "events.jsonl").write_text(other)
    refused = slotgrid("diagnose", "run")
    assert refused.returncode == 2
    assert "none of its requests is one of the 1 in run.json beside it" in refused.stderr

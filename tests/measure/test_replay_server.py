"""Plans replayed over HTTP against the real static engine; the run joined with the server's own event log."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import slotgrid as sg
from slotgrid.errors import InputError, RunError
from slotgrid.measure.options import ReplayOptions
from slotgrid.measure.replay import replay_over_http
from slotgrid.measure.validity import problems
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
    # a client that was killed has no run.json; its rows and the log are enough
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "run", killed)
    (killed / "run.json").unlink()
    (killed / "requests.parquet").unlink()
    again = sg.run.read_run(killed)
    assert again.steps is not None
    assert again.steps.equals(run.steps)
    assert again.requests["cached_tokens"].equals(run.requests["cached_tokens"])
    assert (again.config, again.plan_sha256) == (run.config, SMALL.content_sha256)
    # a log that shares no request with the rows is another run's
    tag = printed["replay"]["request_tag"]
    (tmp_path / "run" / "events.jsonl").write_text(server.events.read_text().replace(tag, "another"))
    with pytest.raises(InputError, match="none of its requests is one of the 18 that the client saw"):
        sg.run.read_run(tmp_path / "run")
    everything = run_from_events(server.events)
    assert everything.steps is not None
    assert everything.steps.height > run.steps.height


def test_text_prompts_work_on_the_static_engine_too(server: Server, tmp_path: Path) -> None:
    plan = plan_of([chain((40, 6, 0.0), (8, 5, 0.0))])
    text = ReplayOptions(prompts="text")
    run = replay_over_http(plan=plan, base_url=server.url, output=tmp_path / "run", options=text)
    first, second = rows_of(tmp_path / "run")
    assert first["output_tokens"] == 6
    # about as many tokens as planned: a word of these is several tokens of the tiny model
    assert first["prompt_tokens"] == pytest.approx(40, rel=0.3)
    assert second["prompt_tokens"] > first["prompt_tokens"]
    assert "the seam between pieces" in run.notes[-1]
    with pytest.raises(RunError, match="the model 'llama' does not exist"):
        replay_over_http(plan=plan, base_url=server.url, options=ReplayOptions(model="llama"))


def test_measuring_the_static_engine_checks_every_request_in_its_log(
    slotgrid: Command, artifact: Path, tmp_path: Path
) -> None:
    plan = plan_of([chain((200, 3, 0.0), (8, 2, 0.0))], [chain((40, 4, 0.0))])
    plan.save(tmp_path / "plan.json")
    start = [sys.executable, "-m", "slotgrid", "serve", "{artifact}", "--port", "{port}"]
    (tmp_path / "arms.toml").write_text(
        f'plans = ["plan.json"]\n[[arm]]\nname = "BASE"\nartifact = "{artifact}"\n'
        f"start = {json.dumps([*start, '--events', '{run_dir}/events.jsonl'])}\n"
    )
    done = slotgrid("measure", "arms.toml", "-o", "out", "--json")
    assert done.returncode == 0, done.stderr
    (condition,) = json.loads(done.stdout)["conditions"]
    assert (condition["valid"], condition["exit_code"], condition["ended"]) == (True, 0, "TERM")
    folder = tmp_path / "out" / "BASE" / "r0"
    run = sg.run.read_run(folder)
    assert run.steps is not None
    assert run.requests["admit_order"].null_count() == 0
    assert run.requests.height == plan.turn_count
    # a request that is not in the server's log makes the condition invalid
    events = (folder / "events.jsonl").read_text()
    (folder / "events.jsonl").write_text(events.replace(run.requests["request_id"][1], "cmpl-somebody-else"))
    assert problems(folder, plan=plan, window=None) == ["1 evaluated requests are not in the server's log"]

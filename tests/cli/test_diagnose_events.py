"""``slotgrid diagnose`` on what the static engine leaves behind: an HTTP server's event log, a replay's directory."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from slotgrid.event_format import COMMON, FIELDS, check_event
from slotgrid.measure.inprocess import replay_in_process
from tests.conftest import Command, assert_one_line_error
from tests.serve.client import running

PROFILE = ("--profile", "rbln-ca25-qwen3-4b")


@pytest.fixture(scope="module")
def served(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The event log of a server that had two conversations and ended in order: one returns while its prefix is still
    in a slot, the other after as many others as there are slots."""
    folder = tmp_path_factory.mktemp("served")
    with running(artifact, folder, "--slots", "2", "--max-running", "2") as server:

        def ask(prompt: list[int]) -> list[int]:
            body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
            status, answer = server.post("/v1/completions", body)
            assert status == 200
            ids: list[int] = answer["choices"][0]["token_ids"]
            return ids

        first, second = [500] * 150, [600] * 150
        first += ask(first)
        first += [7] * 20
        ask(first)
        second += ask(second)
        ask([700] * 30)
        ask([800] * 30)
        ask([*second, 8, 8])
        events = server.events
    return events


@pytest.fixture(scope="module")
def replayed(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = {"plan": [[[150, 6, 0.0], [30, 5, 0.0]], [[200, 4, 0.0], [30, 5, 0.0]], [[140, 8, 0.0]]]}
    folder = tmp_path_factory.mktemp("replayed") / "run"
    (folder.parent / "plan.json").write_text(json.dumps(plan))
    replay_in_process(
        plan=sg.load_plan(folder.parent / "plan.json"), artifact=artifact, output=folder, slots=3, max_running=2
    )
    return folder


def lines(path: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, path.read_text().splitlines())


def alone(events: Path, folder: Path) -> Path:
    folder.mkdir()
    shutil.copy(events, folder / "events.jsonl")
    return folder


def test_an_http_servers_log(slotgrid: Command, served: Path, tmp_path: Path) -> None:
    done = slotgrid("diagnose", alone(served, tmp_path / "run"), *PROFILE, "--json", "--timeline", "t.json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["source"], found["requests"], found["returns"], found["reused"]) == ("measured", 6, 2, 1)
    assert found["config"] == {"buckets": [1, 2, 4, 8], "slots": 2, "max_running": 2}
    steps = Counter((e["running"], e["bucket"]) for e in lines(served) if e.get("kind") == "decode")
    assert {(n, b): count for n, b, count in found["histogram"]} == steps == {(1, 1): 18}
    # the conversation that came back late had 150 tokens in a slot: one whole block of them is lost
    assert (found["lost_tokens"], found["cached_tokens"]) == (128, 128)
    (lost,) = found["reuse"]["lost"]
    third = [event["request"] for event in lines(served) if event["event"] == "allocation"][2]
    (cause,) = [event["cause"] for event in lines(served) if event["event"] == "eviction" and event["request"] == third]
    assert (lost["lost_tokens"], lost["cause"]) == (128, cause)
    assert found["channel_a"]["total_s"] > 0
    assert any("first prompt block count as one session" in text for text in found["warnings"])
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_a_replays_directory(slotgrid: Command, replayed: Path) -> None:
    done = slotgrid("diagnose", replayed, *PROFILE, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["requests"], found["returns"], found["decode_steps"]) == (5, 2, sg.load_run(replayed).decode_steps)
    decodes = [event for event in lines(replayed / "events.jsonl") if event.get("kind") == "decode"]
    assert found["decode_steps"] == len(decodes)
    assert found["plan_sha256"] == sg.load_run(replayed).plan_sha256
    assert found["stall_session_s"] is not None


def test_a_bare_event_log_gives_the_same(replayed: Path, tmp_path: Path) -> None:
    whole = sg.diagnose(replayed, profile=PROFILE[1]).to_dict()
    bare = sg.diagnose(alone(replayed / "events.jsonl", tmp_path / "run"), profile=PROFILE[1]).to_dict()
    assert bare["plan_id"] is None
    for key in ("histogram", "returns", "reused", "lost_tokens", "evictions", "stall_session_s", "channel_a", "reuse"):
        assert bare[key] == whole[key], key


def test_rows_beside_an_event_log_are_named(served: Path, tmp_path: Path) -> None:
    folder = alone(served, tmp_path / "run")
    # rows of a client that kept no ids join nothing
    row = {"session": 0, "turn": 0, "arrival_s": 0.0, "finish_s": 1.0, "prompt_tokens": 10, "output_tokens": 4}
    (folder / "requests.jsonl").write_text(json.dumps(row) + "\n")
    assert "request rows are not used beside the event log: requests.jsonl" in sg.read_run(folder).notes


def test_bad_event_logs_are_one_line(slotgrid: Command, served: Path, tmp_path: Path) -> None:
    folder = alone(served, tmp_path / "run")
    shutil.copy(served, folder / "events.2.jsonl")
    assert_one_line_error(slotgrid("diagnose", folder), "events.jsonl: a second event log beside events.2.jsonl")
    (folder / "events.2.jsonl").unlink()
    with open(folder / "events.jsonl", "a") as log:
        log.write('{"event": "step_end", "t_ns": 1, "pid": 1, "step": 10000}\n')
    assert_one_line_error(slotgrid("diagnose", folder), "step_end: step 10000 was not started")


@pytest.mark.parametrize("source", ["served", "replayed"])
def test_the_engine_writes_the_format_and_nothing_else(source: str, request: pytest.FixtureRequest) -> None:
    """The one schema: every event is accepted by it, and no field is written that it does not describe."""
    path = request.getfixturevalue(source)
    path = path / "events.jsonl" if path.is_dir() else path
    seen = set()
    for number, event in enumerate(lines(path), 1):
        check_event(event, f"line {number}")
        seen.add(event["event"])
        assert set(event) <= {field.name for field in (*COMMON, *FIELDS[event["event"]])}
    assert {"start", "allocation", "hit", "release", "step_start", "step_end"} <= seen

"""The observation plugin's event log: the sample server log told as events gives the same run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from slotgrid.run.readers.observer_log import scan_observer_log
from tests.conftest import Command
from tests.samples import NAMES, copy_sample, expected, sample_lines

START = {
    **{"event": "start", "format": "slotgrid-events/1", "writer": "slotgrid.stacks.rbln.observe 0"},
    **{"versions": {"vllm-rbln": "0.11.1"}, "files": {}, "known": True},
}
SCHEDULER, WORKER = 11, 12


def of_log(name: str) -> list[dict[str, Any]]:
    """A sample's log as the plugin would have written it: slots by the scheduler, steps by the worker."""
    events: list[dict[str, Any]] = [{**START, "pid": SCHEDULER}, {**START, "pid": WORKER}]
    step = 0
    lines = [line for line in sample_lines(name) if "[PFX]" in line or "[BUCKET]" in line]
    for i, line in enumerate(lines):
        request = re.search(r"REQUEST=(\S+)", line)
        slot = re.search(r"OB=\[?(\d+)", line)
        if found := re.search(r"request_nums=(\d+) padded_batch_size=(\d+)", line):
            running, bucket = map(int, found.groups())
            more = {"step": step, "pid": WORKER}
            events.append({"event": "step_start", "kind": "decode", "running": running, "bucket": bucket, **more})
            events.append({"event": "step_end", **more})
            step += 1
        elif "[ALLOC]" in line and request and slot:
            events.append({"event": "allocation", "request": request[1], "slot": int(slot[1]), "pid": SCHEDULER})
        elif "[CACHE-HIT]" in line and request and (blocks := re.search(r"IB_COUNT=(\d+)", line)):
            cached = int(blocks[1]) * 128
            events.append({"event": "hit", "request": request[1], "cached_tokens": cached, "pid": SCHEDULER})
        elif "[EVICTION]" in line and slot:
            cause = "admission" if f"OB=[{slot[1]}]" in lines[i + 1] and "[ALLOC]" in lines[i + 1] else "padding"
            events.append({"event": "eviction", "slot": int(slot[1]), "cause": cause, "pid": SCHEDULER})
        elif "[FREE-REQUEST]" in line and request and (freed := re.search(r"OUTER_BLOCKS=\[(\d+)", line)):
            events.append({"event": "release", "request": request[1], "slot": int(freed[1]), "pid": SCHEDULER})
    return [{"t_ns": 1_000 * i, **event} for i, event in enumerate(events)]


def write(folder: Path, events: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def sample(name: str, folder: Path) -> Path:
    return write(copy_sample(name, folder, "requests.jsonl", "metrics.prom", "plan.json"), of_log(name))


@pytest.mark.parametrize("name", NAMES)
def test_events_and_rows_give_what_the_log_gives(tmp_path: Path, name: str) -> None:
    found = sg.diagnose(sample(name, tmp_path), profile="rbln-ca25-qwen3-4b")
    data = found.to_dict()
    for key, value in expected(name).items():
        if isinstance(value, dict):
            assert data[key] == pytest.approx(value, abs=1e-9), key
        else:
            assert data[key] == (pytest.approx(value, abs=1e-9) if isinstance(value, float) else value), key
    assert found.run.details["log"] == "events.jsonl"
    assert not any("events" in text for text in found.warnings)


def test_events_alone(tmp_path: Path) -> None:
    """Without rows: steps, slots and what was reused; neither lengths nor sessions."""
    found = sg.diagnose(write(tmp_path, of_log("base_n8_b0")), profile="rbln-ca25-qwen3-4b")
    assert found.run.decode_steps == expected("base_n8_b0")["decode_steps"]
    assert found.run.prompt_tokens is None
    assert {"prompt tokens", "returns", "channel A", "channel B", "stalls"} <= set(found.not_observed)
    assert found.run.cached_tokens == expected("base_n8_b0")["cached_tokens"]


def test_end_to_end(tmp_path: Path, slotgrid: Command) -> None:
    done = slotgrid("diagnose", sample("base_n8_b0", tmp_path), "--profile", "rbln-ca25-qwen3-4b", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["reused"] == expected("base_n8_b0")["reused"]


def test_causes_are_those_the_events_state(tmp_path: Path) -> None:
    events = of_log("base_n8_b0")
    evictions = [event for event in events if event["event"] == "eviction"]
    evictions[0]["cause"] = "preemption"
    run = sg.read_run(write(copy_sample("base_n8_b0", tmp_path, "requests.jsonl"), events))
    assert run.evictions is not None
    wanted = [None if e["cause"] == "preemption" else e["cause"] for e in evictions]
    assert run.evictions["cause"].to_list() == wanted


def test_a_step_that_did_not_end_is_none(tmp_path: Path) -> None:
    events = of_log("base_n8_b0")
    last = max(i for i, event in enumerate(events) if event["event"] == "step_end")
    run = sg.read_run(write(tmp_path, events[:last] + events[last + 1 :]))
    assert run.decode_steps == expected("base_n8_b0")["decode_steps"] - 1


def test_steps_without_a_bucket_are_counted(tmp_path: Path) -> None:
    events = of_log("base_n8_b0")
    del next(event for event in events if event["event"] == "step_start")["bucket"]
    folder = write(copy_sample("base_n8_b0", tmp_path, "requests.jsonl", "plan.json"), events)
    found = sg.diagnose(folder, profile="rbln-ca25-qwen3-4b")
    assert any("1 of" in text and "state no running count or bucket" in text for text in found.warnings)
    assert found.channel_a.total_s is None


def _second_slot(events: list[dict[str, Any]]) -> None:
    at = next(i for i, event in enumerate(events) if event["event"] == "allocation")
    events.insert(at + 1, {**events[at], "slot": 7, "t_ns": events[at]["t_ns"] + 1})


def _taken_slot(events: list[dict[str, Any]]) -> None:
    for event in [event for event in events if event["event"] == "allocation"][:2]:
        event["slot"] = 0


def _evicted_while_running(events: list[dict[str, Any]]) -> None:
    at = next(i for i, event in enumerate(events) if event["event"] == "allocation")
    gone = {"event": "eviction", "slot": events[at]["slot"], "cause": "padding", "pid": SCHEDULER}
    events.insert(at + 1, {**gone, "t_ns": events[at]["t_ns"] + 1})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_second_slot, "only servers with one slot a request are modelled"),
        (_taken_slot, "events are missing or of two servers"),
        (_evicted_while_running, "still runs in it; events are missing or of two servers"),
        (lambda events: events.pop(0), "process 11 has no start event before it"),
    ],
)
def test_contradictions(tmp_path: Path, spoil: Callable[[list[dict[str, Any]]], None], message: str) -> None:
    events = of_log("base_n8_b0")
    spoil(events)
    with pytest.raises(sg.InputError, match=message):
        sg.read_run(write(tmp_path, events))


def test_a_server_that_was_started_again(tmp_path: Path) -> None:
    events = of_log("base_n8_b0")
    again = [{**event, "pid": event["pid"] + 100, "t_ns": event["t_ns"] + 10**9} for event in events]
    for event in again:
        if "request" in event:
            event["request"] = "again-" + event["request"]
    scan = scan_observer_log(write(tmp_path, events + again) / "events.jsonl")
    assert len(scan.requests) == 32
    assert scan.misplaced == scan.silent_evictions == 0


def test_the_same_run_twice(tmp_path: Path) -> None:
    events = of_log("base_n8_b0")
    again = [{**event, "t_ns": event["t_ns"] + 10**9} for event in events]
    with pytest.raises(sg.InputError, match="admitted a second time"):
        sg.read_run(write(tmp_path, events + again))


def test_a_second_log_and_a_server_log_beside(tmp_path: Path) -> None:
    folder = write(tmp_path / "two", of_log("base_n8_b0"))
    (folder / "events.2.jsonl").write_text((folder / "events.jsonl").read_text())
    with pytest.raises(sg.InputError, match="a second event log"):
        sg.read_run(folder)
    folder = write(copy_sample("base_n8_b0", tmp_path / "beside"), of_log("base_n8_b0"))
    assert "events.jsonl: not read beside server.log" in sg.read_run(folder).notes


def test_not_an_event_log(tmp_path: Path) -> None:
    for text, message in (("", "line 1"), ("[1]\n", "line 1: not an event"), ("{]\n", "line 1")):
        (tmp_path / "events.jsonl").write_text(text)
        with pytest.raises(sg.InputError, match=message):
            sg.read_run(tmp_path)

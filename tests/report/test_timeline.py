"""The timeline and its trace file: what Perfetto needs, on a clock, rebuilt, and with an order only."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.diagnose.timeline import CLOCK, ORDER_ONLY, REBUILT, build_timeline
from slotgrid.report.trace import save_trace
from tests.samples import NAMES, copy_sample


def diagnosed(folder: Path, *files: str, profile: sg.StackProfile | None = None) -> sg.Diagnosis:
    return sg.diagnose(copy_sample("base_n8_b0", folder, *files), profile=profile)


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(8, 10))
def test_slots_hold_one_request_at_a_time(seed: int, clients: int, slots: int) -> None:
    """On a simulated run: lifelines of a slot never overlap, no more slots than there are, every eviction ends one."""
    profile = sg.load_profile("rbln-ca25-qwen3-4b")
    plan = sg.load_workload("tracelab-two-turn").draw(clients=clients, seed=seed)
    run = sg.simulate(profile, sg.ServingConfig((1, 2, 4, 8), slots=slots), plan)
    timeline = build_timeline(sg.diagnose(run, profile=profile))
    assert timeline is not None
    assert timeline.basis == CLOCK
    assert len(timeline.held) == run.requests.height
    assert max(held.slot for held in timeline.held) < slots
    for before, after in itertools.pairwise(timeline.held):
        assert before.start_s <= before.released_s <= before.end_s
        assert before.slot != after.slot or before.end_s <= after.start_s
    ends = {(held.slot, held.end_s) for held in timeline.held}
    assert run.evictions is not None
    assert len(timeline.evicted) == run.evictions.height
    assert all((gone.slot, gone.time_s) in ends for gone in timeline.evicted)
    assert sum(p.end_s - p.start_s for p in timeline.prefills) == pytest.approx(run.prefill_s)
    assert sum(d.end_s - d.start_s for d in timeline.decodes) == pytest.approx(run.decode_s)
    assert sum(d.steps for d in timeline.decodes) == run.decode_steps


@pytest.mark.parametrize("name", NAMES)
def test_rebuilt_from_a_log_it_is_the_simulation(name: str, tmp_path: Path, profile: sg.StackProfile) -> None:
    """Order from the log, durations from the profile, idle time from the clients: the simulated clock within the
    client's transport of 0.4 ms a turn."""
    folder = copy_sample(name, tmp_path)
    found = sg.diagnose(folder, profile=profile)
    timeline = build_timeline(found)
    assert timeline is not None
    assert timeline.basis == REBUILT
    assert found.run.config is not None
    run = sg.simulate(profile, found.run.config, sg.load_plan(folder / "plan.json"))
    assert timeline.end_s == pytest.approx(run.wall_s, abs=0.001)
    started = {p.request: p.start_s for p in timeline.prefills}
    assert [started[i] for i in range(16)] == pytest.approx(run.requests["admit_s"].to_list(), abs=0.001)
    assert sum(e.cost_reuse for e in timeline.evicted) == (5 if name == NAMES[0] else 0)


def test_order_only(tmp_path: Path) -> None:
    timeline = build_timeline(diagnosed(tmp_path))
    assert timeline is not None
    assert timeline.basis == ORDER_ONLY
    assert timeline.end_s == 913 + 16


def test_beginning_only(tmp_path: Path, profile: sg.StackProfile) -> None:
    timeline = build_timeline(diagnosed(tmp_path, profile=profile), most_requests=5)
    assert timeline is not None
    assert timeline.requests == 5
    assert len(timeline.prefills) == 5


def trace(found: sg.Diagnosis, path: Path) -> list[dict[str, Any]]:
    save_trace(found, path)
    data = json.loads(path.read_text())
    assert data["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = data["traceEvents"]
    return events


def test_trace_file(tmp_path: Path, profile: sg.StackProfile) -> None:
    """One track a slot, one a request, counters for running and bucket; spans of a track never overlap."""
    events = trace(diagnosed(tmp_path / "run", profile=profile), tmp_path / "trace.json")
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {name for (pid, _), name in names.items() if pid == 1} == {f"slot {i}" for i in range(8)}
    assert {name for (pid, _), name in names.items() if pid == 2} == {f"s{s} t{t}" for s in range(8) for t in (0, 1)}
    spans: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        assert event["ph"] in "MXCi"
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert (event["pid"], event["tid"]) in names
            spans.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for track in spans.values():
        track.sort()
        assert all(a[1] <= b[0] + 1e-3 for a, b in itertools.pairwise(track))
    counters = [e for e in events if e["ph"] == "C"]
    assert {tuple(sorted(e["args"])) for e in counters} == {("bucket", "running")}
    assert max(e["args"]["running"] for e in counters) == 8
    assert counters[-1]["args"] == {"running": 0, "bucket": 0}
    times = [e["ts"] for e in counters]
    assert times == sorted(times)
    assert sum(e["ph"] == "i" for e in events) == 9
    assert sum(e["name"] == "evicted (padding, cost a reuse)" for e in events) == 5
    steps = sum(e["args"].get("steps", 0) for e in events if e["ph"] == "X")
    assert steps == 913


def test_trace_of_rows_alone(tmp_path: Path) -> None:
    events = trace(diagnosed(tmp_path / "run", "requests.jsonl"), tmp_path / "trace.json")
    assert sum(e["name"] == "in flight" for e in events) == 16
    assert {e["pid"] for e in events} == {2}


def test_trace_of_order_alone_says_so(tmp_path: Path) -> None:
    events = trace(diagnosed(tmp_path / "run"), tmp_path / "trace.json")
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert all(ORDER_ONLY in name for name in names)
    assert max(e["ts"] for e in events if "ts" in e) == pytest.approx((913 + 16) * 1000)


def test_no_trace_of_nothing(tmp_path: Path) -> None:
    found = diagnosed(tmp_path / "run", "metrics.prom")
    with pytest.raises(sg.InputError, match="--timeline: neither the order of events nor request times"):
        save_trace(found, tmp_path / "trace.json")
    assert not (tmp_path / "trace.json").exists()


def test_requests_without_a_row_are_on_the_timeline(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path / "run")
    rows = (folder / "requests.jsonl").read_text().splitlines(keepends=True)
    (folder / "requests.jsonl").write_text("".join(rows[:-1]))
    events = trace(sg.diagnose(folder), tmp_path / "trace.json")
    assert sum(e["name"] == "prefill request without a row" for e in events) == 1
    assert np.isfinite([e["ts"] for e in events if "ts" in e]).all()

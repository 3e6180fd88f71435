"""The observer inside the real modules of the wheels: events say what happened, and the server never notices."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import random
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from slotgrid.run import events
from slotgrid.stacks.rbln import observe, releases
from tests.stacks import wheels
from tests.stacks.real_manager import judge
from tests.stacks.test_rbln_judge import random_plan

MODEL_BASE = "vllm_rbln.model_executor.models.optimum.model_base"
RUNNER = "vllm_rbln.v1.worker.optimum_model_runner"
_MANAGER_PACKAGE = "vllm_rbln.v1.core.prefix_cache_manager"
MANAGER = f"{_MANAGER_PACKAGE}.optimum_prefix_cache_manager"
REAL = (
    *(MODEL_BASE, RUNNER, MANAGER, "vllm_rbln.utils.optimum.bucket"),
    *(f"{_MANAGER_PACKAGE}.optimum_block_mapping_manager", f"{_MANAGER_PACKAGE}.optimum_eviction_policy"),
)


@contextmanager
def observed(release: str, path: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> Iterator[Any]:
    """The wheel's modules importable and the plugin registered, as vLLM does it; gives the observer, if any."""
    monkeypatch.setenv(observe.VARIABLE, str(path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    finders = list(sys.meta_path)
    with wheels.served(release, REAL):
        observe.register()
        found = observe._observer
        try:
            yield found
        finally:
            sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, observe._Finder)]
            observe._observer = None
            if found is not None:
                atexit.unregister(found.flush)
                found.flush()
                found.active = False
    assert sys.meta_path == finders


class Shape:
    """A tensor of which only the first size matters."""

    def __init__(self, rows: int) -> None:
        self.shape = (rows, 1)

    def to(self, _: object) -> Shape:
        return self

    def squeeze(self, _: int) -> Shape:
        return self


def decoder(module: types.ModuleType, buckets: tuple[int, ...]) -> Any:
    """The real mixin with the attributes its set-up gives it."""

    class Model(module.RBLNOptimumDecoderMixin):  # type: ignore[misc, name-defined]
        use_multiple_decoder = len(buckets) > 1
        decoder_batch_sizes = buckets
        decoder_batch_size = buckets[-1]

        def pad_decoder_items(self, *items: object, **_: object) -> object:
            return items[:3]

    return Model()


def choose_bucket(model: Any, release: str, running: int) -> int:
    if release == "0.12.0":
        size: int = model.decode_layout(Shape(running), Shape(running))[0]
    else:
        size = model.preprocess_for_decoder(False, Shape(running), Shape(running), Shape(running))["padded_batch_size"]
    return size


def runner_of(module: types.ModuleType, during: Any) -> Any:
    """A real runner whose step does ``during`` and nothing else."""
    runner = object.__new__(module.RBLNOptimumModelRunner)
    runner.execute_model_state = None
    runner.is_ec_producer = False
    runner.model = None
    runner._update_states = during
    return runner


def read(path: Path) -> list[dict[str, Any]]:
    found = events.read_events(path)
    assert found[0]["event"] == events.START
    return found


@pytest.mark.parametrize("release", wheels.RELEASES)
def test_steps_and_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    path = tmp_path / "events.jsonl"
    with observed(release, path, monkeypatch):
        model = decoder(wheels.load(MODEL_BASE), (1, 2, 4, 8))
        module = wheels.load(RUNNER)
        for running in (1, 3, 8):
            runner = runner_of(module, lambda _, n=running: choose_bucket(model, release, n))
            output = types.SimpleNamespace(total_num_scheduled_tokens=0, scheduled_new_reqs=[])
            assert runner.execute_model(output) is not None
        # a step that only prefills, and one that does nothing
        new = [types.SimpleNamespace(req_id='a"b')]
        runner = runner_of(module, lambda _: None)
        runner.execute_model(types.SimpleNamespace(total_num_scheduled_tokens=0, scheduled_new_reqs=new))
        runner.execute_model(types.SimpleNamespace(total_num_scheduled_tokens=0, scheduled_new_reqs=[]))
    start, *rest = read(path)
    assert start["known"] is True
    expected = {path: releases.FILES[release][path] for path in (releases.MODEL_BASE, releases.MODEL_RUNNER)}
    assert start["files"] == expected
    steps = [(e["kind"], e.get("running"), e.get("bucket"), e.get("request")) for e in rest if "kind" in e]
    decodes = [("decode", 1, 1, None), ("decode", 3, 4, None), ("decode", 8, 8, None)]
    assert steps == [*decodes, ("prefill", None, None, 'a"b')]
    assert [(e["event"], e["step"]) for e in rest] == [
        (kind, step) for step in range(4) for kind in (events.STEP_START, events.STEP_END)
    ]
    assert all(e["pid"] == os.getpid() for e in rest)


@pytest.mark.parametrize("release", ["0.11.1", "0.11.2"])
def test_one_bucket_and_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    path = tmp_path / "events.jsonl"
    with observed(release, path, monkeypatch):
        model = decoder(wheels.load(MODEL_BASE), (8,))
        model.preprocess_for_decoder(True, Shape(1), Shape(1), Shape(1))
        # rows placed by block id: the function itself leaves the size open
        model.preprocess_for_decoder(False, Shape(3), Shape(3), Shape(3), input_block_ids=[0, 1, 2])
    (step,) = [e for e in read(path) if e["event"] == events.STEP_START]
    assert (step["running"], step["bucket"]) == (3, 8)


def test_sampling_ends_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``execute_model`` leaves sampling for later by returning None; the step ends with ``sample_tokens``."""
    path = tmp_path / "events.jsonl"
    calls = []

    class RBLNOptimumModelRunner:
        def execute_model(self, scheduler_output: object) -> None:
            calls.append("execute")

        def sample_tokens(self, grammar_output: object) -> str:
            calls.append("sample")
            return "tokens"

    module = types.ModuleType(RUNNER)
    module.RBLNOptimumModelRunner = RBLNOptimumModelRunner  # type: ignore[attr-defined]
    with observed("0.11.1", path, monkeypatch) as observer:
        observer.admit_file(releases.MODEL_RUNNER, str(wheels.site_packages("0.11.1") / releases.MODEL_RUNNER))
        observe._wrap_model_runner(observer, module)
        new = types.SimpleNamespace(scheduled_new_reqs=[types.SimpleNamespace(req_id="r")])
        runner = RBLNOptimumModelRunner()
        assert runner.execute_model(scheduler_output=new) is None  # type: ignore[func-returns-value]
        observer.flush()
        assert [e["event"] for e in read(path)[1:]] == [events.STEP_START]
        assert runner.sample_tokens(None) == "tokens"
    assert [e["event"] for e in read(path)[1:]] == [events.STEP_START, events.STEP_END]
    assert calls == ["execute", "sample"]


@pytest.mark.parametrize("config", [sg.ServingConfig((1, 2, 4)), sg.ServingConfig((1, 4), slots=3)], ids=str)
def test_slots_say_what_the_engine_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: sg.ServingConfig
) -> None:
    path = tmp_path / "events.jsonl"
    profile = sg.load_profile("rbln-ca25-qwen3-4b")
    plan = random_plan(random.Random(3), 7)
    run = sg.simulate(profile, config, plan, rules="real")
    with observed("0.11.1", path, monkeypatch):
        # the wrapped manager behaves as the engine expects, so wrapping changed nothing
        judge(wheels.load(MANAGER), plan, run, profile.kv.slot_tokens)
    found = read(path)[1:]
    requests = run.requests.sort("admit_s")
    names = [f"{s}.{t}" for s, t in requests.select("session", "turn").iter_rows()]
    allocated = [e for e in found if e["event"] == events.ALLOCATION]
    assert [e["request"] for e in allocated] == names
    assert [e["blocks"] for e in allocated] == [-(-n // 128) for n in requests["prompt_tokens"]]
    hits = {e["request"]: e["cached_tokens"] for e in found if e["event"] == events.HIT}
    assert hits == {n: c for n, c in zip(names, requests["cached_tokens"], strict=True) if c > 0}
    assert hits
    assert [e["cause"] for e in found if e["event"] == events.EVICTION] == run.evictions["cause"].to_list()
    released = [e["request"] for e in found if e["event"] == events.RELEASE]
    assert sorted(released) == sorted(names)
    # a miss is what the layer below claims and the slots do not hold
    assert not {e["request"] for e in found if e["event"] == events.MISS} & set(hits)
    holder: dict[int, str] = {}
    for event in found:
        if event["event"] == events.ALLOCATION:
            assert event["slot"] not in holder
            holder[event["slot"]] = event["request"]
        elif event["event"] == events.RELEASE:
            assert holder[event["slot"]] == event["request"]
        elif event["event"] == events.EVICTION:
            del holder[event["slot"]]


def test_preemption_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    with observed("0.11.1", path, monkeypatch):
        manager = wheels.load(MANAGER).RBLNPrefixKVCacheManager(1024, 128, 1024, 2, 16)
        manager.allocate_blocks("a", 0, [1, 2])
        manager.free_request("a", preemption=True)
        manager.free_request("a")
    assert [(e["event"], e.get("preempted"), e.get("cause")) for e in read(path)[1:]] == [
        (events.ALLOCATION, None, None),
        (events.RELEASE, True, None),
        (events.EVICTION, None, "preemption"),
    ]


def test_nothing_happens_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(observe.VARIABLE, raising=False)
    before = list(sys.meta_path)
    observe.register()
    assert sys.meta_path == before
    assert observe._observer is None


def test_unknown_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(releases, "FILES", {})
    path = tmp_path / "events.jsonl"
    with observed("0.11.1", path, monkeypatch):
        manager = wheels.load(MANAGER).RBLNPrefixKVCacheManager
        assert not hasattr(manager.free_request, "__wrapped__")
        wheels.load(MODEL_BASE)
        manager(1024, 128, 1024, 2, 16).allocate_blocks("a", 0, [1])
    assert not path.exists()
    (warning,) = caplog.records
    assert f"{releases.MANAGER} has the unknown SHA-256" in warning.getMessage()
    assert f"{observe.UNKNOWN_VARIABLE}=1" in warning.getMessage()
    caplog.clear()
    with observed("0.11.1", path, monkeypatch, SLOTGRID_OBSERVE_UNKNOWN="1"):
        wheels.load(MANAGER).RBLNPrefixKVCacheManager(1024, 128, 1024, 2, 16).allocate_blocks("a", 0, [1])
    assert read(path)[0]["known"] is False
    assert not caplog.records


@pytest.mark.parametrize("broken", ["write", "get_block_ids"])
def test_a_failure_inside_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    profile = sg.load_profile("rbln-ca25-qwen3-4b")
    plan = random_plan(random.Random(5), 5)
    run = sg.simulate(profile, sg.ServingConfig((1, 2, 4)), plan, rules="real")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no more")

    with observed("0.11.1", tmp_path / "e.jsonl", monkeypatch) as observer:
        module = wheels.load(MANAGER)
        if broken == "write":
            observer.write = fail
            judge(module, plan, run, profile.kv.slot_tokens)
        else:
            manager = module.RBLNPrefixKVCacheManager(1024, 128, 1024, 2, 16)
            manager.get_block_ids = fail
            manager.allocate_blocks("a", 0, [1])
            manager.free_request("a")
        assert not observer.active
    assert len(caplog.records) == 1
    assert "no more" in caplog.text


def test_errors_of_the_server_pass_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with observed("0.11.1", tmp_path / "e.jsonl", monkeypatch) as observer:
        manager = wheels.load(MANAGER).RBLNPrefixKVCacheManager(1024, 128, 1024, 1, 8)
        manager.allocate_blocks("a", 0, [1])
        with pytest.raises(RuntimeError, match="failed_to_allocate_dummy_block"):
            manager.get_dummy_block()
        assert observer.cause == "admission"
        with pytest.raises(ValueError, match="not registered"):
            manager.get_matched_outer_blocks("b", [], 0)
        with pytest.raises(TypeError):
            manager.free_request()
        assert observer.active


@pytest.mark.parametrize("target", ["missing/e.jsonl", "."])
def test_an_unwritable_file_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    with observed("0.11.1", tmp_path / target, monkeypatch) as observer:
        assert observer is None
        wheels.load(MANAGER).RBLNPrefixKVCacheManager(1024, 128, 1024, 2, 16).allocate_blocks("a", 0, [1])
    assert len(caplog.records) == 1
    assert "cannot write" in caplog.text


def test_a_full_disk_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with observed("0.11.1", Path("/dev/full"), monkeypatch) as observer:
        manager = wheels.load(MANAGER).RBLNPrefixKVCacheManager(1024, 128, 1024, 2, 16)
        manager.allocate_blocks("a", 0, [1])
        observer.flush()
        assert not observer.active
        manager.free_request("a")
    assert len(caplog.records) == 1
    assert "/dev/full" in caplog.text


def test_modules_look_as_if_nothing_had_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with observed("0.11.1", tmp_path / "e.jsonl", monkeypatch):
        module = wheels.load(MANAGER)
        assert module.__spec__ is not None
        assert type(module.__loader__).__name__ == "SourceFileLoader"
        assert module.__spec__.loader is module.__loader__
        assert importlib.util.find_spec(MANAGER) is module.__spec__
        free = module.RBLNPrefixKVCacheManager.free_request
        assert free.__name__ == "free_request"
        assert free.__doc__ == free.__wrapped__.__doc__


SCRIPT = """
import multiprocessing, os, sys
from importlib.metadata import entry_points
from tests.stacks import wheels
from tests.stacks.test_rbln_observe import MANAGER, REAL

def serve(name):
    manager = wheels.load(MANAGER).RBLNPrefixKVCacheManager(1024, 128, 1024, 2, 16)
    manager.allocate_blocks(name, 0, [1, 2])
    manager.free_request(name)

(plugin,) = [p for p in entry_points(group="vllm.general_plugins") if p.name == "slotgrid_rbln_observe"]
with wheels.served("0.11.1", REAL):
    plugin.load()()
    plugin.load()()
    serve("parent")
    child = multiprocessing.get_context("fork").Process(target=serve, args=("child",))
    child.start()
    child.join()
    assert child.exitcode == 0
print([m for m in ("numpy", "polars", "numba", "rich") if m in sys.modules])
"""


def test_every_process_appends_and_flushes_at_exit(tmp_path: Path) -> None:
    """Through the installed entry point: a process that ends, and a forked worker that leaves without exit handlers."""
    path = tmp_path / "events.jsonl"
    script = SCRIPT.replace("from tests.stacks.test_rbln_observe import MANAGER, REAL", f"{MANAGER=}\n{REAL=}")
    process = subprocess.run(
        [sys.executable, "-c", script],
        cwd=wheels.ROOT,
        env={**os.environ, observe.VARIABLE: str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == "[]"
    found = read(path)
    assert len({e["pid"] for e in found}) == 2
    for name in ("parent", "child"):
        (pid,) = {e["pid"] for e in found if e.get("request") == name}
        assert [e["event"] for e in found if e["pid"] == pid] == [events.START, events.ALLOCATION, events.RELEASE]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 6

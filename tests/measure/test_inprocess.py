"""Plans replayed in process: real computation on the CPU clock, and how well a profile fitted to it predicts."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import slotgrid as sg
from slotgrid.cli.main import run as command
from slotgrid.measure.inprocess import CpuClock, drive, replay_in_process
from slotgrid.profile.stack_profile import profile_from_toml
from slotgrid.run.readers.event_log import run_from_events
from slotgrid.serve.artifact import Artifact, load_artifact
from slotgrid.serve.backend import on_cores, split_cores
from slotgrid.serve.engine import Engine
from slotgrid.serve.events import EventLog
from slotgrid.serve.executor import Executor, StepResult
from slotgrid.serve.load import make_scheduler
from tests.serve.attempts import in_one_of_three


def sessions(plan_id: str, clients: int, count: int, step: int) -> sg.InputPlan:
    """Sessions of three turns that fit slots of 1,024 tokens, different for each ``step``."""
    built = []
    for c in range(clients):
        chain = []
        for s in range(count):
            i = c + step * s
            turns = (
                sg.Turn(150 + 70 * (i % 5), 20 + 7 * (i % 4), 0.2 * (i % 3)),
                sg.Turn(12, 15 + 5 * (i % 3), 0.4),
                sg.Turn(140, 18),
            )
            chain.append(sg.Session(f"c{c}s{s}", turns))
        built.append(sg.Client(0.15 * c, tuple(chain)))
    return sg.InputPlan(plan_id, tuple(built))


SMALL = sessions("small", 6, 1, 2)


def replay(plan: sg.InputPlan, artifact: Path, output: Path, **options: object) -> sg.Run:
    return replay_in_process(plan=plan, artifact=artifact, output=output, **options)  # type: ignore[arg-type]


def fit(run: sg.Run) -> sg.StackProfile:
    """A profile from the engine's own event log: mean step by bucket, line through the prefills."""
    decode = run.steps.filter(pl.col("kind") == "decode").group_by("bucket").agg(pl.col("duration_s").mean())
    rows = [(bucket, seconds) for bucket, seconds in decode.sort("bucket").rows()]
    prefill = run.steps.filter(pl.col("kind") == "prefill")
    tokens, seconds = prefill["computed_tokens"].to_numpy(), prefill["duration_s"].to_numpy()
    chunks = -(-tokens // 128)
    (per_chunk, constant), *_ = np.linalg.lstsq(np.stack([chunks, np.ones(len(chunks))], 1), seconds, rcond=None)
    zero = '{ value = 0, unit = "s", kind = "estimate", source = "test" }'

    def value(number: float) -> str:
        return f'value = {number!r}\nunit = "s"\nkind = "measured"\nsource = "event log"\n'

    text = f"""format = "slotgrid-profile/1"
id = "fitted"
model_id = "tiny"
hardware = "this CPU"
software = "slotgrid"
description = "fitted to an event log"
rules = "real"
[price.decode]
base = {zero}
per_request = {zero}
""" + "".join(f"[[price.decode.fixed]]\nbucket = {bucket}\n{value(step)}" for bucket, step in rows)
    text += f"""[price.prefill]
chunk_tokens = 128
per_chunk = {{ {value(float(per_chunk)).strip().replace(chr(10), ", ")} }}
per_token = {zero}
constant = {{ {value(max(0.0, float(constant))).strip().replace(chr(10), ", ")} }}
[kv]
slot_tokens = 1024
block_tokens = 128
generated_reusable = false
"""
    return profile_from_toml(text.encode(), "fitted")


def test_garbage_is_not_collected_on_the_clock() -> None:
    clock = CpuClock()
    for there in (True, False):
        (gc.enable if there else gc.disable)()
        try:
            with clock.ticking():
                assert not gc.isenabled()
            assert gc.isenabled() is there
        finally:
            gc.enable()


@pytest.fixture(scope="module")
def made(artifact: Path) -> Artifact:
    return load_artifact(artifact)


@pytest.fixture(scope="module")
def small(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[sg.Run, Path]:
    folder = tmp_path_factory.mktemp("runs") / "small"
    return replay(SMALL, artifact, folder), folder


def test_the_run_directory_is_the_usual_one(small: tuple[sg.Run, Path]) -> None:
    run, folder = small
    assert sorted(path.name for path in folder.iterdir()) == [
        "events.jsonl",
        "evictions.parquet",
        "requests.parquet",
        "run.json",
        "steps.parquet",
    ]
    loaded = sg.load_run(folder)
    assert loaded.to_dict() == run.to_dict()
    assert (run.plan_sha256, run.rules, run.turnaround_s) == (SMALL.content_sha256, "real", 0.0008)
    again = run_from_events(folder / "events.jsonl")
    for name in ("steps", "requests", "evictions"):
        assert getattr(again, name).equals(getattr(loaded, name))


def test_every_planned_token_is_generated_and_waits_are_kept(small: tuple[sg.Run, Path]) -> None:
    rows = small[0].requests
    planned = [turn for _, session in SMALL.sessions() for turn in session.turns]
    assert rows["output_tokens"].to_list() == [turn.output_tokens for turn in planned]
    assert (rows["cached_tokens"] + rows["computed_tokens"] == rows["prompt_tokens"]).all()
    table = rows.rows(named=True)
    for i, (first, second) in enumerate(itertools.pairwise(table)):
        if second["turn"] > 0:
            assert (
                second["prompt_tokens"] == first["prompt_tokens"] + first["output_tokens"] + planned[i + 1].new_tokens
            )
            wait_s = planned[i].tool_wait_s
            assert second["arrival_s"] == pytest.approx(first["finish_s"] + wait_s + 0.0008, abs=1e-6)


class Shifted:
    """An executor's slots from ``first`` on, so that two engines can share one."""

    def __init__(self, executor: Executor, first: int) -> None:
        self._executor = executor
        self._first = first

    def decode(self, bucket: int, tokens: list[int], slots: list[int], positions: list[int]) -> StepResult:
        return self._executor.decode(bucket, tokens, [slot + self._first for slot in slots], positions)

    def prefill_chunk(self, tokens: tuple[int, ...], slot: int, start: int) -> StepResult:
        return self._executor.prefill_chunk(tokens, slot + self._first, start)

    def copy(self, source: int, target: int) -> None:
        self._executor.copy(source + self._first, target + self._first)


def test_a_fitted_profile_predicts_the_makespan_of_new_inputs(made: Artifact, tmp_path: Path) -> None:
    """Fitted to the event log of one plan, it predicts another. The two run in turns on one executor, step by step, so
    that a slow moment of the machine meets both alike."""
    new, training = sessions("new", 3, 3, 3), sessions("training", 4, 6, 1)
    config = made.config(4, 4)
    cores = split_cores()
    with on_cores(None if cores is None else cores[0]):
        executor = Executor(made)
        executor.warm_up()

    def check() -> None:
        with open(tmp_path / "new", "w") as first, open(tmp_path / "training", "w") as second:
            drives = []
            for i, (plan, stream) in enumerate(((new, first), (training, second))):
                clock = CpuClock()
                engine = Engine(
                    runner=Shifted(executor, 4 * i),
                    scheduler=make_scheduler(made, config, "real"),
                    config=config,
                    prefill_chunk=made.prefill_chunk,
                    events=EventLog(stream, clock),
                )
                engine.log_start(versions={}, clock="cpu")
                drives.append(drive(engine, clock, plan, 0.0008, made.shape.vocabulary))
            steps = sum(1 for _ in zip(*drives, strict=False))
        run, fitted = run_from_events(tmp_path / "new"), fit(run_from_events(tmp_path / "training"))
        assert run.steps.height == steps
        simulated = sg.simulate(fitted, config, new, rules="real", turnaround_s=0.0008)
        assert simulated.wall_s == pytest.approx(run.wall_s, rel=0.10)
        assert simulated.returns == run.returns
        assert run.reused > 0

    in_one_of_three(check)


def test_fewer_slots_lose_reuse(small: tuple[sg.Run, Path], artifact: Path, tmp_path: Path) -> None:
    few = replay(SMALL, artifact, tmp_path / "few", slots=2, max_running=2)
    assert few.reused < small[0].reused
    assert few.config.slots == 2
    assert few.evictions.height > small[0].evictions.height


def test_the_paper_rules_run_too(artifact: Path, tmp_path: Path) -> None:
    plan = sg.InputPlan.from_turns([[[40, 3, 0.1], [8, 2, 0.0]]] * 3, plan_id="small")
    run = replay(plan, artifact, tmp_path / "paper", rules="paper", slots=2, max_running=2)
    assert (run.rules, run.turnaround_s) == ("paper", 0.0)
    assert run.evicted("padding") == 0


def test_fixed_arrivals_keep_causality(artifact: Path, tmp_path: Path) -> None:
    plan = sg.InputPlan.from_turns([[[40, 6, 0.0], [8, 2, 0.0]], [[40, 2, 0.0]]], plan_id="fixed")
    run = replay(plan.with_arrivals([0.5, 0.5001, 2.0]), artifact, tmp_path / "fixed")
    arrival = run.requests["arrival_s"].to_list()
    assert arrival[0] == pytest.approx(0.5, abs=1e-9)
    assert arrival[1] == pytest.approx(run.requests["finish_s"][0], abs=1e-9)
    assert arrival[2] == pytest.approx(2.0, abs=1e-9)


def test_refused(artifact: Path, tmp_path: Path) -> None:
    long = sg.InputPlan.from_turns([[[1000, 25, 0.0]]], plan_id="long")
    with pytest.raises(sg.InputError, match="exceed the compiled length of the artifact, 1024"):
        replay(long, artifact, tmp_path / "r")
    small = sg.InputPlan.from_turns([[[10, 1, 0.0]]], plan_id="small")
    with pytest.raises(sg.InputError, match="rules: 'fair'"):
        replay(small, artifact, tmp_path / "r", rules="fair")
    assert not (tmp_path / "r").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(sg.InputError, match="cannot write"):
        replay(small, artifact, tmp_path / "file" / "r")


def test_a_dry_run_checks_the_length_of_the_artifact(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longest = load_artifact(artifact).max_seq_len
    for tokens, code in ((longest - 1, 0), (longest, 2)):
        sg.InputPlan.from_turns([[(tokens, 1, 0.0)]], plan_id="p").save(tmp_path / "plan.json")
        arguments = ["replay", str(tmp_path / "plan.json"), "--dry-run", "--artifact", str(artifact)]
        assert command(arguments) == code
        captured = capsys.readouterr()
        assert (f"exceed the compiled length of the artifact, {longest}" in captured.err) is (code == 2)
        assert (captured.out == "") is (code == 2)
    assert command([*arguments[:-1], str(tmp_path)]) == 2
    assert "not an artifact" in capsys.readouterr().err


def test_the_clock_stands_still_between_steps() -> None:
    clock = CpuClock()
    assert clock() == 0
    with clock.ticking():
        sum(range(200_000))
        inside = clock()
    after = clock()
    assert 0 < inside <= after
    sum(range(200_000))
    assert clock() == after
    clock.jump(after + 5)
    clock.jump(3)
    assert clock() == after + 5

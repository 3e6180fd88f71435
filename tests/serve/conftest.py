"""One loaded executor for all tests of the engine; engines with fresh slots on a CPU clock."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slotgrid.measure.inprocess import CpuClock
from slotgrid.serve.artifact import Artifact, load_artifact
from slotgrid.serve.backend import on_cores, split_cores
from slotgrid.serve.engine import Engine, StepReport
from slotgrid.serve.events import EventLog
from slotgrid.serve.executor import Executor
from slotgrid.serve.generation import Request
from slotgrid.serve.load import make_scheduler


@pytest.fixture(scope="session")
def made(artifact: Path) -> Artifact:
    return load_artifact(artifact)


@pytest.fixture(scope="session")
def executor(made: Artifact) -> Executor:
    cores = split_cores()
    with on_cores(None if cores is None else cores[0]):
        executor = Executor(made)
        executor.warm_up()
    return executor


@dataclass
class Bench:
    """An engine with fresh slots, its clock and what it logged."""

    engine: Engine
    clock: CpuClock
    stream: io.StringIO
    count: int = 0

    def add(self, prompt: list[int], max_tokens: int, name: str | None = None) -> str:
        """Queue a greedy request that ends with its length; returns its id."""
        self.count += 1
        name = name or f"r{self.count}"
        self.engine.add(Request(id=name, prompt=tuple(prompt), max_tokens=max_tokens, order=(self.count,)))
        return name

    def step(self) -> StepReport | None:
        with self.clock.ticking():
            return self.engine.step()

    def run(self) -> dict[str, list[int]]:
        """Step until nothing is left; tokens by request."""
        tokens: dict[str, list[int]] = {}
        while (report := self.step()) is not None:
            for output in report.outputs:
                tokens.setdefault(output.request, []).append(output.token)
        return tokens

    def ask(self, prompt: list[int], max_tokens: int = 1) -> list[int]:
        """One request alone; its tokens."""
        name = self.add(prompt, max_tokens)
        return self.run()[name]

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [event for event in found if not kinds or event["event"] in kinds]


@pytest.fixture
def bench(made: Artifact, executor: Executor) -> Callable[..., Bench]:
    def make(*, slots: int | None = None, max_running: int | None = None, rules: str = "real") -> Bench:
        config = made.config(slots, max_running)
        stream, clock = io.StringIO(), CpuClock()
        engine = Engine(
            runner=executor,
            scheduler=make_scheduler(made, config, rules),
            config=config,
            prefill_chunk=made.prefill_chunk,
            events=EventLog(stream, clock),
        )
        return Bench(engine, clock, stream)

    return make

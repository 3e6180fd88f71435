"""A server with known costs and rules: the real engine on a clock that computation moves by what it is said to cost."""

from __future__ import annotations

import heapq
import io
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import slotgrid as sg
from slotgrid.errors import RunError
from slotgrid.measure.calibrate.rows import Seen
from slotgrid.measure.calibrate.target import Known
from slotgrid.measure.inprocess import CpuClock, drive
from slotgrid.serve.engine import Engine
from slotgrid.serve.events import EventLog
from slotgrid.serve.executor import StepResult
from slotgrid.serve.generation import Request
from slotgrid.serve.scheduler import Prefill, Scheduler

TOKEN = 300


class Clock(CpuClock):
    """Moves only when told."""

    @contextmanager
    def ticking(self) -> Iterator[None]:
        yield

    def advance(self, seconds: float) -> None:
        self.jump(self() + round(seconds * 1e9))


@dataclass(frozen=True)
class Costs:
    """Seconds. step = fixed[bucket] + per_request * n + per_context_token * context; a chunk of a prefill."""

    fixed: dict[int, float] = field(default_factory=lambda: {1: 0.010, 2: 0.012, 4: 0.015, 8: 0.020})
    per_request: float = 0.0
    per_context_token: float = 0.0
    chunk: float = 0.030
    prefill: float = 0.002
    # standard deviation of a factor on everything, drawn anew for each replay
    noise: float = 0.0


class Runner:
    def __init__(self, clock: Clock, costs: Costs, factor: float) -> None:
        self._clock, self._costs, self._factor = clock, costs, factor
        self._first_chunk = True

    def decode(self, bucket: int, tokens: list[int], slots: list[int], positions: list[int]) -> StepResult:
        costs = self._costs
        context = sum(position + 1 for position in positions)
        step = costs.fixed[bucket] + costs.per_request * len(tokens) + costs.per_context_token * context
        self._clock.advance(self._factor * step)
        return StepResult(np.full(len(tokens), TOKEN), None, len(tokens))

    def prefill_chunk(self, tokens: tuple[int, ...], slot: int, start: int) -> StepResult:
        once = self._costs.prefill if self._first_chunk else 0.0
        self._first_chunk = False
        self._clock.advance(self._factor * (self._costs.chunk + once))
        return StepResult(np.full(1, TOKEN), None, 1)

    def begin(self) -> None:
        """A step begins."""
        self._first_chunk = True

    def copy(self, source: int, target: int) -> None:
        pass


class LruScheduler(Scheduler):
    """A hit makes the slot it was found in the last to go."""

    def _lookup(self, tokens: tuple[int, ...]) -> tuple[int | None, int]:
        source, cached = super()._lookup(tokens)
        if source is not None:
            _refresh(self, source)
        return source, cached


class InPlaceScheduler(Scheduler):
    """A request that hits stays in the slot it found; ``by_use`` says whether that makes the slot the last to go."""

    by_use = False

    def _admit(self, changes: list[Any]) -> Prefill | None:
        entry = self._waiting[0]
        source, cached = self._lookup(entry.tokens)
        if source is None or self._slots[source].held:
            return super()._admit(changes)
        self._waiting.pop(0)
        self._idle = [(a, i) for a, i in self._idle if i != source]
        heapq.heapify(self._idle)
        slot = self._slots[source]
        slot.request, slot.tokens, slot.held = entry.request, entry.tokens, True
        if self.by_use:
            slot.allocation = self._allocations
            self._allocations += 1
        running = len(self._running)
        self._running[entry.request] = source
        return Prefill(entry.request, source, None, cached, running, ())


class InPlaceLruScheduler(InPlaceScheduler):
    by_use = True


class KeepsGenerated(Scheduler):
    """Generated tokens stay in the prefix."""

    outputs: dict[str, int]

    def finish(self, request: str) -> Any:
        slot = self._slots[self._running[request]]
        slot.tokens += (TOKEN,) * (self.outputs[request] - 1)
        return super().finish(request)


def _refresh(scheduler: Scheduler, index: int) -> None:
    slot = scheduler._slots[index]
    idle = [(a, i) for a, i in scheduler._idle if i != index]
    if len(idle) < len(scheduler._idle):
        idle.append((scheduler._allocations, index))
    scheduler._idle = idle
    heapq.heapify(scheduler._idle)
    slot.allocation = scheduler._allocations
    scheduler._allocations += 1


class FakeTarget:
    """Replays plans on the engine above.

    usage: cached tokens are reported. told: it says its configuration. fail_after: replays until it dies.
    """

    def __init__(
        self,
        costs: Costs | None = None,
        *,
        slots: int = 8,
        max_running: int | None = None,
        block: int = 32,
        max_seq_len: int = 1024,
        scheduler: type[Scheduler] = Scheduler,
        usage: bool = True,
        told: bool = False,
        clock: str = "wall",
        fail_after: int | None = None,
    ) -> None:
        self.costs = costs or Costs()
        self.config = sg.ServingConfig(tuple(self.costs.fixed), slots=slots, max_running=max_running)
        self.block = block
        self._scheduler = scheduler
        self._usage = usage
        self._fail_after = fail_after
        self.replays: list[str] = []
        self._draw = random.Random(1)
        self.known = Known(
            name="fake",
            model_id="fake",
            hardware="none",
            software="tests",
            clock=clock,
            max_seq_len=max_seq_len,
            config=self.config if told else None,
            identity={"fake": True},
        )

    def replay(self, plan: sg.InputPlan, folder: Path) -> list[Seen]:
        if self._fail_after is not None and len(self.replays) >= self._fail_after:
            raise RunError(f"{plan.plan_id}: the server closed the connection")
        self.replays.append(plan.plan_id)
        clock = Clock()
        factor = max(0.1, self._draw.gauss(1.0, self.costs.noise)) if self.costs.noise else 1.0
        runner = Runner(clock, self.costs, factor)
        scheduler = self._scheduler(
            slots=self.config.slots, max_running=self.config.max_running, block_tokens=self.block, rules="real"
        )
        if isinstance(scheduler, KeepsGenerated):
            turns = [(s, t, turn) for s, (_, x) in enumerate(plan.sessions()) for t, turn in enumerate(x.turns)]
            scheduler.outputs = {f"s{s}t{t}": turn.output_tokens for s, t, turn in turns}
        asked: dict[str, tuple[Request, int]] = {}

        class Watched(Engine):
            def add(self, request: Request, arrival_ns: int | None = None) -> None:
                asked[request.id] = (request, arrival_ns or 0)
                super().add(request, arrival_ns)

            def step(self) -> Any:
                runner.begin()
                return super().step()

        engine = Watched(
            runner=runner,
            scheduler=scheduler,
            config=self.config,
            prefill_chunk=self.block,
            events=EventLog(io.StringIO(), clock),
        )
        times: dict[str, list[float]] = {}
        cached: dict[str, int] = {}
        for report in drive(engine, clock, plan, 0.0005, 8000):
            if report.request is not None:
                cached[report.request] = report.cached_tokens or 0
            for output in report.outputs:
                times.setdefault(output.request, []).append(report.end_ns * 1e-9)
        rows = [
            Seen(
                session=request.session or 0,
                turn=request.turn or 0,
                prompt_tokens=len(request.prompt),
                cached_tokens=cached[name] if self._usage else None,
                arrival_s=arrival * 1e-9,
                finish_s=times[name][-1],
                token_times_s=tuple(times[name]),
            )
            for name, (request, arrival) in asked.items()
        ]
        return sorted(rows, key=lambda row: (row.session, row.turn))

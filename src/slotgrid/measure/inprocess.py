"""Replay a plan on the static engine in this process: computation is real, waits are skipped.

The CPU time of each step advances a virtual clock; between steps no time passes. So a noisy machine, HTTP and sleeping
clients leave no trace in the result, and a plan with an hour of tool waits takes as long as its steps.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from slotgrid import files
from slotgrid.engine.rules import find_rules, pick_turnaround
from slotgrid.errors import RunError
from slotgrid.measure.prompts import TokenRange, segment
from slotgrid.plan import InputPlan, Turn
from slotgrid.run import Run, save_run
from slotgrid.run.readers.event_log import run_from_events

if TYPE_CHECKING:
    from slotgrid.serve.engine import Engine, StepReport

EVENTS = "events.jsonl"


class CpuClock:
    """Virtual nanoseconds that advance with this process's CPU time while a step runs, and by :meth:`jump`."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._since: int | None = None

    def __call__(self) -> int:
        return self._now_ns + (0 if self._since is None else time.process_time_ns() - self._since)

    @contextlib.contextmanager
    def ticking(self) -> Iterator[None]:
        # garbage of the whole process is not the step's: it waits until the step is over
        collecting = gc.isenabled()
        gc.disable()
        self._since = time.process_time_ns()
        try:
            yield
        finally:
            self._now_ns = self()
            self._since = None
            if collecting:
                gc.enable()

    def jump(self, t_ns: int) -> None:
        self._now_ns = max(self._now_ns, t_ns)


@dataclass
class _Client:
    """One closed loop: where it is in its sessions, and what it has said and heard in this one."""

    # (session index, turn index, turn) in order
    turns: list[tuple[int, int, Turn]]
    next: int = 0
    context: list[int] = field(default_factory=list)


def replay_in_process(
    *,
    plan: InputPlan,
    artifact: str | Path,
    output: str | Path,
    rules: str = "real",
    slots: int | None = None,
    max_running: int | None = None,
    turnaround_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Run a plan on a compiled artifact on the CPU clock and write a run directory with its event log.

    slots, max_running: at most what was compiled. turnaround_s: None takes the plan's, then the rule set's. Prompts
    are random tokens, the same for the same plan, session and turn; answers become part of the next prompt. progress is
    called with (finished, all) requests. Raises InputError when a context exceeds the compiled length.
    """
    from slotgrid.serve.artifact import load_artifact
    from slotgrid.serve.backend import on_cores, split_cores
    from slotgrid.serve.events import EventLog
    from slotgrid.serve.load import load_engine

    rule_set = find_rules(rules)
    gap_s = pick_turnaround(rule_set, turnaround_s, plan.turnaround_s, None)
    made = load_artifact(artifact)
    config = made.config(slots, max_running)
    plan.check_context(made.max_seq_len, "the compiled length of the artifact,")
    clock = CpuClock()
    cores = split_cores()
    target = Path(output)
    with files.replacing(target / EVENTS) as path:
        with open(path, "w", encoding="utf-8") as stream, on_cores(None if cores is None else cores[0]):
            engine = load_engine(made, config=config, rules=rules, events=EventLog(stream, clock))
            engine.log_start(versions=made.versions, clock="cpu")
            finished = 0
            for report in drive(engine, clock, plan, gap_s, made.shape.vocabulary):
                finished += sum(output.finish_reason is not None for output in report.outputs)
                if progress is not None:
                    progress(finished, plan.turn_count)
            if finished != plan.turn_count:
                raise RunError(f"plan {plan.plan_id}: only {finished} of {plan.turn_count} requests were served")
        run = run_from_events(path)
    run = replace(
        run,
        turnaround_s=gap_s,
        plan_id=plan.plan_id,
        plan_sha256=plan.content_sha256,
        details={
            **run.details,
            "model": made.shape.name,
            "max_seq_len": made.max_seq_len,
            "prefill_chunk": made.prefill_chunk,
            "platform": made.platform,
            "host": made.host,
        },
    )
    save_run(run, target)
    return run


def drive(
    engine: Engine, clock: CpuClock, plan: InputPlan, turnaround_s: float, vocabulary: int
) -> Iterator[StepReport]:
    """Feed a plan to an engine, step by step; the clock ticks during steps and jumps over waits."""
    from slotgrid.serve.generation import Request
    from slotgrid.serve.tokens import FIRST_WORD

    clients = _clients(plan)
    sessions = [session for _, session in plan.sessions()]
    tokens = TokenRange(FIRST_WORD, vocabulary)
    # (time, session, turn, client)
    future: list[tuple[int, int, int, int]] = []
    sender: dict[str, int] = {}

    def send_later(c: int, t_ns: int) -> None:
        client = clients[c]
        if client.next < len(client.turns):
            session, turn, _ = client.turns[client.next]
            heapq.heappush(future, (t_ns, session, turn, c))

    for c, client in enumerate(clients):
        first = client.turns[0][2]
        send_later(c, _ns(plan.clients[c].start_s if first.arrival_s is None else first.arrival_s))
    while True:
        while future and future[0][0] <= clock():
            t_ns, session, turn, c = heapq.heappop(future)
            client = clients[c]
            planned = client.turns[client.next][2]
            if turn == 0:
                client.context = []
            prefix, own = segment(plan.plan_id, sessions[session], session, turn, tokens)
            client.context += prefix + own
            request = Request(
                id=f"s{session}t{turn}",
                prompt=tuple(client.context),
                max_tokens=planned.output_tokens,
                order=(t_ns, session, turn),
                session=session,
                turn=turn,
            )
            sender[request.id] = c
            engine.add(request, t_ns)
        with clock.ticking():
            report = engine.step()
        if report is None:
            if not future:
                return
            clock.jump(future[0][0])
            continue
        for output in report.outputs:
            c = sender[output.request]
            client = clients[c]
            client.context.append(output.token)
            if output.finish_reason is None:
                continue
            wait_s = client.turns[client.next][2].tool_wait_s
            client.next += 1
            after = report.end_ns + _ns(wait_s + turnaround_s)
            if client.next < len(client.turns):
                planned_s = client.turns[client.next][2].arrival_s
                # a turn is never sent before the answer it builds on
                send_later(c, after if planned_s is None else max(report.end_ns, _ns(planned_s)))
        yield report


def _clients(plan: InputPlan) -> list[_Client]:
    clients = []
    session = 0
    for client in plan.clients:
        turns = []
        for entry in client.sessions:
            turns += [(session, t, turn) for t, turn in enumerate(entry.turns)]
            session += 1
        clients.append(_Client(turns))
    return clients


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)

"""Drives the scheduler alone, with a virtual clock and a profile's costs instead of computation."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import numpy as np

import slotgrid as sg
from slotgrid.serve.scheduler import Evicted, Prefill, Scheduler

TOLERANCE_S = 1e-12  # as the rules say


@dataclass
class Driven:
    """requests: (session, turn, prompt, cached, arrival, admit, first token, finish) in plan order.
    evictions: (time, session, cause). order: (session, turn) as they finished."""

    requests: list[tuple[int, int, int, int, float, float, float, float]] = field(default_factory=list)
    evictions: list[tuple[float, int, str]] = field(default_factory=list)
    order: list[tuple[int, int]] = field(default_factory=list)


def drive(
    profile: sg.StackProfile, config: sg.ServingConfig, plan: sg.InputPlan, rules: str, turnaround_s: float
) -> Driven:
    """Run a closed-loop plan through the scheduler."""
    scheduler = Scheduler(
        slots=config.slots, max_running=config.max_running, block_tokens=profile.kv.block_tokens, rules=rules
    )
    step_s = profile.clock.decode.step_s(config).tolist()
    turns: dict[tuple[int, int], sg.Turn] = {}
    following: dict[tuple[int, int], tuple[int, int]] = {}
    context: dict[int, list[int]] = {}
    fresh = itertools.count(1)
    future: list[tuple[float, tuple[int, int]]] = []
    session = 0
    for client in plan.clients:
        chain = []
        for entry in client.sessions:
            for t, turn in enumerate(entry.turns):
                turns[session, t] = turn
                chain.append((session, t))
            session += 1
        following.update(itertools.pairwise(chain))
        heapq.heappush(future, (client.start_s, chain[0]))

    result = Driven()
    left: dict[str, int] = {}
    times: dict[str, list[float]] = {}
    rows: dict[str, tuple[int, int]] = {}
    prompts: dict[str, int] = {}
    cached: dict[str, int] = {}
    now = 0.0

    def finish(name: str) -> None:
        times[name].append(now)
        scheduler.finish(name)
        key = rows[name]
        result.order.append(key)
        context[key[0]] += [next(fresh) for _ in range(turns[key].output_tokens)]
        if key in following:
            heapq.heappush(future, (now + (turns[key].tool_wait_s + turnaround_s), following[key]))

    while True:
        while future and future[0][0] <= now + TOLERANCE_S:
            arrival, key = heapq.heappop(future)
            name = f"{key[0]}.{key[1]}"
            prompt = context.setdefault(key[0], [])
            prompt += [next(fresh) for _ in range(turns[key].new_tokens)]
            rows[name], times[name], prompts[name] = key, [arrival], len(prompt)
            scheduler.add(name, prompt, (round(arrival * 1e9), *key))
        decision = scheduler.schedule()
        if decision is None:
            if not future:
                break
            now = future[0][0]
            continue
        for change in decision.changes:
            if isinstance(change, Evicted):
                result.evictions.append((now, rows[change.request][0], change.cause))
        assert scheduler.slots_in_use <= scheduler.capacity
        if isinstance(decision, Prefill):
            name = decision.request
            cached[name] = decision.cached_tokens
            times[name].append(now)
            computed = prompts[name] - decision.cached_tokens
            now += float(profile.clock.prefill.seconds(np.array([computed]))[0])
            times[name].append(now)
            left[name] = turns[rows[name]].output_tokens - 1
            done = [name] if left[name] == 0 else []
        else:
            now += step_s[len(decision.rows)]
            for name, _ in decision.rows:
                left[name] -= 1
            done = [name for name, _ in decision.rows if left[name] == 0]
        for name in done:
            finish(name)
    for name, key in rows.items():
        arrival, admit, first, end = times[name]
        result.requests.append((*key, prompts[name], cached[name], arrival, admit, first, end))
    result.requests.sort()
    return result

"""What the observer adds to a step, on the real modules of the wheel: microseconds per step, and per slot event.

Needs the wheels (``make unit`` fetches them). Run: ``python -m benchmarks.observe_overhead``.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path

from tests.stacks import wheels
from tests.stacks.test_rbln_observe import MANAGER, MODEL_BASE, REAL, RUNNER, choose_bucket, decoder, runner_of

from slotgrid.stacks.rbln import observe

STEPS = 20_000
ROUNDS = 7
ALLOWED_US = 20.0


def microseconds(run: Callable[[], None], count: int) -> float:
    """Median over rounds of the microseconds one of ``count`` calls takes."""
    times = []
    for _ in range(ROUNDS):
        before = time.perf_counter()
        run()
        times.append((time.perf_counter() - before) / count * 1e6)
    return statistics.median(times)


def measure(path: str | None) -> tuple[float, float]:
    """Microseconds of a decode step's bookkeeping, and of one request's allocation, look-up, padding and release."""
    with wheels.served("0.11.1", REAL):
        if path is not None:
            os.environ[observe.VARIABLE] = path
            observe.register()
        model = decoder(wheels.load(MODEL_BASE), (1, 2, 4, 8))
        runner = runner_of(wheels.load(RUNNER), lambda _: choose_bucket(model, "0.11.1", 5))
        output = types.SimpleNamespace(total_num_scheduled_tokens=0, scheduled_new_reqs=[])

        def steps() -> None:
            for _ in range(STEPS):
                runner.execute_model(output)

        manager = wheels.load(MANAGER).RBLNPrefixKVCacheManager(8192, 128, 8192, 8, 512)
        names = iter(range(10**9))

        def requests() -> None:
            for _ in range(STEPS // 10):
                name = f"cmpl-{next(names)}"
                manager.can_allocate(2, 0)
                manager.allocate_blocks(name, 0, [1, 2])
                manager.get_matched_outer_blocks(name, [], 0)
                manager.get_dummy_block()
                manager.free_request(name)

        result = microseconds(steps, STEPS), microseconds(requests, STEPS // 10)
        if observe._observer is not None:
            observe._observer.flush()
            assert observe._observer.active, "the observer switched itself off while it was measured"
            observe._observer.active = False
        return result


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        step_without, request_without = measure(None)
        step_with, request_with = measure(str(Path(folder) / "events.jsonl"))
    added = step_with - step_without
    print(f"decode step: {added:.2f} us added (allowed {ALLOWED_US:g}), {added / 10_371:.3%} of a 10.371 ms step")
    print(f"request's slot events: {request_with - request_without:.2f} us added")


if __name__ == "__main__":
    main()

"""Step time by bucket, prefill, reuse copy and memory of the static engine. By hand: python benchmarks/serve.py"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path
from statistics import median

from slotgrid.serve.backend import on_cores, split_cores
from slotgrid.serve.compile import compile_model
from slotgrid.serve.executor import Executor

BUCKETS = (1, 2, 4, 6, 8, 16)


def cpu_ms(call: object, repeats: int) -> float:
    """Median CPU milliseconds of a call."""
    times = []
    for _ in range(repeats):
        begin = time.process_time_ns()
        call()  # type: ignore[operator]
        times.append((time.process_time_ns() - begin) / 1e6)
    return median(times)


def main() -> None:
    cores = split_cores()
    with tempfile.TemporaryDirectory() as folder, on_cores(None if cores is None else cores[0]):
        made = compile_model(
            buckets=BUCKETS,
            slots=16,
            max_seq_len=1024,
            prefill_chunk=128,
            output=Path(folder) / "tiny",
            progress=lambda name, seconds, size: print(f"compile {name}: {seconds:.2f} s, {size / 1024:.0f} KiB"),
        )
        begin = time.perf_counter()
        executor = Executor(made)
        executor.warm_up()
        print(f"load and warm up: {time.perf_counter() - begin:.2f} s")
        for bucket in BUCKETS:
            for rows in sorted({1, bucket}):
                spent = cpu_ms(lambda b=bucket, n=rows: executor.decode(b, [5] * n, list(range(n)), [600] * n), 60)
                print(f"decode bucket {bucket:2d}, {rows:2d} real rows: {spent:.2f} ms")
        for start in (0, 512, 896):
            spent = cpu_ms(lambda s=start: executor.prefill_chunk([5] * 128, 0, s), 20)
            print(f"prefill chunk of 128 at {start}: {spent:.1f} ms")
        print(f"copy of a slot: {cpu_ms(lambda: executor.copy(0, 1), 20):.2f} ms")
        print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()

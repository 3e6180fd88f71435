"""Reading a large server log: MB/s and peak memory against copying the same bytes.

    python benchmarks/read_log.py [MEGABYTES] [--colour] [--gzip] [--no-rows] [--tokens MOST]

Writes a log of made-up sessions in a temporary folder (one server, 8 slots, two-turn sessions, lines as vllm-rbln
writes them), reads and diagnoses it in a fresh process, and prints throughput, peak resident memory, and the ratio
to reading the file without looking at it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

SLOTS = 8
BUCKETS = (1, 2, 4, 8)
MEASURE = """
import json, resource, sys, time
from slotgrid.diagnose import diagnose
from slotgrid.profile import load_profile
from slotgrid.run.readers import read_run
begin = time.perf_counter()
run = read_run(sys.argv[1])
read_s = time.perf_counter() - begin
result = diagnose(run, profile=load_profile("rbln-ca25-qwen3-4b"))
total_s = time.perf_counter() - begin
peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"read_s": read_s, "total_s": total_s, "peak_mb": peak_mb, "requests": run.requests.height,
                  "steps": run.decode_steps, "warnings": list(result.warnings)}))
"""


def lines(seed: int, colour: bool, most_tokens: int) -> Iterator[tuple[str, dict[str, object] | None]]:
    """Log lines without end, and with each release the request row that belongs to it."""
    rng = random.Random(seed)
    open_code, close_code = ("\x1b[32m", "\x1b[0m") if colour else ("", "")
    begin = datetime(2026, 11, 30, 3, 10, 11)

    def source(place: str) -> str:
        # the clock ticks: it is what ends a run of equal lines
        clock = (begin + timedelta(seconds=int(now))).strftime("%m-%d %H:%M:%S")
        return f"{open_code}[vllm-rbln] DEBUG {clock}{close_code} [vllm_rbln/.../{place}"

    yield f"[vllm-rbln] INFO 11-30 03:10:11 [a.py:85] Updating scheduler_config.max_num_seqs from 1 to {SLOTS}", None
    yield "[vllm-rbln] DEBUG 11-30 03:10:11 [a.py:49] Prefix block size is set to 128 based on prefill_chunk_size", None
    free = list(range(SLOTS))
    running: dict[str, list[int]] = {}
    held: dict[int, int] = {}
    number, now = 0, 0.0
    while True:
        manager = source("prefix_cache_manager/optimum_prefix_cache_manager.py:308] [PFX] ")
        while free or held:
            if len(running) >= SLOTS or (running and rng.random() < 0.3):
                break
            if not free:
                slot = min(held, key=lambda s: held[s])
                del held[slot]
                yield (
                    f"{manager}[EVICTION] OB={slot} | IB_COUNT=9 | FREE_BLOCKS_AFTER=1 | INACTIVE_MAPPINGS_AFTER=[]",
                    None,
                )
                free.append(slot)
            slot = free.pop()
            name = f"cmpl-{number:016x}-0-{rng.getrandbits(32):08x}"
            blocks = ", ".join(str(i) for i in range(1, 11))
            yield f"{manager}[ALLOC] REQUEST={name} | OB_COUNT=1 OB=[{slot}] | IB_COUNT=10 IB=[{blocks}]", None
            running[name] = [rng.randint(20, most_tokens), slot, number, 0]
            number += 1
        left = min(entry[0] for entry in running.values())
        count = len(running)
        bucket = next(b for b in BUCKETS if b >= count)
        for _ in range(left):
            step = source("models/optimum/model_base.py:398] [BUCKET] ")
            yield f"{step}request_nums={count} padded_batch_size={bucket}", None
            now += 0.013
        manager = source("prefix_cache_manager/optimum_prefix_cache_manager.py:308] [PFX] ")
        for name in list(running):
            entry = running[name]
            entry[0] -= left
            entry[3] += left
            if entry[0] == 0:
                row = {
                    "session": f"s{entry[2] // 2}", "session_index": entry[2] // 2, "turn": entry[2] % 2,
                    "request_id": name.rsplit("-", 2)[0], "status": 200, "sent_s": now - 0.013 * entry[3],
                    "done_s": now, "prompt_tokens": 1200, "completion_tokens": entry[3] + 1, "cached_tokens": 0,
                }  # fmt: skip
                yield f"{manager}[FREE-REQUEST] REQUEST={name} | PREEMPTION=False | OUTER_BLOCKS=[{entry[1]}]", row
                held[entry[1]] = entry[2]
                del running[name]


def write(folder: Path, megabytes: float, colour: bool, packed: bool, most_tokens: int = 200) -> Path:
    """Write server.log and requests.jsonl; returns the log."""
    path = folder / ("server.log.gz" if packed else "server.log")
    opener = gzip.open if packed else open
    written, limit = 0, int(megabytes * 1e6)
    with opener(path, "wt", encoding="utf-8") as log, open(folder / "requests.jsonl", "w") as rows:
        for line, row in lines(7, colour, most_tokens):
            log.write(line + "\n")
            written += len(line) + 1
            if row is not None:
                rows.write(json.dumps(row) + "\n")
                if written > limit:
                    return path
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("megabytes", nargs="?", type=float, default=500)
    parser.add_argument("--colour", action="store_true")
    parser.add_argument("--gzip", action="store_true")
    parser.add_argument("--no-rows", action="store_true", help="the log alone")
    parser.add_argument("--tokens", type=int, default=200, help="most decode steps of a request; fewer, denser log")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = write(folder, options.megabytes, options.colour, options.gzip, options.tokens)
        if options.no_rows:
            (folder / "requests.jsonl").unlink()
        plain = options.megabytes
        begin = time.perf_counter()
        with (gzip.open if options.gzip else open)(log, "rb") as stream:
            while stream.read(4 << 20):
                pass
        copy_s = time.perf_counter() - begin
        out = subprocess.run([sys.executable, "-c", MEASURE, name], capture_output=True, text=True, check=True).stdout
        result = json.loads(out)
        print(f"log {plain:.0f} MB ({log.stat().st_size / 1e6:.0f} MB on disk), {result['requests']:,} requests, "
              f"{result['steps']:,} decode steps")  # fmt: skip
        print(f"read {result['read_s']:.2f} s: {plain / result['read_s']:.0f} MB/s; "
              f"with diagnosis {result['total_s']:.2f} s: {plain / result['total_s']:.0f} MB/s")  # fmt: skip
        print(f"peak memory {result['peak_mb']:.0f} MB; reading without looking {copy_s:.2f} s "
              f"(ratio {result['read_s'] / copy_s:.1f})")  # fmt: skip
        for warning in result["warnings"]:
            print(f"warning: {warning}")


if __name__ == "__main__":
    main()

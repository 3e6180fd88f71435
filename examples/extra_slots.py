"""KV slots above the running limit: more reuse without a larger top bucket.

Two-turn sessions of eight clients on buckets 1,2,4,8 with up to eight running, real rules, 0.8 ms of turnaround.
Only the number of KV slots (``kvcache_num_blocks``) changes. Run: ``python examples/extra_slots.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import slotgrid as sg
from slotgrid.engine import REAL
from slotgrid.search.evaluate import Evaluator, PlanGroup

BUCKETS = (1, 2, 4, 8)
CLIENTS = 8
TURNAROUND_S = 0.0008


@dataclass(frozen=True)
class Row:
    """One seed on one number of slots; device time relative to as many slots as run at most."""

    seed: int
    slots: int
    reused: int
    returns: int
    device_time_s: float
    ratio: float
    memory_gib_per_device: float


def extra_slots(seeds: Sequence[int], blocks: Sequence[int], slots: Sequence[int]) -> list[Row]:
    """Simulate every seed on every number of slots (the first is the reference)."""
    profile = sg.load_profile("rbln-ca25-qwen3-4b")
    workload = sg.load_workload("tracelab-two-turn")
    configs = [sg.ServingConfig(BUCKETS, slots=count) for count in slots]
    rows = []
    for seed in seeds:
        plans = [workload.draw(clients=CLIENTS, seed=seed, block=block) for block in blocks]
        group = PlanGroup.build(CLIENTS, plans, [], profile, TURNAROUND_S)
        seconds, _, reused, _ = Evaluator(profile, REAL, [group]).run(configs)
        for config, time_s, count in zip(configs, seconds[:, 0], reused[:, 0], strict=True):
            rows.append(
                Row(
                    seed=seed,
                    slots=config.slots,
                    reused=int(count),
                    returns=group.explored_returns,
                    device_time_s=float(time_s),
                    ratio=float(time_s / seconds[0, 0]),
                    memory_gib_per_device=profile.needed_memory().fullest_device_gib(config),
                )
            )
    return rows


def main() -> None:
    seeds = [int(text) for text in sys.argv[1:]] or [20261000, 20261100, 20261200]
    print("seed      slots  reused       device time   ratio   GiB on the fullest device")
    for row in extra_slots(seeds, range(100), (8, 9, 10, 12, 16)):
        print(
            f"{row.seed}  {row.slots:5}  {row.reused:4} of {row.returns}  {row.device_time_s:9.2f} s  {row.ratio:.4f}"
            f"   {row.memory_gib_per_device:.2f}"
        )
    print("One more slot is one more block: optimum-rbln-cli ... --batch_size 8 --kvcache_num_blocks 9")


if __name__ == "__main__":
    main()

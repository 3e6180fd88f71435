"""Published inputs drawn again: the plans of the steady-state cells and of the two-turn occupancy table."""

from __future__ import annotations

from functools import cache

import slotgrid as sg
from slotgrid.workload.seeds import session_random
from tests.conftest import read_csv

BUCKETS = {
    "BASE": (1, 2, 4, 8),
    "BATCHONLY": (1, 2, 4, 8, 16),
    "TUNED": (1, 4, 6, 8, 10, 16),
    "DP": (1, 2, 3, 4, 6, 16),
}


@cache
def steady_plans(clients: int) -> tuple[tuple[sg.InputPlan, float], ...]:
    """The five published plans of a number of clients, each with its published cycle."""
    workload = sg.load_workload("tracelab-multi-turn")
    return tuple(
        (
            workload.draw(
                clients=clients, seed=int(row["base_seed"]), plan_id=row["plan_id"], cycle_s=float(row["cycle_s"])
            ),
            float(row["cycle_s"]),
        )
        for row in read_csv("plan_index.csv")
        if row["index_file"] in ("INDEX.json", "INDEX_HI.json")
        and row["substrate"] == "NPU"
        and int(row["n_slots"]) == clients
    )


def whole_second_plan(clients: int, seed: int, block: int) -> sg.InputPlan:
    """A two-turn plan with waits of 1 to 5 whole seconds (tests/data/README.md, step utilization)."""
    sessions = []
    for s in range(clients):
        rng = session_random(seed, f"n{clients}b{block}/s{s}")
        prompt, output, wait, output_2 = (rng.randint(*ends) for ends in ((800, 1600), (32, 256), (1, 5), (32, 256)))
        sessions.append([(prompt, output, float(wait)), (8, output_2, 0.0)])
    return sg.InputPlan.from_turns(sessions)

"""Sample runs and small made-up logs for the tests of readers and diagnosis."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.conftest import DATA

STACK = DATA / "vllm_rbln_0.11.1"
NAMES = ("base_n8_b0", "batchonly_n8_b0", "tuned_n8_b0")
ROWS = DATA / "rows"
HEAD = "[vllm-rbln] DEBUG 11-30 03:10:11 [vllm_rbln/x.py:1] "


def expected(name: str) -> dict[str, Any]:
    """The totals a reader must find in a sample, under the names of ``slotgrid diagnose --json``."""
    told: dict[str, Any] = json.loads((STACK / name / "expected.json").read_text())
    evictions = {cause: told.pop(f"evictions_by_{cause}") for cause in ("admission", "padding")}
    return {
        **{key: value for key, value in told.items() if key not in ("step_histogram", "decode_s", "prefill_s")},
        "histogram": told["step_histogram"],
        "evictions": {**evictions, "unknown": 0},
        "channel_a": {
            "decode_s": told["decode_s"],
            "prefill_s": told["prefill_s"],
            "total_s": told["decode_s"] + told["prefill_s"],
        },
    }


def copy_sample(name: str, target: Path, *files: str) -> Path:
    """Copy a sample, or some of its files, to a folder that may be changed."""
    target.mkdir(parents=True, exist_ok=True)
    for file in files or ("server.log", "requests.jsonl", "metrics.prom", "plan.json"):
        shutil.copy(STACK / name / file, target / file)
    return target


def sample_lines(name: str = "base_n8_b0") -> list[str]:
    return (STACK / name / "server.log").read_text().splitlines()


def sample_rows(name: str = "base_n8_b0") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (STACK / name / "requests.jsonl").read_text().splitlines()]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def alloc(name: str, slot: int) -> str:
    return f"{HEAD}[PFX] [ALLOC] REQUEST={name} | OB_COUNT=1 OB=[{slot}] | IB_COUNT=3 IB=[1, 2, 3]"


def free(name: str, slot: int, preempted: bool = False) -> str:
    return f"{HEAD}[PFX] [FREE-REQUEST] REQUEST={name} | PREEMPTION={preempted} | OUTER_BLOCKS=[{slot}]"


def evict(slot: int) -> str:
    return f"{HEAD}[PFX] [EVICTION] OB={slot} | IB_COUNT=3 | FREE_BLOCKS_AFTER=1 | INACTIVE_MAPPINGS_AFTER=[]"


def hit(name: str, blocks: int) -> str:
    return f"{HEAD}[PFX] [CACHE-HIT] REQUEST={name} | OB_COUNT=1 OB=[0] | IB_COUNT={blocks} IB=[[1, 2]]"


def step(running: int, bucket: int) -> str:
    return f"{HEAD}[BUCKET] request_nums={running} padded_batch_size={bucket}"


def log(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def row(session: int | str, turn: int, /, **changes: Any) -> dict[str, Any]:
    """A request row of slotgrid's own shape."""
    return {
        "session": session, "turn": turn, "request_id": f"cmpl-{session}{turn}", "prompt_tokens": 600 + 100 * turn,
        "output_tokens": 3, "cached_tokens": 0, "arrival_s": 1.0 * turn, "first_token_s": 1.0 * turn + 0.2,
        "finish_s": 1.0 * turn + 0.5, **changes,
    }  # fmt: skip

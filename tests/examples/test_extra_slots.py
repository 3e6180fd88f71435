"""The extra-slots example on a smaller size: what it says holds, and the search finds the same axis."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import slotgrid as sg

SCRIPT = Path(__file__).parent.parent.parent / "examples" / "extra_slots.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("extra_slots", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["extra_slots"] = module
    spec.loader.exec_module(module)
    return module


def test_the_published_numbers(example: ModuleType) -> None:
    """N = 8, blocks 0 to 99: 388 of 800 reuses become 527 with one more slot; sixteen slots keep all."""
    rows = example.extra_slots([20261000, 20261100], range(100), (8, 9, 16))
    assert [(row.slots, row.reused, row.returns) for row in rows] == [
        *((8, 388, 800), (9, 527, 800), (16, 800, 800)),
        *((8, 409, 800), (9, 536, 800), (16, 800, 800)),
    ]
    sixteen = [row.ratio for row in rows if row.slots == 16]
    assert all(0.925 < ratio < 0.945 for ratio in sixteen)
    # one slot is 0.28125 GiB of each device
    assert rows[1].memory_gib_per_device - rows[0].memory_gib_per_device == pytest.approx(0.28125)


def test_the_search_offers_and_prices_the_axis(example: ModuleType) -> None:
    blocks, seed = (0, 1, 2, 3), 20261000
    rows = example.extra_slots([seed], blocks, (8, 9, 12))
    result = sg.search(
        sg.load_profile("rbln-ca25-qwen3-4b"),
        sg.SearchSpace([8], 4, intermediate=[2, 4], extra_slots=(0, 1, 4)),
        sg.load_workload("tracelab-two-turn"),
        sessions=(8,),
        baseline=sg.ServingConfig((1, 2, 4, 8)),
        turnaround_s=0.0008,
        explore_seeds=(seed,),
        evaluate_seeds=(1,),
        blocks=blocks,
    )
    found = {
        candidate.config.slots: candidate
        for candidate in (result.candidate(i) for i in range(result.candidates))
        if candidate.config.buckets == (1, 2, 4, 8)
    }
    assert list(found) == [8, 9, 12]
    for row in rows:
        candidate = found[row.slots]
        assert candidate.ratio == pytest.approx(row.ratio, rel=1e-12)
        assert candidate.reused_by_sessions == {8: row.reused}
        assert candidate.memory_gib_per_device == row.memory_gib_per_device


def test_a_budget_without_room_drops_the_slots() -> None:
    result = sg.search(
        sg.load_profile("rbln-ca25-qwen3-4b"),
        sg.SearchSpace([8], 2, extra_slots=(0, 1, 4)),
        sg.load_workload("tracelab-two-turn"),
        sessions=(8,),
        baseline=sg.ServingConfig((1, 8)),
        blocks=(0,),
        memory_budget_gib=2.6 + 9 * 0.28125,
    )
    assert result.ledger["slots"].to_list() == [8, 9]
    assert result.skipped["memory"] == 1

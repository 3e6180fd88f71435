"""Predictions stay as close to published hardware runs as they were found to be."""

from __future__ import annotations

import sys
from statistics import mean

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "examples"))
import published_hardware


def test_steady_state_cells() -> None:
    cells = published_hardware.steady_cells(without=("excess",))
    assert len(cells) == 19
    (reuse_low, ratio_low), (reuse_high, ratio_high) = published_hardware.mean_errors(cells).values()
    assert reuse_low <= 0.005
    assert reuse_high <= 0.008
    assert ratio_low <= 0.008
    assert ratio_high <= 0.024
    resolved = [cell for cell in cells if cell.resolved]
    assert len(resolved) == 11
    assert all(cell.ranked_right for cell in resolved)


def test_two_turn_cost_ratios() -> None:
    comparisons = published_hardware.two_turn_ratios()
    assert len(comparisons) == 8
    assert mean(abs(c.mean - c.observed) for c in comparisons) <= 0.0140
    assert sum(c.covered for c in comparisons) >= 7


def test_step_utilization_of_single_runs() -> None:
    runs = published_hardware.utilizations()
    assert len(runs) == 42
    assert mean(abs(run.predicted - run.observed) for run in runs) <= 0.0014
    waiting = [run for run in runs if run.waits]
    assert len(waiting) == 21
    assert sum(run.covered for run in waiting) >= 16


def test_a_document_without_markers_is_left_alone(tmp_path, monkeypatch) -> None:
    document = tmp_path / "notes.md"
    document.write_text("nothing here\n")
    monkeypatch.setattr(published_hardware, "report", lambda members: "table")
    monkeypatch.setattr(sys, "argv", ["published_hardware.py", "--write", str(document)])
    with pytest.raises(SystemExit, match="no markers"):
        published_hardware.main()
    document.write_text(f"a\n{published_hardware.BEGIN}\nold\n{published_hardware.END}\nb\n")
    published_hardware.main()
    assert document.read_text() == f"a\n{published_hardware.BEGIN}\ntable\n{published_hardware.END}\nb\n"

"""The names other people's scripts rely on."""

from __future__ import annotations

import subprocess
import sys

import pytest

import slotgrid as sg


def test_every_public_name_is_there() -> None:
    for name in sg.__all__:
        assert getattr(sg, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = sg.colour  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", ["import slotgrid.search", "from slotgrid.search.space import SearchSpace", "pass"])
def test_search_is_callable_however_it_was_imported(first: str) -> None:
    code = f"{first}\nimport slotgrid as sg\ntry:\n    sg.search()\nexcept TypeError as error:\n    print(error)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "search() missing" in process.stdout


def test_run_tables_have_the_stable_columns(profile: sg.StackProfile) -> None:
    plan = sg.InputPlan.from_turns([[[1200, 100, 2.5], [8, 60, 0.0]], [[900, 40, 0.1], [8, 200, 0.0]]])
    config = sg.ServingConfig(buckets=(1, 2, 4, 8), slots=8, max_running=8)
    run = sg.simulate(profile, config, plan, rules="real", turnaround_s=None)
    assert run.steps.columns == [
        "start_s",
        "duration_s",
        "kind",
        "running",
        "bucket",
        "session",
        "turn",
        "computed_tokens",
    ]
    assert run.requests.columns == [
        "session",
        "turn",
        "prompt_tokens",
        "cached_tokens",
        "computed_tokens",
        "output_tokens",
        "arrival_s",
        "admit_s",
        "first_token_s",
        "finish_s",
    ]
    assert run.evictions.columns == ["time_s", "session", "cause"]
    assert run.histogram.columns == ["running", "bucket", "steps"]
    assert run.device_time_s == run.decode_s + run.prefill_s  # type: ignore[operator]
    assert "Run(simulated, 1,2,4,8: 4 requests" in repr(run)

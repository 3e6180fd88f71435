"""Runs on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import slotgrid as sg


@pytest.fixture
def run(profile: sg.StackProfile, two_turn: sg.Workload) -> sg.Run:
    return sg.simulate(profile, sg.ServingConfig((1, 2, 4, 8)), two_turn.draw(clients=8, seed=20261000))


def test_round_trip(run: sg.Run, tmp_path: Path) -> None:
    sg.save_run(run, tmp_path / "run")
    again = sg.load_run(tmp_path / "run")
    for name in ("steps", "requests", "evictions", "histogram"):
        assert getattr(again, name).equals(getattr(run, name))
    assert again.to_dict() == run.to_dict()
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"run.json", "steps.parquet", "requests.parquet", "evictions.parquet"}


def test_broken_folders_are_named(run: sg.Run, tmp_path: Path) -> None:
    with pytest.raises(sg.InputError, match=r"run\.json: No such file"):
        sg.load_run(tmp_path)
    sg.save_run(run, tmp_path)
    (tmp_path / "steps.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(sg.InputError, match=r"steps\.parquet: cannot read"):
        sg.load_run(tmp_path)
    (tmp_path / "run.json").write_text('{"format": "other"}')
    with pytest.raises(sg.InputError, match=r"run\.json: not a run"):
        sg.load_run(tmp_path)


def test_totals_are_those_of_the_tables(run: sg.Run) -> None:
    data = run.to_dict()
    decode = run.steps.filter(run.steps["kind"] == "decode")
    assert data["decode_steps"] == decode.height == sum(row[2] for row in data["histogram"])
    assert data["padding_ratio"] == pytest.approx(1 - decode["running"].sum() / decode["bucket"].sum())
    assert (data["requests"], data["returns"]) == (16, 8)
    assert data["cached_tokens"] + data["computed_tokens"] == run.requests["prompt_tokens"].sum()

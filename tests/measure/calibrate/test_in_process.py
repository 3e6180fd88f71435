"""A whole calibration of the static engine in process, and how well its profile predicts inputs it has not seen."""

from __future__ import annotations

import itertools
from pathlib import Path

import polars as pl
import pytest

import slotgrid as sg
from slotgrid.measure.calibrate.calibrate import calibrate, require_profile
from slotgrid.measure.calibrate.target import InProcessTarget
from slotgrid.run.readers.event_log import run_from_events
from tests.measure.calibrate.unseen import InTurns, unseen
from tests.serve.attempts import in_one_of_three


def decode_steps(logs: list[Path]) -> pl.DataFrame:
    tables = [run_from_events(log).steps for log in logs]
    return pl.concat([table for table in tables if table is not None]).filter(pl.col("kind") == "decode")


@pytest.mark.slow
def test_the_profile_predicts_new_inputs(artifact: Path, tmp_path: Path) -> None:
    """Step times within 10 % of the engine's own event log; reuse within the spread of repeats and device time within
    10 % on a plan the calibration has not seen."""
    attempts = itertools.count()
    in_one_of_three(lambda: check(artifact, tmp_path / str(next(attempts))))


def check(artifact: Path, folder: Path) -> None:
    inner = InProcessTarget(artifact)
    seen: list[Path] = []

    def replay_unseen(number: int) -> None:
        inner.replay(unseen(number), folder / f"unseen-{number}")
        seen.append(folder / f"unseen-{number}" / "events.jsonl")

    result = calibrate(target=InTurns(inner, replay_unseen, every=20), output=folder / "p.toml")
    profile = require_profile(result, "p.toml")
    config = sg.ServingConfig((1, 2, 4, 8))
    step_s = profile.price.decode.step_s(config)
    logs = [log for log in (folder / "p.calibration").glob("decode-n*/events.jsonl") if "-long" not in log.parent.name]
    logged = decode_steps(sorted(logs)).group_by("bucket").agg(pl.col("duration_s").median()).sort("bucket")
    for bucket, seconds in logged.iter_rows():
        print(f"step of bucket {bucket}: log {seconds * 1e3:.2f} ms, profile {step_s[bucket] / seconds - 1:+.1%}")
        assert step_s[bucket] == pytest.approx(seconds, rel=0.10)
    predicted = sg.simulate(profile, config, unseen(), rules="real", turnaround_s=0.0)
    runs = [run_from_events(log) for log in seen]
    reused = [run.reused for run in runs]
    device_s = [float(run.steps["duration_s"].sum()) for run in runs if run.steps is not None]
    assert len(runs) >= 3
    mean_s = sum(device_s) / len(device_s)
    print(f"reused of {predicted.returns}: predicted {predicted.reused}, measured {reused}")
    print(f"device time: predicted {predicted.device_time_s:.3f} s, measured {[round(s, 3) for s in device_s]}")
    print(f"mean {mean_s:.3f} s, error {predicted.device_time_s / mean_s - 1:+.1%}")
    assert predicted.returns == 16
    assert 5 < predicted.reused < 16
    assert min(reused[:3]) <= predicted.reused <= max(reused[:3])
    assert predicted.device_time_s == pytest.approx(mean_s, rel=0.10)

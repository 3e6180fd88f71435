"""A whole calibration of the static engine in process, and how well its profile predicts inputs it has not seen."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import slotgrid as sg
from slotgrid.measure.calibrate.calibrate import calibrate, require_profile
from slotgrid.measure.calibrate.rows import Seen
from slotgrid.measure.calibrate.target import InProcessTarget
from slotgrid.run.readers.event_log import run_from_events

EVERY = 20


def unseen() -> sg.InputPlan:
    """Eight clients on eight slots: some returns find their prefix, some do not."""
    clients = []
    for i in range(8):
        turns = (sg.Turn(150 + 70 * (i % 5), 20 + 7 * (i % 4), 0.5 * (i % 3)), sg.Turn(12, 15, 1.5), sg.Turn(140, 18))
        clients.append(sg.Client(0.4 * i, (sg.Session(f"s{i}", turns),)))
    return sg.InputPlan("unseen", tuple(clients))


class InTurns(InProcessTarget):
    """Replays the unseen plan between the replays of the calibration, so that a slow hour of the machine meets both."""

    def __init__(self, artifact: Path, folder: Path) -> None:
        super().__init__(artifact)
        self.folder = folder
        self.count = 0
        self.logs: list[Path] = []

    def replay(self, plan: sg.InputPlan, folder: Path) -> list[Seen]:
        if self.count % EVERY == EVERY // 2:
            aside = self.folder / str(self.count)
            super().replay(unseen(), aside)
            self.logs.append(aside / "events.jsonl")
        self.count += 1
        return super().replay(plan, folder)


def decode_steps(logs: list[Path]) -> pl.DataFrame:
    tables = [run_from_events(log).steps for log in logs]
    return pl.concat([table for table in tables if table is not None]).filter(pl.col("kind") == "decode")


@pytest.mark.slow
def test_the_profile_predicts_new_inputs(artifact: Path, tmp_path: Path) -> None:
    """Step times within 10 % of the engine's own event log; reuse within the spread of repeats and device time within
    10 % on a plan the calibration has not seen."""
    target = InTurns(artifact, tmp_path / "unseen")
    profile = require_profile(calibrate(target=target, output=tmp_path / "p.toml"), "p.toml")
    config = sg.ServingConfig((1, 2, 4, 8))
    step_s = profile.price.decode.step_s(config)
    logs = [
        log for log in (tmp_path / "p.calibration").glob("decode-n*/events.jsonl") if "-long" not in log.parent.name
    ]
    logged = decode_steps(sorted(logs)).group_by("bucket").agg(pl.col("duration_s").median()).sort("bucket")
    for bucket, seconds in logged.iter_rows():
        print(f"step of bucket {bucket}: log {seconds * 1e3:.2f} ms, profile {step_s[bucket] / seconds - 1:+.1%}")
        assert step_s[bucket] == pytest.approx(seconds, rel=0.10)
    predicted = sg.simulate(profile, config, unseen(), rules="real", turnaround_s=0.0)
    runs = [run_from_events(log) for log in target.logs]
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

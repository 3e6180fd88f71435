"""Measured arms: what the measuring part is asked for, and what becomes of its conditions.

The measuring part itself is a stand-in here (it has tests of its own); tests/slow measures a study for real.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotgrid.errors import InputError
from slotgrid.measure.arm_file import Arms
from slotgrid.measure.arms import STARTING, ConditionResult, Progress
from slotgrid.measure.options import WindowRule
from slotgrid.run import save_run
from slotgrid.run.steady import find_window
from slotgrid.study import hardware
from slotgrid.study.collect import ingest, measure
from slotgrid.study.log import read_log
from slotgrid.study.overview import overview
from slotgrid.study.register import register
from slotgrid.study.study import open_study
from slotgrid.study.verdict import verdict
from tests.study.small import LATER, NOW, PLACES, hardware_run, write_study

ARMS = 'format = "slotgrid-arms/1"\n' + "".join(
    f'[[arm]]\nname = "{name}"\nstart = "server {{port}}"\n' for name in ("wide", "base", "other")
)


def write_hardware(folder: Path, arms: str = ARMS, **options: Any) -> Path:
    options = {"runs": "", "more": '[measure]\narms = "arms.toml"\norder_seed = 4\n', **options}
    write_study(folder, **options)
    (folder / "arms.toml").write_text(arms)
    return folder


class Lab:
    """Stands for the measuring part: every condition valid unless it is named in ``bad``."""

    def __init__(self, study: Path) -> None:
        self.study = study
        self.calls: list[Arms] = []
        self.bad: set[tuple[str, int]] = set()
        self.changes: dict[str, Any] = {}
        self.attempts = 1
        self.started: list[tuple[str, int]] = []
        self.stop_at: tuple[str, int] | None = None

    def __call__(
        self,
        *,
        arms: Arms,
        output: Path,
        wanted: set[tuple[str, int]],
        outcome: Callable[[ConditionResult], None],
        progress: Callable[[Progress], None],
        **_: Any,
    ) -> None:
        self.calls.append(arms)
        entry = open_study(self.study).entries[-1]
        for r, names in enumerate(arms.order):
            for place, name in enumerate(names):
                if (name, r) not in wanted:
                    continue
                if self.stop_at == (name, r):
                    raise KeyboardInterrupt
                folder = output / name / f"r{r}"
                valid = (name, r) not in self.bad
                path = arms.plans[r]
                cell = next(c for c in entry.cells(entry.sets[0]) if path.name == f"{c.name}.json")
                if not folder.exists():
                    self.started.append((name, r))
                    progress(Progress(0, 1, name, r, STARTING))
                if valid and not folder.exists():
                    save_run(hardware_run(entry, cell, name, **self.changes), folder)
                reasons = () if valid else ("the server ended with exit code 1",)
                outcome(
                    ConditionResult(
                        name, r, place, str(folder), valid, reasons, self.attempts, "", "", started_at=LATER
                    )
                )


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    folder = write_hardware(tmp_path / "study")
    register(folder, now=lambda: NOW)
    made = Lab(folder)
    monkeypatch.setattr(hardware, "measure_arms", made)
    return made


def test_conditions_become_runs(lab: Lab) -> None:
    found = measure(lab.study, now=lambda: LATER)
    assert (len(found.added), found.missing, found.invalid) == (PLACES, 0, ())
    (arms,) = lab.calls
    assert [arm.name for arm in arms.arms] == ["base", "wide"]
    assert [path.parent.parent.parent.name for path in arms.plans] == ["0001"] * 4
    assert (arms.seed, arms.options.window) == (4, None)
    record = found.added[0]
    assert (record.source, record.data["how"], record.data["attempts"]) == ("measured", "study measure", 1)
    assert verdict(lab.study, now=lambda: LATER).data["source"] == "measured"
    assert measure(lab.study, now=lambda: LATER).there_before == PLACES


def test_every_attempt_is_logged_when_it_begins(lab: Lab) -> None:
    """A measurement that is removed before it is a run of the study leaves its trace, and the run shows it."""
    lab.bad = {("wide", 2)}
    measure(lab.study, now=lambda: LATER)
    begun = [line.data for line in read_log(lab.study).lines if line.what == "attempt"]
    assert len(begun) == PLACES
    assert {(row["sessions"], row["replicate"], row["arm"]) for row in begun} == {
        (n, f"s5-b{b}", arm) for n in (3, 4) for b in (0, 1) for arm in ("base", "wide")
    }
    measure(lab.study, now=lambda: LATER)
    lab.bad = set()
    measure(lab.study, now=lambda: LATER)
    (s,) = overview(open_study(lab.study)).sets
    counts = {(r.cell.sessions, r.cell.replicate, r.arm): s.attempts[r.sha256] for r in s.records}
    assert counts.pop((4, "s5-b0", "wide")) == 3
    assert set(counts.values()) == {1}


def test_what_is_not_valid_stays_out_and_is_tried_again(lab: Lab) -> None:
    lab.bad = {("wide", 2)}
    found = measure(lab.study, now=lambda: LATER)
    assert (len(found.added), found.missing) == (PLACES - 1, 1)
    place = "set main, N = 4, replicate s5-b0, arm wide"
    assert found.invalid[0].startswith(f"{place}: the server ended with exit code 1; 1 attempt is used up")
    # the same again is no news; another attempt is
    measure(lab.study, now=lambda: LATER)
    lab.attempts = 3
    measure(lab.study, now=lambda: LATER)
    refused = [line.data for line in read_log(lab.study).lines if line.what == "refused"]
    assert [row["attempts"] for row in refused] == [1, 3]
    assert {row["reason"] for row in refused} == {f"{place}: the server ended with exit code 1"}
    lab.bad = set()
    again = measure(lab.study, now=lambda: LATER)
    assert (len(again.added), again.there_before, again.missing) == (1, PLACES - 1, 0)


@pytest.mark.parametrize(
    ("attempts", "words"),
    [
        (0, "exit code 1; it was not run; the next slotgrid study measure tries again"),
        (1, "1 attempt is used up, so it is not run again by itself; mend the cause, then rename"),
        (2, "2 attempts are used up, so it is not run again by itself; mend the cause, then rename"),
    ],
)
def test_what_can_be_done_about_it_is_said(attempts: int, words: str, lab: Lab) -> None:
    lab.bad, lab.attempts = {("wide", 2)}, attempts
    (told,) = measure(lab.study, now=lambda: LATER).invalid
    assert words in told
    folder = lab.study / "measuring/main/all/wide/r2"
    assert (f"rename {folder} to r2.invalid-{attempts} and measure again" in told) == (attempts > 0)
    assert "\n" not in told


def test_runs_the_study_cannot_use_stay_out(lab: Lab) -> None:
    lab.changes = {"steps": None}
    found = measure(lab.study, now=lambda: LATER)
    assert not found.added
    assert "decode steps are not observed (channel A needs them); 1 attempt is used up" in found.invalid[0]


def test_not_half_brought_in(lab: Lab, tmp_path: Path) -> None:
    entry = open_study(lab.study).entries[0]
    save_run(hardware_run(entry, entry.cells(entry.sets[0])[0], "base"), tmp_path / "run")
    ingest(lab.study, [tmp_path / "run"], now=lambda: LATER)
    with pytest.raises(InputError, match=r"main/n3-s5-b0/base: was brought in; bring in the other runs of set main"):
        measure(lab.study, now=lambda: LATER)


def test_the_arms_file_is_registered(lab: Lab, tmp_path: Path) -> None:
    path = lab.study / "arms.toml"
    path.write_text(path.read_text() + "# faster\n")
    with pytest.raises(InputError, match=rf"^{path}: changed after it was registered on 2026"):
        measure(lab.study, now=lambda: LATER)
    folder = write_hardware(tmp_path / "other", arms=ARMS.replace('"wide"', '"wider"'))
    with pytest.raises(
        InputError, match=r"arms\.toml: arm wide of the study is not in it; its arms: wider, base, other"
    ):
        register(folder, now=lambda: NOW)
    (folder / "arms.toml").unlink()
    with pytest.raises(InputError, match=r"arms\.toml: No such file"):
        register(folder, now=lambda: NOW)


def test_steady_sets_are_measured_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch per window rule, the window as registered; the rule's window is the one that is judged."""
    folder = write_hardware(tmp_path / "study")
    path = folder / "study.toml"
    path.write_text(
        path.read_text()
        .replace("small.toml", "tracelab-multi-turn")
        .replace("sessions = [3]\nexploratory = [4]", "sessions = []\nexploratory = [3]")
        .replace("seeds = [5]", 'seeds = [905]\nload = "steady"\nwindow = "10s"')
        .replace("blocks = [0, 1]", "")
    )
    register(folder, now=lambda: NOW)
    lab = Lab(folder)
    lab.changes = {"extrapolated": ()}  # a log does not say what the profile was measured in
    entry = open_study(folder).entries[0]
    cell = entry.cells(entry.sets[0])[0]
    run = hardware_run(entry, cell, "base")
    start_s = find_window(run, entry.plan(cell), evaluation_s=10.0).start_s
    monkeypatch.setattr(hardware, "measure_arms", lab)
    assert len(measure(folder, now=lambda: LATER).added) == 2
    assert lab.calls[0].options.window == WindowRule(entry.plan(cell).cycle_s, 10.0)
    (row, _) = verdict(folder, now=lambda: LATER).data["observations"]
    inside = run.requests.filter((run.requests["arrival_s"] >= start_s) & (run.requests["arrival_s"] < start_s + 10))
    assert row["turns"] == inside.height
    small = [tokens for tokens in inside["computed_tokens"] if tokens < 500]
    assert row["extrapolated"] == [f"prefills of {min(small)} to {max(small)} tokens (measured 500 to 6000)"]


def test_a_window_that_is_not_the_rules_is_refused(tmp_path: Path) -> None:
    folder = write_hardware(tmp_path / "study", more="")
    path = folder / "study.toml"
    path.write_text(
        path.read_text()
        .replace("small.toml", "tracelab-multi-turn")
        .replace("sessions = [3]\nexploratory = [4]", "sessions = []\nexploratory = [3]")
        .replace("seeds = [5]", 'seeds = [905]\nload = "steady"\nwindow = "10s"')
        .replace("blocks = [0, 1]", "")
    )
    register(folder, now=lambda: NOW)
    entry = open_study(folder).entries[0]
    cell = entry.cells(entry.sets[0])[0]
    run = hardware_run(entry, cell, "base")
    start_s = find_window(run, entry.plan(cell), evaluation_s=10.0).start_s
    for window, words in (
        ({"start_s": start_s, "end_s": start_s + 5}, "the registered rule gives"),
        ({"start_s": start_s + 0.002, "end_s": start_s + 10.002}, "the registered rule gives"),
        ({"start_s": start_s + 30, "end_s": start_s + 40}, "the registered rule gives"),
        ({"start_s": 30.0}, "expected start_s and end_s"),
    ):
        name = tmp_path / json.dumps(window)
        save_run(replace(run, details={**run.details, "window": window}), name)
        with pytest.raises(InputError, match=words):
            ingest(folder, [name], now=lambda: LATER)
    window = {"start_s": start_s + 0.0005, "end_s": start_s + 10.0005}
    save_run(replace(run, details={**run.details, "window": window}), tmp_path / "good")
    assert len(ingest(folder, [tmp_path / "good"], now=lambda: LATER).added) == 1

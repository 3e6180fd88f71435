"""Measured arms: what the measuring part is asked for, and what becomes of its conditions.

The measuring part itself is a stand-in here (it has tests of its own); tests/slow measures a study for real.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotgrid.errors import InputError
from slotgrid.measure.arm_file import Arms
from slotgrid.measure.arms import STARTING, ConditionResult, Progress
from slotgrid.measure.options import WindowRule
from slotgrid.report.study_page import remarks, study_page
from slotgrid.report.study_tables import log_table
from slotgrid.run import save_run
from slotgrid.run.steady import find_window
from slotgrid.study import hardware
from slotgrid.study import log as study_log
from slotgrid.study.collect import arm_order, ingest, measure
from slotgrid.study.log import read_log
from slotgrid.study.manifest import sha256_of
from slotgrid.study.overview import overview
from slotgrid.study.register import register
from slotgrid.study.study import open_study
from slotgrid.study.verdict import verdict
from tests.study.small import LATER, NOW, PLACES, hardware_run, make_steady, write_study

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
        self.outputs: list[str] = []
        self.bad: set[tuple[str, int]] = set()
        self.changes: dict[str, Any] = {}
        self.attempts = 1
        self.started: list[tuple[str, int]] = []
        # before that condition begins, and in the middle of it
        self.stop_at: tuple[str, int] | None = None
        self.stop_in: tuple[str, int] | None = None

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
        self.outputs.append(output.name)
        for r, names in enumerate(arms.order):
            for place, name in enumerate(names):
                if (name, r) not in wanted:
                    continue
                if self.stop_at == (name, r):
                    raise KeyboardInterrupt
                folder = output / name / f"r{r}"
                valid = (name, r) not in self.bad
                path = arms.plans[r]
                entry = next(e for e in open_study(self.study).entries if e.folder in path.parents)
                cell = next(c for c in entry.cells(entry.sets[0]) if path.name == f"{c.name}.json")
                if not folder.exists():
                    if self.stop_in == (name, r):
                        progress(Progress(0, 1, name, r, STARTING))
                        raise KeyboardInterrupt
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


def conditions(lab: Lab) -> list[tuple[str, int]]:
    """(arm, replicate) in the registered order."""
    entry = open_study(lab.study).entries[0]
    order = arm_order(entry.settings, entry.cells(entry.sets[0])).values()
    return [(name, r) for r, names in enumerate(order) for name in names]


def test_a_condition_comes_in_as_soon_as_it_is_finished(lab: Lab) -> None:
    """So a measurement that is stopped leaves nothing that could be looked at and dropped unseen."""
    order = conditions(lab)
    lab.stop_at = order[3]
    with pytest.raises(KeyboardInterrupt):
        measure(lab.study, now=lambda: LATER)
    first = {path: path.read_bytes() for path in lab.study.glob("runs/*/*/*/record.json")}
    assert len(first) == 3
    assert [line.what for line in read_log(lab.study).lines[1:]] == ["attempt", "run"] * 3
    shutil.rmtree(lab.study / "measuring/main/all" / order[0][0] / f"r{order[0][1]}")
    lab.stop_at = None
    assert len(measure(lab.study, now=lambda: LATER).added) == PLACES - 3
    assert lab.started == order
    assert all(path.read_bytes() == kept for path, kept in first.items())


def test_places_that_have_a_run_are_not_measured_again(lab: Lab) -> None:
    """Without measuring/, as in a clone: the open place alone, at its position in the registered order."""
    lab.bad = {("wide", 2)}
    measure(lab.study, now=lambda: LATER)
    shutil.rmtree(lab.study / "measuring")
    lab.bad, lab.started = set(), []
    (record,) = measure(lab.study, now=lambda: LATER).added
    assert lab.started == [("wide", 2)]
    entry = open_study(lab.study).entries[0]
    order = arm_order(entry.settings, entry.cells(entry.sets[0]))
    assert record.data["order"] == order[record.cell].index("wide")
    (s,) = overview(open_study(lab.study)).sets
    assert sorted(count or 0 for count in s.attempts.values()) == [1] * (PLACES - 1) + [2]


def test_an_attempt_without_a_run_is_shown(lab: Lab) -> None:
    """It was stopped, or what it left was removed: in verdict.json, on the page and in the decision log."""
    lab.stop_in = ("wide", 2)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            measure(lab.study, now=lambda: LATER)
    lab.stop_in = None
    measure(lab.study, now=lambda: LATER)
    data = verdict(lab.study, now=lambda: LATER).data
    assert data["attempts"].pop("n4-s5-b0/wide") == 3
    assert set(data["attempts"].values()) == {1}
    lost = {"sessions": 4, "replicate": "s5-b0", "arm": "wide", "began_at": LATER}
    assert data["attempts_without_run"] == [lost, lost]
    view = overview(open_study(lab.study))
    said = "Attempts of which neither a run nor a refusal came: n4-s5-b0 wide (2)."
    assert said in remarks(view.sets[0])
    assert said in study_page(view)
    rows = [row for row in log_table(view).rows if row["what"] == "attempt"]
    assert [row["text"].partition(":")[0] for row in rows] == ["set main, n4-s5-b0 wide"] * 2


def test_a_refused_attempt_is_not_one_without_an_outcome(lab: Lab) -> None:
    lab.bad = {("wide", 2)}
    measure(lab.study, now=lambda: LATER)
    (s,) = overview(open_study(lab.study)).sets
    assert s.lost == ()


def test_an_attempt_before_runs_were_brought_in_is_shown(lab: Lab) -> None:
    """A log of an earlier version, which did not refuse that."""
    entry = open_study(lab.study).entries[0]
    cell = entry.cells(entry.sets[0])[0]
    save_run(hardware_run(entry, cell, "base"), lab.study.parent / "run")
    ingest(lab.study, [lab.study.parent / "run"], now=lambda: LATER)
    brought_in = read_log(lab.study).lines[1].data
    place = {key: brought_in[key] for key in ("set", "sessions", "replicate", "arm")}
    study_log.append(lab.study, study_log.ATTEMPT, LATER, **place)
    (s,) = overview(open_study(lab.study)).sets
    assert [attempt.name for attempt in s.lost] == ["n3-s5-b0 base"]
    assert list(s.attempts.values()) == [2]


def test_nothing_is_brought_into_a_set_that_is_measured_here(lab: Lab) -> None:
    lab.stop_in = conditions(lab)[0]
    with pytest.raises(KeyboardInterrupt):
        measure(lab.study, now=lambda: LATER)
    entry = open_study(lab.study).entries[0]
    save_run(hardware_run(entry, entry.cells(entry.sets[0])[0], "base"), lab.study.parent / "run")
    with pytest.raises(
        InputError, match=r"has begun set main here; .*register a set with new seeds \(--amend REASON\)"
    ):
        ingest(lab.study, [lab.study.parent / "run"], now=lambda: LATER)
    assert not list(lab.study.glob("runs/*"))


def test_a_mended_arms_file_goes_on_with_a_reason(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every condition fails by a typo; what was measured with the mended file says so everywhere."""
    lab.bad = set(conditions(lab))
    told = measure(lab.study, now=lambda: LATER).invalid
    assert all("or measure with a mended arms file and --other-arms REASON" in text for text in told)
    path = lab.study / "arms.toml"
    path.write_text(path.read_text() + "# mended\n")
    lab.bad = set()
    with pytest.raises(InputError, match=r"put it back \(.*0001/arms.toml\), or .* with --other-arms REASON"):
        measure(lab.study, now=lambda: LATER)
    with pytest.raises(InputError, match="--other-arms REASON"):
        measure(lab.study, now=lambda: LATER, other_arms=" ")
    lab.stop_at = conditions(lab)[2]
    with pytest.raises(KeyboardInterrupt):
        measure(lab.study, now=lambda: LATER, other_arms="serv was a typo")
    lab.stop_at = None
    looked: list[Path] = []
    monkeypatch.setattr(hardware, "end_leftover", lambda path, _: looked.append(path))
    (lab.study / "measuring/main/all/base/r0").mkdir(parents=True)
    assert len(measure(lab.study, now=lambda: LATER, other_arms="serv was a typo").added) == PLACES - 2
    # apart from what the registered file left, where a server may still run
    assert lab.outputs == ["all", *[f"all-arms-{sha256_of(path)[:12]}"] * 2]
    assert lab.study / "measuring/main/all/base/r0" in looked
    (line,) = [line.data for line in read_log(lab.study).lines if line.what == "other_arms"]
    kept = {"reason": "serv was a typo", "file_sha256": sha256_of(path)}
    kept["registered_sha256"] = open_study(lab.study).entries[0].data["files"]["arms.toml"]
    assert {key: line[key] for key in kept} == kept
    verdict(lab.study, now=lambda: LATER)
    view = overview(open_study(lab.study))
    assert all(record.data["arms_file"] == kept for record in view.sets[0].records)
    said = f"8 runs were measured with another arms file than registered ({kept['file_sha256'][:12]}): serv was a typo."
    assert said in study_page(view, "main")
    assert any(row["what"] == "other arms file" for row in log_table(view).rows)
    assert set(view.sets[0].attempts.values()) == {2}


def test_one_set_that_cannot_be_measured_does_not_hold_up_the_others(lab: Lab) -> None:
    study = lab.study
    (study / "arms.toml").write_text(ARMS + "# mended\n")
    text = (study / "study.toml").read_text()
    addition = text[text.index("[[plans]]") : text.index("[measure]")]
    (study / "study.toml").write_text(text + addition.replace('"main"', '"next"').replace("[5]", "[6]"))
    register(study, now=lambda: NOW, amend="the arms file is mended")
    found = measure(study, now=lambda: LATER)
    assert (len(found.added), found.missing) == (PLACES, PLACES)
    assert {record.cell.plan_set for record in found.added} == {"next"}
    (told,) = found.blocked
    assert "arms.toml: changed after it was registered on 2026-03-01T00:00:00+00:00 (entry 1)" in told
    # nothing else is left to do then
    with pytest.raises(InputError, match="--other-arms REASON"):
        measure(study, now=lambda: LATER)
    assert len(measure(study, now=lambda: LATER, other_arms="as for the next set").added) == PLACES


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
    make_steady(folder)
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
    make_steady(folder)
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

"""One verdict a data set: complete, from what was recorded, and kept."""

from __future__ import annotations

import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import slotgrid as sg
from slotgrid.errors import InputError
from slotgrid.run import load_run, save_run
from slotgrid.run.steady import find_window
from slotgrid.study.collect import ingest, measure
from slotgrid.study.decisions import decisions_of
from slotgrid.study.log import Log, read_log
from slotgrid.study.manifest import sha256_of
from slotgrid.study.register import register
from slotgrid.study.settings import load_settings
from slotgrid.study.study import open_study
from slotgrid.study.verdict import judge, verdict
from tests.study.small import (
    LATER,
    NOW,
    SIMULATED,
    forge_log,
    hardware_run,
    make_steady,
    measured,
    registered,
    rewrite_record,
    text,
    write_study,
)

EVEN_LATER = "2026-04-01T00:00:00+00:00"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured(tmp_path_factory.mktemp("made") / "study")


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "study"))


def test_once(study: Path) -> None:
    """A second call, later, finds the first verdict as it was."""
    first = verdict(study, now=lambda: LATER)
    before = first.path.read_bytes()
    again = verdict(study, now=lambda: EVEN_LATER)
    assert (first.fresh, again.fresh) == (True, False)
    assert again.data == first.data == json.loads(before)
    assert first.path.read_bytes() == before
    assert first.data["decided_at"] == LATER
    assert set(first.data["runs"]) == {
        f"n{n}-s5-b{b}/{arm}" for n in (3, 4) for b in (0, 1) for arm in ("base", "wide")
    }


def test_every_number_of_a_comparison_again(study: Path) -> None:
    """From the plans alone: prediction, both channels, error and decision on sums over replicates."""
    entry = open_study(study).entries[0]
    comparisons = verdict(study, now=lambda: LATER).data["comparisons"]
    assert [(c["sessions"], c["arm"]) for c in comparisons] == [(3, "wide"), (4, "wide")]
    for c in comparisons:
        predicted: dict[str, float] = {}
        a_s: dict[str, float] = {}
        b_s: dict[str, float] = {}
        small = []
        for cell in entry.cells(entry.sets[0]):
            if cell.sessions != c["sessions"]:
                continue
            for arm in ("base", "wide"):
                config, plan = entry.settings.arm(arm).config, entry.plan(cell)
                before = sg.simulate(entry.profile, config, plan)
                run = sg.simulate(entry.profile, config, plan, rules="paper", turnaround_s=0.03)
                predicted[arm] = predicted.get(arm, 0.0) + (before.device_time_s or 0.0)
                a_s[arm] = a_s.get(arm, 0.0) + (run.device_time_s or 0.0)
                open_until = 0.0
                for sent, done in sorted(run.requests.select("arrival_s", "finish_s").iter_rows()):
                    b_s[arm] = b_s.get(arm, 0.0) + max(done, open_until) - max(sent, open_until)
                    open_until = max(done, open_until)
                small += [n for n in run.requests["computed_tokens"] if n < 500]
        expected, a, b = (values["wide"] / values["base"] for values in (predicted, a_s, b_s))
        assert (c["predicted"], c["ratio_a"]) == pytest.approx((expected, a), rel=1e-12)
        assert c["ratio_b"] == pytest.approx(b, rel=1e-9)
        assert c["error"] == pytest.approx(expected - a, abs=1e-12)
        assert 0.001 < abs(c["error"]) < 0.03
        assert c["decision"] == {3: "passed", 4: "exploratory"}[c["sessions"]]
        assert c["extrapolated"] == [f"prefills of {min(small)} to {max(small)} tokens (measured 500 to 6000)"]


def rewrite_verdict(path: Path, **changes: object) -> None:
    """A verdict changed together with its voucher and the log."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    path.with_suffix(".sha256").write_text(f"{sha256_of(path)}  verdict.json\n")
    forge_log(path.parents[2])


@pytest.mark.parametrize("judged", [False, True])
def test_a_changed_run_is_named(judged: bool, study: Path) -> None:
    if judged:
        verdict(study, now=lambda: LATER)
    path = study / "runs/main/n3-s5-b1/wide/run/requests.parquet"
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(InputError, match=r"n3-s5-b1/wide/run/requests\.parquet: changed after it was recorded"):
        verdict(study, now=lambda: EVEN_LATER)


def test_a_changed_record_is_named(study: Path) -> None:
    verdict(study, now=lambda: LATER)
    record = study / "runs/main/n3-s5-b1/wide/record.json"
    record.write_bytes(record.read_bytes() + b" ")
    with pytest.raises(InputError, match=r"wide/record\.json: changed or replaced after log\.jsonl line 4 named it"):
        verdict(study, now=lambda: EVEN_LATER)


def test_a_record_without_its_voucher_is_named(study: Path) -> None:
    """The log fits, the voucher beside the record does not, or is gone."""
    record = study / "runs/main/n3-s5-b1/wide/record.json"
    record.write_bytes(record.read_bytes() + b" ")
    forge_log(study)
    with pytest.raises(InputError, match=r"wide/record\.json: changed after it was recorded \(record\.sha256 beside"):
        verdict(study, now=lambda: LATER)
    record.with_suffix(".sha256").unlink()
    with pytest.raises(InputError, match=r"wide/record\.sha256: missing; it vouches for record\.json beside it"):
        verdict(study, now=lambda: LATER)


def test_a_record_changed_with_its_voucher_is_named(study: Path) -> None:
    """The verdict carries the hash of every record, and of the log before it."""
    path = verdict(study, now=lambda: LATER).path
    record = study / "runs/main/n3-s5-b1/wide/record.json"
    rewrite_record(record, added_at="2026-03-05T00:00:00+00:00")
    with pytest.raises(InputError, match=r"verdict\.json: was decided on another log than the lines before line 10"):
        verdict(study, now=lambda: EVEN_LATER)
    rewrite_verdict(path, log=Log(read_log(study).lines[:-1]).summary())
    with pytest.raises(InputError, match=rf"run n3-s5-b1/wide is not the one the verdict {path} rests on"):
        verdict(study, now=lambda: EVEN_LATER)


@pytest.fixture(scope="module")
def brought_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with all its measured runs."""
    base = tmp_path_factory.mktemp("brought")
    folder = registered(base / "study", runs="")
    entry = open_study(folder).entries[0]
    runs = []
    for cell in entry.cells(entry.sets[0]):
        for arm in ("base", "wide"):
            runs.append(base / f"{cell.name}-{arm}")
            save_run(hardware_run(entry, cell, arm), runs[-1])
    ingest(folder, runs, now=lambda: LATER)
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source": "simulated"}, "a measured run beside simulated ones"),
        ({"started_at": "2026-03-01T12:00:00+00:00"}, "recorded as begun 2026-03-01T12:00:00"),
        ({"arm": "wide"}, "is the record of"),
        ({"plan_sha256": "0" * 64}, "another plan than the registered one of set main, N = 3, replicate s5-b0"),
        ({"manifest_sha256": "0" * 64}, "belongs to another manifest"),
        ({"source": 7}, "source is 7; expected a text"),
        ({"added_at": None}, "added_at is None; expected a text"),
        ({"started_at": 3}, "started_at is 3; expected a text"),
        ({"how": []}, "how is []; expected a text"),
        ({"content": {}}, "content is {}; expected a text"),
        ({"files": ["run.json"]}, "files is list; expected a hash for each file name"),
        ({"files": {"run.json": 1}}, "files is dict; expected a hash for each file name"),
    ],
    ids=str,
)
def test_a_record_is_not_believed(changes: dict[str, object], words: str, brought_in: Path, tmp_path: Path) -> None:
    """Whatever is edited, voucher included: the run and the registration say otherwise."""
    study = Path(shutil.copytree(brought_in, tmp_path / "study"))
    rewrite_record(study / "runs/main/n3-s5-b0/base/record.json", **changes)
    with pytest.raises(InputError) as error:
        verdict(study, now=lambda: LATER)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_simulated_runs_do_not_become_measured(study: Path) -> None:
    for record in study.glob("runs/main/*/*/record.json"):
        rewrite_record(record, source="measured")
    with pytest.raises(InputError, match="a simulated run, recorded as measured, for an arm that is simulated"):
        verdict(study, now=lambda: LATER)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ("what ran", r"configuration 1,2,4, the arm has 1,2$"),
        ("what should have run", r"steps of 3 running in bucket 4: arm base \(1,2\) runs at most 2$"),
        ("nothing", r"steps of 3 running in bucket 4: arm base \(1,2\) runs at most 2$"),
    ],
)
def test_runs_of_two_arms_swapped(stated: str, words: str, brought_in: Path, tmp_path: Path) -> None:
    study = Path(shutil.copytree(brought_in, tmp_path / "study"))
    cell = study / "runs/main/n3-s5-b0"
    (cell / "base").rename(cell / "x")
    (cell / "wide").rename(cell / "base")
    (cell / "x").rename(cell / "wide")
    for arm, config in (("base", sg.ServingConfig((1, 2))), ("wide", sg.ServingConfig((1, 2, 4)))):
        path = cell / arm / "run/run.json"
        told = json.loads(path.read_text())
        if stated != "what ran":
            told["config"] = config.to_dict() if stated == "what should have run" else None
            path.write_text(json.dumps(told))
        record = cell / arm / "record.json"
        files = json.loads(record.read_text())["files"] | {"run.json": sha256_of(path)}
        rewrite_record(record, arm=arm, files=files)
    with pytest.raises(InputError, match=r"base: not a valid run .*" + words):
        verdict(study, now=lambda: LATER)


def test_an_added_file_is_named(study: Path) -> None:
    path = study / "runs/main/n3-s5-b1/wide/run/server.log"
    path.write_text("")
    with pytest.raises(InputError, match=r"server\.log: was not there when the run was recorded .* can be removed$"):
        verdict(study, now=lambda: LATER)


def test_a_lost_file_is_not_called_changed(study: Path) -> None:
    path = study / "runs/main/n3-s5-b1/wide/run/steps.parquet"
    path.unlink()
    with pytest.raises(InputError, match=r"steps\.parquet: is gone; it was recorded on 2026-03-02.*, put it back$"):
        verdict(study, now=lambda: LATER)


def test_a_changed_verdict_is_named(study: Path) -> None:
    path = verdict(study, now=lambda: LATER).path
    path.write_text(path.read_text().replace("passed", "PASSED").replace("failed", "passed"))
    with pytest.raises(InputError, match=r"verdict\.json: changed or replaced after log\.jsonl line 10 named it"):
        verdict(study, now=lambda: EVEN_LATER)
    forge_log(study)
    with pytest.raises(InputError, match=r"verdict\.json: changed after it was decided \(verdict\.sha256"):
        verdict(study, now=lambda: EVEN_LATER)


def test_a_verdict_of_another_manifest_is_named(study: Path) -> None:
    path = verdict(study, now=lambda: LATER).path
    rewrite_verdict(path, manifest_sha256="0" * 64)
    with pytest.raises(InputError, match=r"verdict\.json: belongs to another manifest than .*registered/0001"):
        verdict(study, now=lambda: EVEN_LATER)


def test_missing_runs_are_named(study: Path) -> None:
    shutil.rmtree(study / "runs/main/n3-s5-b1/wide")
    with pytest.raises(InputError, match=r"log\.jsonl: line 4 names run runs/main/n3-s5-b1/wide, which is gone"):
        verdict(study, now=lambda: LATER)
    forge_log(study)
    with pytest.raises(InputError, match=r"set main: 1 runs are missing: n3-s5-b1 wide$"):
        verdict(study, now=lambda: LATER)
    shutil.rmtree(study / "runs")
    forge_log(study)
    with pytest.raises(InputError, match=r"8 runs are missing: n3-s5-b0 base, n3-s5-b0 wide, n3-s5-b1 base and 5 more"):
        verdict(study, now=lambda: LATER)
    assert not (study / "verdicts").exists()


def test_a_run_of_another_plan(study: Path) -> None:
    """Even with a record that says otherwise: the run itself tells its plan."""
    folder = study / "runs/main/n3-s5-b0/base"
    other = load_run(study / "runs/main/n3-s5-b1/base/run")
    shutil.rmtree(folder / "run")
    save_run(other, folder / "run")
    rewrite_record(folder / "record.json", files={path.name: sha256_of(path) for path in (folder / "run").iterdir()})
    with pytest.raises(
        InputError, match=r"n3-s5-b0/base: the run is of another plan than set main, N = 3, replicate s5-b0"
    ):
        verdict(study, now=lambda: LATER)


def test_simulated_beside_measured(tmp_path: Path) -> None:
    """One arm measured, the other simulated: such a set could get no verdict, so it is not registered."""
    folder = write_study(tmp_path / "study")
    path = folder / "study.toml"
    path.write_text(path.read_text().replace(SIMULATED, 'runs = "measured"', 1))
    words = r"study\.toml: simulated arms \(wide\) beside measured ones \(base\); the arms of a study are all"
    with pytest.raises(InputError, match=words):
        register(folder, now=lambda: NOW)
    assert not (folder / "registered").exists()
    assert not (folder / "log.jsonl").exists()


def test_an_amendment_leaves_earlier_verdicts(study: Path) -> None:
    """Criteria of the amendment hold for its own set; the first verdict stays byte by byte."""
    first = verdict(study, now=lambda: LATER)
    kept = first.path.read_bytes()
    (study / "study.toml").write_text(
        text(sets=(("main", [5]), ("again", [6])), more="[criteria]\nlargest_error = 0.5\ntolerance = 'residual'\n")
    )
    register(study, now=lambda: LATER, amend="tolerance from the null runs")
    measure(study, now=lambda: LATER, plan_set="again")
    with pytest.raises(InputError, match=r"holds 2 data sets; choose one with --set \(main, again\)"):
        verdict(study, now=lambda: EVEN_LATER)
    second = verdict(study, now=lambda: EVEN_LATER, plan_set="again")
    assert second.data["criteria"]["largest_error"] == 0.5
    assert second.data["criteria"]["tolerance"] == "residual"
    assert second.data["entry"] == 2
    old = verdict(study, now=lambda: EVEN_LATER, plan_set="main")
    assert old.data == first.data
    assert old.path.read_bytes() == kept
    with pytest.raises(InputError, match="'third' is not registered; registered: main, again"):
        verdict(study, now=lambda: EVEN_LATER, plan_set="third")


def test_steady_load(tmp_path: Path) -> None:
    """The second set of criteria from end to end, on windows of ten seconds; every cell again from the runs."""
    folder = write_study(tmp_path / "study")
    path = folder / "study.toml"
    path.write_text(
        path.read_text()
        .replace("small.toml", "tracelab-multi-turn")
        .replace("seeds = [5]", 'seeds = [905, 906, 907, 908, 909]\nload = "steady"\nwindow = "10s"')
        .replace("blocks = [0, 1]", "")
        + "[steady_criteria]\nnull_reuse = 0.2\nresamples = 200\n"
    )
    register(folder, now=lambda: NOW)
    measure(folder, now=lambda: LATER)
    data = verdict(folder, now=lambda: LATER).data
    entry = open_study(folder).entries[0]
    price = entry.profile.price
    cells = {(c["sessions"], c["arm"]): c for c in data["cells"]}
    assert list(cells) == [(3, "base"), (3, "wide"), (4, "base"), (4, "wide")]
    per_turn: dict[tuple[int, str], list[float]] = {}
    for (n, arm), c in cells.items():
        returns = reused = 0
        small: list[int] = []
        for cell in entry.cells(entry.sets[0]):
            if cell.sessions != n:
                continue
            run = load_run(folder / f"runs/main/{cell.name}/{arm}/run")
            start_s = find_window(run, entry.plan(cell), evaluation_s=10.0).start_s
            inside = run.requests.filter(pl.col("arrival_s").is_between(start_s, start_s + 10, closed="left"))
            seconds = float(price.prefill.seconds(inside["computed_tokens"].to_numpy().astype(np.int64)).sum())
            assert run.steps is not None
            for kind, at, running, bucket in run.steps.select("kind", "start_s", "running", "bucket").iter_rows():
                if kind == "decode" and start_s <= at < start_s + 10:
                    seconds += float(price.decode.seconds(np.array([running]), np.array([bucket]), np.array([0]))[0])
            per_turn.setdefault((n, arm), []).append(seconds / inside.height)
            small += [tokens for tokens in inside["computed_tokens"] if tokens < 500]
            later = inside.filter(pl.col("turn") > 0)
            returns, reused = returns + later.height, reused + int((later["cached_tokens"] > 0).sum())
        assert c["reuse"] == pytest.approx(reused / returns)
        assert c["exploratory"] == (n == 4)
        if arm == "base":
            assert c["extrapolated"] == [f"prefills of {min(small)} to {max(small)} tokens (measured 500 to 6000)"]
        if arm == "wide":
            ratios = [x / base for x, base in zip(per_turn[n, arm], per_turn[n, "base"], strict=True)]
            told = (c["cost"]["point"], c["cost"]["low"], c["cost"]["high"])
            # with five replicates the interval is their range
            assert told == pytest.approx((statistics.median(ratios), min(ratios), max(ratios)), rel=1e-9)
    errors = [c["reuse_predicted"] - c["reuse"] for c in cells.values() if c["sessions"] == 3]
    found = {f["criterion"]: f for f in data["findings"]}
    assert found["reuse"]["numbers"]["mean_error"] == pytest.approx(sum(errors) / 2)
    assert found["cost ratio"]["numbers"]["cells"] == found["ranking"]["numbers"]["pairs"] == 1
    wide = cells[3, "wide"]
    assert found["cost ratio"]["numbers"]["sum_error"] == pytest.approx(
        abs(wide["cost_predicted"] - wide["cost"]["point"])
    )
    # the interval contains 1: more cannot be told, though the cost criterion passes
    assert [(name, f["verdict"]) for name, f in found.items()] == [
        ("reuse", "passed"), ("cost ratio", "passed"), ("ranking", "unresolved"), ("occupancy", "passed"),
    ]  # fmt: skip
    assert decisions_of(data) == {(3, "wide"): "unresolved", (4, "wide"): "exploratory"}


@pytest.mark.parametrize(("lost", "word"), [(0.005, None), (0.02, "decode steps make")])
def test_steady_runs_may_lack_one_percent_of_the_tokens(lost: float, word: str | None, tmp_path: Path) -> None:
    """Decode steps taken away until that part of the tokens of finished requests is missing."""
    folder = write_study(tmp_path / "study", runs="")
    make_steady(folder)
    entry = register(folder, now=lambda: NOW)
    cell = entry.cells(entry.sets[0])[0]
    run = hardware_run(entry, cell, "base")
    assert run.steps is not None
    made = int((run.requests["output_tokens"] - 1).sum())
    alone = run.steps.with_row_index("i").filter((pl.col("kind") == "decode") & (pl.col("running") == 1))["i"].to_list()
    gone = set(alone[: round(lost * made)])
    assert len(gone) == round(lost * made)
    steps = run.steps[[i for i in range(run.steps.height) if i not in gone]]
    save_run(replace(run, steps=steps), tmp_path / "run")
    if word is None:
        assert len(ingest(folder, [tmp_path / "run"], now=lambda: LATER).added) == 1
        return
    with pytest.raises(
        InputError, match=rf"decode steps make {made - len(gone):,} tokens, the requests need {made:,} to"
    ):
        ingest(folder, [tmp_path / "run"], now=lambda: LATER)


def test_few_steady_replicates_are_not_judged(tmp_path: Path) -> None:
    """Refused when registered; with every N exploratory they are shown without a decision."""
    folder = write_study(tmp_path / "study")
    path = folder / "study.toml"
    steady = (
        path.read_text()
        .replace("small.toml", "tracelab-multi-turn")
        .replace("seeds = [5]", 'seeds = [905, 906]\nload = "steady"\nwindow = "10s"')
    )
    path.write_text(steady)
    with pytest.raises(InputError, match=r"set main: 4 replicates \(seeds x blocks\) in steady load; at least 5"):
        register(folder, now=lambda: NOW)
    assert not list(folder.glob("registered/0*"))
    path.write_text(
        steady.replace("sessions = [3]\nexploratory = [4]", "sessions = []\nexploratory = [3]").replace("blocks", "#")
    )
    register(folder, now=lambda: NOW)
    measure(folder, now=lambda: LATER)
    data = verdict(folder, now=lambda: LATER).data
    assert [f["verdict"] for f in data["findings"]] == ["not judged", "not judged", "unresolved", "not judged"]
    assert [pair["resolved"] for pair in data["pairs"]] == [False]
    path.write_text(steady.replace("sessions = [3]\nexploratory = [4]", "sessions = []\nexploratory = []"))
    with pytest.raises(InputError, match="sessions is"):
        load_settings(folder)


def test_a_baseline_of_zero_is_refused(study: Path) -> None:
    entry = open_study(study).entries[0]
    rows = [replace(row, device_s=0.0, channel_b_s=1.0) for row in entry.predictions("main")]
    with pytest.raises(InputError, match=r"N = 3, arm wide, channel A: the baseline is 0 s"):
        judge(entry, entry.sets[0], rows)

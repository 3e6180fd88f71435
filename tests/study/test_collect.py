"""Runs come in: made here or brought in, each in its place once, and nothing that does not belong."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import slotgrid as sg
from slotgrid.errors import InputError
from slotgrid.run import save_run
from slotgrid.study import collect, manifest, store
from slotgrid.study.collect import arm_order, ingest, measure
from slotgrid.study.log import read_log
from slotgrid.study.manifest import Cell, Entry
from slotgrid.study.records import set_records
from slotgrid.study.settings import STEADY, WHOLE_RUN, load_settings
from slotgrid.study.study import open_study
from slotgrid.study.validity import invalid_reasons
from slotgrid.study.verdict import verdict
from tests.study.small import LATER, PLACES, forge_log, hardware_run, registered, rewrite_record, text

CELL = Cell("main", 3, "s5-b0")


@pytest.fixture(scope="module")
def hardware(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registered study whose arms are to be measured."""
    return registered(tmp_path_factory.mktemp("hardware") / "study", runs="")


@pytest.fixture
def study(hardware: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(hardware, tmp_path / "study"))


def entry_of(study: Path) -> Entry:
    return open_study(study).entries[0]


def saved(study: Path, folder: Path, cell: Cell = CELL, arm: str = "base", **changes: Any) -> Path:
    """A run directory of a measured run."""
    save_run(hardware_run(entry_of(study), cell, arm, **changes), folder)
    return folder


def test_measured_runs_are_brought_in_and_judged(study: Path, tmp_path: Path) -> None:
    entry = entry_of(study)
    folders = [
        saved(study, tmp_path / f"{cell.name}-{arm}", cell, arm)
        for cell in entry.cells(entry.sets[0])
        for arm in ("base", "wide")
    ]
    found = ingest(study, folders[:3], now=lambda: LATER)
    assert (len(found.added), found.there_before, found.missing) == (3, 0, PLACES - 3)
    found = ingest(study, folders[3:], now=lambda: LATER)
    assert (found.there_before, found.missing) == (3, 0)
    record = found.added[0]
    assert (record.source, record.data["how"], record.data["started_at"]) == ("measured", "study ingest", LATER)
    assert record.data["origin"] == str(folders[3])
    assert record.data["manifest_sha256"] == entry.sha256
    assert sorted(record.data["files"]) == [
        "evictions.parquet", "requests.parquet", "run.json", "steps.parquet",
    ]  # fmt: skip
    shutil.rmtree(folders[0])  # the study has its own copy
    stored = verdict(study, now=lambda: LATER)
    assert stored.data["source"] == "measured"
    assert [c["decision"] for c in stored.data["comparisons"]][1] == "exploratory"


def test_measure_needs_hands_for_hardware(study: Path) -> None:
    with pytest.raises(InputError, match=r"arm base is to be measured, and study\.toml names no arms file"):
        measure(study, now=lambda: LATER)


def refused(study: Path, folder: Path, *words: str, **options: Any) -> None:
    with pytest.raises(InputError) as error:
        ingest(study, [folder], now=lambda: LATER, **options)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(study.glob("runs/**/record.json"))


def null_column(run: sg.Run, name: str) -> sg.Run:
    return replace(run, requests=run.requests.with_columns(pl.lit(None, run.requests[name].dtype).alias(name)))


def test_runs_that_do_not_belong(study: Path, tmp_path: Path) -> None:
    entry = entry_of(study)
    good = hardware_run(entry, CELL, "base")
    started = dict(good.details)

    def kept(name: str, **changes: Any) -> Path:
        save_run(replace(good, **changes), tmp_path / name)
        return tmp_path / name

    refused(study, kept("a", plan_sha256="0" * 64), "is not one of this study; plans of another study")
    refused(study, kept("b", plan_sha256=None), "does not say which plan it ran")
    refused(study, kept("c", details={}), "does not say when it began; give it with --started")
    early = kept("d", details={**started, "started_at": "2026-02-28T23:59:59+00:00"})
    refused(study, early, "began 2026-02-28T23:59:59+00:00, before the registration (2026-03-01T00:00:00+00:00)")
    told = {"valid": False, "invalid_reasons": ["3 requests: HTTP 500"], "started_at": LATER}
    refused(
        study, kept("e", details=told), "not a valid run of set main, N = 3", "marked invalid: 3 requests: HTTP 500"
    )
    refused(study, kept("f", requests=good.requests.head(4)), "4 of 9 requests have a result")
    other = sg.ServingConfig((1, 2, 3))
    refused(
        study, kept("g", config=other), "configuration 1,2,3, which is no arm; name it with --arm: base (1,2), wide"
    )
    refused(study, kept("h", config=None), "no configuration is stated, which is no arm")
    refused(study, kept("i", source="simulated"), "a simulated run, but arm base is registered with runs = 'measured'")
    refused(study, kept("j", steps=None), "decode steps are not observed (channel A needs them)")
    save_run(null_column(good, "arrival_s"), tmp_path / "k")
    refused(study, tmp_path / "k", "channel B is missing: needs sent and done times of every request")
    save_run(null_column(good, "computed_tokens"), tmp_path / "l")
    refused(study, tmp_path / "l", "9 requests: cached tokens are not observable")
    refused(study, tmp_path / "nothing", "nothing")
    (tmp_path / "empty").mkdir()
    refused(study, tmp_path / "empty", "the directory is empty")


def with_cell(run: sg.Run, name: str, row: int, value: float | None) -> sg.Run:
    cells = run.requests[name].to_list()
    cells[row] = value
    return replace(run, requests=run.requests.with_columns(pl.Series(name, cells, run.requests[name].dtype)))


@pytest.mark.parametrize(
    ("name", "row", "value", "words"),
    [
        ("arrival_s", 3, math.nan, "request row 3: arrival_s is nan; allowed: finite seconds"),
        ("finish_s", 4, math.nan, "request row 4: finish_s is nan"),
        ("finish_s", 4, math.inf, "request row 4: finish_s is inf"),
        ("finish_s", 2, 0.0, "request row 2: finish_s 0.0 is before arrival_s 2.77"),
        ("session", 3, None, "request row 3: session and turn are not known"),
        ("session", 3, 7, "request row 3 (session 7, turn 0): is not in the plan"),
        ("session", 3, 0, "request row 3 (session 0, turn 0): is there twice"),
        ("prompt_tokens", 1, 381, "request row 1 (session 0, turn 1): prompt_tokens is 381, the plan has 382"),
        ("output_tokens", 0, 1, "request row 0 (session 0, turn 0): output_tokens is 1, the plan has"),
        ("output_tokens", 0, None, "request row 0 (session 0, turn 0): output_tokens is None, the plan has"),
    ],
)
def test_one_wrong_cell(name: str, row: int, value: float | None, words: str, study: Path, tmp_path: Path) -> None:
    save_run(with_cell(hardware_run(entry_of(study), CELL, "base"), name, row, value), tmp_path / "run")
    refused(study, tmp_path / "run", words)


def test_steps_make_the_tokens(study: Path, tmp_path: Path) -> None:
    """One decode step lost or added, and the step count no longer fits the requests."""
    run = hardware_run(entry_of(study), CELL, "base")
    assert run.steps is not None
    alone = run.steps.with_row_index("i").filter((pl.col("kind") == "decode") & (pl.col("running") == 1))["i"][0]
    keep = [i for i in range(run.steps.height) if i != alone]
    save_run(replace(run, steps=run.steps[keep]), tmp_path / "run")
    refused(study, tmp_path / "run", "decode steps make 124 tokens, the requests need 125")


@pytest.mark.parametrize(("stated", "options"), [("none", {"arm": "base"}), ("of the arm", {})])
def test_steps_that_the_arm_cannot_make(stated: str, options: dict[str, Any], study: Path, tmp_path: Path) -> None:
    """A run of wide for base, without its configuration or with a false one: its steps tell."""
    config = None if stated == "none" else sg.ServingConfig((1, 2))
    folder = saved(study, tmp_path / "run", arm="wide", config=config)
    refused(
        study, folder, "decode steps of 3 running in bucket 4: arm base (1,2) runs at most 2", "arm base: ", **options
    )


def with_steps(run: sg.Run, *changes: pl.Expr) -> sg.Run:
    assert run.steps is not None
    return replace(run, steps=run.steps.with_columns(*changes))


@pytest.mark.parametrize(
    ("bucket", "words"),
    [
        (pl.lit(4), "running in bucket 4: arm wide (1,2,4) has bucket"),
        (pl.lit(None), "running: in which bucket is not known"),
    ],
)
def test_another_bucket_than_the_smallest(bucket: pl.Expr, words: str, study: Path, tmp_path: Path) -> None:
    run = hardware_run(entry_of(study), CELL, "wide")
    decode = pl.col("kind") == "decode"
    changed = pl.when(decode).then(bucket.cast(pl.Int64)).otherwise(pl.col("bucket")).alias("bucket")
    save_run(with_steps(run, changed), tmp_path / "run")
    refused(study, tmp_path / "run", words)


def test_more_slots_than_the_arm_has(study: Path, tmp_path: Path) -> None:
    run = hardware_run(entry_of(study), CELL, "base")
    slots = pl.Series("slot", [i % 3 for i in range(run.requests.height)])
    save_run(replace(run, requests=run.requests.with_columns(slots)), tmp_path / "run")
    refused(study, tmp_path / "run", "3 different slots were held: arm base (1,2) has 2")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("computed_tokens", 0, "computed_tokens is 0; a prompt of"),
        ("computed_tokens", 9999, "computed_tokens is 9999; a prompt of"),
        ("computed_tokens", -500, "computed_tokens is -500; a prompt of"),
        ("cached_tokens", 5000, "with 5000 cached leaves -"),
    ],
)
@pytest.mark.parametrize("load", [WHOLE_RUN, STEADY])
def test_computed_is_what_was_not_cached(name: str, value: int, words: str, load: str, study: Path) -> None:
    entry = entry_of(study)
    plans = replace(entry.sets[0], load=load)
    run = with_cell(hardware_run(entry, CELL, "base"), name, 2, value)
    told = invalid_reasons(run, entry.plan(CELL), entry.settings.arm("base"), plans)
    assert [text for text in told if text.startswith("request row 2") and words in text] == told != []
    # a request in flight at the end of a window has its price too
    if load == STEADY:
        flying = replace(run, requests=run.requests.with_columns(pl.lit(None, pl.Float64).alias("finish_s")))
        assert invalid_reasons(flying, entry.plan(CELL), entry.settings.arm("base"), plans) == told


def test_computed_without_cached(study: Path) -> None:
    """A reader that knows one of the two: then the prompt is its bound."""
    entry = entry_of(study)
    run = null_column(hardware_run(entry, CELL, "base"), "cached_tokens")
    args = (entry.plan(CELL), entry.settings.arm("base"), entry.sets[0])
    assert invalid_reasons(run, *args) == []
    assert "computed_tokens is 0; allowed: 1 to" in invalid_reasons(with_cell(run, "computed_tokens", 2, 0), *args)[0]


def test_other_code_is_named_and_its_reason_kept(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = saved(study, tmp_path / "run")
    real = manifest.code_hashes()
    monkeypatch.setattr(manifest, "code_hashes", lambda: {**real, "engine/new.py": "1"})
    refused(study, run, "slotgrid/engine/new.py: changed after entry 1 was registered")
    record = ingest(study, [run], now=lambda: LATER, other_code="a bug in the page").added[0]
    assert record.data["code"]["reason"] == "a bug in the page"
    assert read_log(study).lines[-1].data["other_code"] == "a bug in the page"


def test_a_start_that_is_still_to_come(study: Path, tmp_path: Path) -> None:
    good = hardware_run(entry_of(study), CELL, "base")
    save_run(replace(good, details={**good.details, "started_at": "2026-03-02T09:00:01+00:00"}), tmp_path / "run")
    refused(study, tmp_path / "run", "began 2026-03-02T09:00:01+00:00, which is still to come")


def test_all_or_none_are_added(study: Path, tmp_path: Path) -> None:
    """The second run is the first in another place: neither comes in."""
    first = saved(study, tmp_path / "first")
    base = hardware_run(entry_of(study), CELL, "base")
    save_run(replace(base, config=sg.ServingConfig((1, 2, 4))), tmp_path / "second")
    with pytest.raises(InputError, match=r"second: the same run as .*first; every run may stand once"):
        ingest(study, [first, tmp_path / "second"], now=lambda: LATER)
    assert not list(study.glob("runs/**/record.json"))
    # likewise beside one that is in the study already
    ingest(study, [first], now=lambda: LATER)
    other = saved(study, tmp_path / "other", Cell("main", 4, "s5-b0"))
    with pytest.raises(InputError, match=r"arm wide: the same run as set main, N = 3, replicate s5-b0, arm base"):
        ingest(study, [other, tmp_path / "second"], now=lambda: LATER)
    assert len(list(study.glob("runs/**/record.json"))) == 1


def test_what_is_stated_for_a_run(study: Path, tmp_path: Path) -> None:
    """--arm for a run without a configuration, --started for one without a start; both are checked and kept."""
    good = hardware_run(entry_of(study), CELL, "base")
    save_run(replace(good, config=None, details={}), tmp_path / "run")
    refused(study, tmp_path / "run", "arm 'none': not in this study; its arms: base, wide", arm="none")
    for started, words in (
        ("yesterday", "'yesterday' is not a time in ISO 8601"),
        ("2026-03-02T09:00:00", "has no zone"),
        ("2026-02-02T09:00:00+00:00", "before the registration"),
    ):
        refused(study, tmp_path / "run", words, arm="base", started=started)
    found = ingest(study, [tmp_path / "run"], now=lambda: LATER, arm="base", started=LATER)
    assert found.added[0].data["started_stated"] == LATER
    # a run that says it itself is believed; nothing was stated for it then
    told = saved(study, tmp_path / "told", CELL, "wide")
    found = ingest(study, [told], now=lambda: LATER, started="2026-03-01T05:00:00+00:00")
    assert (found.added[0].data["started_stated"], found.added[0].data["started_at"]) == (None, LATER)
    shutil.rmtree(study / "runs")
    forge_log(study)
    wide = saved(study, tmp_path / "wide", CELL, "wide")
    with pytest.raises(InputError, match=r"the arm has 1,2$"):
        ingest(study, [wide], now=lambda: LATER, arm="base")


def test_duplicates_are_refused(study: Path, tmp_path: Path) -> None:
    first = saved(study, tmp_path / "first")
    with pytest.raises(InputError, match=r"second: set main, N = 3, replicate s5-b0, arm base is also .*first"):
        ingest(study, [first, Path(shutil.copytree(first, tmp_path / "second"))], now=lambda: LATER)
    assert not list(study.glob("runs/**/record.json"))
    ingest(study, [first], now=lambda: LATER)
    with pytest.raises(InputError, match=r"arm base has a run already; it is never overwritten"):
        ingest(study, [tmp_path / "second"], now=lambda: LATER)
    # the same execution may not stand for another arm either
    base = hardware_run(entry_of(study), CELL, "base")
    save_run(replace(base, config=sg.ServingConfig((1, 2, 4))), tmp_path / "third")
    with pytest.raises(InputError, match=r"arm wide: the same run as set main, N = 3, replicate s5-b0, arm base"):
        ingest(study, [tmp_path / "third"], now=lambda: LATER)


def test_a_stopped_copy_leaves_nothing(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(study, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(store, "_sync", _killed)
        with pytest.raises(KeyboardInterrupt):
            ingest(study, [folder], now=lambda: LATER)
    assert not list(study.glob("runs/**/record.json"))
    # what a killed process could not remove is no obstacle
    left = study / "runs/main/n3-s5-b0/.base.partial"
    left.mkdir(parents=True, exist_ok=True)
    (left / "rest").write_text("half")
    record = ingest(study, [folder], now=lambda: LATER).added[0]
    assert sorted(path.name for path in record.folder.parent.iterdir()) == ["base"]


def test_an_empty_folder_is_no_run(study: Path, tmp_path: Path) -> None:
    """As a crash or a copy may leave it: the place is not taken."""
    empty = study / "runs/main/n3-s5-b0/base"
    empty.mkdir(parents=True)
    found = ingest(study, [saved(study, tmp_path / "run")], now=lambda: LATER)
    assert (len(found.added), found.there_before, found.missing) == (1, 0, PLACES - 1)
    (study / "runs/main/n3-s5-b0/wide").mkdir()
    with pytest.raises(InputError, match="7 runs are missing: n3-s5-b0 wide"):
        verdict(study, now=lambda: LATER)
    (study / "runs/main/n3-s5-b0/wide/notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"n3-s5-b0/wide: is not in log\.jsonl"):
        verdict(study, now=lambda: LATER)


def test_a_full_disk_is_named(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(study, tmp_path / "run")

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path / "run.json"))

    with monkeypatch.context() as patch:
        patch.setattr(store, "_sync", full)
        with pytest.raises(InputError, match=r"run\.json: cannot write: No space left on device"):
            ingest(study, [folder], now=lambda: LATER)
    assert len(ingest(study, [folder], now=lambda: LATER).added) == 1


def _killed(folder: Path) -> None:
    raise KeyboardInterrupt


# --- made here ---------------------------------------------------------------------------------------------------


def test_stand_in_runs(tmp_path: Path) -> None:
    """By their own rules, marked simulated, in an order in which no arm always comes first."""
    folder = registered(tmp_path / "study")
    found = measure(folder, now=lambda: LATER)
    assert (len(found.added), found.missing) == (PLACES, 0)
    assert {record.source for record in found.added} == {"simulated"}
    run = found.added[0].read()
    assert (run.source, run.rules, run.turnaround_s) == ("simulated", "paper", 0.03)
    assert measure(folder, now=lambda: LATER).there_before == PLACES
    order = arm_order(load_settings(folder), [Cell("main", n, "r") for n in range(6)])
    first = [arms[0] for arms in order.values()]
    assert first.count("base") == first.count("wide") == 3


def test_a_stopped_measurement_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = registered(tmp_path / "study")
    real, made = collect.stand_in_run, []

    def stopping(*args: Any) -> sg.Run:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(args)
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(collect, "stand_in_run", stopping)
        with pytest.raises(KeyboardInterrupt):
            measure(folder, now=lambda: LATER)
    study = open_study(folder)
    before = set_records(study, *next(iter(study.sets())))
    found = measure(folder, now=lambda: "2026-03-03T00:00:00+00:00")
    assert (len(before), len(found.added)) == (3, PLACES - 3)
    kept = {r.sha256 for r in set_records(study, *next(iter(study.sets())))}
    assert {record.sha256 for record in before} <= kept


def test_scatter_makes_the_channels_differ(tmp_path: Path) -> None:
    """A stand-in with scatter is one repeat of an ensemble: neither channel is the prediction any more."""
    runs = 'runs = "simulated"\nsimulated = { scatter_seed = 3 }'
    folder = registered(tmp_path / "study", runs=runs)
    measure(folder, now=lambda: LATER)
    found = verdict(folder, now=lambda: LATER).data
    for c in found["comparisons"]:
        assert 0 < c["difference"] < 0.1
        assert c["error"] != 0
    (folder / "study.toml").write_text(
        text(runs=runs).replace("profile =", "ensemble = 39\nensemble_seed = 3\nprofile =")
    )
    with pytest.raises(InputError, match="a stand-in run must not be one of the predictions"):
        load_settings(folder)


def test_record_of_another_study(tmp_path: Path) -> None:
    folder, other = registered(tmp_path / "a"), registered(tmp_path / "b", sets=(("main", [6]),))
    measure(folder, now=lambda: LATER)
    measure(other, now=lambda: LATER)
    place = "runs/main/n3-s5-b0/base"
    shutil.rmtree(folder / place)
    shutil.copytree(other / "runs/main/n3-s6-b0/base", folder / place)
    forge_log(folder)
    with pytest.raises(InputError, match=r"record\.json: is the record of \('main', 3, 's6-b0', 'base'\)"):
        verdict(folder, now=lambda: LATER)
    record = folder / place / "record.json"
    rewrite_record(record, replicate="s5-b0")
    with pytest.raises(InputError, match=r"record\.json: belongs to another manifest"):
        verdict(folder, now=lambda: LATER)

"""Run directories as untreated repeats: what is counted, and what is refused with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import slotgrid as sg
from slotgrid.errors import InputError
from slotgrid.run import save_run
from slotgrid.study.csv_input import read_repeats
from slotgrid.study.null import Repeat, null_distribution
from slotgrid.study.repeats import repeats_of_runs

CONFIG = sg.ServingConfig((1, 2))
HEAD = "repeat,sessions,channel_a_s,channel_b_s\n"


@pytest.fixture(scope="module")
def plan() -> sg.InputPlan:
    return sg.load_workload("tracelab-two-turn").draw(clients=2, seed=4)


@pytest.fixture(scope="module")
def run(profile: sg.StackProfile, plan: sg.InputPlan) -> sg.Run:
    """As a replay leaves it: the simulator's tables, called measured."""
    return replace(sg.simulate(profile, CONFIG, plan), source="measured", details={"valid": True})


Keep = Callable[..., Path]


@pytest.fixture
def keep(run: sg.Run, tmp_path: Path) -> Keep:
    """Write the run as another execution (its clock ``shift_s`` later), changed as told."""

    def write(name: str, shift_s: float = 0.0, **changes: Any) -> Path:
        requests = run.requests.with_columns(pl.col("finish_s") + shift_s)
        save_run(replace(run, **{"requests": requests, **changes}), tmp_path / name)
        return tmp_path / name

    return write


def test_repeats_are_grouped_by_plan_and_configuration(keep: Keep, run: sg.Run, profile: sg.StackProfile) -> None:
    folders = [keep("a"), keep("b", 0.001), keep("c", 0.002), keep("d", 0.003, config=sg.ServingConfig((1, 2, 4)))]
    groups = repeats_of_runs(folders, profile)
    assert [(name.split("), ")[1], len(rows)) for name, rows in groups.items()] == [
        ("1,2, measured", 3),
        ("1,2,4, measured", 1),
    ]
    first, second, _ = groups[next(iter(groups))]
    assert first.channel_a_s == pytest.approx(run.device_time_s)
    assert 0 < second.channel_b_s - first.channel_b_s <= 0.001 * run.requests.height
    assert null_distribution([first, second, replace(first, name="x")]).source == "measured"


def test_a_copy_is_no_repeat(keep: Keep, run: sg.Run, profile: sg.StackProfile) -> None:
    first, second, copy = keep("a"), keep("b", 0.001), keep("copy", notes=("copied",))
    with pytest.raises(InputError) as error:
        repeats_of_runs([first, second, copy], profile)
    assert str(error.value) == f"{copy}: the same run as {first}; a copy is no repeat"
    with pytest.raises(InputError, match=r"a: is given twice; a copy is no repeat$"):
        repeats_of_runs([first, first], profile)
    simulated = keep("s", source="simulated"), keep("t", source="simulated")
    with pytest.raises(InputError, match="a simulation without scatter repeats itself exactly"):
        repeats_of_runs(simulated, profile)


def cell(run: sg.Run, name: str, row: int, value: float | None) -> pl.DataFrame:
    values = run.requests[name].to_list()
    values[row] = value
    return run.requests.with_columns(pl.Series(name, values, run.requests[name].dtype))


@pytest.mark.parametrize(
    ("name", "row", "value", "words"),
    [
        ("finish_s", 1, math.nan, "request row 1: finish_s is nan; allowed: finite seconds"),
        ("finish_s", 1, None, "1 requests: no finish time"),
        ("arrival_s", 2, math.inf, "request row 2: arrival_s is inf"),
        ("finish_s", 2, -1.0, "request row 2: finish_s -1.0 is before arrival_s 0.0"),
        ("computed_tokens", 0, None, "1 requests: cached tokens are not observable"),
        ("turn", 1, None, "request row 1: session and turn are not known"),
        ("turn", 1, 0, "request row 1 (session 0, turn 0): is there twice"),
        ("output_tokens", 0, 1, "decode steps make"),
        ("output_tokens", 0, None, "request row 0 (session 0, turn 0): its tokens are not known"),
    ],
)
def test_one_wrong_cell(
    name: str, row: int, value: float | None, words: str, keep: Keep, run: sg.Run, profile: sg.StackProfile
) -> None:
    """Also in a first run with no plan beside it, which nothing can be compared with."""
    path = keep("run", requests=cell(run, name, row, value))
    with pytest.raises(InputError) as error:
        repeats_of_runs([path], profile)
    assert str(error.value).startswith(f"{path}: not a valid repeat: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_not_valid(keep: Keep, run: sg.Run, profile: sg.StackProfile) -> None:
    for changes, words in (
        ({"details": {"valid": False, "invalid_reasons": ["3 requests: HTTP 500"]}}, "marked invalid: 3 requests"),
        ({"steps": None}, "decode steps are not observed"),
        ({"plan_sha256": None}, "does not say which plan it ran"),
    ):
        path = keep(words.split()[0], **changes)
        with pytest.raises(InputError, match=words):
            repeats_of_runs([path], profile)


def test_runs_of_one_plan_have_its_requests(
    keep: Keep, run: sg.Run, plan: sg.InputPlan, profile: sg.StackProfile
) -> None:
    """Told by the plan where it lies beside the rows, else by the first run of that plan."""
    whole, part = keep("whole"), keep("part", requests=run.requests.head(3))
    count = run.requests.height
    with pytest.raises(InputError, match=rf"part: not a valid repeat: 3 requests have a result, .*whole has {count}$"):
        repeats_of_runs([whole, part], profile)
    plan.save(part / "plan.json")
    with pytest.raises(InputError, match=rf"part: not a valid repeat: 3 requests have a result, the plan has {count}$"):
        repeats_of_runs([part], profile)
    later = cell(run, "prompt_tokens", 0, 1).with_columns(pl.col("finish_s") + 0.001)
    other = keep("other", requests=later)
    with pytest.raises(InputError, match=r"prompt_tokens is 1, .*whole has \d+$"):
        repeats_of_runs([whole, other], profile)


def test_equal_rows_of_a_table(tmp_path: Path) -> None:
    """Refused within a group; one channel may agree (the steps of two repeats often do), and so may two groups."""
    path = tmp_path / "repeats.csv"
    path.write_text(HEAD + "a,6,7.725,8.167\nb,8,7.725,8.167\nc,6,7.725,8.168\nd,6,7.7250,8.167\n")
    with pytest.raises(InputError, match=r"repeats\.csv: line 5: both channels are those of line 2, and a copy is no"):
        read_repeats(path)
    path.write_text(HEAD + "a,6,7.725,8.167\nb,8,7.725,8.167\nc,6,7.725,8.168\n")
    assert {name: len(rows) for name, rows in read_repeats(path).items()} == {"N = 6": 2, "N = 8": 1}


def test_one_kind_of_runs() -> None:
    repeats = [Repeat(str(i), 1.0, 1.1 + i, source="simulated" if i else "measured") for i in range(4)]
    with pytest.raises(InputError, match="runs 0 and 1 are measured and simulated; repeats are of one kind"):
        null_distribution(repeats)
    assert null_distribution(repeats[1:]).to_dict()["source"] == "simulated"

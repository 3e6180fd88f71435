"""Workloads: draws follow the published order, TOML is read strictly."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import slotgrid as sg
from slotgrid.workload import built_in_workloads, workload_from_toml
from slotgrid.workload.seeds import derive_seed
from tests.conftest import read_csv

GOOD = """
format = "slotgrid-workload/1"
id = "mine"
max_seq_len = 4096
turns = 3
[first_new_tokens]
kind = "lognormal"
median = 500
p90 = 900
high = 2000
[later_new_tokens]
kind = "choice"
tokens = [8, 64]
weights = [3, 1]
[output_tokens]
kind = "uniform"
low = 10
high = 20
[tool_wait]
kind = "uniform"
low_s = "100ms"
high_s = 2.0
"""


def read(text: str, folder: Path = Path()) -> sg.Workload:
    return workload_from_toml(text.encode(), "w.toml", folder)


def test_built_in_workloads_load() -> None:
    assert built_in_workloads() == ["tracelab-multi-turn", "tracelab-two-turn"]
    two_turn = sg.load_workload("tracelab-two-turn")
    assert two_turn.explore_seeds == (20260910, 20260921, 20260932)
    assert two_turn.evaluate_seeds == (20260943, 20260954, 20260965)
    assert two_turn.blocks == (0, 1, 2)


def test_seeds_come_from_sha256() -> None:
    # first eight bytes, big-endian, of SHA-256("1:a")
    assert derive_seed(1, "a") == 0x4162FDDD39A3E422


def test_draw_order_is_new_output_wait() -> None:
    workload = sg.load_workload("tracelab-two-turn")
    plan = workload.draw(clients=6, seed=20260910, block=2)
    assert plan.plan_id == "n6b2"
    session = plan.clients[4].sessions[0]
    assert session.id == "n6b2/s4"
    rng = random.Random(derive_seed(20260910, "n6b2/s4"))
    first = (rng.randint(800, 1600), rng.randint(32, 256))
    rng.random()
    rng.random()
    assert (session.turns[0].new_tokens, session.turns[0].output_tokens) == first
    assert (session.turns[1].new_tokens, session.turns[1].output_tokens) == (8, rng.randint(32, 256))
    assert session.turns[1].tool_wait_s == 0.0


def test_sessions_are_shared_between_plan_sizes() -> None:
    workload = sg.load_workload("tracelab-multi-turn")
    small = workload.draw(clients=2, seed=7, plan_id="p", cycle_s=6.0)
    large = workload.draw(clients=4, seed=7, plan_id="p", cycle_s=6.0)
    assert small.clients[1].sessions == large.clients[1].sessions
    assert [client.start_s for client in large.clients] == [0.0, 1.5, 3.0, 4.5]
    assert len(small.clients[0].sessions) == 16
    lengths = {len(client.sessions[0].turns) for client in workload.draw(clients=40, seed=7).clients}
    assert len(lengths) > 4
    assert max(lengths) <= 8
    assert {len(session.turns) for session in small.clients[0].sessions[1:]} == {8}


def test_longest_contexts_match_the_published_index() -> None:
    workload = sg.load_workload("tracelab-multi-turn")
    rows = [row for row in read_csv("plan_index.csv") if row["part"] == "main" and row["replicate"] == "0"][:3]
    assert rows
    for row in rows:
        plan = workload.draw(
            clients=int(row["n_slots"]), seed=int(row["base_seed"]), plan_id=row["plan_id_inside_file"]
        )
        assert plan.longest_context_tokens == int(row["max_context_tokens"])


def test_own_workload(tmp_path: Path) -> None:
    workload = read(GOOD)
    plan = workload.draw(clients=30, seed=1)
    turns = [turn for _, session in plan.sessions() for turn in session.turns]
    assert {turn.new_tokens for turn in turns[1::3]} == {8, 64}
    assert all(10 <= turn.output_tokens <= 20 for turn in turns)
    assert all(0.1 <= turn.tool_wait_s <= 2.0 for i, turn in enumerate(turns) if i % 3 < 2)
    assert all(1 <= turn.new_tokens <= 2000 for turn in turns[::3])
    assert workload.draw(clients=30, seed=1) == plan
    assert workload.draw(clients=30, seed=2) != plan

    (tmp_path / "seen.csv").write_text("prompt,wait\n700,0.5\n900,1.5\n")
    text = GOOD.replace(
        'kind = "lognormal"\nmedian = 500\np90 = 900\nhigh = 2000',
        'kind = "empirical"\nfile = "seen.csv"\ncolumn = "prompt"',
    )
    text = text.replace(
        'kind = "uniform"\nlow_s = "100ms"\nhigh_s = 2.0', 'kind = "empirical"\nvalues_s = [0.25, 0.75]'
    )
    plan = read(text, tmp_path).draw(clients=20, seed=1)
    turns = [turn for _, session in plan.sessions() for turn in session.turns]
    assert {turn.new_tokens for turn in turns[::3]} == {700, 900}
    assert {turn.tool_wait_s for turn in turns[::3]} == {0.25, 0.75}


def test_whole_second_waits_use_one_randint() -> None:
    text = GOOD.replace('low_s = "100ms"\nhigh_s = 2.0', "low_s = 1\nhigh_s = 5")
    plan = read(text).draw(clients=20, seed=1)
    waits = {turn.tool_wait_s for _, session in plan.sessions() for turn in session.turns[:-1]}
    assert waits == {1.0, 2.0, 3.0, 4.0, 5.0}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('format = "slotgrid-workload/1"', 'format = "x"', "w.toml: format is 'x'"),
        ("turns = 3", "turns = 0", "w.toml: turns is 0; expected a whole number of at least 1"),
        ("turns = 3", "turns = 3\ncolour = 1", "w.toml: colour: unknown key; allowed here: .*turns"),
        ("low = 10", "low = 30", "w.toml: output_tokens: low 30 is above high 20"),
        ("low = 10", "low = 10\nmedian = 3", "w.toml: output_tokens.median: unknown key"),
        ("low = 10\n", "", "w.toml: output_tokens.low is missing"),
        ("p90 = 900", "p90 = 400", "first_new_tokens: median 500 and p90 400"),
        ("weights = [3, 1]", "weights = [3]", "later_new_tokens.weights: one weight per value"),
        ('low_s = "100ms"', 'low_s = "100 parsecs"', "tool_wait.low_s: unknown unit 'parsecs'; allowed: s, ms"),
        ('low_s = "100ms"', "low_s = -1", "tool_wait.low_s is -1; allowed: at least 0"),
        ('low_s = "100ms"', "low_s = nan", "tool_wait.low_s is nan; expected a finite number"),
        ('kind = "choice"', 'kind = "dice"', "later_new_tokens.kind is 'dice'; allowed: fixed, uniform"),
        (
            "turns = 3",
            "turns = 3\nplan_id = '{colour}'",
            "plan_id: unknown field {colour}; allowed: {clients}, {block}",
        ),
        ("turns = 3", "turns = [", "w.toml: "),
    ],
)
def test_bad_toml_is_named(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(sg.InputError, match=message):
        read(GOOD.replace(old, new))


def test_bad_columns_are_named(tmp_path: Path) -> None:
    (tmp_path / "seen.csv").write_text("prompt\n700\nmany\n")
    lognormal = 'kind = "lognormal"\nmedian = 500\np90 = 900\nhigh = 2000'
    for column, message in (("prompt", "seen.csv: line 3: 'many' is not a whole number"), ("x", "no column 'x'")):
        text = GOOD.replace(lognormal, f'kind = "empirical"\nfile = "seen.csv"\ncolumn = "{column}"')
        with pytest.raises(sg.InputError, match=message):
            read(text, tmp_path)


def test_unknown_names_and_counts_are_refused() -> None:
    with pytest.raises(sg.InputError, match="no such built-in workload or file; built in: tracelab-multi-turn"):
        sg.load_workload("tracelab")
    with pytest.raises(sg.InputError, match=r"none\.toml: No such file"):
        sg.load_workload("none.toml")
    with pytest.raises(sg.InputError, match=r"clients \(--sessions\): 0"):
        sg.load_workload("tracelab-two-turn").draw(clients=0, seed=1)

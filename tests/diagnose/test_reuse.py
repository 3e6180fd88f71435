"""Reuse: both published definitions of its cost, causes, survival by replay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.diagnose.order import event_order
from slotgrid.diagnose.reuse import additional_prefill_s, find_returns
from slotgrid.diagnose.survival import survival_curve
from tests.conftest import read_csv
from tests.samples import alloc, copy_sample, evict, free, hit, log, row, step, write_rows

A01 = read_csv("a01_reuse_failure_extra_cost.csv")


@pytest.mark.parametrize("entry", A01, ids=lambda entry: entry["cached_tokens_c"])
def test_published_cost_of_a_lost_prefix(entry: dict[str, str], profile: sg.StackProfile) -> None:
    """Every row of table a01: the lost tokens alone, and the least and most they add to prompts of those lengths."""
    lost = int(entry["cached_tokens_c"])
    prompts = np.array([int(entry["prompt_len_min_tokens"]), int(entry["prompt_len_max_tokens"])])
    tokens = np.full(2, lost)
    alone, added = additional_prefill_s(profile.price.prefill, prompts, np.zeros(2, np.int64), tokens)
    assert alone * 1000 == pytest.approx(float(entry["standalone_prefill_ms"]), abs=0.00501)
    assert added[0] * 1000 == pytest.approx(float(entry["incremental_min_ms"]), abs=0.00501)
    assert added[1] * 1000 == pytest.approx(float(entry["incremental_max_ms"]), abs=0.00501)
    assert (added[1] - added[0]) * 1000 == pytest.approx(float(entry["width_ms"]), abs=0.0101)


@given(st.integers(1, 6000), st.data())
def test_cost_definitions(prompt: int, data: st.DataObject) -> None:
    """Nothing lost costs nothing; a loss always costs; with whole blocks it costs at least the tokens alone."""
    prefill = sg.load_profile("rbln-ca25-qwen3-4b").price.prefill
    lost = data.draw(st.integers(0, (prompt - 1) // 128)) * 128
    alone, added = additional_prefill_s(prefill, np.array([prompt]), np.zeros(1, np.int64), np.array([lost]))
    assert added[0] >= alone[0] - 1e-12 >= -1e-12
    assert (added[0] > 0) == (lost > 0)


def small_run(folder: Path, *lines: str, **changes: object) -> sg.Run:
    """Two sessions of two turns; the rows' own cached tokens are absent, so the log tells."""
    folder.mkdir(exist_ok=True)
    (folder / "server.log").write_text(log(*lines))
    rows = [row(s, t, cached_tokens=None, output_tokens=2) for s in (0, 1) for t in (0, 1)]
    write_rows(folder / "requests.jsonl", rows)
    return sg.read_run(folder, buckets=(1, 2), **changes)  # type: ignore[arg-type]


def turn(session: int, number: int, slot: int, *before: str, blocks: int = 0) -> list[str]:
    name = f"cmpl-{session}{number}-0-aa"
    lookup = [hit(name, blocks)] if blocks else []
    return [*before, alloc(name, slot), *lookup, step(1, 2), free(name, slot)]


def test_causes(tmp_path: Path) -> None:
    """Session 0 loses its prefix to the padding slot, session 1 to its own admission."""
    run = small_run(
        tmp_path,
        *turn(0, 0, 0), *turn(1, 0, 1), evict(0), step(1, 2), *turn(0, 1, 0), *turn(1, 1, 1, evict(1)),
    )  # fmt: skip
    found = sg.diagnose(run, profile="rbln-ca25-qwen3-4b")
    assert found.returns is not None
    assert found.causes() == {"admission": 1, "padding": 1, "unknown": 0}
    assert found.returns.own.tolist() == [False, True]
    assert found.returns.between.tolist() == [1, 1]
    assert found.returns.lost_tokens.tolist() == [512, 512]
    assert found.returns.away_s.tolist() == [0.5, 0.5]
    lost = found.to_dict()["reuse"]["lost"]
    assert [(entry["session"], entry["cause"], entry["own_admission"]) for entry in lost] == [
        (0, "padding", False),
        (1, "admission", True),
    ]
    assert found.additional_prefill_s() == pytest.approx(
        tuple(x.sum() for x in (found.returns.standalone_s, found.returns.incremental_s))
    )


def test_a_loss_nobody_saw_the_cause_of(tmp_path: Path) -> None:
    run = small_run(tmp_path, *turn(0, 0, 0), *turn(1, 0, 1), *turn(0, 1, 2), *turn(1, 1, 3, blocks=4), slots=4)
    found = sg.diagnose(run)
    assert found.causes() == {"admission": 0, "padding": 0, "unknown": 1}
    assert found.lost_tokens == 512
    assert found.run.reused == 1


def test_more_reuse_than_the_rules_allow_is_no_loss(tmp_path: Path) -> None:
    """A server that keeps generated tokens: what one return found beyond them does not pay for a loss."""
    run = small_run(tmp_path, *turn(0, 0, 0), *turn(1, 0, 1), *turn(0, 1, 2), *turn(1, 1, 3, blocks=5), slots=4)
    found = sg.diagnose(run)
    assert (found.lost_tokens, found.lost_returns, found.beyond_rules) == (512, 1, 1)
    assert found.to_dict()["returns_beyond_rules"] == 1


def test_reusable_is_whole_blocks_of_the_previous_prompt(tmp_path: Path) -> None:
    lengths = [(600, 700, 512), (128, 300, 128), (127, 300, 0), (500, 257, 256), (500, 256, 128)]
    rows = []
    for s, (before, after, _) in enumerate(lengths):
        rows += [row(s, 0, prompt_tokens=before), row(s, 1, prompt_tokens=after)]
    write_rows(tmp_path / "requests.jsonl", rows)
    for profile in (None, sg.load_profile("rbln-ca25-qwen3-4b")):
        returns = find_returns(sg.read_run(tmp_path), None, profile)
        assert returns is not None
        assert returns.reusable_tokens.tolist() == [reusable for *_, reusable in lengths]


@given(st.integers(0, 10_000), st.integers(2, 10), st.integers(8, 14), st.sampled_from([8, 16]))
def test_replay_reproduces_the_engine(seed: int, clients: int, slots: int, top: int) -> None:
    """The order of events of a simulated run, replayed at its own slots, gives its reuse; more slots than requests
    keep everything, and the curve has a point for the run itself."""
    profile = sg.load_profile("rbln-ca25-qwen3-4b")
    plan = sg.load_workload("tracelab-two-turn").draw(clients=clients, seed=seed)
    config = sg.ServingConfig((1, top), slots=max(slots, top), max_running=top)
    run = sg.simulate(profile, config, plan, rules="real")
    order = event_order(run)
    curve = survival_curve(run, order, find_returns(run, order, profile), run.config)
    assert curve is not None
    assert curve.agreement == 1.0
    assert curve.kept_at(config.slots) == run.reused
    assert max(curve.kept) == curve.returns == clients


@pytest.mark.parametrize("slots", [5, 8, 9, 12, 16])
def test_curve_of_one_run_against_simulations(slots: int, profile: sg.StackProfile) -> None:
    """Replaying keeps the order of one run; a simulation with those slots has its own. They start from the same
    plan, so the reuse they predict stays close."""
    plan = sg.load_workload("tracelab-two-turn").draw(clients=8, seed=20261000)
    base = sg.simulate(profile, sg.ServingConfig((1, 2, 4, 8)), plan)
    curve = sg.diagnose(base, profile=profile).survival
    assert curve is not None
    if slots < 8:
        assert curve.kept_at(slots) is None
    elif slots <= curve.slots[-1]:
        other = sg.simulate(profile, sg.ServingConfig((1, 2, 4, 8), slots=slots), plan)
        assert other.reused is not None
        assert curve.kept_at(slots) == pytest.approx(other.reused, abs=2)


def test_wide_curves_are_thinned(profile: sg.StackProfile) -> None:
    plan = sg.load_workload("tracelab-two-turn").draw(clients=60, seed=3)
    curve = sg.diagnose(sg.simulate(profile, sg.ServingConfig((1, 4)), plan), profile=profile).survival
    assert curve is not None
    assert len(curve.slots) <= 26
    assert curve.slots[0] == 4
    assert curve.kept[-1] == 60


def test_no_curve_without_a_configuration(tmp_path: Path) -> None:
    run = sg.read_run(copy_sample("base_n8_b0", tmp_path, "requests.jsonl"))
    found = sg.diagnose(run)
    assert found.survival is None
    assert "survival curve" in found.not_observed


def test_requests_without_rows_take_slots(tmp_path: Path) -> None:
    """A warm-up request in the log pushes prefixes out as any other does."""
    warm = [alloc("cmpl-w-0-aa", 1), free("cmpl-w-0-aa", 1)]
    folder = tmp_path / "run"
    run = small_run(folder, *turn(0, 0, 0), *warm, *turn(0, 1, 2, blocks=4), slots=4)
    returns = find_returns(run, event_order(run), None)
    assert returns is not None
    assert returns.between[0] == 1

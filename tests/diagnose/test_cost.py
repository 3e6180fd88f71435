"""Cost channels, tolerance, comparison of two runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.diagnose.cost import agreement, channel_a, context_tokens, union_s
from slotgrid.diagnose.order import event_order
from slotgrid.profile import Quantity
from tests.samples import NAMES, copy_sample, sample_rows, write_rows

INTERVALS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30)


@given(INTERVALS)
def test_union_is_the_measure_of_the_covered_seconds(spans: list[tuple[int, int]]) -> None:
    covered = {second for start, length in spans for second in range(start, start + length)}
    starts = np.array([float(start) for start, _ in spans])
    ends = np.array([float(start + length) for start, length in spans])
    assert union_s(starts, ends) == len(covered)


def test_tolerance() -> None:
    """tau = max(0.02, r_base / B_base)."""
    found = agreement(9.0, 10.0, 10.0, 11.0)
    assert found is not None
    assert found.tau == pytest.approx(1 / 11)
    assert found.difference == pytest.approx(abs(0.9 - 10 / 11))
    assert found.agree
    found = agreement(8.0, 9.9, 10.0, 10.1)
    assert found is not None
    assert found.tau == 0.02
    assert not found.agree
    assert agreement(1.0, 1.0, 0.0, 1.0) is None


@given(st.integers(0, 10_000), st.integers(1, 10))
def test_context_tokens_against_the_engine(seed: int, clients: int) -> None:
    """Rebuilding the context term from the order alone gives what the engine priced step by step."""
    base = sg.load_profile("rbln-ca25-qwen3-4b")
    term = Quantity(1.5e-7, "0.15 us", "estimate", "test")
    price = replace(base.price, decode=replace(base.price.decode, per_context_token_s=term))
    profile = replace(base, price=price, clock=price)
    plan = sg.load_workload("tracelab-two-turn").draw(clients=clients, seed=seed)
    run = sg.simulate(profile, sg.ServingConfig((1, 2, 4, 8)), plan)
    assert run.histogram is not None
    histogram = {(n, b): steps for n, b, steps in run.histogram.iter_rows()}
    found = channel_a(run, event_order(run), histogram, profile)
    assert found.decode_s == pytest.approx(run.decode_s, abs=1e-9)
    assert found.total_s == pytest.approx(run.device_time_s, abs=1e-9)
    assert sg.diagnose(run, profile=profile).channel_b_s == pytest.approx(run.device_time_s, rel=0.05)


def test_context_term_needs_every_prompt(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path)
    write_rows(folder / "requests.jsonl", sample_rows()[:-1])
    run = sg.read_run(folder)
    order = event_order(run)
    assert order is not None
    assert context_tokens(run, order) is None
    base = sg.load_profile("rbln-ca25-qwen3-4b")
    term = Quantity(1.5e-7, "0.15 us", "estimate", "test")
    profile = replace(base, price=replace(base.price, decode=replace(base.price.decode, per_context_token_s=term)))
    found = sg.diagnose(run, profile=profile)
    assert found.channel_a.decode_s is None
    assert any("context term" in text for text in found.channel_a.missing)


def test_a_price_that_is_not_measured_is_named(tmp_path: Path) -> None:
    base = sg.load_profile("rbln-ca25-qwen3-4b")
    single = replace(base.price.decode, fixed_s=base.price.decode.fixed_s[:1])
    profile = replace(base, price=replace(base.price, decode=single))
    found = sg.diagnose(copy_sample("base_n8_b0", tmp_path), profile=profile)
    assert found.channel_a.decode_s is None
    assert found.channel_a.prefill_s == pytest.approx(3.3551269207)
    assert any("bucket 2 is not measured" in text for text in found.warnings)


def test_comparison_of_samples(tmp_path: Path, profile: sg.StackProfile) -> None:
    base, tuned = (copy_sample(name, tmp_path / name) for name in (NAMES[0], NAMES[2]))
    found = sg.diagnose(tuned, profile=profile, compare=base).comparison
    assert found is not None
    assert found.note == "same plan n8b0"
    assert found.values["reused"] == (8, 3)
    assert found.values["lost tokens"] == (0, 6400)
    assert found.agreement is not None
    assert found.agreement.ratio_a == pytest.approx((10.302536200000025 + 2.2384683681) / 13.74030212069998)
    assert found.agreement.agree


def test_a_simulated_run_compares_with_a_measured_one(tmp_path: Path, profile: sg.StackProfile) -> None:
    folder = copy_sample(NAMES[0], tmp_path)
    run = sg.simulate(profile, sg.ServingConfig((1, 2, 4, 8)), sg.load_plan(folder / "plan.json"))
    found = sg.diagnose(folder, profile=profile, compare=run).comparison
    assert found is not None
    assert found.agreement is not None
    assert found.agreement.ratio_a == pytest.approx(1)
    assert found.agreement.ratio_b == pytest.approx(1, abs=2e-4)


def test_other_plans_are_refused(tmp_path: Path, profile: sg.StackProfile) -> None:
    folder = copy_sample(NAMES[0], tmp_path / "a")
    plan = sg.load_workload("tracelab-two-turn").draw(clients=8, seed=1)
    run = sg.simulate(profile, sg.ServingConfig((1, 2, 4, 8)), plan)
    with pytest.raises(sg.InputError, match=r"--compare: the plans differ \(n8b0 [0-9a-f]{12} and n8b0 [0-9a-f]{12}\)"):
        sg.diagnose(folder, compare=run)


def test_without_plans_the_rows_tell(tmp_path: Path) -> None:
    a = copy_sample(NAMES[0], tmp_path / "a", "requests.jsonl")
    b = copy_sample(NAMES[2], tmp_path / "b", "requests.jsonl")
    found = sg.diagnose(a, compare=b).comparison
    assert found is not None
    assert found.note.startswith("no common plan hash; the same sessions")
    assert found.agreement is None
    rows = sample_rows(NAMES[2])
    write_rows(b / "requests.jsonl", rows[:-1])
    with pytest.raises(sg.InputError, match=r"the plans differ \(16 and 15 requests\)"):
        sg.diagnose(a, compare=b)
    write_rows(b / "requests.jsonl", [{**rows[0], "completion_tokens": 7}, *rows[1:]])
    with pytest.raises(sg.InputError, match="session 2 turn 0 with 40 output tokens here, session 2 turn 0 with 7"):
        sg.diagnose(a, compare=b)


def test_nothing_tells_whether_plans_are_the_same(tmp_path: Path) -> None:
    a = copy_sample(NAMES[0], tmp_path / "a", "server.log")
    with pytest.raises(sg.InputError, match=r"neither a plan\.json nor sessions"):
        sg.diagnose(a, compare=a)


def test_json_values_are_plain(tmp_path: Path, profile: sg.StackProfile) -> None:
    base, tuned = (copy_sample(name, tmp_path / name) for name in (NAMES[0], NAMES[2]))
    found = sg.diagnose(tuned, profile=profile, compare=base)
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["comparison"]["agree"] is True
    assert "Diagnosis(Run(measured" in repr(found)

"""Operating costs: which clock a configuration gets, and what each correction does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import slotgrid as sg
from slotgrid.profile import profile_from_toml
from tests.conftest import read_csv

TUNED = sg.ServingConfig((1, 4, 6, 8, 10, 16))
SOURCE = Path(sg.__file__).parent / "profile" / "data" / "rbln-ca25-qwen3-4b.toml"


def test_a_measured_configuration_gets_its_own_costs(profile: sg.StackProfile) -> None:
    clock = profile.clocked("operating", TUNED).clock
    assert clock.decode.step_s(TUNED)[6] == pytest.approx(0.012573 - 6 * 0.00001732)
    assert clock.decode.context_s == pytest.approx(1.49e-7)
    assert clock.prefill.seconds(np.array([128]))[0] == pytest.approx(0.022930 + 1.8287e-7 * 128)
    assert profile.clocked("operating", TUNED).price is profile.price
    assert profile.clocked("price").clock is profile.price


def test_any_other_configuration_gets_the_mean_of_the_measured(profile: sg.StackProfile) -> None:
    clocked = profile.clocked("operating", sg.ServingConfig((1, 2, 5, 16)))
    assert "mean of BASE, BATCHONLY, TUNED" in clocked.clock_text
    fixed = dict(clocked.clock.decode.fixed_s)
    assert fixed[8].value == pytest.approx((13.463 + 14.075 + 13.463) / 3000)
    assert fixed[10].value == pytest.approx(0.014729)
    # DP's estimate is never pooled: bucket 3 is interpolated
    assert clocked.clock.decode.fixed(3) == pytest.approx((fixed[2].value + fixed[4].value) / 2)
    assert "estimate" in profile.clocked("operating", sg.ServingConfig((1, 2, 3, 4, 6, 16))).clock_text


def test_the_excess_is_what_was_observed_above_the_fit(profile: sg.StackProfile) -> None:
    for own in profile.operating:
        sizes = [
            row
            for row in read_csv("npu_operating_prefill_by_size.csv")
            if row["config"] == own.name and row["computed_token_bin"] in ("<=128", "129-512")
        ]
        above = np.mean([float(row["observed_ms"]) - float(row["operating_fit_ms"]) for row in sizes])
        assert own.cost.prefill.cached_excess_s is not None
        assert own.cost.prefill.cached_excess_s.value * 1000 == pytest.approx(above, abs=0.051)
    prefill = profile.clocked("operating", TUNED).clock.prefill
    computed = np.array([0, 8, 512, 513])
    added = prefill.seconds(computed, cached=True) - prefill.seconds(computed)
    assert added.tolist() == pytest.approx([0, 0.00685, 0.00685, 0])


@pytest.mark.parametrize("correction", ["decode", "context", "prefill", "excess"])
def test_each_correction_can_be_left_out_alone(profile: sg.StackProfile, correction: str) -> None:
    whole = profile.clocked("operating", TUNED).clock
    part = profile.clocked("operating", TUNED, without=[correction]).clock
    same = {
        "decode": part.decode.fixed_s == whole.decode.fixed_s,
        "context": part.decode.context_s == whole.decode.context_s,
        "prefill": part.prefill.per_chunk_s == whole.prefill.per_chunk_s,
        "excess": part.prefill.cached_excess_s == whole.prefill.cached_excess_s,
    }
    assert [name for name, equal in same.items() if not equal] == [correction]
    plan = sg.load_workload("tracelab-two-turn").draw(clients=8, seed=1)
    runs = [sg.simulate(profile, TUNED, plan, clock="operating", without=without) for without in ((), (correction,))]
    assert runs[0].wall_s != runs[1].wall_s
    assert any(text.endswith(f"without {correction}") for text in runs[1].notes)


def test_without_corrections_the_operating_clock_is_the_price(profile: sg.StackProfile) -> None:
    plan = sg.load_workload("tracelab-two-turn").draw(clients=8, seed=1)
    every = ("decode", "context", "prefill", "excess")
    bare = sg.simulate(profile, TUNED, plan, clock="operating", without=every)
    assert bare.wall_s == sg.simulate(profile, TUNED, plan).wall_s


def test_bad_choices_are_named(profile: sg.StackProfile) -> None:
    plan = sg.InputPlan.from_turns([[(100, 10, 0.0)]])
    with pytest.raises(sg.InputError, match="clock: 'wall'; allowed: price, operating"):
        sg.simulate(profile, TUNED, plan, clock="wall")
    with pytest.raises(sg.InputError, match="without: 'heat'; allowed: decode, context, prefill, excess"):
        sg.simulate(profile, TUNED, plan, clock="operating", without=["heat"])
    with pytest.raises(sg.InputError, match="choose clock operating"):
        sg.simulate(profile, TUNED, plan, without=["context"])


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('name = "TUNED"', 'name = "BASE"', "appear twice"),
        ("buckets = [1, 2, 3, 4, 6, 16]", "buckets = [1, 2, 3, 5, 6, 16]", "bucket 5 of buckets is missing"),
        ("cached_excess_up_to_tokens = 512\n", "", "cached_excess_up_to_tokens is missing"),
        ("low = 2, high = 12", "low = 12, high = 2", "below low 12"),
        ("[[scatter.step]]\nbucket = 2", "[[scatter.step]]\nbucket = 1", "1 appears twice"),
        ("prefill_share = { value = 1.6", "prefill_share = { value = -1.6", "at least 0"),
    ],
)
def test_bad_operating_costs_and_scatter_are_named(old: str, new: str, part: str) -> None:
    text = SOURCE.read_text()
    assert old in text
    with pytest.raises(sg.InputError, match=part):
        profile_from_toml(text.replace(old, new, 1).encode(), "p.toml")


def test_an_excess_is_no_price(profile: sg.StackProfile) -> None:
    text = SOURCE.read_text().replace(
        "computed_tokens_range = [500, 6000]",
        "computed_tokens_range = [500, 6000]\n"
        'cached_excess = { value = 1, unit = "ms", kind = "estimate", source = "x" }',
        1,
    )
    with pytest.raises(sg.InputError, match=r"price\.prefill\.cached_excess: unknown key"):
        profile_from_toml(text.encode(), "p.toml")

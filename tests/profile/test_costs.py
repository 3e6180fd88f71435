"""Cost functions against published numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg


@pytest.mark.parametrize(
    ("bucket", "fixed_ms"),
    # measured, between neighbours, and along the last line
    [
        (1, 9.87),
        (2, 10.42),
        (3, 10.6225),
        (4, 10.825),
        (6, 11.8975),
        (8, 12.97),
        (10, 14.0425),
        (16, 17.26),
        (32, 25.84),
    ],
)
def test_fixed_part_by_bucket(profile: sg.StackProfile, bucket: int, fixed_ms: float) -> None:
    assert profile.price.decode.fixed(bucket) * 1000 == pytest.approx(fixed_ms, abs=1e-9)


def test_step_by_running_count(profile: sg.StackProfile) -> None:
    step_s = profile.price.decode.step_s(sg.ServingConfig((1, 2, 4, 8)))
    assert step_s[0] == 0
    expected = [9.87 + 0.501 + 0.0413, *(10.825 + 0.501 + 0.0413 * n for n in (3, 4)), 12.97 + 0.501 + 0.0413 * 5]
    assert step_s[[1, 3, 4, 5]] * 1000 == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.integers(2, 40), min_size=1, max_size=5, unique=True))
def test_interpolated_buckets_never_become_support_points(profile: sg.StackProfile, between: list[int]) -> None:
    alone = profile.price.decode.step_s(sg.ServingConfig((1, 41)))
    mixed = profile.price.decode.step_s(sg.ServingConfig(sorted({1, 41, *between})))
    top = max(between)
    assert mixed[top + 1 :].tolist() == alone[top + 1 :].tolist()


def test_prefill(profile: sg.StackProfile) -> None:
    seconds = profile.price.prefill.seconds(np.array([0, 1, 128, 129, 500, 2000, 6000]))
    assert seconds[0] == 0
    assert seconds[1] == pytest.approx(0.021206 + 6.399e-7)
    assert seconds[3] == pytest.approx(2 * (0.021206 + 6.399e-7 * 129))
    assert seconds[4:] * 1000 == pytest.approx([86.1, 359.8, 1177.1], abs=0.05)


def test_extrapolation_is_said(profile: sg.StackProfile) -> None:
    plan = sg.InputPlan.from_turns([[[900, 30, 0.0]]] * 10)
    run = sg.simulate(profile, sg.ServingConfig((1, 2, 4, 8, 16)), plan)
    assert run.extrapolated == (
        "decode steps of bucket 16 (measured 1 to 8)",
        "decode steps with up to 10 running (measured 1 to 8)",
    )
    inside = sg.simulate(profile, sg.ServingConfig((1, 2, 4, 8)), plan)
    assert inside.extrapolated == ()
    short = sg.simulate(profile, sg.ServingConfig((1, 2)), sg.InputPlan.from_turns([[[90, 3, 0.0]]]))
    assert short.extrapolated == ("prefills of 90 to 90 tokens (measured 500 to 6000)",)

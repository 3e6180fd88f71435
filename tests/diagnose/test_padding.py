"""Padding: the published attribution, exact Shapley values, and fitted bucket lists."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.diagnose.buckets import bucket_change
from slotgrid.diagnose.padding import align, fit_buckets, padding_changes, rebucket
from slotgrid.diagnose.shapley import shapley_drops
from tests.conftest import read_csv

T14 = read_csv("t14_padding_drop_decomposition.csv")


def t14_histogram(n: str, buckets: tuple[int, ...] = (1, 2, 4, 8)) -> dict[tuple[int, int], int]:
    config = sg.ServingConfig(buckets)
    rows = [r for r in T14 if r["n_sessions"] == n and r["active_requests"] != "total"]
    return {(int(r["active_requests"]), config.bucket_for(int(r["active_requests"]))): int(r["steps"]) for r in rows}


@pytest.mark.parametrize("n", ["6", "8"])
def test_published_attribution(n: str) -> None:
    """Every number of table t14: padded slots on both lists, what is removed, and the Shapley split."""
    histogram = t14_histogram(n)
    changes = {c.running: c for c in padding_changes(histogram, (1, 2, 4, 6, 8))}
    before, after = align(histogram), align(rebucket(histogram, (1, 2, 4, 6, 8)))
    drop = before.padding_ratio - after.padding_ratio  # type: ignore[operator]
    removed = before.bucket_sum - after.bucket_sum
    for row in (r for r in T14 if r["n_sessions"] == n):
        if row["active_requests"] == "total":
            assert before.steps == int(row["steps"])
            assert before.bucket_sum - before.running_sum == int(row["padding_slots_grid_1248"])
            assert after.bucket_sum - after.running_sum == int(row["padding_slots_grid_12468"])
            assert removed == int(row["slots_removed"])
            assert f"{drop:+.4f}" == row["shapley_padding_drop"]
            continue
        change = changes[int(row["active_requests"])]
        assert change.steps == int(row["steps"])
        assert change.padded_before == int(row["padding_slots_grid_1248"])
        assert change.padded_after == int(row["padding_slots_grid_12468"])
        assert change.removed == int(row["slots_removed"])
        assert change.steps / before.steps * 100 == pytest.approx(float(row["step_share_pct"]), abs=0.0501)
        assert change.removed / removed * 100 == pytest.approx(float(row["removed_share_pct"]), abs=0.0501)
        if row["shapley_share_pct"]:
            assert change.shapley_drop / drop * 100 == pytest.approx(float(row["shapley_share_pct"]), abs=0.0501)
            assert f"{change.shapley_drop:+.4f}" == row["shapley_padding_drop"]
        else:
            assert change.shapley_drop == 0


def by_permutations(running: int, bucket: int, removed: list[int]) -> list[float]:
    """The definition: mean marginal change over every order of joining."""
    parts = [0.0] * len(removed)
    orders = list(itertools.permutations(range(len(removed))))
    for order in orders:
        gone = 0
        for i in order:
            parts[i] += running / (bucket - gone - removed[i]) - running / (bucket - gone)
            gone += removed[i]
    return [part / len(orders) for part in parts]


@given(st.integers(1, 50_000), st.lists(st.integers(-3000, 3000), min_size=1, max_size=6), st.integers(0, 2000))
def test_shapley_values_are_exact(running: int, removed: list[int], spare: int) -> None:
    bucket = running + sum(d for d in removed if d > 0) + spare
    found = shapley_drops(running, bucket, removed)
    assert found == pytest.approx(by_permutations(running, bucket, removed), abs=1e-11, rel=1e-9)


@given(st.lists(st.integers(0, 400), min_size=20, max_size=60), st.integers(1, 5000), st.integers(1, 500))
def test_shapley_values_add_up_for_many_counts(removed: list[int], running: int, spare: int) -> None:
    """Efficiency, symmetry and null players hold where no sum over subsets could be taken."""
    bucket = running + sum(removed) + spare
    found = shapley_drops(running, bucket, removed)
    assert sum(found) == pytest.approx(running / (bucket - sum(removed)) - running / bucket, rel=1e-9, abs=1e-12)
    for a, b in itertools.pairwise(range(len(removed))):
        if removed[a] == removed[b]:
            assert found[a] == pytest.approx(found[b], abs=1e-12)
    assert all(part == 0 for part, d in zip(found, removed, strict=True) if d == 0)
    assert all(part > 0 for part, d in zip(found, removed, strict=True) if d > 0)


def test_alignment_of_nothing() -> None:
    assert align({}).padding_ratio is None
    assert align({}).utilization is None
    assert align({(3, 4): 2}).utilization == 0.75


def brute_force(steps: dict[int, int], count: int, top: int, price: dict[int, float]) -> float:
    sizes = range(1, top)
    best = float("inf")
    for k in range(count):
        for inner in itertools.combinations(sizes, k):
            buckets = (*inner, top)
            best = min(best, sum(s * price[next(b for b in buckets if b >= n)] for n, s in steps.items()))
    return best


@given(
    st.dictionaries(st.integers(1, 9), st.integers(0, 50), min_size=1),
    st.integers(1, 4),
    st.lists(st.floats(0.1, 3), min_size=9, max_size=9),
)
def test_fitted_buckets_are_the_cheapest(steps: dict[int, int], count: int, increments: list[float]) -> None:
    """Against every list there is; prices rise with the bucket."""
    price = dict(zip(range(1, 10), itertools.accumulate(increments), strict=True))
    found = fit_buckets(steps, count, 9, price.__getitem__)
    assert found[-1] == 9
    assert len(found) <= count
    assert list(found) == sorted(set(found))
    cost = sum(s * price[next(b for b in found if b >= n)] for n, s in steps.items())
    assert cost == pytest.approx(brute_force(steps, count, 9, price))


def test_fitting_needs_room() -> None:
    with pytest.raises(sg.InputError, match="0 sizes; at least 1"):
        fit_buckets({1: 1}, 0, 4)
    with pytest.raises(sg.InputError, match="5 requests ran at once, above the top 4"):
        fit_buckets({5: 1}, 2, 4)
    with pytest.raises(sg.InputError, match="5 requests ran at once, above the top bucket 4"):
        rebucket({(5, 8): 1}, (2, 4))


def test_padding_and_cost_can_move_apart(profile: sg.StackProfile) -> None:
    """300 rows fewer and 296 more: less padding. Bucket 8 to 5 saves 1.609 ms, 1 to 2 costs 0.55 ms: more seconds."""
    config = sg.ServingConfig((1, 8))
    change = bucket_change({(1, 1): 296, (5, 8): 100}, config, profile.price.decode, (2, 5))
    assert change is not None
    assert change.after.padding_ratio < change.before.padding_ratio  # type: ignore[operator]
    assert change.saved_s == pytest.approx(100 * 1.60875e-3 - 296 * 0.55e-3)
    assert change.saved_s < 0  # type: ignore[operator]
    assert change.opposite
    change = bucket_change({(1, 1): 100, (5, 8): 100}, config, profile.price.decode, (2, 5))
    assert change is not None
    assert not change.opposite


def test_without_a_configuration_only_an_asked_list_is_tried() -> None:
    assert bucket_change({(1, 1): 1}, None, None, None) is None
    assert bucket_change({}, sg.ServingConfig((1, 2)), None, (1, 2)) is None
    change = bucket_change({(1, 2): 4}, None, None, (1, 2))
    assert change is not None
    assert (change.before.bucket_sum, change.after.bucket_sum, change.saved_s) == (8, 4, None)

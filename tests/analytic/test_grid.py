"""The bucket programme: exact against all subsets, ties, and the published choices."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.analytic import bucket_reasons, grid_seconds, optimal_buckets, used_buckets
from tests.conftest import read_csv

TUNED = (1, 4, 6, 8, 10, 16)


def every_set(top: int, max_buckets: int, between: list[int] | None = None) -> list[tuple[int, ...]]:
    allowed = list(range(2, top)) if between is None else between
    return [
        (1, *chosen, top)
        for count in range(min(max_buckets - 2, len(allowed)) + 1)
        for chosen in combinations(allowed, count)
    ]


def exact(steps: list[float], price: list[float], buckets: tuple[int, ...]) -> Fraction:
    return sum(
        (
            Fraction(share) * Fraction(price[min(b for b in buckets if b >= n)])
            for n, share in enumerate(steps)
            if n and share
        ),
        Fraction(0),
    )


@given(
    top=st.integers(2, 9),
    max_buckets=st.integers(2, 6),
    # few distinct values, so that ties are common
    steps=st.lists(st.sampled_from([0.0, 0.0, 1.0, 2.0, 0.1, 0.3]), min_size=10, max_size=10),
    price=st.lists(st.sampled_from([1.0, 1.5, 2.0, 0.1, 0.2, 0.3]), min_size=10, max_size=10),
)
def test_it_is_the_best_of_all_subsets(top: int, max_buckets: int, steps: list[float], price: list[float]) -> None:
    steps = [0.0, *steps[1 : top + 1]]
    if not any(steps):
        steps[1] = 1.0
    expected = min((exact(steps, price, buckets), buckets) for buckets in every_set(top, max_buckets))
    found = optimal_buckets(np.array(steps), lambda b: price[b], top=top, max_buckets=max_buckets)
    assert found.buckets == expected[1]
    assert found.seconds == float(expected[0])
    assert grid_seconds(np.array(steps), lambda b: price[b], found.buckets) == found.seconds


@given(st.lists(st.floats(0.0, 1.0), min_size=17, max_size=17), st.sets(st.integers(2, 15), max_size=5))
def test_only_the_allowed_sizes(steps: list[float], between: set[int]) -> None:
    steps[3] += 0.5
    h = np.array([0.0, *steps[1:]])
    price = [0.0, *np.linspace(9.0, 17.0, 16).tolist()]
    found = optimal_buckets(h, lambda b: price[b], top=16, max_buckets=5, intermediate=sorted(between))
    expected = min((exact(h.tolist(), price, b), b) for b in every_set(16, 5, sorted(between)))
    assert found.buckets == expected[1]


def test_the_published_space_has_1471_sets(profile: sg.StackProfile) -> None:
    sets = every_set(16, 6)
    assert len(sets) == 1471
    rng = np.random.default_rng(3)
    steps = np.append(0.0, rng.random(16))
    cost = profile.price.decode.fixed
    best = min((grid_seconds(steps, cost, buckets), buckets) for buckets in sets)
    found = optimal_buckets(steps, cost, top=16, max_buckets=6)
    assert (found.seconds, found.buckets) == best


def test_small_spaces(profile: sg.StackProfile) -> None:
    cost = profile.price.decode.fixed
    assert optimal_buckets(np.array([0.0, 3.0]), cost, top=1, max_buckets=1).buckets == (1,)
    assert optimal_buckets(np.array([0.0, 3.0]), cost, top=2, max_buckets=2).buckets == (1, 2)
    with pytest.raises(sg.InputError, match=r"max-buckets: 1; allowed: at least 2"):
        optimal_buckets(np.array([0.0, 3.0]), cost, top=4, max_buckets=1)
    with pytest.raises(sg.InputError, match="up to 3 requests run at once, the top bucket is 2"):
        optimal_buckets(np.array([0.0, 1.0, 1.0, 1.0]), cost, top=2, max_buckets=2)
    with pytest.raises(sg.InputError, match="no decode steps"):
        grid_seconds(np.zeros(3), cost, (1, 2))


def occupancy(
    profile: sg.StackProfile, workload: sg.Workload, clients: int, seeds: tuple[int, ...], rules: str
) -> np.ndarray:
    steps = np.zeros(17)
    for seed in seeds:
        for block in workload.blocks:
            run = sg.simulate(
                profile, sg.ServingConfig(TUNED), workload.draw(clients=clients, seed=seed, block=block), rules=rules
            )
            for running, _, count in run.histogram.iter_rows():
                steps[running] += count
    return steps


def test_published_choice_on_simulated_occupancy(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    """Costs of the selected and the reference set to the printed digit, and the programme's choice is the selected."""
    row = read_csv("m03_grid_dp_vs_selected.csv")[0]
    steps = sum(occupancy(profile, two_turn, n, two_turn.explore_seeds, "paper") for n in (6, 8, 10))
    cost = profile.price.decode.fixed
    found = optimal_buckets(steps, cost, top=16, max_buckets=6)
    assert found.buckets == tuple(map(int, row["dp_grid"].split())) == TUNED
    assert found.seconds == pytest.approx(float(row["cost_dp_grid_s"]), abs=5e-5)
    assert grid_seconds(steps, cost, (1, 2, 4, 8, 16)) == pytest.approx(float(row["cost_reference_grid_s"]), abs=5e-5)


def test_published_choices_on_measured_occupancy(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    """The measured runs' plans, simulated: the programme's sets are the published ones, regrets within 0.001."""
    rows = {row["h_source"]: row for row in read_csv("m03_grid_dp_vs_selected.csv")}
    cost = profile.price.decode.fixed
    total = np.zeros(17)
    for n, seeds in ((6, (20261000, 20261100)), (8, (20261000,)), (10, (20261000,))):
        steps = occupancy(profile, two_turn, n, seeds, "real")
        total += steps
        row = rows[f"R3b N={n} (report only)"]
        found = optimal_buckets(steps, cost, top=16, max_buckets=6)
        assert found.buckets == tuple(map(int, row["dp_grid"].split()))
        regret = grid_seconds(steps, cost, TUNED) / found.seconds - 1
        assert regret == pytest.approx(float(row["relative_regret"]), abs=0.001)
    assert optimal_buckets(total, cost, top=16, max_buckets=6).buckets == TUNED


def test_reasons_say_what_leaving_a_bucket_out_costs(profile: sg.StackProfile) -> None:
    cost = profile.price.decode.fixed
    steps = np.array([0.0, 5.0, 1.0, 0.0, 4.0, 2.0, 0.0, 0.0, 0.0])
    whole = grid_seconds(steps, cost, (1, 4, 6, 7, 8))
    reasons = {reason.bucket: reason for reason in bucket_reasons(steps, cost, (1, 4, 6, 7, 8))}
    assert list(reasons) == [1, 4, 6, 7]
    for bucket, without in ((1, (4, 6, 7, 8)), (4, (1, 6, 7, 8)), (6, (1, 4, 7, 8))):
        assert reasons[bucket].saved_share == pytest.approx(grid_seconds(steps, cost, without) / whole - 1)
    assert reasons[4].share == pytest.approx(5 / 12)
    assert (reasons[4].lowest, reasons[4].next_bucket) == (2, 6)
    assert "4 is there for steps with 2 to 4 running (41.7% of the steps): each saves" in reasons[4].sentence
    assert "with 5 or 6 running" in reasons[6].sentence
    assert reasons[7].sentence == "7 is never used: no step runs 7; it can be left out"
    assert used_buckets(steps, (1, 4, 6, 7, 8)) == (1, 4, 6, 8)

"""Steady load: the published verdicts from the published replicates, and each criterion on its own."""

from __future__ import annotations

import pytest

from slotgrid.errors import InputError
from slotgrid.study.outcome import Outcome
from slotgrid.study.resample import Interval, median_interval
from slotgrid.study.steady import (
    SteadyCriteria,
    SteadyVerdict,
    cost_finding,
    judge_steady,
    occupancy_distance,
    occupancy_finding,
    reuse_finding,
)
from tests.conftest import read_csv

NULL = 675 / 998
ARMS = ("BASE", "BATCHONLY", "TUNED", "DP")


def observed(sessions: tuple[int, ...], arms: tuple[str, ...]) -> list[Outcome]:
    """Published replicates; seconds per turn are printed, so a turn count of 1 carries them."""
    return [
        Outcome(
            int(row["n_sessions"]),
            row["replicate"],
            row["config"],
            float(row["device_time_per_turn_ms"]) / 1000,
            turns=1,
            later_turns=int(row["reuse_requests_turn_ge1"]),
            reused=int(row["reuse_hits"]),
        )
        for row in read_csv("multi_turn_replicates.csv")
        if row["device_time_per_turn_ms"] and int(row["n_sessions"]) in sessions and row["config"] in arms
    ]


def predicted(sessions: tuple[int, ...], arms: tuple[str, ...], predictor: str) -> list[Outcome]:
    """The published predictions of each cell, the same for its five replicates; the baseline is 1."""
    made = []
    for row in read_csv("multi_turn_cells.csv"):
        n, arm = int(row["n_sessions"]), row["config"]
        if n in sessions and arm in arms:
            cost = 1.0 if arm == "BASE" else float(row[f"ratio_pred_{predictor}"])
            reuse = float(row[f"reuse_pred_{predictor}"])
            made += [
                Outcome(n, str(r), arm, cost, turns=1, later_turns=1_000_000, reused=round(reuse * 1_000_000))
                for r in range(5)
            ]
    return made


def verdict(sessions: tuple[int, ...], arms: tuple[str, ...], predictor: str, **criteria: float) -> SteadyVerdict:
    return judge_steady(
        predicted(sessions, arms, predictor),
        observed(sessions, arms),
        arms=arms,
        limits={"BASE": 8, "BATCHONLY": 16, "TUNED": 16, "DP": 16},
        exploratory=(),
        criteria=SteadyCriteria(null_reuse=NULL, **criteria),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def first_round() -> dict[str, list[SteadyVerdict]]:
    """N = 6, 8, 10 with both published predictors; N = 8 has one arm more than the others."""
    return {
        name: [verdict((6, 10), ARMS[:3], name), verdict((8,), ARMS, name)]
        for name in ("analytic_v1", "sim_legacy_original_cost", "sim_observed_semantics_original_cost")
    }


def test_published_cost_ratio_verdicts(first_round: dict[str, list[SteadyVerdict]]) -> None:
    """7 of 7 cells basic and strong; the sums of errors as printed, and the null's 0.1871."""
    for name, told in (
        ("analytic_v1", 0.0483),
        ("sim_legacy_original_cost", 0.0392),
        ("sim_observed_semantics_original_cost", 0.0312),
    ):
        cells = [(c.cost_predicted, c.cost) for v in first_round[name] for c in v.cells if c.cost is not None]
        assert len(cells) == 7
        found = cost_finding(cells, SteadyCriteria())
        assert found.verdict == "passed", found.rule
        assert (found.numbers["basic"], found.numbers["strong"]) == (7, 7)
        assert found.numbers["sum_error"] == pytest.approx(told, abs=4e-4)
        assert found.numbers["null_sum_error"] == pytest.approx(0.1871, abs=4e-4)


def test_published_reuse_verdicts(first_round: dict[str, list[SteadyVerdict]]) -> None:
    for name, mae in (
        ("analytic_v1", 0.0142),
        ("sim_legacy_original_cost", 0.0037),
        ("sim_observed_semantics_original_cost", 0.0036),
    ):
        cells = [(c.reuse_predicted, c.reuse) for v in first_round[name] for c in v.cells]
        found = reuse_finding(cells, SteadyCriteria(null_reuse=NULL))
        assert found.verdict == "passed", found.rule
        assert found.numbers["within"] == 10
        assert found.numbers["mae"] == pytest.approx(mae, abs=1e-4)
        assert found.numbers["null_mae"] == pytest.approx(0.1746, abs=1e-4)


def test_published_failures() -> None:
    """N = 14 and 16: v1.1 fails reuse at one cell and the basic cost criterion at one; ranking holds 6 of 6."""
    found = {f.criterion: f for f in verdict((14, 16), ARMS[:3], "analytic_v1_1", strong_misses=0).findings}
    assert found["reuse"].verdict == "failed"
    assert found["reuse"].numbers["within"] == 5
    assert found["reuse"].numbers["mae"] == pytest.approx(0.049, abs=5e-4)
    assert found["reuse"].numbers["null_mae"] == pytest.approx(0.2245, abs=1e-4)
    assert found["cost ratio"].verdict == "failed"
    assert (found["cost ratio"].numbers["basic"], found["cost ratio"].numbers["strong"]) == (3, 4)
    assert found["cost ratio"].numbers["sum_error"] == pytest.approx(0.087, abs=1e-3)
    assert found["cost ratio"].numbers["null_sum_error"] == pytest.approx(1.012, abs=1e-3)
    assert found["ranking"].verdict == "passed"
    assert found["ranking"].numbers == {"pairs": 6, "resolved": 6, "agree": 6}
    assert found["occupancy"].verdict == "not judged"


def test_published_pairs(first_round: dict[str, list[SteadyVerdict]]) -> None:
    """Medians, intervals and which pairs are resolved, as printed (the seconds behind them are printed to 0.1 ms)."""
    found = {(p.sessions, f"{p.x}/{p.y}"): p for v in first_round["analytic_v1"] for p in v.pairs}
    rows = [row for row in read_csv("p05_config_pair_rankings.csv") if row["task"] == "TASK82"]
    assert len(rows) == len(found) == 12
    for row in rows:
        pair = found[int(row["n_sessions"]), row["pair_x_over_y"]]
        printed = [float(row[name]) for name in ("median_ratio", "ci_low", "ci_high")]
        assert [pair.ratio.point, pair.ratio.low, pair.ratio.high] == pytest.approx(printed, abs=4e-4)
        assert pair.resolved == (row["resolved"] == "yes")
        if pair.resolved:
            assert pair.agrees
            assert row["observed_cheaper"] == (pair.y if pair.ratio.point > 1 else pair.x)


def test_nothing_resolved() -> None:
    found = {f.criterion: f for f in verdict((6,), ARMS[:3], "analytic_v1").findings}
    assert found["ranking"].verdict == "unresolved"


def test_pass_without_skill_is_not_confirmed() -> None:
    """Within every limit, but no better than the null, not testable, or nothing to predict."""
    criteria = SteadyCriteria(null_reuse=0.7)
    assert reuse_finding([(0.7, 0.65), (0.7, 0.76)], criteria).verdict == "not confirmed"
    assert reuse_finding([(0.65, 0.65), (0.76, 0.76)], criteria).verdict == "passed"
    narrow = reuse_finding([(0.9, 0.9), (0.95, 0.95)], criteria)
    assert narrow.verdict == "not confirmed"
    assert "not informative: observed range 0.050 < 0.1" in narrow.rule
    assert "no null_reuse was registered" in reuse_finding([(0.65, 0.65), (0.8, 0.8)], SteadyCriteria()).rule
    close = reuse_finding([(0.66, 0.66), (0.74, 0.74), (0.7, 0.7), (0.77, 0.77)], criteria)
    assert close.verdict == "not confirmed"
    assert "not informative: MAE of the null 0.0375 < 0.05" in close.rule
    small = cost_finding([(0.995, Interval(0.995, 0.99, 1.0))], criteria)
    assert small.verdict == "not confirmed"
    assert "mean |1 - m| 0.0050 < 0.01" in small.rule
    guess = cost_finding([(0.998, Interval(0.975, 0.97, 0.98)), (0.998, Interval(0.975, 0.97, 1.1))], criteria)
    assert guess.verdict == "not confirmed"
    assert "skill: sum |p - m| 0.0460 > 0.5 x" in guess.rule
    assert occupancy_finding([(0.05, 0.2), (0.19, 0.2)], criteria).verdict == "failed"
    assert occupancy_finding([(0.05, 0.04)], criteria).verdict == "not confirmed"


def test_published_occupancy() -> None:
    """Median and largest distance and the null's median of the first round's ten cells, as printed: 0.061 / 0.074."""
    rows = [r for r in read_csv("multi_turn_cells.csv") if r["experiment"] == "TASK82" and r["n_sessions"] != "12"]
    cells: list[tuple[float | None, float | None]] = [
        (float(r["occupancy_tvd_analytic_v1"]), float(r["occupancy_tvd_null"])) for r in rows
    ]
    found = occupancy_finding(cells, SteadyCriteria())
    assert found.verdict == "passed"
    assert found.numbers["median"] == pytest.approx(0.061, abs=5e-4)
    assert found.numbers["largest"] == pytest.approx(0.074, abs=5e-4)
    assert found.numbers["null_median"] == pytest.approx(0.296, abs=5e-4)


def test_side_of_one_when_the_interval_contains_it() -> None:
    """|p - 1| <= 0.03 takes the place of the side of 1."""
    criteria = SteadyCriteria()
    around = Interval(0.99, 0.97, 1.01)
    assert cost_finding([(1.015, around)], criteria).numbers["basic"] == 1
    assert cost_finding([(0.965, around)], criteria).numbers["basic"] == 0
    below = Interval(0.99, 0.98, 0.999)
    assert cost_finding([(1.005, below)], criteria).numbers["basic"] == 0


def test_occupancy_distance() -> None:
    assert occupancy_distance({1: 0.5, 2: 0.5}, {1: 0.5, 2: 0.5}) == 0
    assert occupancy_distance({1: 1.0}, {2: 1.0}) == 1
    assert occupancy_distance({1: 0.75, 2: 0.25}, {1: 0.5, 3: 0.5}) == pytest.approx(0.5)


def test_bootstrap() -> None:
    """With five replicates the interval is the range; the same seed gives the same interval."""
    values = [0.95, 0.99, 0.97, 1.01, 0.98]
    found = median_interval(values, resamples=10_000, seed=20261420)
    assert (found.point, found.low, found.high) == (0.98, 0.95, 1.01)
    many = [i / 100 for i in range(40)]
    assert median_interval(many, resamples=500, seed=1) == median_interval(many, resamples=500, seed=1)
    assert median_interval(many, resamples=500, seed=1) != median_interval(many, resamples=500, seed=2)
    for values, word in (([], "no values"), ([float("nan")], "not a finite number")):
        with pytest.raises(InputError, match=word):
            median_interval(values, resamples=10, seed=0)


def test_what_is_missing_is_named() -> None:
    rows = observed((6,), ARMS[:2])
    kwargs = {"arms": ARMS[:2], "limits": {"BASE": 8, "BATCHONLY": 16}, "exploratory": (), "criteria": SteadyCriteria()}
    with pytest.raises(InputError, match=r"N = 6, replicate 4, arm BATCHONLY: the run is missing"):
        judge_steady(predicted((6,), ARMS[:2], "analytic_v1"), rows[:-1], **kwargs)  # type: ignore[arg-type]
    zero = [r if r.arm != "BASE" else Outcome(6, r.replicate, "BASE", 0.0, turns=1) for r in rows]
    with pytest.raises(InputError, match=r"arm BASE: the baseline is 0 s"):
        judge_steady(predicted((6,), ARMS[:2], "analytic_v1"), zero, **kwargs)  # type: ignore[arg-type]


def test_few_replicates_resolve_and_confirm_nothing() -> None:
    """Four replicates that all say 0.8: no pair is resolved, no cost ratio judged; a fifth decides both."""
    for count, ranking, cost in ((4, "unresolved", "not judged"), (5, "passed", "passed")):
        rows = [
            Outcome(4, str(r), arm, seconds, turns=1)
            for r in range(count)
            for arm, seconds in (("base", 1.0), ("wide", 0.8))
        ]
        criteria = SteadyCriteria(strong_misses=0)
        found = judge_steady(
            rows, rows, arms=("base", "wide"), limits={"base": 8, "wide": 8}, exploratory=(), criteria=criteria
        )
        verdicts = {f.criterion: (f.verdict, f.rule) for f in found.findings}
        assert verdicts["ranking"][0] == ranking
        assert verdicts["cost ratio"][0] == cost
        if count == 4:
            assert verdicts["ranking"][1] == verdicts["cost ratio"][1] == "4 replicates; at least 5 needed"

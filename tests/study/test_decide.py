"""The published verdicts come out of the published numbers; every branch of the decision says its rule."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from slotgrid.errors import InputError
from slotgrid.study.decide import Comparison, DeviceTimeCriteria, compare_all, mean_absolute_error
from slotgrid.study.outcome import Outcome
from tests.conftest import read_csv

ARMS = ("BASE", "BATCHONLY", "TUNED")


def published(seed: str) -> tuple[list[Outcome], list[Outcome]]:
    """Predicted ratios of t07 (the baseline is 1) and measured sums over blocks of t08."""
    rows = [row for row in read_csv("t07_predicted_cost_ratios.csv") if row["plan_seed"] == seed]
    sessions = sorted({int(row["n_sessions"]) for row in rows})
    predicted = [Outcome(n, "sum", "BASE", 1.0) for n in sessions]
    predicted += [
        Outcome(int(row["n_sessions"]), "sum", row["config"], float(row["predicted_busy_ratio"])) for row in rows
    ]
    observed = [
        Outcome(
            int(row["n_sessions"]),
            "sum",
            row["config"],
            float(row["channel_a_s"]),
            decode_s=float(row["decode_s"]),
            prefill_s=float(row["prefill_s"]),
            channel_b_s=float(row["channel_b_s"]),
            source="measured",
        )
        for row in read_csv("t08_device_time_by_channel.csv")
        if row["plan_seed"] == seed
    ]
    return predicted, observed


def judged(seed: str, exploratory: set[int], tolerance: str = "fixed") -> list[Comparison]:
    predicted, observed = published(seed)
    criteria = DeviceTimeCriteria(tolerance=tolerance)
    return compare_all(predicted, observed, arms=ARMS, exploratory=exploratory, criteria=criteria)


def test_published_decisions() -> None:
    first = {(c.sessions, c.arm): c for c in judged("20261000", {10})}
    second = {(c.sessions, c.arm): c for c in judged("20261100", set(), "residual")}
    assert {key: c.decision for key, c in first.items()} == {
        (6, "BATCHONLY"): "withheld",
        (6, "TUNED"): "withheld",
        (8, "BATCHONLY"): "passed",
        (8, "TUNED"): "passed",
        (10, "BATCHONLY"): "exploratory",
        (10, "TUNED"): "exploratory",
    }
    assert {c.decision for c in second.values()} == {"passed"}
    errors = {
        **{("20261100", *key): abs(c.error) for key, c in second.items()},
        **{("20261000", *key): abs(c.error) for key, c in first.items()},
    }
    for key, told in {
        ("20261100", 6, "BATCHONLY"): 0.0066,
        ("20261100", 6, "TUNED"): 0.0076,
        ("20261000", 8, "BATCHONLY"): 0.0074,
        ("20261000", 8, "TUNED"): 0.0058,
    }.items():
        assert errors[key] == pytest.approx(told, abs=1e-4), key
    assert round(mean_absolute_error([*first.values(), *second.values()]) or 0, 4) == 0.0169


def test_published_verdict_column() -> None:
    """The same words as the published table of savings, which also gives the savings in both channels."""
    words = {"withheld": "withheld (channel requirement)", "passed": "confirmed", "exploratory": "exploratory"}
    found = {("20261000", c.sessions, c.arm): c for c in judged("20261000", {10})}
    found |= {("20261100", c.sessions, c.arm): c for c in judged("20261100", set())}
    rows = read_csv("t09_saving_x.csv")
    assert len(rows) == len(found) == 8
    for row in rows:
        c = found[row["plan_seed"], int(row["n_sessions"]), row["config"]]
        assert words[c.decision] == row["verdict"]
        assert (1 - c.ratio_a) * 100 == pytest.approx(float(row["saving_x_a_pct"]), abs=0.011)
        assert c.ratio_b is not None
        assert (1 - c.ratio_b) * 100 == pytest.approx(float(row["saving_x_b_pct"]), abs=0.011)


def test_residual_tolerance_is_the_published_one() -> None:
    """max(0.02, r_base / B_base): with it N = 6 of the first seed is decided."""
    table = {
        (row["plan_seed"], row["n_sessions"], row["config"]): row for row in read_csv("t08_device_time_by_channel.csv")
    }
    for seed in ("20261000", "20261100"):
        for c in judged(seed, set(), "residual"):
            row = table[seed, str(c.sessions), c.arm]
            assert c.tolerance == pytest.approx(float(row["tolerance_tau"]), abs=1e-4)
            assert c.difference == pytest.approx(float(row["channel_gap"]), abs=1e-4)
            assert c.decision != "withheld"


def test_parts_and_numbers_stand_beside_the_decision() -> None:
    found = {(c.sessions, c.arm): c for c in judged("20261000", {10})}[8, "TUNED"]
    assert found.observed_parts[0] == pytest.approx(22.831 / 23.001)
    assert found.observed_parts[1] == pytest.approx(6.237 / 9.196)
    assert found.predicted_parts == (None, None)
    assert found.rule == (
        "channels |A 0.9028 - B 0.8993| = 0.0035 <= 0.0200 (fixed tolerance); |e| = 0.0057 <= 0.03; "
        "same side of 1: predicted 0.8971, observed 0.9028"
    )


def two(predicted: float, ratio_a: float, ratio_b: float, base_b_s: float = 100.0) -> Comparison:
    predictions = [Outcome(4, "r", "BASE", 1.0), Outcome(4, "r", "X", predicted)]
    runs = [
        Outcome(4, "r", "BASE", 100.0, channel_b_s=base_b_s),
        Outcome(4, "r", "X", 100 * ratio_a, channel_b_s=base_b_s * ratio_b),
    ]
    return compare_all(predictions, runs, arms=("BASE", "X"), exploratory=(), criteria=DeviceTimeCriteria())[0]


@pytest.mark.parametrize(
    ("predicted", "ratio_a", "ratio_b", "decision", "word"),
    [
        (0.95, 0.90, 0.95, "withheld", "channel agreement"),
        (0.95, 0.90, 0.91, "failed", "error: |e| = 0.0500 > 0.03"),
        (0.985, 1.005, 1.005, "passed", "both inside [0.98, 1.02]"),
        (0.995, 1.021, 1.021, "failed", "direction"),
        (1.05, 1.06, 1.06, "passed", "same side of 1"),
        (1.0, 1.0, 1.0, "passed", "both inside"),
    ],
)
def test_every_branch(predicted: float, ratio_a: float, ratio_b: float, decision: str, word: str) -> None:
    found = two(predicted, ratio_a, ratio_b)
    assert found.decision == decision
    assert word in found.rule


def test_interval_is_member_by_member() -> None:
    predictions = [
        Outcome(4, "r", "BASE", 10.0, samples_s=tuple(10.0 + m for m in range(39))),
        Outcome(4, "r", "X", 9.0, samples_s=tuple(9.0 + 0.9 * m for m in range(39))),
    ]
    runs = [Outcome(4, "r", arm, 10.0, channel_b_s=10.0) for arm in ("BASE", "X")]
    found = compare_all(predictions, runs, arms=("BASE", "X"), exploratory=(4,), criteria=DeviceTimeCriteria())[0]
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((0.9, 0.9))


def test_what_is_missing_or_wrong_is_named() -> None:
    predictions = [Outcome(4, "r", "BASE", 1.0), Outcome(4, "r", "X", 0.9)]
    base = Outcome(4, "r", "BASE", 10.0, channel_b_s=11.0)
    x = Outcome(4, "r", "X", 9.0, channel_b_s=10.0)

    def refused(runs: list[Outcome], *parts: str) -> None:
        with pytest.raises(InputError) as error:
            compare_all(predictions, runs, arms=("BASE", "X"), exploratory=(), criteria=DeviceTimeCriteria())
        for part in ("N = 4", *parts):
            assert part in str(error.value)

    refused([base], "arm X", "run is missing")
    refused([base, x, x], "arm X", "two runs")
    refused([base, replace(x, channel_b_s=None)], "arm X", "channel B is missing")
    refused([replace(base, device_s=0.0), x], "channel A", "baseline is 0 s")
    refused([replace(base, channel_b_s=0.0), x], "channel B", "baseline is 0 s")
    refused([base, x, replace(x, replicate="q")], "replicate q", "without a prediction")
    with pytest.raises(InputError, match=r"arm X: device_s is nan"):
        replace(x, device_s=math.nan)
    with pytest.raises(InputError, match=r"arm X: channel_b_s is inf"):
        replace(x, channel_b_s=math.inf)

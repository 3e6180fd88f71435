"""Saturation and null runs: the published tables, and what is refused."""

from __future__ import annotations

import pytest

from slotgrid.errors import InputError
from slotgrid.study.null import Repeat, null_distribution
from slotgrid.study.saturation import cells_of, find_saturation, slot_order
from tests.conftest import read_csv


def published_cells() -> dict[str, dict[tuple[int, str], float]]:
    rows = read_csv("s06b_saturation_by_n_and_repeat.csv")
    cells = cells_of([(r["batch_size_arm"], int(r["n_sessions"]), r["repeat"], float(r["cost_ratio_a"])) for r in rows])
    return {"B8": dict.fromkeys(cells["B16"], 1.0), **cells}


def test_published_saturation() -> None:
    found = find_saturation(published_cells())
    printed = read_csv("t10_adjacent_pair_saturation.csv")
    assert [f"{s.fewer}->{s.more}" for s in found.steps] == [row["pair"] for row in printed]
    for step, row in zip(found.steps, printed, strict=True):
        for value, name in (
            (step.ratio.point, "median_ratio"),
            (step.ratio.low, "ci_low"),
            (step.ratio.high, "ci_high"),
        ):
            assert value == pytest.approx(float(row[name]), abs=1.1e-4), (row["pair"], name)
        assert step.decision == row["verdict"]
        assert step.ratio.contains(1) == (row["ci_contains_1"] == "yes")
        assert step.cells == 9
    assert found.enough == "B16"


@pytest.mark.parametrize(
    ("ratios", "decision"),
    [
        ([0.90, 0.91, 0.92, 0.93, 0.94], "still gaining"),
        ([0.99, 0.995, 1.0, 1.005, 1.01], "saturated"),
        ([0.90, 0.95, 1.0, 1.05, 1.10], "undecided"),
        ([1.05, 1.06, 1.07, 1.08, 1.09], "losing"),
    ],
)
def test_every_decision(ratios: list[float], decision: str) -> None:
    a = {(n, "r"): 10.0 for n in range(len(ratios))}
    b = {(n, "r"): 10 * r for n, r in enumerate(ratios)}
    found = find_saturation({"S8": a, "S16": b})
    assert found.steps[0].decision == decision
    assert found.enough == ("S8" if decision in ("saturated", "losing") else None)


G, S, L, U = "still gaining", "saturated", "losing", "undecided"
RATIOS = {G: (0.90, 0.94), S: (0.99, 1.01), L: (1.05, 1.09), U: (0.90, 1.10)}
AWAY = "; c{0} to c{1} is losing, so compare c{2} with c{0} too"


@pytest.mark.parametrize(
    ("order", "conclusion"),
    [
        ((G,), "More slots may still pay: the last step, c0 to c1, is still gaining"),
        ((S,), "More slots stop paying at c0"),
        ((L,), "More slots stop paying at c0; c0 to c1 is losing"),
        ((U,), "The data do not tell where more slots stop paying: the last step, c0 to c1, is undecided"),
        ((G, S), "More slots stop paying at c1"),
        ((G, S, S), "More slots stop paying at c1"),
        ((G, L), "More slots stop paying at c1; c1 to c2 is losing"),
        ((G, S, L), "More slots stop paying at c1; c2 to c3 is losing"),
        ((S, L, S), "More slots stop paying at c0; c1 to c2 is losing"),
        ((L, S), "More slots stop paying at c0; c0 to c1 is losing"),
        ((G, S, G), "More slots may still pay: the last step, c2 to c3, is still gaining"),
        ((S, G, S), "More slots stop paying at c2"),
        ((S, U), "The data do not tell where more slots stop paying: the last step, c1 to c2, is undecided"),
        ((G, U, S), "More slots stop paying at the latest at c2; c1 to c2 is undecided"),
        ((S, U, L), "More slots stop paying at the latest at c2; c1 to c2 is undecided; c2 to c3 is losing"),
        ((U, G, S), "More slots stop paying at c2"),
        ((L, G), "More slots may still pay: the last step, c1 to c2, is still gaining" + AWAY.format(0, 1, 2)),
        ((G, L, G, S), "More slots stop paying at c3" + AWAY.format(1, 2, 3)),
        (
            (L, U),
            "The data do not tell where more slots stop paying: the last step, c1 to c2, is undecided"
            + AWAY.format(0, 1, 2),
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_every_order_of_steps(order: tuple[str, ...], conclusion: str) -> None:
    """The rule of docs/study.md: stopped only where every step after is saturated or losing."""
    seconds = dict.fromkeys(range(5), 10.0)
    arms = {"c0": {(n, "r"): s for n, s in seconds.items()}}
    for i, decision in enumerate(order, start=1):
        low, high = RATIOS[decision]
        seconds = {n: s * (low + (high - low) * n / 4) for n, s in seconds.items()}
        arms[f"c{i}"] = {(n, "r"): s for n, s in seconds.items()}
    found = find_saturation(arms)
    assert tuple(step.decision for step in found.steps) == order
    assert found.conclusion() == conclusion
    stops = conclusion.startswith("More slots stop paying")
    assert found.enough == (conclusion.split(";")[0].rpartition(" at ")[2] if stops else None)
    assert found.at_latest == ("at the latest" in conclusion)
    data = found.to_dict()
    assert (data["enough"], data["at_latest"], data["conclusion"]) == (found.enough, found.at_latest, conclusion)
    if stops:
        assert f"at {found.enough} (9 GiB)" in found.conclusion(" (9 GiB)")


def test_few_cells_decide_nothing() -> None:
    """Four equal cells look saturated or gaining; they are too few for an interval."""
    for ratio in (1.0, 0.9, 1.1):
        found = find_saturation(
            {"S8": {(n, "r"): 10.0 for n in range(4)}, "S16": {(n, "r"): 10 * ratio for n in range(4)}}
        )
        assert (found.steps[0].decision, found.enough) == ("undecided", None)
        assert found.steps[0].rule == "4 cells; at least 5 needed"


def test_saturation_refuses() -> None:
    cell = {(4, "r"): 1.0}
    with pytest.raises(InputError, match="1 slot count; at least two"):
        find_saturation({"S8": cell})
    with pytest.raises(InputError, match=r"N = 6, replicate r is missing for S16"):
        find_saturation({"S8": {**cell, (6, "r"): 1.0}, "S16": cell})
    with pytest.raises(InputError, match=r"N = 4, replicate r, S8: the baseline is 0 s"):
        find_saturation({"S8": {(4, "r"): 0.0}, "S16": cell})
    with pytest.raises(InputError, match=r"N = 4, replicate r, S16: 0 s; allowed: above 0"):
        find_saturation({"S8": cell, "S16": {(4, "r"): 0.0}})
    with pytest.raises(InputError, match=r"N = 4, replicate r, S8 is there twice"):
        cells_of([("S8", 4, "r", 1.0), ("S8", 4, "r", 1.0)])
    assert slot_order({"b": 16, "a": 8}) == ["a", "b"]
    with pytest.raises(InputError, match="both have 8 slots"):
        slot_order({"b": 8, "a": 8})


def published_repeats(sessions: str) -> list[Repeat]:
    return [
        Repeat(row["repeat"], float(row["channel_a_s"]), float(row["channel_b_s"]))
        for row in read_csv("t12_null_channel_repeats.csv")
        if row["n_sessions"] == sessions
    ]


@pytest.mark.parametrize("row", read_csv("t12_null_channel_summary.csv"), ids=lambda row: f"N={row['n_sessions']}")
def test_published_null(row: dict[str, str]) -> None:
    found = null_distribution(published_repeats(row["n_sessions"]))
    assert found.pairs == int(row["pairs"])
    for value, name in (
        (found.difference.median, "channel_gap_median"),
        (found.difference.q95, "channel_gap_q95"),
        (found.difference.largest, "channel_gap_max"),
        (found.difference.smallest, "channel_gap_min"),
        (found.residual_share_median, "residual_share_median"),
        (found.tau_null, "tau_null"),
    ):
        assert value == pytest.approx(float(row[name]), abs=1.1e-4), name
    assert found.residual_median_s == pytest.approx(float(row["residual_median_s"]), abs=1e-3)
    assert found.klass == row["class"]
    assert found.tolerance == (None if found.klass == "C3" else found.tau_null)


@pytest.mark.parametrize(("sessions", "q95"), [("6", 0.0326), ("8", 0.0167)])
def test_published_null_of_three_run_sums(sessions: str, q95: float) -> None:
    """A null at the verdict's own unit: 2,100 pairs of disjoint sums of three."""
    found = null_distribution(published_repeats(sessions), runs_per_sum=3)
    assert found.pairs == 2_100
    assert found.difference.q95 == pytest.approx(q95, abs=1.1e-4)


def test_the_95th_percentile_is_index_42_of_45() -> None:
    """Runs whose 45 differences are all different: exactly two lie above the quantile."""
    repeats = [Repeat(str(i), 10.0, 10 + 1.3**i / 10) for i in range(10)]
    found = null_distribution(repeats)
    pairs = [(a, b) for i, a in enumerate(repeats) for b in repeats[i + 1 :]]
    differences = sorted(abs(a.channel_a_s / b.channel_a_s - a.channel_b_s / b.channel_b_s) for a, b in pairs)
    assert len(set(differences)) == 45
    assert found.difference.q95 == differences[42]


def test_a_percentile_of_few_pairs_gives_no_class() -> None:
    found = null_distribution([Repeat(str(i), 10 + i / 1000, 10.1 + i / 1000) for i in range(6)])
    assert (found.klass, found.tolerance) == ("undecided", None)
    assert found.rule == "15 pairs; a 95th percentile needs at least 20"


def test_quiet_repeats_support_the_small_tolerance() -> None:
    found = null_distribution([Repeat(str(i), 10 + i / 1000, 10.1 + i / 1000) for i in range(7)])
    assert (found.klass, found.tolerance) == ("C1", 0.02)


def test_null_refuses() -> None:
    good = [Repeat(str(i), 1.0, 1.1) for i in range(4)]
    for repeats, per_sum, word in (
        (good[:2], 1, "2 runs; at least 3"),
        (good, 3, "4 runs; at least 6"),
        ([*good, good[0]], 1, "run 0 is there twice"),
        ([*good, Repeat("x", float("nan"), 1.0)], 1, "run x: channel_a_s is nan"),
        ([*good, Repeat("x", 1.0, 0.0)], 1, "run x: channel_b_s is 0.0"),
        (good, 0, "sums of 0 runs"),
    ):
        with pytest.raises(InputError, match=word):
            null_distribution(repeats, runs_per_sum=per_sum)
    with pytest.raises(InputError, match="too many pairs"):
        null_distribution([Repeat(str(i), 1.0, 1.1) for i in range(40)], runs_per_sum=10)

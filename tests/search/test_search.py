"""Search: paired plans, shared simulations, budgets, ties, ledger and resuming."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.profile import Range
from slotgrid.search import SearchSpace
from slotgrid.search.recommend import near_tie_rows, recommend
from slotgrid.search.score import ratios
from slotgrid.search.uncertain import contenders, standing

BASE = sg.ServingConfig((1, 2, 4, 8))


def small(profile: sg.StackProfile, workload: sg.Workload, **changes: Any) -> sg.SearchResult:
    arguments: dict[str, Any] = {
        "space": SearchSpace((8, 10), max_buckets=4),
        "sessions": (4, 8),
        "baseline": BASE,
        "explore_seeds": (1, 2),
        "evaluate_seeds": (3,),
        "blocks": (0, 1),
        **changes,
    }
    space = arguments.pop("space")
    return sg.search(profile, space, workload, **arguments)


def test_ledger_equals_single_simulations(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    for rules in ("real", "paper"):
        result = small(profile, two_turn, rules=rules, space=SearchSpace((3, 8), max_buckets=3, extra_slots=(0, 1)))
        for row in range(0, result.candidates, 3):
            candidate = result.candidate(row)
            for n in (4, 8):
                seconds = {}
                for config in (candidate.config, BASE):
                    runs = [
                        sg.simulate(profile, config, two_turn.draw(clients=n, seed=seed, block=b), rules=rules)
                        for seed in (1, 2)
                        for b in (0, 1)
                    ]
                    seconds[config] = sum(run.device_time_s or 0.0 for run in runs)
                    if config == candidate.config:
                        assert candidate.reused_by_sessions[n] == sum(run.reused for run in runs)
                expected = seconds[candidate.config] / seconds[BASE]
                assert candidate.ratio_by_sessions[n] == pytest.approx(expected, rel=1e-12)


def test_identical_simulations_run_once(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    result = small(profile, two_turn, sessions=(2,))
    # with two clients only the steps of one and two requests matter: {1, 2 in bucket 2..8 or 10} per batch
    assert result.candidates > 50
    assert result.simulated == 6 * len({c.bucket_for(2) for c in SearchSpace((8, 10), 4)} | {2})
    again = small(profile, two_turn, sessions=(2,), threads=2)
    assert again.ledger.equals(result.ledger)


def test_baseline_is_one_and_best_is_smallest(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    result = small(profile, two_turn)
    assert result.baseline.ratio == result.baseline.ratio_evaluated == 1.0
    assert result.best.ratio == result.ledger["ratio"].min()
    assert [c.ratio for c in result.top(5)] == sorted(c.ratio for c in result.top(5))
    assert result.near_ties[0] == result.best
    assert "recommended" in repr(result)
    json.dumps(result.to_dict(), allow_nan=False)


def test_rescoring_equals_searching_again(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    result = small(profile, two_turn)
    for sessions in ((4,), (8,), (4, 8)):
        for score in ("sum", "mean"):
            again = small(profile, two_turn, sessions=sessions, score=score)
            rescored = result.rescored(sessions=sessions, score=score)  # type: ignore[arg-type]
            assert rescored.ledger["ratio"].to_list() == again.ledger["ratio"].to_list()
            assert rescored.best == again.best
    with pytest.raises(sg.InputError, match="sessions: 6 was not searched; searched: 4, 8"):
        result.rescored(sessions=(6,))


def test_budgets_skip_and_count(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    everything = small(profile, two_turn)
    result = small(profile, two_turn, compile_budget_s=300.0)
    assert result.skipped == {"compile": everything.candidates - result.candidates, "memory": 0}
    assert result.ledger["compile_s"].max() == pytest.approx(42.3 + 61.33 * 4)
    tight = small(profile, two_turn, memory_budget_gib=5.0)
    assert set(tight.ledger["max_running"]) == {8}
    with pytest.raises(
        sg.InputError, match="no candidate is left; the cheapest takes 226 s to compile, allowed are 10"
    ):
        small(profile, two_turn, compile_budget_s=10.0)
    with pytest.raises(sg.InputError, match=r"the smallest takes 4\.85 GiB of a device, allowed are 1\.00 GiB"):
        small(profile, two_turn, memory_budget_gib=1.0)
    # the profile's device is the default limit
    with pytest.raises(sg.InputError, match=r"allowed are 15\.70 GiB"):
        small(profile, two_turn, space=SearchSpace((60,), max_buckets=2))


def test_a_budget_without_a_measured_cost_is_an_error(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    bare = replace(profile, compile=None, memory=None)
    with pytest.raises(sg.UnmeasuredError, match="compile cost is not measured"):
        small(bare, two_turn, compile_budget_s=1000.0)
    with pytest.raises(sg.UnmeasuredError, match="device memory is not measured"):
        small(bare, two_turn, memory_budget_gib=10.0)
    result = small(bare, two_turn)
    assert result.recommended.compile_s is None
    assert result.recommended.to_dict()["memory_gib_per_device"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sessions": ()}, "sessions: empty"),
        ({"sessions": (0,)}, "sessions: 0; allowed: whole numbers of at least 1"),
        ({"sessions": (4, 4)}, "sessions: a value appears twice"),
        ({"evaluate_seeds": (2,)}, "eval-seeds: 2 is also an exploration seed"),
        ({"near_tie": -0.1}, "near-tie: -0.1"),
        ({"near_tie": float("nan")}, "near-tie: nan"),
        ({"near_tie": float("inf")}, "near-tie: inf"),
        ({"sessions": (6.5,)}, "sessions: 6.5"),
        ({"score": "best"}, "score: 'best'; allowed: sum, mean"),
        ({"rules": "fast"}, "rules: 'fast'"),
    ],
)
def test_bad_arguments_are_named(
    profile: sg.StackProfile, two_turn: sg.Workload, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(sg.InputError, match=message):
        small(profile, two_turn, **changes)


# --- recommendation ---------------------------------------------------------------------------------------


def ledger(rows: list[tuple[str, float, float | None, float | None]]) -> pl.DataFrame:
    schema = {"buckets": pl.String, "ratio": pl.Float64, "compile_s": pl.Float64, "memory_gib_per_device": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


@pytest.mark.parametrize(
    ("rows", "winner"),
    [
        # the fewest compile seconds among near-ties, not the smallest ratio
        ([("1,8", 0.904, 10.0, 5.0), ("1,4,8", 0.900, 20.0, 5.0), ("1,9", 0.906, 1.0, 1.0)], 0),
        # then least memory
        ([("1,4,16", 0.900, 20.0, 7.0), ("1,4,8", 0.904, 20.0, 5.0)], 1),
        # then the smallest ratio
        ([("1,4,8", 0.904, 20.0, 5.0), ("1,5,8", 0.901, 20.0, 5.0)], 1),
        # then lexicographic buckets, as numbers
        ([("1,10,16", 0.9, 20.0, 5.0), ("1,9,16", 0.9, 20.0, 5.0)], 1),
        # unmeasured costs count as equal
        ([("1,4,8", 0.904, None, None), ("1,5,8", 0.901, None, None)], 1),
    ],
)
def test_recommendation_order(rows: list[tuple[str, float, float | None, float | None]], winner: int) -> None:
    assert recommend(ledger(rows), 0.005) == winner


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=30), st.floats(0, 0.2))
def test_near_ties_hold_the_best_and_nothing_far(values: list[float], near_tie: float) -> None:
    rows = near_tie_rows(ledger([("1,8", value, 1.0, 1.0) for value in values]), near_tie)
    assert rows[0] == int(np.argmin(values))
    assert set(rows) == {i for i, value in enumerate(values) if value - min(values) <= near_tie}


def test_scores() -> None:
    device_s = np.array([[2.0, 9.0], [4.0, 10.0]])
    base_s = np.array([4.0, 10.0])
    assert ratios(device_s, base_s, "sum").tolist() == [11 / 14, 1.0]
    assert ratios(device_s, base_s, "mean").tolist() == pytest.approx([0.7, 1.0])


# --- ledger and resuming ----------------------------------------------------------------------------------


def test_ledger_files(profile: sg.StackProfile, two_turn: sg.Workload, tmp_path: Path) -> None:
    result = small(profile, two_turn, folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"ledger.parquet", "ledger.csv", "search.json"}
    assert pl.read_parquet(tmp_path / "ledger.parquet").equals(result.ledger)
    assert pl.read_csv(tmp_path / "ledger.csv")["config"].to_list() == result.ledger["config"].to_list()


class Stop:
    """Interrupt a search after some candidates, as ctrl-c would."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, done: int, total: int) -> None:
        if self.after <= done < total:
            raise KeyboardInterrupt


SPACE = SearchSpace((8, 10, 12, 14), max_buckets=5)


def test_a_stopped_search_is_continued(profile: sg.StackProfile, two_turn: sg.Workload, tmp_path: Path) -> None:
    whole = small(profile, two_turn, space=SPACE)
    assert whole.candidates > 600
    with pytest.raises(KeyboardInterrupt):
        small(profile, two_turn, space=SPACE, folder=tmp_path, progress=Stop(300))
    kept = pl.read_parquet(tmp_path / "ledger.partial.parquet")
    assert 300 <= kept.height < whole.candidates
    result = small(profile, two_turn, space=SPACE, folder=tmp_path, resume=True)
    assert result.resumed == kept.height
    assert result.ledger.equals(whole.ledger)
    assert {path.name for path in tmp_path.iterdir()} == {"ledger.parquet", "ledger.csv", "search.json"}
    # a finished search is taken from its ledger
    finished = small(profile, two_turn, space=SPACE, folder=tmp_path, resume=True)
    assert finished.resumed == whole.candidates
    assert finished.ledger.equals(whole.ledger)


def test_another_search_is_never_continued(profile: sg.StackProfile, two_turn: sg.Workload, tmp_path: Path) -> None:
    with pytest.raises(sg.InputError, match="no search to resume here"):
        small(profile, two_turn, folder=tmp_path, resume=True)
    with pytest.raises(KeyboardInterrupt):
        small(profile, two_turn, space=SPACE, folder=tmp_path, progress=Stop(300))
    for changes in ({"rules": "paper"}, {"explore_seeds": (9,)}, {"baseline": sg.ServingConfig((1, 8))}):
        with pytest.raises(sg.InputError, match="holds another search"):
            small(profile, two_turn, **{"space": SPACE, "folder": tmp_path, "resume": True, **changes})
    (tmp_path / "ledger.partial.parquet").write_bytes(b"PAR1")
    with pytest.raises(sg.InputError, match=r"ledger\.partial\.parquet: cannot read"):
        small(profile, two_turn, space=SPACE, folder=tmp_path, resume=True)


def test_a_stopped_search_leaves_the_earlier_result(
    profile: sg.StackProfile, two_turn: sg.Workload, tmp_path: Path
) -> None:
    first = small(profile, two_turn, folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        small(profile, two_turn, space=SPACE, folder=tmp_path, progress=Stop(300))
    assert pl.read_parquet(tmp_path / "ledger.parquet").equals(first.ledger)
    assert json.loads((tmp_path / "search.json").read_text())["result"]["candidates"] == first.candidates


def test_checkpoints_are_written_while_it_runs(profile: sg.StackProfile, two_turn: sg.Workload, tmp_path: Path) -> None:
    seen = []

    def look(done: int, total: int) -> None:
        path = tmp_path / "ledger.partial.parquet"
        seen.append(pl.read_parquet(path).height if path.exists() else 0)

    small(profile, two_turn, space=SPACE, folder=tmp_path, progress=look, checkpoint_every_s=0.0)
    assert seen == sorted(seen)
    assert seen[-1] > 600


# --- repeats -----------------------------------------------------------------------------------------------------


def test_repeats_equal_ensembles_candidate_by_candidate(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    calm = replace(
        profile.scatter,
        start_spread_s=Range(0.0, 0.0),
        turnaround_s=Range(0.0008, 0.0008),
        step_s=(),
        step_other_s=replace(profile.scatter.step_other_s, value=0.0),
        prefill_share=replace(profile.scatter.prefill_share, value=0.0),
    )
    # nothing is random: every repeat is the single simulation
    single, repeated = small(profile, two_turn), small(replace(profile, scatter=calm), two_turn, ensemble=3)
    assert repeated.ledger["ratio"].to_list() == pytest.approx(single.ledger["ratio"].to_list(), rel=1e-12)
    assert repeated.ledger["explore_reused_n8"].to_list() == single.ledger["explore_reused_n8"].to_list()
    assert repeated.best.probability_best is not None
    smallest = single.ledger["ratio"].min()
    equal = (single.ledger["ratio"] == smallest).sum()
    assert repeated.best.probability_best == pytest.approx(1 / equal)


def test_probabilities_add_up_and_follow_the_samples(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    result = small(profile, two_turn, ensemble=60, clock="operating")
    again = small(profile, two_turn, ensemble=60, clock="operating", threads=2)
    assert result.ledger.equals(again.ledger)
    assert result.ledger["probability_best"].sum() == pytest.approx(1)
    best = result.best
    assert best.ratio_interval is not None
    assert best.ratio_interval[0] <= best.ratio <= best.ratio_interval[1]
    assert "mean of BASE" in result.clock
    assert result.to_dict()["best"]["probability_best"] == best.probability_best
    ties = {tie.config for tie in result.near_ties}
    likely = result.ledger.filter(pl.col("probability_not_behind") >= 0.05)["config"]
    assert set(likely) <= {config.label for config in ties}
    other = small(profile, two_turn, ensemble=60, clock="operating", ensemble_seed=1)
    assert other.ledger["ratio"].to_list() != result.ledger["ratio"].to_list()
    # another score drops probabilities that belong to this one
    assert result.rescored(score="mean").best.probability_best is None


def test_a_stopped_search_with_repeats_resumes_to_the_same(
    profile: sg.StackProfile, two_turn: sg.Workload, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"ensemble": 400, "space": SearchSpace((8,), max_buckets=4), "checkpoint_every_s": 0.0}
    whole = small(profile, two_turn, **options)

    def stop(done: int, total: int) -> None:
        if done > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(profile, two_turn, folder=tmp_path, progress=stop, **options)
    resumed = small(profile, two_turn, folder=tmp_path, resume=True, **options)
    assert resumed.resumed > 0
    assert resumed.ledger.equals(whole.ledger)
    with pytest.raises(sg.InputError, match="another search"):
        small(profile, two_turn, folder=tmp_path, resume=True, **{**options, "ensemble": 401})


def test_equal_candidates_share_the_probability() -> None:
    samples = np.array([[[1.0, 2.0, 1.0, 1.0]], [[1.0, 1.0, 2.0, 2.0]], [[3.0, 3.0, 3.0, 3.0]]])
    found = standing(np.array([0, 1, 2]), samples, np.ones((1, 4)), "sum")
    assert found.best.tolist() == [0.625, 0.375, 0.0]
    assert found.not_behind.tolist() == [1.0, 0.5, 0.0]
    assert np.isnan(found.low).all()
    assert contenders(np.array([1.02, 1.0, 1.05])).tolist() == [1, 0]


def test_bad_repeats_are_named(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    for members in (0, 1):
        with pytest.raises(sg.InputError, match=f"ensemble: {members} members"):
            small(profile, two_turn, ensemble=members)
    with pytest.raises(sg.UnmeasuredError, match="scatter"):
        small(replace(profile, scatter=None), two_turn, ensemble=5)
    with pytest.raises(sg.InputError, match="choose clock operating"):
        small(profile, two_turn, without=["context"])

"""propose: the enumerated best where enumeration is possible, spaces where it is not, budgets and bad input."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

import slotgrid as sg
from slotgrid.report.propose_table import propose_report

BASE = sg.ServingConfig((1, 2, 4, 8))


def small(profile: sg.StackProfile, workload: sg.Workload, **changes: Any) -> sg.Proposal:
    arguments: dict[str, Any] = {
        "sessions": (4, 8),
        "batch": (8, 12),
        "baseline": BASE,
        "max_buckets": 4,
        "explore_seeds": (1,),
        "evaluate_seeds": (2,),
        "blocks": (0, 1),
        **changes,
    }
    return sg.propose(profile, workload, **arguments)


def test_the_published_search_without_enumerating(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    found = sg.propose(profile, two_turn, sessions=(6, 8, 10), batch=(8, 10, 12, 16), baseline=BASE, rules="paper")
    assert found.space_size == 2077
    assert found.result.candidates < 50
    assert found.best.config == sg.ServingConfig((1, 4, 6, 8, 10, 16))
    assert found.best.ratio == pytest.approx(0.920931, abs=5e-7)
    assert found.best.ratio_evaluated == pytest.approx(0.906644, abs=5e-7)
    assert found.ways[-1].path[-1] == (1, 4, 6, 8, 10, 16)
    assert all(way.fixed for way in found.ways)
    assert found.checked is None


def test_the_gap_to_the_enumerated_best(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    found = small(profile, two_turn, extra_slots=(0, 2), check=True)
    gap = found.checked
    assert gap is not None
    assert gap.enumerated == found.space_size == 2 * (1 + 6 + 15 + 1 + 10 + 45)
    whole = sg.search(
        profile,
        sg.SearchSpace((8, 12), 4, None, (0, 2)),
        two_turn,
        sessions=(4, 8),
        baseline=BASE,
        explore_seeds=(1,),
        evaluate_seeds=(2,),
        blocks=(0, 1),
    )
    ratios = sorted(whole.ledger["ratio"])
    assert gap.best.config == whole.best.config
    assert gap.gap == found.best.ratio - ratios[0]
    assert 0 <= gap.gap <= 0.002
    # candidates that tie with a smaller ratio come first
    assert ratios[gap.rank - 1] == found.best.ratio
    stream = io.StringIO()
    propose_report(found, 8192, 3, Console(file=stream, width=10_000))
    assert f"{gap.enumerated} candidates in the space; proposed by best response:" in stream.getvalue()
    assert f"Checked against all {gap.enumerated} candidates: the best proposal" in stream.getvalue()
    assert "Recommended: buckets" in stream.getvalue()


def test_a_space_nobody_enumerates(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    found = small(profile, two_turn, sessions=(20, 40), batch=(8, 32, 64), max_buckets=10, blocks=(0,))
    assert found.space_size > 3_000_000_000
    # 64 slots do not fit into a device; 8 run fewer than there are clients, so there is no analytic first guess
    assert found.too_large == ((64, 64),)
    assert [(way.max_running, way.analytic_sessions) for way in found.ways] == [(8, ()), (32, (20,))]
    assert found.best.config.max_running == 32
    assert found.best.ratio < 0.95
    assert {entry.config.buckets[-1] for entry in found.result.top(50)} == {8, 32}
    assert all(len(entry.config.buckets) <= 10 for entry in found.result.top(50))
    stream = io.StringIO()
    propose_report(found, 8192, 3, Console(file=stream, width=80))
    assert "no first guess, N is above the batch" in stream.getvalue().replace("\n", " ")
    assert "not looked at, it does not fit into a device" in stream.getvalue().replace("\n", " ")


def test_sizes_that_are_all_compiled_anyway(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    found = small(profile, two_turn, sessions=(6,), batch=(3,), max_buckets=4)
    assert found.ways[0].path == ((1, 2, 3),)
    assert found.ways[0].analytic_sessions == ()
    assert small(profile, two_turn, sessions=(2,), batch=(1,), max_buckets=1).best.config.buckets == (1,)


def test_compile_budget_and_allowed_sizes(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    found = small(profile, two_turn, compile_budget_s=42.3 + 61.33 * 4 + 1)
    assert {len(entry.config.buckets) for entry in found.result.top(50)} <= {2, 3}
    only = small(profile, two_turn, intermediate=(2, 6))
    assert {size for entry in only.result.top(50) for size in entry.config.buckets} <= {1, 2, 6, 8, 12}
    with pytest.raises(sg.InputError, match="budget: no candidate is left; the cheapest takes 226 s"):
        small(profile, two_turn, compile_budget_s=100)
    with pytest.raises(sg.InputError, match="budget: no candidate is left; the smallest takes"):
        small(profile, two_turn, memory_budget_gib=1.0)


def test_without_a_first_guess(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    """Open-loop sessions have no analytic view; the simulation still answers."""
    found = small(profile, replace(two_turn, cycle_s=5.0), sessions=(4,))
    assert {way.analytic_sessions for way in found.ways} == {()}
    assert found.best.ratio <= 1


def test_bad_input(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    with pytest.raises(
        sg.InputError, match=r"check: the space holds 3,\d\d\d,\d\d\d,\d\d\d candidates; at most 50,000"
    ):
        small(profile, two_turn, batch=(64,), max_buckets=10, check=True)
    with pytest.raises(sg.InputError, match="max-buckets: 1; allowed: at least 2"):
        small(profile, two_turn, max_buckets=1)
    with pytest.raises(sg.InputError, match="batch: 0; allowed: at least 1"):
        small(profile, two_turn, batch=(0,))
    with pytest.raises(sg.InputError, match="sessions: empty"):
        small(profile, two_turn, sessions=())
    with pytest.raises(sg.InputError, match="eval-seeds: 1 is also an exploration seed"):
        small(profile, two_turn, evaluate_seeds=(1,))

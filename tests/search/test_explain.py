"""explain: the published choice explained, the analytic and the simulated view, and bad input."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

import slotgrid as sg
from slotgrid.report.explain_table import explain_report
from slotgrid.search.explain import BURST_NOTE

TUNED, REFERENCE = (1, 4, 6, 8, 10, 16), (1, 2, 4, 8, 16)


@pytest.fixture(scope="module")
def multi_turn() -> sg.Workload:
    return replace(sg.load_workload("tracelab-multi-turn"), explore_seeds=(1,), blocks=(0, 1))


def test_why_6_and_10(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    """The published search chose TUNED for N = 6, 8, 10: it is the cheapest set for its own simulated occupancy."""
    found = sg.explain(
        profile,
        two_turn,
        sessions=(6, 8, 10),
        max_running=16,
        buckets=(TUNED, REFERENCE),
        simulate=True,
        rules="paper",
    )
    simulated = found.views[1]
    assert simulated.source == "simulated"
    assert simulated.optimal.buckets == TUNED
    assert [excess for _, _, excess in simulated.over_optimal] == pytest.approx(
        [0.0, 202.7782 / 197.1569 - 1], abs=1e-5
    )
    reasons = {reason.bucket: reason for reason in simulated.reasons}
    assert set(reasons) == {1, 4, 6, 8, 10}
    for bucket, after in ((6, 8), (10, 16)):
        fixed = profile.price.decode.fixed
        assert reasons[bucket].saved_per_step_s == pytest.approx(fixed(after) - fixed(bucket))
        assert reasons[bucket].saved_share > 0.005
    assert BURST_NOTE in found.notes
    assert any(text.startswith("outside the measured range") for text in found.notes)
    assert "0.00% over the cheapest set 1,4,6,8,10,16 of the simulated occupancy" in repr(found)


def test_the_published_grid_for_eight_sessions(profile: sg.StackProfile, multi_turn: sg.Workload) -> None:
    """Without a set, the fixed point of the analytic best response: for N = 8 the published DP configuration."""
    found = sg.explain(profile, multi_turn, sessions=(8,), max_running=16)
    assert found.fixed
    assert found.config.buckets == (1, 2, 3, 4, 6, 16)
    assert found.views[0].over_optimal[0][2] == 0
    assert BURST_NOTE not in found.notes
    assert found.occupancy_difference is None


def test_both_views_agree_where_the_equations_hold(profile: sg.StackProfile, multi_turn: sg.Workload) -> None:
    found = sg.explain(profile, multi_turn, sessions=(6, 8), max_running=16, buckets=(TUNED,), simulate=True)
    analytic, simulated = found.views
    for n in (6, 8):
        assert analytic.reuse[n] == pytest.approx(simulated.reuse[n], abs=0.02)
        assert analytic.mean_running[n] == pytest.approx(simulated.mean_running[n], rel=0.05)
    assert found.occupancy_difference is not None
    assert found.occupancy_difference < 0.06
    assert analytic.optimal.buckets == simulated.optimal.buckets
    data = found.to_dict()
    assert data["range"] == [1, 16]
    assert sum(data["views"][0]["occupancy"].values()) == pytest.approx(1)
    assert data["views"][1]["source"] == "simulated"
    stream = io.StringIO()
    explain_report(found, Console(file=stream, width=60))
    text = stream.getvalue()
    assert "Why these buckets, by the simulated occupancy:" in text
    assert "device time" in text
    assert "…" not in text
    assert "10 is there for" in text or "10 is never used" in text


def test_bad_input(profile: sg.StackProfile, multi_turn: sg.Workload) -> None:
    def refuse(match: str, **changes: object) -> None:
        arguments = {"sessions": (8,), "max_running": 8, **changes}
        with pytest.raises(sg.InputError, match=match):
            sg.explain(profile, multi_turn, **arguments)  # type: ignore[arg-type]

    refuse(r"sessions: 9; the analytic model holds for 1 to max_running = 8", sessions=(9,))
    refuse("1 to the 5 usable slots, fewer than max_running 8", slots=6)
    refuse("slots: 0 is below 1", slots=0, sessions=(1,))
    refuse("sessions: empty", sessions=())
    refuse("sessions: a value appears twice", sessions=(4, 4))
    refuse("sessions: 0; allowed", sessions=(0,))
    refuse("max-running: 0", max_running=0)
    refuse("max-buckets: 1; allowed: at least 2", max_buckets=1)
    refuse("the top bucket 4 is below max_running 8", buckets=((1, 2, 4),))
    refuse("seeds, blocks: empty", seeds=())
    refuse("clock: 'wall'", clock="wall")
    refuse("rules: 'ideal'", rules="ideal")


def test_sessions_that_arrive_by_themselves_are_refused(profile: sg.StackProfile, two_turn: sg.Workload) -> None:
    with pytest.raises(sg.InputError, match="sessions arrive by themselves"):
        sg.explain(profile, replace(two_turn, cycle_s=5.0), sessions=(4,), max_running=8)

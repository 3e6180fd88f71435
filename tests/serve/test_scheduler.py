"""The scheduler decides as the simulator does: same cached tokens, victims, times and order of finishing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.engine import RULE_SETS
from slotgrid.serve.scheduler import RULES, Allocated, Decode, Evicted, Hit, Prefill, Released, Scheduler
from tests.serve.drive import drive

COLUMNS = ("session", "turn", "prompt_tokens", "cached_tokens", "arrival_s", "admit_s", "first_token_s", "finish_s")


def assert_same(
    profile: sg.StackProfile, config: sg.ServingConfig, plan: sg.InputPlan, rules: str, gap_s: float
) -> None:
    run = sg.simulate(profile, config, plan, rules=rules, turnaround_s=gap_s)
    driven = drive(profile, config, plan, rules, gap_s)
    # the same additions in the same order: not close, equal
    assert driven.requests == run.requests.select(COLUMNS).rows()
    assert driven.evictions == run.evictions.rows()
    finished = run.requests.sort("finish_s", maintain_order=True).select("session", "turn", "finish_s").rows()
    finish_s = {(s, t): at for s, t, at in finished}
    assert [finish_s[key] for key in driven.order] == [at for _, _, at in finished]


def test_golden_cases(profile: sg.StackProfile, golden_cases: list[dict[str, Any]]) -> None:
    for case in golden_cases:
        config = sg.ServingConfig(case["buckets"], slots=case["slots"], max_running=case["max_running"])
        plan = sg.InputPlan.from_turns(case["plan"])
        driven = drive(profile, config, plan, case["rules"], case["turnaround_s"])
        rows = [(*row[:6], row[7]) for row in driven.requests]
        for row, wanted in zip(rows, case["expected"]["requests"], strict=True):
            assert list(row[:4]) == wanted[:4], case["id"]
            assert row[4:] == pytest.approx(wanted[4:], rel=0, abs=1e-9), case["id"]


turns = st.tuples(
    st.integers(1, 700), st.sampled_from([1, 1, 2, 3, 17, 60]), st.sampled_from([0.0, 0.0, 0.011171, 0.5, 2.0])
)


@st.composite
def plans(draw: st.DrawFn) -> sg.InputPlan:
    clients = []
    for c in range(draw(st.integers(1, 9))):
        sessions = []
        for s in range(draw(st.integers(1, 3))):
            drawn = draw(st.lists(turns, min_size=1, max_size=4))
            built = [sg.Turn(new, out, wait if t < len(drawn) - 1 else 0.0) for t, (new, out, wait) in enumerate(drawn)]
            sessions.append(sg.Session(f"c{c}s{s}", tuple(built)))
        clients.append(sg.Client(draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])), tuple(sessions)))
    return sg.InputPlan("random", tuple(clients))


@given(
    plan=plans(),
    top=st.integers(1, 9),
    less=st.integers(0, 2),
    slots=st.integers(2, 12),
    rules=st.sampled_from(["real", "paper"]),
    gap_s=st.sampled_from([0.0, 0.0008]),
)
def test_random_plans(
    profile: sg.StackProfile, plan: sg.InputPlan, top: int, less: int, slots: int, rules: str, gap_s: float
) -> None:
    config = sg.ServingConfig(sorted({1, top}), slots=slots, max_running=max(1, top - less))
    assert_same(profile, config, plan, rules, gap_s)


def test_rule_sets_are_those_of_the_simulator() -> None:
    assert set(RULES) == set(RULE_SETS)
    for name, rules in RULES.items():
        assert rules.release_at_once == (RULE_SETS[name].release == "at_once")
        assert rules.padding == (RULE_SETS[name].padding == "evict")


@pytest.mark.parametrize(
    ("slots", "max_running", "rules"), [(3, 4, "real"), (4, 4, "real"), (3, 4, "paper"), (9, 4, "real")]
)
def test_usable_slots_are_those_of_the_simulator(slots: int, max_running: int, rules: str) -> None:
    scheduler = Scheduler(slots=slots, max_running=max_running, block_tokens=4, rules=rules)
    assert scheduler.capacity == RULE_SETS[rules].usable_slots(slots, max_running)


def test_no_usable_slot_and_unknown_rules_are_errors() -> None:
    with pytest.raises(sg.InputError, match="leaves no usable slot"):
        Scheduler(slots=1, max_running=2, block_tokens=4, rules="real")
    assert Scheduler(slots=1, max_running=2, block_tokens=4, rules="paper").capacity == 1
    with pytest.raises(sg.InputError, match="rules: 'fair'; allowed: real, paper"):
        Scheduler(slots=2, max_running=2, block_tokens=4, rules="fair")


def scheduler(slots: int = 2, max_running: int = 2, rules: str = "real") -> Scheduler:
    return Scheduler(slots=slots, max_running=max_running, block_tokens=4, rules=rules)


def run_alone(s: Scheduler, name: str, tokens: list[int]) -> Prefill:
    s.add(name, tokens, (name,))
    admitted = s.schedule()
    assert isinstance(admitted, Prefill)
    assert admitted.request == name
    s.finish(name)
    return admitted


def test_a_hit_copies_whole_blocks_and_leaves_the_old_slot() -> None:
    s = scheduler(slots=3)
    run_alone(s, "a", list(range(10)))
    again = run_alone(s, "b", [*range(10), 99, 98])
    assert again.changes == (Allocated("b", 1), Hit("b", 0, 8))
    assert (again.source, again.cached_tokens) == (0, 8)
    # the newest holder is consulted, and the last prompt token is always computed
    assert run_alone(s, "c", list(range(8))).changes == (Allocated("c", 2), Hit("c", 1, 4))


def test_another_first_block_is_no_hit() -> None:
    s = scheduler()
    run_alone(s, "a", list(range(10)))
    assert run_alone(s, "b", [7, *range(1, 10)]).source is None


def test_only_the_newest_holder_of_a_shared_first_block_is_consulted() -> None:
    s = scheduler(slots=3)
    run_alone(s, "a", [*range(4), *range(20, 28)])
    run_alone(s, "b", [*range(4), *range(30, 38)])
    assert run_alone(s, "c", [*range(4), *range(20, 28), 5]).changes[-1] == Hit("c", 1, 4)


def test_a_running_slot_can_be_matched() -> None:
    s = scheduler(slots=3, max_running=3)
    s.add("a", list(range(10)), (0,))
    assert isinstance(s.schedule(), Prefill)
    s.add("b", list(range(10)), (1,))
    admitted = s.schedule()
    assert isinstance(admitted, Prefill)
    assert (admitted.source, admitted.cached_tokens, admitted.running) == (0, 8, 1)


def test_a_request_can_evict_the_prefix_it_came_for() -> None:
    s = scheduler(slots=2)
    run_alone(s, "a", list(range(10)))
    run_alone(s, "b", list(range(20, 30)))
    back = run_alone(s, "a2", list(range(11)))
    assert back.changes == (Evicted(0, "a", "admission"), Allocated("a2", 0))
    assert back.cached_tokens == 0


def test_padding_takes_the_oldest_idle_slot_before_the_step() -> None:
    s = scheduler(slots=2)
    run_alone(s, "a", list(range(10)))
    s.add("b", list(range(20, 30)), (0,))
    assert isinstance(s.schedule(), Prefill)
    step = s.schedule()
    assert step == Decode((("b", 1),), (Evicted(0, "a", "padding"),))
    # the slot stays free for the next admission
    s.add("c", [1, 2], (1,))
    admitted = s.schedule()
    assert isinstance(admitted, Prefill)
    assert admitted.changes == (Allocated("c", 0),)


def test_paper_releases_with_the_next_admission() -> None:
    s = scheduler(slots=1, max_running=1, rules="paper")
    s.add("a", [1, 2], (0,))
    assert isinstance(s.schedule(), Prefill)
    assert s.finish("a") == ()
    s.add("b", [3, 4], (1,))
    admitted = s.schedule()
    assert isinstance(admitted, Prefill)
    # the first attempt found nothing to evict, released, and was made again at once
    assert admitted.changes == (Released("a", 0), Evicted(0, "a", "admission"), Allocated("b", 0))


def test_the_queue_is_first_come_and_a_dropped_request_leaves_it() -> None:
    s = scheduler(slots=4, max_running=1)
    for name, order in (("late", 2), ("early", 0), ("middle", 1)):
        s.add(name, [order, 5, 6], (order,))
    assert s.drop("middle")
    assert not s.drop("middle")
    first = s.schedule()
    assert isinstance(first, Prefill)
    assert (first.request, s.waiting) == ("early", 1)
    # full: the running one decodes on
    assert s.schedule() == Decode((("early", 0),), ())
    assert s.finish("early") == (Released("early", 0),)
    second = s.schedule()
    assert isinstance(second, Prefill)
    assert second.request == "late"
    s.finish("late")
    assert s.schedule() is None

"""Stalls, time to first token, gaps between tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.diagnose.interference import SPIKE_FACTOR, stalls, time_to_first_token, token_gaps
from slotgrid.diagnose.order import event_order
from tests.samples import copy_sample, row, write_rows


@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from(["real", "paper"]))
def test_waits_add_up_to_the_stall(seed: int, clients: int, rules: str) -> None:
    """Each request's wait is known, none is negative, and together they are the run's stall."""
    profile = sg.load_profile("rbln-ca25-qwen3-4b")
    plan = sg.load_workload("tracelab-two-turn").draw(clients=clients, seed=seed)
    run = sg.simulate(profile, sg.ServingConfig((1, 2, 4, 8)), plan, rules=rules)
    found = stalls(run, event_order(run), profile)
    assert found is not None
    assert found.waited_s.min() >= 0
    assert found.waited_s.sum() == pytest.approx(run.stall_session_s, abs=1e-9)
    assert found.stall_session_s == pytest.approx(run.stall_session_s, abs=1e-9)
    assert found.prefill_s == pytest.approx(run.prefill_s, abs=1e-9)
    assert found.beside_decode_s <= found.prefill_s + 1e-12
    assert list(found.longest) == sorted(found.longest, key=lambda r: -found.waited_s[r])


@given(st.integers(0, 10_000), st.integers(1, 10))
def test_simulated_gaps_fill_the_answer(seed: int, clients: int) -> None:
    """A request's gaps add up to the time from its first to its last token."""
    profile = sg.load_profile("rbln-ca25-qwen3-4b")
    plan = sg.load_workload("tracelab-two-turn").draw(clients=clients, seed=seed)
    run = sg.simulate(profile, sg.ServingConfig((1, 2, 4, 8)), plan)
    found = token_gaps(run)
    assert found is not None
    assert found.gaps == int((run.requests["output_tokens"] - 1).sum())
    from slotgrid.diagnose.interference import _simulated_gaps

    counts, flat = _simulated_gaps(run)
    ends = np.cumsum(counts)
    for i, (first, last) in enumerate(run.requests.select("first_token_s", "finish_s").iter_rows()):
        own = flat[ends[i] - counts[i] : ends[i]]
        assert own.sum() == pytest.approx(last - first, abs=1e-9)
        assert (own > 0).all()


def test_spikes(tmp_path: Path) -> None:
    """Gaps of 10 ms, two of them stretched by a prefill of 180 ms."""
    steady = [0.2 + 0.01 * i for i in range(11)]
    spiked = [*steady[:6], *(t + 0.18 for t in steady[6:])]
    rows = [
        row(0, 0, token_times_s=steady, finish_s=0.9),
        row(1, 0, token_times_s=spiked, finish_s=0.9),
        row(2, 0, token_times_s=spiked, finish_s=0.9),
        row(3, 0),
    ]
    write_rows(tmp_path / "requests.jsonl", rows)
    found = token_gaps(sg.read_run(tmp_path))
    assert found is not None
    assert (found.gaps, found.spikes, found.requests_hit, found.requests) == (30, 2, 2, 3)
    assert found.spike_excess_s == pytest.approx(0.36, abs=1e-6)
    assert found.quantiles_s["p50"] == pytest.approx(0.01, abs=1e-6)
    assert found.quantiles_s["max"] == pytest.approx(0.19, abs=1e-6)
    assert SPIKE_FACTOR == 2


def test_not_observed(tmp_path: Path, profile: sg.StackProfile) -> None:
    rows_only = sg.read_run(copy_sample("base_n8_b0", tmp_path / "rows", "requests.jsonl"))
    assert stalls(rows_only, None, profile) is None
    assert time_to_first_token(rows_only) is None
    assert token_gaps(rows_only) is None
    both = sg.read_run(copy_sample("base_n8_b0", tmp_path / "both"))
    assert stalls(both, event_order(both), None) is None  # a log has no durations
    log_only = sg.read_run(copy_sample("base_n8_b0", tmp_path / "log", "server.log"))
    assert stalls(log_only, event_order(log_only), profile) is None  # prompt lengths stand in the rows


def test_stall_without_step_lines(tmp_path: Path, profile: sg.StackProfile) -> None:
    """Admissions and releases tell who waits; [BUCKET] lines are not needed for it."""
    folder = copy_sample("base_n8_b0", tmp_path)
    text = (folder / "server.log").read_text().splitlines(keepends=True)
    (folder / "server.log").write_text("".join(line for line in text if "[BUCKET]" not in line))
    found = sg.diagnose(folder, profile=profile).to_dict()
    assert found["stall_session_s"] == pytest.approx(9.814449328799999, abs=1e-9)
    assert found["histogram"] is None


def test_time_to_first_token(tmp_path: Path) -> None:
    write_rows(tmp_path / "requests.jsonl", [row(0, 0), row(1, 0, first_token_s=None), row(2, 0, first_token_s=0.3)])
    found = time_to_first_token(sg.read_run(tmp_path))
    assert found is not None
    assert found.tolist() == [0.2, 0.3]

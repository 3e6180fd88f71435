"""Tool waits: the curve goes exactly through its quantiles; shares are reported."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.workload.tool_mix import HUMAN_TOOLS, Tool, ToolMix, read_tools, tracelab_tools


def mix(cap_s: float = 60.0) -> ToolMix:
    return ToolMix(tracelab_tools(), cap_s, "tracelab-v0.0.2")


def test_bundled_population() -> None:
    tools = tracelab_tools()
    assert len(tools) == 43
    assert sum(tool.calls for tool in tools) == 739_461
    assert not {tool.name for tool in tools} & set(HUMAN_TOOLS)
    assert tools[0] == Tool("exec_command", 251_606, 0.05, 1.001, 24.814)


@given(st.sampled_from(tracelab_tools()))
def test_the_inverse_cdf_passes_through_the_quantiles(tool: Tool) -> None:
    assert tool.latency_s(0.5) == tool.p50_s
    assert tool.latency_s(0.9) == tool.p90_s
    assert tool.latency_s(0.99) == tool.p99_s
    assert tool.latency_s(0.5 - 1e-12) == pytest.approx(tool.p50_s, rel=1e-6)
    grid = [tool.latency_s(u / 1000) for u in range(1, 1000)]
    assert grid == sorted(grid)


def test_shares_match_the_published_ones() -> None:
    bands = mix().band_shares
    assert {name: round(100 * share, 1) for name, share in bands.items()} == {
        "instant": 2.5,
        "fast": 56.6,
        "medium": 27.9,
        "slow": 13.0,
    }
    assert mix().capped_share == pytest.approx(0.0253, abs=5e-5)
    assert "43 tools of tracelab-v0.0.2, cut at 60 s (2.53% of waits)" in mix().describe()


def test_capped_share_is_what_draws_show() -> None:
    population, rng = mix(5.0), random.Random(3)
    capped = sum(population.draw(rng) == 5.0 for _ in range(20_000)) / 20_000
    assert capped == pytest.approx(population.capped_share, abs=0.01)


def test_excluded_and_uncalled_tools_are_left_out() -> None:
    data = b"tool,calls,p50_ms,p90_ms,p99_ms\nA,0,1,2,3\nB,5,0,0,0\nAskUserQuestion,9,1,2,3\n"
    assert read_tools(data, "x.csv", HUMAN_TOOLS) == (Tool("B", 5, 0.0005, 0.0005, 0.0005),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tool,calls\nA,1\n", "x.csv: column p50_ms is missing"),
        ("tool,calls,p50_ms,p90_ms,p99_ms\nA,one,1,2,3\n", "x.csv: line 2: calls must be whole"),
        ("tool,calls,p50_ms,p90_ms,p99_ms\nA,1,1,2\n", "x.csv: line 2"),
        ("tool,calls,p50_ms,p90_ms,p99_ms\nA,1,nan,2,3\n", "x.csv: line 2: .* finite"),
        ("tool,calls,p50_ms,p90_ms,p99_ms\nTaskOutput,1,1,2,3\n", "x.csv: no tool with calls is left; excluded"),
        ("", "x.csv: column tool is missing"),
    ],
)
def test_bad_tables_are_named(text: str, message: str) -> None:
    with pytest.raises(sg.InputError, match=message):
        read_tools(text.encode(), "x.csv", HUMAN_TOOLS)


def test_a_cap_must_be_positive() -> None:
    with pytest.raises(sg.InputError, match="cap_s: 0"):
        ToolMix(tracelab_tools(), 0.0, "x")

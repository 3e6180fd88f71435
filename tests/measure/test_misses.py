"""Answers that leave out how much was cached, as vLLM 0.22 does where it was nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from slotgrid.measure.misses import settle_misses
from slotgrid.measure.replay import replay_over_http
from tests.measure.stub import Exchange, Stub, serving
from tests.measure.test_replay import QUICK, chain, plan_of, rows_of

BOTH = {"prompt_tokens": 150.0, "prompt_tokens_cached": 64.0}


def row(prompt: int, cached: int | None, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "cached_tokens": cached, "error": None, "retries": 0, **more}


def test_counters_that_leave_nothing_over_settle_the_rest() -> None:
    rows = [row(50, None), row(100, 64)]
    assert settle_misses(rows, BOTH) == 1
    assert [r["cached_tokens"] for r in rows] == [0, 64]
    assert settle_misses(rows, BOTH) == 0


@pytest.mark.parametrize(
    ("rows", "counters"),
    [
        # something was cached that no answer reports
        ([row(50, None), row(100, 64)], {**BOTH, "prompt_tokens_cached": 80.0}),
        # other traffic
        ([row(50, None), row(100, 64)], {**BOTH, "prompt_tokens": 190.0}),
        # no counters, or not of this
        ([row(50, None), row(100, 64)], {}),
        ([row(50, None), row(100, 64)], {"prompt_tokens": 150.0}),
        # a server that reports no hits may count none either
        ([row(50, None), row(100, None)], {"prompt_tokens": 150.0, "prompt_tokens_cached": 0.0}),
        # what a failed or repeated request took is not known
        ([row(50, None), row(100, 64), row(0, None, error="cut stream")], BOTH),
        ([row(50, None, retries=1), row(100, 64)], BOTH),
    ],
)
def test_nothing_is_settled_otherwise(rows: list[dict[str, Any]], counters: dict[str, float]) -> None:
    before = [r["cached_tokens"] for r in rows]
    assert settle_misses(rows, counters) == 0
    assert [r["cached_tokens"] for r in rows] == before


@pytest.mark.parametrize(("counts", "settled"), [(True, 2), (False, 0)])
def test_a_replay_asks_the_counters_of_the_server(counts: bool, settled: int, tmp_path: Path) -> None:
    """Prompts of 40, 40 + 3 + 8 and 20 tokens; only the second hits, and only hits are reported."""
    prompts = cached = 0

    def counters() -> bytes:
        return (
            f'vllm:prompt_tokens_total{{model_name="m"}} {prompts}\n'
            f'vllm:prompt_tokens_cached_total{{model_name="m"}} {cached if counts else 0}\n'
        ).encode()

    async def behave(exchange: Exchange) -> None:
        nonlocal prompts, cached
        hit = 32 if len(exchange.body["prompt"]) > 40 else 0
        prompts, cached = prompts + len(exchange.body["prompt"]), cached + hit
        stub.metrics = counters()
        await exchange.answer(cached=hit or None)

    plan = plan_of([chain((40, 3, 0.0), (8, 2, 0.0))], [chain((20, 1, 0.0))])
    with serving(Stub(behave=behave, metrics=counters())) as stub:
        run = replay_over_http(plan=plan, base_url=stub.url, output=tmp_path / "run", options=QUICK)
    assert run.details["misses_by_counters"] == settled
    assert run.requests["cached_tokens"].to_list() == ([0, 32, 0] if settled else [None, 32, None])
    # the rows stay as the server answered
    assert sorted(str(r["cached_tokens"]) for r in rows_of(tmp_path / "run")) == ["32", "None", "None"]
    assert sg.diagnose(tmp_path / "run").run.cached_tokens == (32 if settled else None)
    said = "by the server's counters it was nothing" if settled else "not observable is not zero"
    assert any(said in note for note in run.notes)

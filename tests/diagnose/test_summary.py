"""The words follow the rule, and the numbers behind them are there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slotgrid.diagnose.summary import Facts, summarize

FACTS = Facts(
    returns=100, lost_returns=40, lost_tokens=40_000, computed_tokens=100_000, recomputed_s=7.0, device_s=100.0,
    causes={"admission": 10, "padding": 30, "unknown": 0}, slots=8, enough_slots=(13, 100), padding_ratio=0.2,
    buckets=(1, 2, 4, 8), fitted=(1, 3, 5, 8), saved_s=3.0, floor_saved_s=4.0, saved_rows=0.1, floor_saved_rows=0.2,
    stall_session_s=50.0, beside_decode_s=12.0, longest_wait_s=3.5,
)  # fmt: skip


def verdict(facts: Facts) -> str:
    return summarize(facts)[-1].text


def test_frequent_and_costly_losses_ask_for_slots() -> None:
    assert verdict(FACTS) == (
        "More slots first: 40.0 % of returns lose their prefix and 7.0 % of device time is prefill computed again; in "
        "the same order of events 13 slots instead of 8 keep 100 of 100."
    )
    assert summarize(FACTS)[-1].numbers["enough_slots"] == 13
    assert verdict(replace(FACTS, enough_slots=None)).endswith("is prefill computed again.")
    assert verdict(replace(FACTS, enough_slots=(8, 60))).endswith("is prefill computed again.")


@pytest.mark.parametrize("facts", [replace(FACTS, lost_returns=24), replace(FACTS, recomputed_s=1.9)])
def test_kept_or_cheap_reuse_asks_for_buckets(facts: Facts) -> None:
    assert "fit the buckets to the observed counts: 1,3,5,8 saves 3.0 % of device time." in verdict(facts)
    assert verdict(facts).startswith("Reuse is mostly kept or cheap to lose")


def test_neither() -> None:
    facts = replace(FACTS, lost_returns=5, recomputed_s=0.5, saved_s=0.9, floor_saved_s=1.2)
    assert verdict(facts) == (
        "The configuration is fine: slots and buckets have nothing to gain above 1.7 % of device time on these steps "
        "(0.5 % recomputed prefill, 1.2 % with a bucket for every observed count)."
    )


@pytest.mark.parametrize(
    ("loss", "recomputed", "saved", "start"),
    [
        (25, 2.0, 0.0, "More slots first"),
        (24, 2.0, 1.0, "Reuse is mostly"),
        (25, 1.99, 1.0, "Reuse is mostly"),
        (25, 1.99, 0.99, "The configuration is fine"),
        (0, 0.0, 0.0, "The configuration is fine"),
    ],
)
def test_thresholds(loss: int, recomputed: float, saved: float, start: str) -> None:
    facts = replace(FACTS, lost_returns=loss, recomputed_s=recomputed, saved_s=saved)
    assert verdict(facts).startswith(start)


def test_without_prices_tokens_and_rows_stand_in() -> None:
    facts = replace(FACTS, device_s=None, recomputed_s=None, saved_s=None, floor_saved_s=None)
    assert "40.0 % of the computed prompt tokens is prefill computed again" in verdict(facts)
    facts = replace(facts, lost_returns=0, lost_tokens=0)
    assert "saves 10.0 % of the computed decode rows" in verdict(facts)
    facts = replace(facts, saved_rows=0.04)
    assert verdict(facts) == (
        "The configuration is fine: slots and buckets have nothing to gain above 0.0 % of the computed prompt tokens "
        "and 20.0 % of the computed decode rows."
    )


def test_what_is_not_observed_is_not_judged() -> None:
    no_reuse = replace(FACTS, lost_returns=None, lost_tokens=None, recomputed_s=None)
    assert "Reuse is not observable" in summarize(no_reuse)[0].text
    assert verdict(no_reuse).startswith("Fit the buckets")
    assert "whether more slots help cannot be told" in verdict(no_reuse)
    quiet = replace(no_reuse, saved_s=0.1)
    assert verdict(quiet).startswith("Nothing worth a compilation was found in what is observed; whether more slots")
    no_steps = replace(FACTS, lost_returns=0, padding_ratio=None, fitted=None, saved_s=None, floor_saved_s=None)
    assert "step distribution is not observed" in summarize(no_steps)[1].text
    assert "whether other buckets help cannot be told" in verdict(no_steps)
    nothing = replace(no_reuse, padding_ratio=None, fitted=None, saved_s=None, floor_saved_s=None)
    assert verdict(nothing).startswith("No verdict; ")
    assert "name no sessions" in summarize(replace(nothing, returns=None))[0].text


def test_every_sentence_has_its_numbers() -> None:
    reuse, padding, interference, last = summarize(FACTS)
    assert reuse.text == (
        "40 of 100 returns lost prefix tokens: 40,000 tokens were computed again, 7.000 s more prefill (7.0 % of "
        "device time); lost 10 by admission, 30 by the padding slot."
    )
    assert reuse.numbers["lost_by_padding"] == 30
    assert padding.text == (
        "20.0 % of the rows computed in decode steps are padding; buckets 1,3,5,8 would save 3.000 s of decode on the "
        "same steps (3.0 % of device time)."
    )
    assert padding.numbers["fitted"] == [1, 3, 5, 8]
    assert "50.000 session-seconds" in interference.text
    assert interference.numbers["longest_wait_s"] == 3.5
    assert last.numbers["loss_share"] == 0.4
    assert all(sentence.rule for sentence in (reuse, padding, interference, last))


def test_nothing_to_lose() -> None:
    assert "nothing to reuse" in summarize(replace(FACTS, returns=0, lost_returns=0, lost_tokens=0))[0].text
    assert "All 100 returns" in summarize(replace(FACTS, lost_returns=0, lost_tokens=0))[0].text
    same = replace(FACTS, fitted=FACTS.buckets, saved_s=0.0)
    assert "no list of as many sizes fits" in summarize(same)[1].text

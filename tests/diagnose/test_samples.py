"""The sample runs give their expected totals, and the same plans simulated give the same diagnosis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from tests.samples import NAMES, STACK, copy_sample, expected

# what a measured run cannot have in common with its simulation: client transport, counters, absent token times
_OF_THE_SOURCE = {
    "source", "channel_b_s", "residual_s", "inner_hit_tokens", "metrics", "warnings", "not_observed",
}  # fmt: skip


def close(found: Any, told: Any, tolerance: float = 1e-9) -> None:
    if isinstance(told, dict):
        for key in told:
            close(found[key], told[key], tolerance)
    elif isinstance(told, list):
        assert len(found) == len(told)
        for a, b in zip(found, told, strict=True):
            close(a, b, tolerance)
    elif isinstance(told, float):
        assert found == pytest.approx(told, abs=tolerance, rel=0)
    else:
        assert found == told


def simulated(name: str, profile: sg.StackProfile) -> sg.Run:
    """The sample's plan on the sample's configuration by the real rules."""
    stated = json.loads((STACK / name / "plan.json").read_text())
    config = sg.ServingConfig(stated["buckets"], slots=stated["slots"])
    return sg.simulate(profile, config, sg.load_plan(STACK / name / "plan.json"), rules="real", turnaround_s=0.0008)


@pytest.mark.parametrize("name", NAMES)
def test_measured(name: str, profile: sg.StackProfile, tmp_path: Path) -> None:
    found = sg.diagnose(copy_sample(name, tmp_path), profile=profile).to_dict()
    close(found, expected(name))
    assert found["reuse_observable"]
    assert found["lost_tokens"] == (6400 if name == "base_n8_b0" else 0)
    assert found["returns_computed_tokens"] == (8200 if name == "base_n8_b0" else 1800)
    assert found["channel_b_s"] - found["channel_a"]["total_s"] == pytest.approx(found["residual_s"])
    assert 0 < found["residual_s"] < 0.002
    assert found["reuse"]["survival"]["agreement"] == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_simulated(name: str, profile: sg.StackProfile) -> None:
    """Step histogram, reuse, evictions by cause and stall of the stack's own scheduler, by simulation."""
    told = expected(name)
    del told["inner_hit_tokens"]
    close(sg.diagnose(simulated(name, profile), profile=profile).to_dict(), told)


@pytest.mark.parametrize("name", NAMES)
def test_both_diagnoses_are_equal_in_form_and_in_what_they_share(
    name: str, profile: sg.StackProfile, tmp_path: Path
) -> None:
    measured = sg.diagnose(copy_sample(name, tmp_path), profile=profile).to_dict()
    other = sg.diagnose(simulated(name, profile), profile=profile).to_dict()
    assert measured.keys() == other.keys()
    for key in measured.keys() - _OF_THE_SOURCE - {"reuse", "interference"}:
        close(measured[key], other[key], 1e-9)
    # the client's clock has 0.4 and 0.7 ms of transport on top
    for part in ("reuse", "interference"):
        assert measured[part].keys() == other[part].keys()
    close(measured["reuse"], other["reuse"], 0.002)
    for key in ("prefill_s", "prefill_beside_decode_s", "longest_waits"):
        close(measured["interference"][key], other["interference"][key])
    assert other["not_observed"] == {}


def test_without_a_profile_nothing_is_priced(tmp_path: Path) -> None:
    found = sg.diagnose(copy_sample("base_n8_b0", tmp_path))
    data = found.to_dict()
    assert data["channel_a"] == {"decode_s": None, "prefill_s": None, "total_s": None}
    assert data["stall_session_s"] is None
    assert data["residual_s"] is None
    assert data["lost_tokens"] == 6400
    assert data["reuse"]["additional_prefill_incremental_s"] is None
    assert data["reuse"]["causes"] == {"admission": 0, "padding": 5, "unknown": 0}
    assert "a profile" in found.not_observed["channel A"]
    assert found.summary[-1].text.startswith("More slots first: 62.5 % of returns lose their prefix and 34.5 % of the")


def test_a_simulated_run_brings_its_own_prices(profile: sg.StackProfile) -> None:
    run = simulated("base_n8_b0", profile)
    with_profile, without = sg.diagnose(run, profile=profile).to_dict(), sg.diagnose(run).to_dict()
    for key in ("channel_a", "stall_session_s", "alignment", "interference"):
        if key != "alignment":
            close(without[key], with_profile[key])
    close(without["alignment"]["bucket_s"], with_profile["alignment"]["bucket_s"])


def test_hits_of_the_inner_layer_are_named_misleading(tmp_path: Path) -> None:
    found = sg.diagnose(copy_sample("base_n8_b0", tmp_path))
    assert found.inner_hit_tokens == 9856
    assert any("misleading: the real reuse is 3,456 tokens" in text for text in found.warnings)


def test_counters_of_other_traffic(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path)
    text = (folder / "metrics.prom").read_text().replace(" 22033.0", " 44066.0")
    (folder / "metrics.prom").write_text(text)
    found = sg.diagnose(folder)
    assert any("the server counted 44,066 prompt_tokens, the request rows have 22,033" in t for t in found.warnings)


def test_rows_without_cached_tokens_are_not_zero(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path, "requests.jsonl", "plan.json")
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    for entry in rows[10:]:
        del entry["cached_tokens"]
    (folder / "requests.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in rows))
    data = sg.diagnose(folder, profile="rbln-ca25-qwen3-4b").to_dict()
    for key in ("reused", "cached_tokens", "computed_tokens", "lost_tokens", "returns_computed_tokens"):
        assert data[key] is None, key
    assert data["returns"] == 8
    assert not data["reuse_observable"]
    assert data["reuse"]["observable_returns"] == 2
    assert data["reuse"]["observable_reused"] == 1
    assert data["channel_a"]["prefill_s"] is None
    assert data["histogram"] is None
    assert data["evictions"] is None
    assert data["not_observed"]["reuse"].startswith("not observable for 6 of 8 returns")

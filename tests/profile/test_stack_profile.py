"""Profiles: provenance, strict reading, unmeasured parts."""

from __future__ import annotations

from pathlib import Path

import pytest

import slotgrid as sg
from slotgrid.profile import built_in_profiles, profile_from_toml

SMALL = """
format = "slotgrid-profile/1"
id = "small"
[price.decode]
base = { value = 1, unit = "ms", kind = "measured", source = "bench" }
per_request = { value = 0, unit = "ms", kind = "derived", source = "bench" }
[[price.decode.fixed]]
bucket = 4
value = 5
unit = "ms"
kind = "measured"
source = "bench"
[price.prefill]
chunk_tokens = 128
per_chunk = { value = 20, unit = "ms", kind = "measured", source = "bench" }
per_token = { value = 1, unit = "us", kind = "measured", source = "bench" }
constant = { value = 2, unit = "ms", kind = "measured", source = "bench" }
[kv]
slot_tokens = 1024
block_tokens = 16
generated_reusable = true
"""


def read(text: str) -> sg.StackProfile:
    return profile_from_toml(text.encode(), "p.toml")


def test_built_in_profile_has_a_source_for_every_value(profile: sg.StackProfile) -> None:
    assert built_in_profiles() == ["rbln-ca25-qwen3-4b"]
    data = profile.to_dict()
    assert len(data["values"]) == 76
    assert all(entry["source"] and entry["kind"] for entry in data["values"])
    assert profile.rules == "real"
    assert profile.clock is profile.price


def test_own_profile(tmp_path: Path) -> None:
    profile = read(SMALL)
    # generated tokens are reusable and a prefill has a constant part
    plan = sg.InputPlan.from_turns([[[100, 30, 0.0], [8, 1, 0.0]]])
    run = sg.simulate(profile, sg.ServingConfig((4,)), plan)
    assert run.requests["cached_tokens"].to_list() == [0, 128]
    assert run.requests["first_token_s"][0] == pytest.approx(0.020 + 1e-6 * 100 + 0.002)
    (tmp_path / "p.toml").write_text(SMALL)
    assert sg.load_profile(tmp_path / "p.toml").id == "small"


def test_clock_apart_from_price() -> None:
    slow = SMALL + SMALL[SMALL.index("[price.decode]") : SMALL.index("[kv]")].replace("price.", "clock.").replace(
        "value = 5", "value = 50"
    )
    slow = slow.replace(
        "[clock.decode]",
        '[clock.decode]\nper_context_token = { value = 1, unit = "us", kind = "measured", source = "x" }',
    )
    plan = sg.InputPlan.from_turns([[[100, 4, 0.0]]])
    run, priced = (sg.simulate(read(text), sg.ServingConfig((4,)), plan) for text in (slow, SMALL))
    assert run.device_time_s == priced.device_time_s
    # a step's context: prompt plus the tokens it already has
    expected = [0.051 + 1e-6 * (100 + done) for done in (1, 2, 3)]
    assert run.steps.filter(run.steps["kind"] == "decode")["duration_s"].to_list() == pytest.approx(expected)
    plain = sg.simulate(read(slow), sg.ServingConfig((4,)), plan, compiled=False)
    assert plain.steps.equals(run.steps)


def test_unmeasured_is_not_zero() -> None:
    profile = read(SMALL)
    with pytest.raises(sg.UnmeasuredError, match="profile small: compile cost is not measured"):
        profile.needed_compile()
    with pytest.raises(sg.UnmeasuredError, match="profile small: device memory is not measured"):
        profile.needed_memory()
    with pytest.raises(sg.UnmeasuredError, match="bucket 8 is not measured and one measured bucket gives no line"):
        profile.price.decode.fixed(8)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'unit = "us"',
            'unit = "parsec"',
            "p.toml: price.prefill.per_token.unit: unknown unit 'parsec'; allowed: s, ms",
        ),
        ('unit = "us"', 'unit = "GiB"', "unknown unit 'GiB'"),
        ('kind = "derived"', 'kind = "guessed"', "price.decode.per_request.kind is 'guessed'; allowed: measured"),
        ('kind = "derived", source = "bench"', 'kind = "derived"', "price.decode.per_request.source is missing"),
        ('kind = "derived", source = "bench"', 'kind = "derived", source = " "', "source is empty; say where"),
        ("value = 20,", "value = nan,", "price.prefill.per_chunk.value is nan; expected a finite number"),
        ("value = 20,", "value = -2,", "price.prefill.per_chunk.value is -2; allowed: at least 0"),
        ("slot_tokens = 1024", "slot_tokens = 0", "kv.slot_tokens is 0; expected a whole number of at least 1"),
        ("slot_tokens = 1024", "slot_tokens = 1024\ncolour = 1", "p.toml: kv.colour: unknown key; allowed here"),
        ('id = "small"', 'id = "small"\nrules = "fast"', "rules is 'fast'; allowed: real, paper"),
        ("generated_reusable = true", "", "kv.generated_reusable is missing"),
        ("bucket = 4\n", "bucket = 4\nextra = 1\n", r"price.decode.fixed\[0\].extra: unknown key"),
        ('format = "slotgrid-profile/1"', 'format = "other"', "format is 'other'"),
        ("[kv]", "[kv", "p.toml: "),
    ],
)
def test_bad_toml_is_named(old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(sg.InputError, match=message):
        read(SMALL.replace(old, new))


def test_buckets_must_ascend() -> None:
    block = SMALL[SMALL.index("[[price") : SMALL.index("[price.prefill]")]
    with pytest.raises(sg.InputError, match="bucket 4 after 4; buckets must ascend and be unique"):
        read(SMALL.replace(block, block + block))


def test_empty_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(sg.InputError, match="the file is empty"):
        read("")
    with pytest.raises(sg.InputError, match="built in: rbln-ca25-qwen3-4b"):
        sg.load_profile("rbln")


def test_intervals_and_findings_of_a_calibration() -> None:
    text = SMALL.replace(
        'value = 20, unit = "ms", kind = "measured", source = "bench"',
        'value = 20, unit = "ms", kind = "measured", source = "bench", interval = [19, 22], samples = 5, '
        'conditions = "idle"',
    )
    text += """
[[finding]]
name = "eviction order"
value = "fifo by allocation"
samples = 12
conditions = "wall clock"
[[finding]]
name = "client turnaround"
reason = "not observable"
samples = 0
"""
    profile = read(text)
    per_chunk = profile.price.prefill.per_chunk_s
    assert (per_chunk.interval, per_chunk.samples, per_chunk.conditions) == ((0.019, 0.022), 5, "idle")
    assert profile.price.prefill.per_token_s.interval is None
    order, gap = profile.findings
    assert (order.decided, order.value, order.samples) == (True, "fifo by allocation", 12)
    assert (gap.decided, gap.reason) == (False, "not observable")
    data = profile.to_dict()
    assert [entry["name"] for entry in data["findings"]] == ["eviction order", "client turnaround"]
    values = {entry["name"]: entry for entry in data["values"]}
    assert values["price.prefill.per_chunk"]["interval"] == [0.019, 0.022]
    assert "interval" not in values["price.prefill.per_token"]
    assert read(SMALL).findings == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("interval = [19, 22]", "interval = [22, 19]", r"per_chunk.interval is \[22, 19\]; expected \[low, high\]"),
        ("interval = [19, 22]", "interval = 3", "per_chunk.interval is 3; expected a list of numbers"),
        ("samples = 5", "samples = 0", "per_chunk.samples is 0"),
        ('name = "x"', 'name = "x"\ncolour = 1', r"finding\[0\].colour: unknown key"),
        ('value = "y"', "", r"finding\[0\].value is empty and there is no reason"),
        ("samples = 2", "samples = -1", r"finding\[0\].samples is -1"),
    ],
)
def test_bad_intervals_and_findings_are_named(old: str, new: str, message: str) -> None:
    text = SMALL.replace('value = 20, unit = "ms",', 'value = 20, interval = [19, 22], samples = 5, unit = "ms",')
    text += '[[finding]]\nname = "x"\nvalue = "y"\nsamples = 2\n'
    assert old in text
    with pytest.raises(sg.InputError, match=message):
        read(text.replace(old, new))

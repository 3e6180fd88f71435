"""A whole calibration on servers whose costs and rules are known, resumed and stopped in every way."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from slotgrid.measure.calibrate.calibrate import Calibration, calibrate, configuration, require_profile
from slotgrid.measure.calibrate.findings import findings
from slotgrid.measure.calibrate.profile_text import Stated
from slotgrid.measure.calibrate.rows import Seen
from slotgrid.measure.calibrate.session import Asked
from slotgrid.measure.calibrate.slots import Slots
from slotgrid.measure.calibrate.stall import Stall
from slotgrid.measure.calibrate.statistics import Estimate
from tests.measure.calibrate.fake import (
    Costs,
    FakeTarget,
    InPlaceLruScheduler,
    InPlaceScheduler,
    KeepsGenerated,
    LruScheduler,
)

SMALL = Costs(fixed={1: 0.010, 2: 0.012, 4: 0.015})


def run(target: FakeTarget, folder: Path, **options: Any) -> Calibration:
    asked = options.pop("asked", None) or Asked(max_seq_len=512, most_streams=16, most_slots=32)
    return calibrate(target=target, output=folder / "p.toml", asked=asked, seed=1, **options)


def answers(result: Calibration) -> dict[str, str]:
    return {finding.name: finding.value or f"? {finding.reason}" for finding in result.findings}


def test_costs_and_rules_are_found_again(tmp_path: Path) -> None:
    costs = Costs(per_request=0.0004, per_context_token=1e-6)
    result = run(FakeTarget(costs, block=64), tmp_path, asked=Asked(max_seq_len=1024))
    profile = require_profile(result, "p.toml")
    assert sg.load_profile(tmp_path / "p.toml").sha256 == profile.sha256
    decode, prefill = profile.price.decode, profile.price.prefill
    assert {b: q.value for b, q in decode.fixed_s} == pytest.approx(costs.fixed, rel=0.01)
    assert decode.per_request_s.value == pytest.approx(0.0004, rel=0.05)
    assert decode.context_s == pytest.approx(1e-6, rel=0.02)
    assert decode.running_range == sg.profile.Range(1, 8)
    assert prefill.chunk_tokens == 64
    assert prefill.per_chunk_s.value == pytest.approx(0.030, rel=0.01)
    assert prefill.constant_s is not None
    assert prefill.constant_s.value == pytest.approx(0.002, abs=2e-4)
    assert (profile.kv.block_tokens, profile.kv.generated_reusable, profile.kv.slot_tokens) == (64, False, 1024)
    assert profile.turnaround_s is not None
    assert profile.turnaround_s.value == pytest.approx(0.0005, rel=0.01)
    assert result.config == sg.ServingConfig((1, 2, 4, 8))
    found = answers(result)
    assert found["buckets in the times"].startswith("1,2,4,8 ")
    assert found["running together"] == "8"
    assert found["prefill beside streams"].startswith("exclusive")
    assert found["slots"].startswith("8: a prefix survives 6 other requests and is lost after 7")
    assert found["slots are taken"] == "by request, whatever its length"
    assert found["a request that hits"] == "takes a new slot"
    assert found["eviction order"] == "fifo by allocation"


def test_prefills_are_measured_between_the_rounds_of_steps(tmp_path: Path) -> None:
    """A slow minute of the machine meets both; and nothing that is asked for twice counts as kept from before."""
    target = FakeTarget(SMALL, slots=4, told=True)
    result = run(target, tmp_path)
    assert (result.kept, result.measured) == (0, len(target.replays))
    names = [name.split("-", 2)[2] for name in target.replays if "-decode-" in name or "-prefill-" in name]
    kinds = [kind for kind, _ in itertools.groupby(name.split("-")[0] for name in names)]
    assert kinds == ["decode", "prefill"] * 3


@pytest.mark.parametrize(
    ("scheduler", "slots", "hit", "order"),
    [
        (LruScheduler, "5: a prefix survives 3", "takes a new slot", "lru by use"),
        (InPlaceScheduler, "5: a prefix survives 4", "stays in the slot it found", "fifo by allocation"),
        (InPlaceLruScheduler, "5: a prefix survives 4", "stays in the slot it found", "lru by use"),
    ],
)
def test_other_rules_are_told_apart(scheduler: Any, slots: str, hit: str, order: str, tmp_path: Path) -> None:
    target = FakeTarget(SMALL, slots=5, scheduler=scheduler, told=True)
    found = answers(run(target, tmp_path))
    assert found["slots"].startswith(slots)
    assert (found["a request that hits"], found["eviction order"]) == (hit, order)


def test_a_pool_of_blocks_is_no_number_of_slots(tmp_path: Path) -> None:
    asked = Asked(max_seq_len=512, most_streams=16, most_slots=32)
    found = run(FakeTarget(SMALL, slots=5, scheduler=InPlaceLruScheduler), tmp_path, asked=asked).found
    assert isinstance(found.slots, Slots)
    assert configuration(found, None) == sg.ServingConfig((1, 2, 4), slots=5)
    by_tokens = replace(found, slots=replace(found.slots, by_request=False))
    said = {finding.name: finding.value for finding in findings(by_tokens, asked, "")}
    # blocks of 32: two of the prefix and one of each of the four others
    assert said["slots"] == (
        "none, a pool of blocks for about 192 tokens: "
        "a prefix survives 4 other requests of 24 tokens and is lost after 5"
    )
    assert said["a request that hits"] == "stays in the blocks it found"
    assert configuration(by_tokens, None) is None
    # where repeats disagree about the length, or no longer request fits, it may be such a pool
    unknown = replace(found, slots=replace(found.slots, by_request=None, open=("1 of 2 repeats",)))
    said = {finding.name: finding.value or finding.reason for finding in findings(unknown, asked, "")}
    assert said["slots"] == (
        "5, if requests count and not tokens: a prefix survives 4 other requests of 24 tokens and is lost after 5"
    )
    assert said["slots are taken"] == "1 of 2 repeats"
    assert configuration(unknown, None) is None


def test_pieces_of_unequal_length_are_said(tmp_path: Path) -> None:
    asked = Asked(max_seq_len=512, most_streams=16, most_slots=32)
    found = run(FakeTarget(SMALL, slots=4, told=True), tmp_path, asked=asked).found
    assert isinstance(found.stall, Stall)
    longest = max(found.stall.share)
    for share, words in ((0.68, "streams stop in several pieces of unequal length"), (0.3, "streams slow down over")):
        shares = {**found.stall.share, longest: Estimate(share, share, share, 3)}
        mixed = replace(found, stall=replace(found.stall, exclusive=False, pieces=True, share=shares))
        said = {finding.name: finding.value for finding in findings(mixed, asked, "")}
        assert said["prefill beside streams"].startswith(f"mixed into decode steps: {words}")


class TextTarget(FakeTarget):
    """Prompts without a prefix get up to a twentieth more tokens than planned, each another count, as text does."""

    lengths = random.Random(5)

    def replay(self, plan: sg.InputPlan, folder: Path) -> list[Seen]:
        def text(session: sg.Session) -> sg.Session:
            if session.prefix_id is not None:
                return session
            first, *later = session.turns
            more = self.lengths.randint(0, first.new_tokens // 20)
            return replace(session, turns=(replace(first, new_tokens=first.new_tokens + more), *later))

        clients = [replace(client, sessions=tuple(map(text, client.sessions))) for client in plan.clients]
        return super().replay(sg.InputPlan(plan.plan_id, tuple(clients)), folder)


def test_prompts_of_text_give_a_profile(tmp_path: Path) -> None:
    """Repeats of a length are those of its plan, whatever came of it."""
    result = run(TextTarget(SMALL, slots=4, told=True), tmp_path)
    prefill = require_profile(result, "p.toml").price.prefill
    assert (prefill.chunk_tokens, prefill.per_chunk_s.value) == (32, pytest.approx(0.030, rel=0.01))
    assert prefill.constant_s is not None
    assert prefill.constant_s.value == pytest.approx(0.002, abs=2e-4)
    found = answers(result)
    assert found["prefill beside streams"].startswith("exclusive")
    assert [name for name in found if name.startswith("stall of")] == [f"stall of {q} tokens" for q in (16, 500, 511)]
    # where text lengths differ, the same prompt alone is one of as many tokens
    assert found["stall of 500 tokens"].endswith(" x the same prompt alone")
    ratio = float(found["stall of 500 tokens"].split(", ")[-1].split(" ")[0])
    assert ratio == pytest.approx(1.0, abs=0.06)


def test_generated_tokens_that_stay(tmp_path: Path) -> None:
    result = run(FakeTarget(SMALL, slots=4, scheduler=KeepsGenerated, told=True), tmp_path)
    assert answers(result)["generated tokens"] == "stay reusable"
    assert require_profile(result, "p.toml").kv.generated_reusable


def test_two_slots_leave_the_order_open(tmp_path: Path) -> None:
    found = answers(run(FakeTarget(Costs(fixed={1: 0.01}), slots=2, told=True), tmp_path))
    assert found["slots"].startswith("2: a prefix survives 0")
    assert found["eviction order"].startswith("? one other request is enough")
    assert found["prefill beside streams"].startswith("? one request at a time")


def test_no_usage_is_not_observable_and_never_zero(tmp_path: Path) -> None:
    target = FakeTarget(SMALL, slots=4, usage=False, told=True)
    result = run(target, tmp_path)
    found = answers(result)
    for name in ("reuse block", "generated tokens", "prefill on cached context"):
        assert found[name].startswith("? not observable"), name
    assert found["slots"].startswith("? ")
    assert result.profile is None
    assert not (tmp_path / "p.toml").exists()
    with pytest.raises(sg.SlotgridError, match=r"reuse: not observable.*--block-tokens") as caught:
        require_profile(result, "p.toml")
    assert caught.value.exit_code == 1
    # what the user states fills the gap, from the replays that are there
    before = len(target.replays)
    stated = run(target, tmp_path, stated=Stated(block_tokens=32, generated_reusable=False))
    assert len(target.replays) == before
    assert require_profile(stated, "p.toml").kv.source == "stated by the user, not measured"


def test_noise_is_in_the_intervals(tmp_path: Path) -> None:
    costs = Costs(fixed={1: 0.010, 2: 0.014, 4: 0.020}, noise=0.05)
    result = run(FakeTarget(costs, slots=4), tmp_path, asked=Asked(max_seq_len=512, most_streams=8, most_rounds=20))
    profile = require_profile(result, "p.toml")
    assert result.config == sg.ServingConfig((1, 2, 4))
    for bucket, quantity in profile.price.decode.fixed_s:
        assert quantity.interval is not None
        low, high = quantity.interval
        # one in twenty lies outside
        assert abs(quantity.value - costs.fixed[bucket]) <= high - low
        assert 0.001 < (high - low) / quantity.value < 0.3
        assert quantity.samples is not None
    assert "seed 1" in profile.findings[0].conditions


def test_everything_found_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from slotgrid.cli._common import console
    from slotgrid.cli.main import run as command
    from slotgrid.report.calibration_table import calibration_report

    result = run(FakeTarget(SMALL, slots=4, told=True), tmp_path)
    calibration_report(result, console())
    table = capsys.readouterr().out
    for finding in result.findings:
        assert finding.name in table
        assert (finding.value or finding.reason) in table
    assert "configuration: buckets 1,2,4, 4 slots, at most 4 running" in table
    monkeypatch.chdir(tmp_path)
    assert command(["profile", "show", "p.toml"]) == 0
    shown = capsys.readouterr().out
    assert "eviction order: fifo by allocation" in shown
    assert "part per context token: not decided: " in shown
    assert "price.decode.fixed[bucket 4]" in shown


def test_too_much_noise_is_no_profile(tmp_path: Path) -> None:
    """Times scatter by 40 %: the rules are still certain, the costs are not, and the repeats they need are said."""
    result = run(FakeTarget(Costs(fixed={1: 0.010, 2: 0.011, 4: 0.012}, noise=0.4), slots=4), tmp_path)
    found = answers(result)
    assert found["slots"].startswith("4: ")
    assert found["eviction order"] == "fifo by allocation"
    assert "more repeats would decide it" in found["buckets in the times"]
    assert result.profile is None
    assert "decode cost" in result.missing[0]
    assert not (tmp_path / "p.toml").exists()


def test_what_was_missing_is_added_to_the_same_replays(tmp_path: Path) -> None:
    """Open buckets are settled by more repeats, or by stating them; either way nothing is measured twice."""
    costs = Costs(fixed={1: 0.010, 2: 0.011, 4: 0.012}, noise=0.2)
    first = run(FakeTarget(costs, slots=4), tmp_path)
    assert first.profile is None
    assert "state them with --buckets" in first.missing[0]
    more = run(FakeTarget(costs, slots=4), tmp_path, asked=Asked(max_seq_len=512, rounds=8, most_rounds=8))
    assert more.kept > first.measured - 12
    assert more.measured > 20
    stated = Asked(max_seq_len=512, rounds=8, most_rounds=8, buckets=(1, 2, 4))
    target = FakeTarget(costs, slots=4)
    profile = require_profile(run(target, tmp_path, asked=stated), "p.toml")
    assert target.replays == []
    assert [bucket for bucket, _ in profile.price.decode.fixed_s] == [1, 2, 4]


# --- stopping and going on ---------------------------------------------------------------------------------


def test_a_stopped_calibration_goes_on_after_its_last_whole_replay(tmp_path: Path) -> None:
    dying = FakeTarget(SMALL, slots=4, told=True, fail_after=20)
    with pytest.raises(sg.SlotgridError, match=r"closed the connection; whole replays are kept") as e:
        run(dying, tmp_path)
    assert e.value.exit_code == 1
    assert not (tmp_path / "p.toml").exists()
    healthy = FakeTarget(SMALL, slots=4, told=True)
    result = run(healthy, tmp_path)
    assert result.kept == 20
    assert result.measured == len(healthy.replays)
    assert not set(healthy.replays) & set(dying.replays)
    assert "in 2 starts" in result.findings[0].conditions
    whole = run(FakeTarget(SMALL, slots=4, told=True), tmp_path / "other")
    assert answers(result) == answers(whole)


def test_a_finished_calibration_is_not_touched_without_again(tmp_path: Path) -> None:
    run(FakeTarget(SMALL, slots=4, told=True), tmp_path)
    before = (tmp_path / "p.toml").read_bytes()
    target = FakeTarget(SMALL, slots=4, told=True)
    with pytest.raises(sg.InputError, match="finished; measure anew with --again"):
        run(target, tmp_path)
    assert target.replays == []
    assert (tmp_path / "p.toml").read_bytes() == before
    # dearer steps now: the profile that is there afterwards is the new one
    dearer = FakeTarget(Costs(fixed={b: 2 * s for b, s in SMALL.fixed.items()}), slots=4, told=True)
    result = run(dearer, tmp_path, again=True)
    assert result.kept == 0
    assert len(dearer.replays) == result.measured > 0
    decode = sg.load_profile(tmp_path / "p.toml").price.decode
    assert {b: q.value for b, q in decode.fixed_s} == pytest.approx({1: 0.020, 2: 0.024, 4: 0.030}, rel=0.01)


def test_a_profile_from_elsewhere_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("mine")
    with pytest.raises(sg.InputError, match=r"p\.toml: exists already"):
        run(FakeTarget(SMALL, slots=4, told=True), tmp_path)
    assert (tmp_path / "p.toml").read_text() == "mine"
    assert not (tmp_path / "p.calibration").exists()


def test_another_question_is_another_calibration(tmp_path: Path) -> None:
    with pytest.raises(sg.SlotgridError):
        run(FakeTarget(SMALL, slots=4, told=True, fail_after=3), tmp_path)
    with pytest.raises(sg.InputError, match="something else, or asked otherwise"):
        run(FakeTarget(SMALL, slots=4, told=True), tmp_path, asked=Asked(max_seq_len=256))
    (tmp_path / "p.calibration" / "calibration.json").write_text("[]")
    with pytest.raises(sg.InputError, match="not the record of a calibration"):
        run(FakeTarget(SMALL, slots=4, told=True), tmp_path)


def test_a_resumed_calibration_keeps_the_configuration_of_its_server(tmp_path: Path) -> None:
    with pytest.raises(sg.SlotgridError, match="closed the connection"):
        run(FakeTarget(SMALL, slots=4, told=True, fail_after=3), tmp_path)
    # the same address, another server behind it
    with pytest.raises(sg.InputError, match=r"something else.*\(config differ\)"):
        run(FakeTarget(SMALL, slots=5, told=True), tmp_path)
    # not stated again: still known, and the buckets with it
    result = run(FakeTarget(SMALL, slots=4), tmp_path)
    assert result.config == sg.ServingConfig((1, 2, 4), slots=4)
    assert answers(result)["buckets"] == "1,2,4 (stated, used)"
    assert result.kept == 3


def test_a_full_disk_keeps_what_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slotgrid import files

    whole = files.write_json
    written = []

    def full(path: Path, value: Any, **options: Any) -> None:
        written.append(path)
        if len(written) > 6:
            raise sg.InputError(f"{path}: cannot write: No space left on device")
        whole(path, value, **options)

    monkeypatch.setattr(files, "write_json", full)
    with pytest.raises(sg.SlotgridError, match="No space left on device; whole replays are kept") as caught:
        run(FakeTarget(SMALL, slots=4, told=True), tmp_path)
    assert caught.value.exit_code == 1
    monkeypatch.undo()
    assert run(FakeTarget(SMALL, slots=4, told=True), tmp_path).kept == 5


def test_no_length_is_asked_for(tmp_path: Path) -> None:
    target = FakeTarget(SMALL, slots=4)
    with pytest.raises(sg.InputError, match="give it with --max-seq-len"):
        calibrate(target=target, output=tmp_path / "p.toml", asked=Asked(max_seq_len=0))

"""What the diagnosis withholds or marks: a log that covers part of the run, rows of another run, prices nobody
measured, the evaluation window beside the rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slotgrid as sg
from slotgrid.report.diagnose_table import sections
from tests.samples import copy_sample, sample_lines, sample_rows, write_rows

PROFILE = "rbln-ca25-qwen3-4b"


def diagnose(folder: Path, **options: Any) -> sg.Diagnosis:
    return sg.diagnose(folder, profile=PROFILE, **options)


def shown(found: sg.Diagnosis, title: str) -> str:
    """What the report prints under a title."""
    parts = dict(sections(found))[title]
    return "\n".join(part if isinstance(part, str) else "\n".join(map(" ".join, part.rows)) for part in parts)


def cut_log(folder: Path) -> Path:
    """A sample whose log ends early; its rows are all there."""
    copy_sample("base_n8_b0", folder, "requests.jsonl", "plan.json")
    lines = sample_lines()
    frees = [i for i, line in enumerate(lines) if "[FREE-REQUEST]" in line]
    (folder / "server.log").write_text("\n".join(lines[: frees[9] + 1]) + "\n")
    return folder


def test_a_log_of_some_requests_gives_no_channel_a(tmp_path: Path) -> None:
    whole = diagnose(copy_sample("base_n8_b0", tmp_path / "whole"))
    part = diagnose(cut_log(tmp_path / "part"), compare=tmp_path / "whole")
    data = part.to_dict()
    assert data["channel_a"]["decode_s"] is None
    assert data["channel_a"]["total_s"] is None
    assert data["residual_s"] is None
    assert data["not_observed"]["channel A"] == "needs a log of all requests (it covers 10 of 16)"
    assert data["comparison"]["ratio_a"] is None
    assert "covers 10 of 16" in shown(part, "Cost")
    # what the clients saw does not need the log
    assert data["channel_b_s"] == whole.channel_b_s


def test_step_lines_that_cannot_be_read_give_no_channel_a(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path)
    text = (folder / "server.log").read_text()
    at = text.index("[BUCKET]")
    (folder / "server.log").write_text(text[:at] + text[at:].replace("request_nums=", "requests=", 1))
    found = diagnose(folder)
    assert found.channel_a.total_s is None
    assert found.not_observed["channel A"] == "needs readable [BUCKET] lines (1 are not)"


def test_rows_of_another_run_that_share_ids(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path, "server.log")
    rows = sample_rows()
    for row in rows:
        row["completion_tokens"] += 3
    write_rows(folder / "requests.jsonl", rows)
    with pytest.raises(
        sg.InputError,
        match=r"requests\.jsonl: line \d+: request rows of another run: 16 of the 16 requests that share an id with "
        r"server\.log have other output tokens",
    ):
        sg.read_run(folder)


def test_a_few_rows_that_contradict_the_log_are_counted(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path, "server.log")
    rows = sample_rows()
    rows[0]["completion_tokens"] += 3
    write_rows(folder / "requests.jsonl", rows)
    notes = sg.read_run(folder).notes
    assert any(note.startswith("1 requests own another number of [BUCKET] lines") for note in notes)


def test_prices_nobody_measured_are_marked(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path)
    measured = sorted(size for size, _ in sg.load_profile(PROFILE).price.decode.fixed_s)
    assert {1, 2, 4, 8} <= set(measured)
    assert not {3, 7} & set(measured)
    found = diagnose(folder, buckets=(1, 2, 3, 8))
    alignment = found.to_dict()["alignment"]
    assert alignment["unmeasured_buckets"] == {}
    assert alignment["other_buckets"]["unmeasured_buckets"] == {"3": "interpolated"}
    assert alignment["other_buckets"]["every_count_unmeasured_buckets"]["7"] == "interpolated"
    assert "(price interpolated for bucket 3: nobody measured it)" in shown(found, "Batch alignment")
    plain = diagnose(folder, buckets=(1, 2, 4, 8))
    assert "nobody measured" not in shown(plain, "Batch alignment")


def test_observed_buckets_nobody_measured_are_marked(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path, "server.log", "requests.jsonl")
    log = (folder / "server.log").read_text().replace("padded_batch_size=8", "padded_batch_size=9")
    (folder / "server.log").write_text(log.replace("padded_batch_size=4", "padded_batch_size=5"))
    found = diagnose(folder)
    measured = {size for size, _ in sg.load_profile(PROFILE).price.decode.fixed_s}
    assert set(found.unmeasured) == {5, 9} - measured
    assert found.to_dict()["alignment"]["unmeasured_buckets"]["5"] == "interpolated"
    text = shown(found, "Batch alignment")
    assert "* price interpolated for bucket" in text
    assert sum(line.split()[4].endswith("*") or " * " in line for line in text.splitlines() if " 5 " in line) >= 1


def multi_turn(folder: Path, window: dict[str, Any] | None) -> Path:
    """The sample's rows as the multi-turn runner writes them."""
    copy_sample("base_n8_b0", folder, "server.log")
    rows = []
    for row in sample_rows():
        more = {"slot": row.pop("session_index"), "generation": 0, "first_token_s": row["sent_s"] + 0.001}
        rows.append({**row, **more})
    write_rows(folder / "requests.jsonl", rows)
    if window is not None:
        (folder / "windows.BASE.json").write_text(json.dumps(window))
    return folder


def test_the_evaluation_window_beside_the_rows(tmp_path: Path) -> None:
    rows = sample_rows()
    start = sorted(row["sent_s"] for row in rows if row["turn"])[1]
    end = max(row["done_s"] for row in rows) + 1
    found = diagnose(multi_turn(tmp_path, {"warmup_end_s": start, "eval_end_s": end, "stopped_by": "window"}))
    assert found.window is not None
    inside = [row for row in rows if start <= row["sent_s"] < end]
    assert found.window.requests == len(inside)
    assert 0 < len(inside) < 16
    assert found.window.later_turns == sum(row["turn"] > 0 for row in inside)
    assert found.window.reused == sum(row["turn"] > 0 and row["cached_tokens"] > 0 for row in inside)
    price = sg.load_profile(PROFILE).price
    computed = np.array([row["prompt_tokens"] - row["cached_tokens"] for row in inside])
    assert found.window.prefill_s == pytest.approx(float(price.prefill.seconds(computed).sum()))
    assert found.to_dict()["window"]["requests"] == len(inside)
    assert f"{found.window.reused}" in shown(found, "Evaluation window")
    # everything else is of the whole run, and says so
    assert found.run.requests.height == 16
    assert any("all else covers the whole run" in text for text in found.warnings)


def test_a_window_that_cannot_be_used(tmp_path: Path) -> None:
    cut = diagnose(multi_turn(tmp_path / "a", {"warmup_end_s": 1.0, "eval_end_s": 9.0, "stopped_by": "exhausted"}))
    assert cut.window is None
    assert any("stopped by exhausted" in text for text in cut.warnings)
    with pytest.raises(sg.InputError, match=r"windows\.BASE\.json: eval_end_s is 1, not above warmup_end_s 2"):
        sg.read_run(multi_turn(tmp_path / "b", {"warmup_end_s": 2.0, "eval_end_s": 1.0}))
    with pytest.raises(sg.InputError, match=r"windows\.BASE\.json: eval_end_s is missing"):
        sg.read_run(multi_turn(tmp_path / "c", {"warmup_end_s": 2.0}))
    unpriced = sg.diagnose(multi_turn(tmp_path / "d", {"warmup_end_s": 0.0, "eval_end_s": 9.0}))
    assert unpriced.window is None
    assert any("not evaluated without a profile" in text for text in unpriced.warnings)


def test_a_second_window(tmp_path: Path) -> None:
    folder = multi_turn(tmp_path, {"warmup_end_s": 0.0, "eval_end_s": 9.0})
    (folder / "windows.TUNED.json").write_text("{}")
    with pytest.raises(sg.InputError, match=r"windows\.TUNED\.json: a second window"):
        sg.read_run(folder)

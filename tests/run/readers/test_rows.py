"""Request rows of every shape, and what happens when they are wrong."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.run.readers.names import Names
from tests.samples import ROWS, alloc, copy_sample, free, log, row, sample_lines, sample_rows, step, write_rows

MULTI_TURN: dict[str, Any] = {
    "label": "BASE.n8.r0", "plan_id": "main-n8-r0", "slot": 2, "generation": 1, "session": "main-n8-r0/slot2/g1",
    "turn": 0, "turns_in_session": 2, "request_id": "cmpl-1", "status": 200, "sent_s": 1.0, "first_token_s": 1.07,
    "done_s": 2.0, "requested_segment_tokens": 900, "requested_generation_tokens": 3, "gap_after_s": 0.3,
    "prompt_tokens": 900, "completion_tokens": 3, "details_present": True, "cached_tokens": 0, "error": None,
    "at_utc": "2026-01-01T00:00:43+00:00",
}  # fmt: skip


def multi_turn(slot: int, generation: int, turn: int, **changes: Any) -> dict[str, Any]:
    start = 10.0 * generation + 2.0 * turn
    return {
        **MULTI_TURN, "slot": slot, "generation": generation, "turn": turn, "session": f"p/slot{slot}/g{generation}",
        "request_id": f"cmpl-{slot}{generation}{turn}", "sent_s": start, "first_token_s": start + 0.1,
        "done_s": start + 1, "prompt_tokens": 900 + 11 * turn, **changes,
    }  # fmt: skip


def read(folder: Path, rows: list[dict[str, Any]], name: str = "requests.jsonl") -> sg.Run:
    write_rows(folder / name, rows)
    return sg.read_run(folder)


def test_rows_alone(tmp_path: Path) -> None:
    run = sg.read_run(copy_sample("base_n8_b0", tmp_path, "requests.jsonl"))
    assert (run.returns, run.reused, run.prompt_tokens) == (8, 3, 22033)
    assert (run.steps, run.evictions, run.config) == (None, None, None)


def test_multi_turn_rows(tmp_path: Path) -> None:
    """Sessions in plan order: slot by slot, generation by generation; null stays null."""
    rows = [multi_turn(s, g, t) for g in (0, 1) for s in (1, 0) for t in (0, 1)]
    rows[-1].update(cached_tokens=None, details_present=False)
    rows[-2].update(cached_tokens=0, details_present=False)
    run = read(tmp_path, rows)
    sessions = dict(zip(run.requests["request_id"], run.requests["session"], strict=True))
    assert sessions == {f"cmpl-{s}{g}{t}": 2 * s + g for s in (0, 1) for g in (0, 1) for t in (0, 1)}
    assert run.returns == 4
    assert run.reused is None
    assert run.requests["cached_tokens"].null_count() == 2
    assert run.requests["first_token_s"].null_count() == 0


def test_two_turn_zeros_may_mean_not_observable(tmp_path: Path) -> None:
    """That runner writes 0 where the server reports nothing; with a log the log decides."""
    rows = [{**entry, "cached_tokens": 0} for entry in sample_rows()]
    run = read(tmp_path, rows)
    assert run.reused is None
    assert any("taken as not observable" in note for note in run.notes)
    (tmp_path / "server.log").write_text(log(*sample_lines()))
    run = sg.read_run(tmp_path)
    assert run.reused == 3
    assert any("3 requests have other cached tokens in the log than in their row" in note for note in run.notes)


def test_our_rows_with_token_times(tmp_path: Path) -> None:
    run = read(tmp_path, [row(0, 0, token_times_s=[0.2, 0.25, 0.4], first_token_s=None), row(0, 1, cached_tokens=512)])
    assert run.requests["first_token_s"].to_list() == [0.2, 1.2]
    assert run.requests["token_gaps_s"].to_list()[0] == pytest.approx([0.05, 0.15])
    assert run.requests["token_gaps_s"].to_list()[1] is None
    assert run.reused == 1


def test_token_times_in_their_own_file(tmp_path: Path) -> None:
    entries = [{"request_id": "cmpl-00", "slot": 0, "t": [0.2, 0.3, 0.5]}, {"request_id": "cmpl-xx", "t": [1.0]}]
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (tmp_path / "tokens.BASE.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    run = read(tmp_path, [row(0, 0), row(0, 1)])
    assert run.requests["token_gaps_s"].to_list()[0] == pytest.approx([0.1, 0.2])
    assert "1 entries of token times have no request row" in run.notes


def test_guidellm_report(tmp_path: Path) -> None:
    shutil.copy(ROWS / "guidellm_0.8.1.json", tmp_path)
    run = sg.read_run(tmp_path)
    table = run.requests.select("request_id", "session", "turn", "prompt_tokens", "cached_tokens", "output_tokens")
    assert table.rows() == [
        ("cmpl-g0", 0, 0, 600, 0, 40),
        ("cmpl-g2", 0, 1, 650, 512, 40),
        ("cmpl-g1", 1, 0, 900, 0, 50),
        ("cmpl-g3", 1, 1, 960, None, 50),
    ]
    assert run.requests["arrival_s"].to_list() == pytest.approx([0.0, 2.0, 0.0, 2.4], abs=1e-6)
    assert run.requests["first_token_s"].to_list() == pytest.approx([0.2, 2.1, 0.4, 2.6], abs=1e-6)
    assert (run.returns, run.reused) == (2, None)
    assert "1 request rows without a result were left out (1 errored)" in run.notes


def test_aiperf_records(tmp_path: Path) -> None:
    shutil.copy(ROWS / "aiperf_0.13.0.jsonl", tmp_path / "profile_export.jsonl")
    run = sg.read_run(tmp_path)
    table = run.requests.select("request_id", "session", "turn", "prompt_tokens", "cached_tokens", "output_tokens")
    assert table.rows() == [
        ("0000-0", 0, 0, 600, 0, 4),
        ("0000-2", 0, 1, 650, 512, 4),
        ("0000-1", 1, 0, 900, 0, 5),
        ("0000-3", 1, 1, 960, 0, 5),
    ]
    assert run.requests["token_gaps_s"].to_list()[1] == pytest.approx([0.011, 0.011, 0.078])
    assert run.requests["first_token_s"].to_list() == pytest.approx([0.2, 2.1, 0.4, 2.6], abs=1e-6)
    assert "2 request rows without a result were left out (1 warm-up, 1 status 500)" in run.notes


def test_aiperf_joins_by_the_header_it_sent(tmp_path: Path) -> None:
    shutil.copy(ROWS / "aiperf_0.13.0.jsonl", tmp_path / "profile_export.jsonl")
    names = [f"chatcmpl-0000-{k}-ab12cd34" for k in (0, 1, 2, 3)]
    lines = []
    for slot, (name, tokens) in enumerate(zip(names, (4, 5, 4, 5), strict=True)):
        lines += [alloc(name, slot), *[step(1, 1)] * (tokens - 1), free(name, slot)]
    (tmp_path / "server.log").write_text(log(*lines))
    run = sg.read_run(tmp_path)
    assert run.requests["slot"].to_list() == [0, 2, 1, 3]
    assert not any("no log line" in note for note in run.notes if "2 request" not in note)


def test_vllm_bench_result(tmp_path: Path) -> None:
    shutil.copy(ROWS / "vllm_bench_detailed.json", tmp_path)
    run = sg.read_run(tmp_path)
    assert run.requests["prompt_tokens"].to_list() == [600, 900]
    assert run.requests["arrival_s"].to_list() == [0.0, 0.0]
    assert run.requests["first_token_s"].to_list() == pytest.approx([0.2, 0.4])
    assert run.requests["finish_s"].to_list() == pytest.approx([0.25, 0.45])
    assert (run.returns, run.reused, run.cached_tokens) == (None, None, None)
    assert "1 request rows without a result were left out (1 error: ConnectionResetError: reset)" in run.notes


def test_vllm_bench_rows_cannot_be_joined(tmp_path: Path) -> None:
    shutil.copy(ROWS / "vllm_bench_detailed.json", tmp_path)
    (tmp_path / "server.log").write_text(log(alloc("a-0-1", 0), step(1, 1), free("a-0-1", 0)))
    run = sg.read_run(tmp_path)
    assert run.decode_steps == 1
    assert any("carry no server request ids" in note for note in run.notes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input_lens": None}, "run vllm bench serve with --save-detailed"),
        ({"ttfts": [0.1]}, "ttfts has 1 entries, input_lens 3"),
        ({"output_lens": [1, 2, -1]}, "entry 2: output_len is -1"),
        ({"itls": [[0.1], ["x"], []]}, "entry 1: itl is not a list of finite numbers"),
    ],
)
def test_wrong_vllm_bench_result(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    data = json.loads((ROWS / "vllm_bench_detailed.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps({**data, **change}))
    with pytest.raises(sg.InputError) as caught:
        sg.read_run(tmp_path)
    assert "result.json" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("benchmarks", "said"),
    [
        ([], "0 benchmarks; a run is one of them"),
        ([{}, {}], "2 benchmarks; a run is one of them"),
        ([{"requests": []}], "requests is not an object"),
        ([{"requests": {"successful": [{"info": 3}]}}], "requests.successful[0]: not a request with info"),
        ([{"requests": {"errored": 3}}], "requests.errored is not a list"),
        ([{"requests": {"successful": [{"info": {}}]}}], "info.timings is not an object"),
    ],
)
def test_wrong_guidellm_report(benchmarks: list[Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "benchmarks.json").write_text(json.dumps({"benchmarks": benchmarks}))
    with pytest.raises(sg.InputError) as caught:
        sg.read_run(tmp_path)
    assert "benchmarks.json" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metadata": 3}, "metadata and metrics must be objects"),
        ({"metadata": {"request_start_ns": "x"}}, "metadata: request_start_ns is 'x'"),
        ({"metrics": {"time_to_first_token": {"value": 1.0, "unit": "years"}}}, "unit is 'years'"),
    ],
)
def test_wrong_aiperf_record(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    data = json.loads((ROWS / "aiperf_0.13.0.jsonl").read_text().splitlines()[1])
    write_rows(tmp_path / "profile_export.jsonl", [{**data, **change}])
    with pytest.raises(sg.InputError) as caught:
        sg.read_run(tmp_path)
    assert "profile_export.jsonl: line 1" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt_tokens": -1}, "prompt_tokens is -1; expected a whole number of at least 0"),
        ({"prompt_tokens": 1.5}, "prompt_tokens is 1.5"),
        ({"prompt_tokens": True}, "prompt_tokens is True"),
        ({"cached_tokens": "many"}, "cached_tokens is 'many'"),
        ({"arrival_s": None}, "arrival_s is None; expected a finite number"),
        ({"finish_s": "now"}, "finish_s is 'now'; expected a finite number"),
        ({"session": 2.5}, "session is 2.5; expected its index or its id"),
        ({"request_id": ""}, "request_id is ''; expected text"),
        ({"token_times_s": [1, None]}, "token_times_s is not a list of finite numbers"),
    ],
)
def test_wrong_values_name_line_and_key(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(sg.InputError) as caught:
        read(tmp_path, [row(0, 0), row(0, 1, **change)])
    assert "requests.jsonl: line 2: " in str(caught.value)
    assert said in str(caught.value)


def test_missing_key(tmp_path: Path) -> None:
    entry = row(0, 0)
    del entry["output_tokens"]
    with pytest.raises(sg.InputError, match=r"requests\.jsonl: line 1: output_tokens is missing"):
        read(tmp_path, [entry])


def test_unknown_shape(tmp_path: Path) -> None:
    with pytest.raises(sg.InputError, match=r"line 1: not a request row of a known shape \(published multi-turn rows"):
        read(tmp_path, [{"id": 3}])


def test_broken_lines(tmp_path: Path) -> None:
    text = json.dumps(row(0, 0)) + "\n" + json.dumps(row(0, 1)) + "\n"
    path = tmp_path / "requests.jsonl"
    path.write_text(text[:-20])
    run = sg.read_run(tmp_path)
    assert run.requests.height == 1
    assert "requests.jsonl: line 2, the last, is cut; it was left out" in run.notes
    path.write_text(text.rstrip("\n"))
    assert sg.read_run(tmp_path).requests.height == 2
    path.write_text("{nonsense}\n" + text)
    with pytest.raises(sg.InputError, match="line 1, column 2"):
        sg.read_run(tmp_path)
    path.write_text("[1]\n")
    with pytest.raises(sg.InputError, match="line 1: not a JSON object"):
        sg.read_run(tmp_path)
    path.write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(sg.InputError, match="line 1: not UTF-8"):
        sg.read_run(tmp_path)


def test_broken_gzip(tmp_path: Path) -> None:
    packed = gzip.compress("".join(json.dumps(row(s, 0)) + "\n" for s in range(300)).encode())
    path = tmp_path / "requests.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    run = sg.read_run(tmp_path)
    assert 0 < run.requests.height < 300
    assert any("is cut" in note or "ends in the middle" in note for note in run.notes)
    path.write_bytes(packed[:20] + b"\x00" * 40 + packed[60:])
    with pytest.raises(sg.InputError, match=r"requests\.jsonl\.gz: not readable gzip"):
        sg.read_run(tmp_path)


def test_duplicated_ids(tmp_path: Path) -> None:
    run = read(tmp_path, [row(0, 0), row(0, 1), row(0, 1)])
    assert run.requests.height == 2
    assert "1 request rows are there twice with equal values; each was read once" in run.notes
    with pytest.raises(sg.InputError, match=r"line 3: request_id 'cmpl-01' was already at .*line 2 with other values"):
        read(tmp_path, [row(0, 0), row(0, 1), row(0, 2, request_id="cmpl-01")])


def test_duplicated_rows_beside_a_log(tmp_path: Path) -> None:
    """A row that is there twice has its log line: only the doubling is said."""
    folder = copy_sample("base_n8_b0", tmp_path, "server.log", "plan.json")
    rows = sample_rows()
    run = read(folder, [*rows, *rows[:3]])
    assert run.notes == ("3 request rows are there twice with equal values; each was read once",)
    assert run.reused == 3


def test_two_runs_in_one_directory(tmp_path: Path) -> None:
    write_rows(tmp_path / "requests.a.jsonl", [row(0, 0)])
    with pytest.raises(sg.InputError, match=r"requests\.b\.jsonl: line 1: session '0' turn 0 was already at"):
        read(tmp_path, [row(0, 0, request_id="other")], "requests.b.jsonl")
    shutil.copy(ROWS / "vllm_bench_detailed.json", tmp_path)
    (tmp_path / "requests.b.jsonl").unlink()
    with pytest.raises(sg.InputError, match="request rows of several kinds"):
        sg.read_run(tmp_path)


def test_rows_of_another_run(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path, "server.log")
    own = sample_rows()
    other = [{**r, "request_id": f"cmpl-other{i}"} for i, r in enumerate(own)]
    write_rows(folder / "requests.jsonl", other)
    with pytest.raises(sg.InputError, match=r"none of the 16 request rows has a line in server\.log"):
        sg.read_run(folder)
    write_rows(folder / "requests.jsonl", own[:4] + other[4:])
    run = sg.read_run(folder)
    assert "12 request rows have no log line" in run.notes
    assert any(note.startswith("12 requests of server.log have no request row") for note in run.notes)


def test_rows_of_another_run_with_the_same_ids(tmp_path: Path) -> None:
    """A fixed seed gives equal ids; what the rows say of reuse then contradicts the log, and that is counted."""
    folder = copy_sample("base_n8_b0", tmp_path, "server.log")
    write_rows(folder / "requests.jsonl", sample_rows("tuned_n8_b0"))
    run = sg.read_run(folder)
    assert run.reused == 3
    assert "5 requests have other cached tokens in the log than in their row; the log's are used" in run.notes


def test_rows_of_another_plan(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path, "plan.json")
    rows = sample_rows()
    with pytest.raises(sg.InputError, match=r"line 2: session 4 turn 0 asked for 71 output tokens, plan\.json says 72"):
        read(folder, [{**r, "requested_generation_tokens": 71} if i == 1 else r for i, r in enumerate(rows)])
    with pytest.raises(sg.InputError, match=r"line 1: session 9 turn 0 is not in plan\.json"):
        read(folder, [{**r, "session_index": 9, "session": "x"} if i == 0 else r for i, r in enumerate(rows)])


def test_rows_missing_of_the_plan(tmp_path: Path) -> None:
    run = read(copy_sample("base_n8_b0", tmp_path, "plan.json"), sample_rows()[:-1])
    assert run.notes == ("1 of the 16 turns of plan.json have no request row",)


def test_plan_with_session_ids(tmp_path: Path) -> None:
    plan = sg.InputPlan("p", (sg.Client(0.0, tuple(sg.Session(f"s{i}", (sg.Turn(600, 3),)) for i in (5, 3, 4))),))
    plan.save(tmp_path / "plan.json")
    run = read(tmp_path, [row(f"s{i}", 0, request_id=f"r{i}") for i in (3, 4, 5)])
    assert run.requests["request_id"].to_list() == ["r5", "r3", "r4"]
    assert run.plan_sha256 == plan.content_sha256
    with pytest.raises(sg.InputError, match=r"line 2: session 's9' is not in plan\.json"):
        read(tmp_path, [row("s3", 0), row("s9", 0, request_id="r9")])


def test_plan_of_something_else_is_not_used(tmp_path: Path) -> None:
    sg.InputPlan.from_turns([[(600, 3, 0.0)]]).save(tmp_path / "plan.json")
    run = read(tmp_path, [row("x", 0, request_id="a"), row("y", 0, request_id="b")])
    assert run.plan_sha256 is None
    assert "plan.json: its sessions are not those of the request rows, so it is not used" in run.notes


def test_clock_going_back(tmp_path: Path) -> None:
    rows = [
        row(0, 0, finish_s=-1.0),
        row(1, 0, first_token_s=9.0),
        row(2, 0),
        row(2, 1, arrival_s=0.4, first_token_s=0.45),
        row(3, 0, token_times_s=[0.3, 0.2]),
    ]
    run = read(tmp_path, rows)
    assert run.requests["arrival_s"].null_count() == 1
    assert run.requests["first_token_s"].null_count() == 2
    assert set(run.notes) == {
        "1 request rows end before they begin (the clock went back); their times are left out",
        "1 request rows have a first token outside the request; it is left out",
        "1 requests have token times that go back; they are left out",
        "1 returns were sent before the answer they build on (clock or rows mixed up?)",
    }


def test_failed_requests_are_counted(tmp_path: Path) -> None:
    rows = [row(0, 0), row(1, 0, status=503, output_tokens=None), row(2, 0, error="reset\nmore", finish_s=None)]
    run = read(tmp_path, rows)
    assert run.requests.height == 1
    assert run.notes == ("2 request rows without a result were left out (1 status 503, 1 error: reset)",)


def test_rows_without_sessions_in_part(tmp_path: Path) -> None:
    data = json.loads((ROWS / "guidellm_0.8.1.json").read_text())
    data["benchmarks"][0]["requests"]["successful"][0]["info"]["conversation_id"] = None
    (tmp_path / "benchmarks.json").write_text(json.dumps(data))
    run = sg.read_run(tmp_path)
    assert run.returns is None
    assert any("1 of 4 request rows name no session" in note for note in run.notes)


def test_more_cached_than_prompt(tmp_path: Path) -> None:
    run = read(tmp_path, [row(0, 0), row(0, 1, cached_tokens=9999)])
    assert run.reused is None
    assert any("1 requests have more cached than prompt tokens" in note for note in run.notes)


@given(st.lists(st.one_of(st.none(), st.binary(min_size=1, max_size=6)), max_size=40))
def test_names_are_a_list(names: list[bytes | None]) -> None:
    """Packed names behave like the list they replace, and find what a dictionary would find."""
    packed = Names()
    for name in names:
        packed.add(name)
    assert [packed.raw(i) for i in range(len(packed))] == names
    present = [name for name in names if name is not None]
    assert (packed.first_double() is None) == (len(set(present)) == len(present))
    unique = Names()
    distinct = list(dict.fromkeys(present))
    for name in distinct:
        unique.add(name)
    asked = [(i, name + b"-x") for i, name in enumerate(present)] + [(999, b"-x")]
    found = {r: i for i, r in unique.find(asked, lambda name: name[:-2] or None)}
    assert found == {r: distinct.index(name[:-2]) for r, name in asked if name[:-2]}

"""One server log: what it tells, and what it does when lines are missing, mixed or from another version."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotgrid as sg
from slotgrid.run.readers.log_tables import ADMISSION, PADDING, UNKNOWN, log_tables
from slotgrid.run.readers.vllm_rbln_log import _Scanner, scan_log
from tests.samples import HEAD, alloc, copy_sample, evict, free, hit, log, row, sample_lines, step, write_rows

TWO = (alloc("cmpl-00-0-aa", 0), *[step(1, 1)] * 2, free("cmpl-00-0-aa", 0))


def read(folder: Path, text: str, *rows: dict[str, object]) -> sg.Run:
    (folder / "server.log").write_text(text)
    if rows:
        write_rows(folder / "requests.jsonl", list(rows))
    return sg.read_run(folder)


def test_log_alone(tmp_path: Path) -> None:
    """Without rows: steps, evictions and lookups are known; sessions and lengths are not."""
    run = sg.read_run(copy_sample("base_n8_b0", tmp_path, "server.log"))
    assert run.decode_steps == 913
    assert (run.evicted("admission"), run.evicted("padding")) == (1, 8)
    assert run.cached_tokens == 3456
    assert (run.returns, run.reused, run.prompt_tokens, run.computed_tokens, run.wall_s) == (None,) * 5
    assert run.config == sg.ServingConfig((1, 2, 4, 8))


def test_neighbours_tell_the_cause(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(
        log(
            alloc("a-0-1", 0), step(1, 1), free("a-0-1", 0),
            evict(0), alloc("b-0-1", 0), step(1, 1), free("b-0-1", 0),
            evict(0), step(1, 1),
            alloc("c-0-1", 0), free("c-0-1", 0), evict(0),
        )
    )  # fmt: skip
    assert log_tables(scan_log([path])).eviction_cause.tolist() == [ADMISSION, PADDING, UNKNOWN]


def test_without_bucket_lines(tmp_path: Path) -> None:
    """The steps are not observed, and a slot freed for padding looks like one freed by an admission."""
    lines = [line for line in sample_lines() if "[BUCKET]" not in line]
    copy_sample("base_n8_b0", tmp_path, "requests.jsonl", "plan.json")
    run = read(tmp_path, log(*lines))
    assert (run.decode_steps, run.histogram, run.padding_ratio) == (None, None, None)
    assert run.reused == 3
    assert run.evictions is not None
    assert run.evicted("admission") == 0
    assert run.evicted(None) == run.evictions.height - (run.evicted("padding") or 0) > 0
    assert any("no [BUCKET] lines; the step distribution is not observed" in note for note in run.notes)
    assert any("evictions cannot be told" in note for note in run.notes)


def test_without_pfx_lines(tmp_path: Path) -> None:
    lines = [line for line in sample_lines() if "[PFX]" not in line]
    copy_sample("base_n8_b0", tmp_path, "requests.jsonl", "plan.json")
    run = read(tmp_path, log(*lines))
    assert run.decode_steps == 913
    assert run.evictions is None
    assert run.reused == 3  # from the rows
    assert any("no [PFX] lines; evictions are not observed" in note for note in run.notes)


def test_info_level_log(tmp_path: Path) -> None:
    copy_sample("base_n8_b0", tmp_path, "requests.jsonl")
    run = read(tmp_path, log(*[line for line in sample_lines() if "DEBUG" not in line]))
    assert run.steps is None
    assert any("no [PFX] and no [BUCKET] lines in it (is the server's log level DEBUG?)" in note for note in run.notes)


def test_info_level_log_alone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(sg.InputError, match="nothing in it can be diagnosed"):
        read(tmp_path, "INFO something else\n")


@pytest.mark.parametrize("keep", [1, 40, 77, 200])
def test_cut_in_the_middle_of_a_line(keep: int, tmp_path: Path) -> None:
    """A last line without its newline never adds a number that may be cut (padded_batch_size=1 of 16)."""
    copy_sample("batchonly_n8_b0", tmp_path, "requests.jsonl", "plan.json")
    lines = sample_lines("batchonly_n8_b0")
    at = max(i for i, line in enumerate(lines) if "[BUCKET]" in line)
    run = read(tmp_path, log(*lines[:at]) + lines[at][: len(lines[at]) - 1 - keep % 60])
    assert run.decode_steps == 924
    assert any("1 line is cut" in note for note in run.notes)
    assert any("1 requests were still running when the log ended" in note for note in run.notes)


def test_missing_step_lines_are_noticed(tmp_path: Path) -> None:
    """A lost line in the middle shows in the requests that own fewer lines than they have tokens."""
    lines = sample_lines()
    at = next(i for i, line in enumerate(lines) if "request_nums=3" in line)
    copy_sample("base_n8_b0", tmp_path, "requests.jsonl", "plan.json")
    run = read(tmp_path, log(*lines[:at], *lines[at + 1 :]))
    assert run.decode_steps == 912
    assert any("3 requests own another number of [BUCKET] lines" in note for note in run.notes)


def test_every_cut_gives_a_prefix_of_the_steps(tmp_path: Path) -> None:
    """Cutting anywhere never invents a (running, bucket) pair and never gives more steps."""
    text = log(*sample_lines("tuned_n8_b0"))
    seen = {(n, b) for n, b, _ in sg.read_run(copy_sample("tuned_n8_b0", tmp_path / "s")).histogram.iter_rows()}
    path = tmp_path / "server.log"
    before: int | None = None
    for cut in range(40_000, 40_400, 7):
        path.write_text(text[:cut])
        tables = log_tables(scan_log([path]))
        pairs = set(zip(tables.work_running.tolist(), tables.work_bucket.tolist(), strict=True))
        assert {pair for pair in pairs if pair[1] >= 0} <= seen
        assert before is None or before <= tables.steps <= before + 1
        before = tables.steps


def test_beginning_rotated_away(tmp_path: Path) -> None:
    copy_sample("base_n8_b0", tmp_path, "requests.jsonl", "plan.json")
    lines = sample_lines()
    run = read(tmp_path, log(*lines[200:]))
    gone = sum("[ALLOC]" in line for line in lines[:200])
    assert gone
    assert any("lines tell of requests or slots the log has not introduced" in note for note in run.notes)
    assert any(note == f"{gone} request rows have no log line" for note in run.notes)


def test_two_servers_mixed_in_one_log(tmp_path: Path) -> None:
    text = log(alloc("a-0-1", 0), alloc("b-0-1", 0))
    with pytest.raises(sg.InputError, match=r"server\.log: line 2: slot 0 is given to b-0-1 while a-0-1 still holds"):
        read(tmp_path, text)
    text = log(alloc("a-0-1", 0), evict(0))
    with pytest.raises(sg.InputError, match="line 2: slot 0 is evicted while a-0-1 still runs in it"):
        read(tmp_path, text)


def test_two_engine_processes_mixed(tmp_path: Path) -> None:
    """Their slots need not collide: the process ids in front of the lines tell."""
    lines = [alloc("a-0-1", 0), alloc("b-0-1", 1), free("a-0-1", 0), free("b-0-1", 1)]
    text = log(*(f"(EngineCore_DP0 pid={7 + i % 2}) {line}" for i, line in enumerate(lines)))
    with pytest.raises(sg.InputError, match="line 3: lines of two engine processes \\(8 and 7\\) are mixed"):
        read(tmp_path, text)


def test_two_server_logs_in_one_directory(tmp_path: Path) -> None:
    (tmp_path / "left.log").write_text(log(*TWO))
    (tmp_path / "right.log").write_text(log(*TWO))
    with pytest.raises(sg.InputError, match=r"logs of two servers \(left\.log and right\.log\)"):
        sg.read_run(tmp_path)


def test_server_started_again(tmp_path: Path) -> None:
    """A restart forgets what was in flight; it is said, and the slots are not taken for a conflict."""
    start = f"{HEAD}Updating scheduler_config.max_num_seqs from 1 to 8 based on rbln_config.json"
    text = log(start, alloc("a-0-1", 0), step(1, 1), start, alloc("b-0-1", 0), step(1, 1), free("b-0-1", 0))
    run = read(tmp_path, text)
    assert run.decode_steps == 2
    assert any("was started again 1 times" in note for note in run.notes)
    assert not any("another number of requests" in note for note in run.notes)


def test_overlapping_pieces(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(log(*TWO))
    (tmp_path / "server.log.1").write_text(log(*TWO))
    with pytest.raises(sg.InputError, match="cmpl-00-0-aa is admitted a second time after it had finished"):
        sg.read_run(tmp_path)


def test_same_id_in_flight_twice(tmp_path: Path) -> None:
    with pytest.raises(sg.InputError, match="a-0-1 is admitted again before it was released"):
        read(tmp_path, log(alloc("a-0-1", 0), alloc("a-0-1", 1)))


def test_preempted_requests_may_come_back(tmp_path: Path) -> None:
    text = log(alloc("a-0-1", 0), step(1, 1), free("a-0-1", 0, True), alloc("a-0-1", 1), step(1, 1), free("a-0-1", 1))
    run = read(tmp_path, text)
    assert run.requests["slot"].to_list() == [1]
    assert any("1 requests were preempted and admitted again" in note for note in run.notes)


def test_slot_taken_without_an_eviction_line(tmp_path: Path) -> None:
    run = read(tmp_path, log(alloc("a-0-1", 0), free("a-0-1", 0), alloc("b-0-1", 0), free("b-0-1", 0)))
    assert run.evicted(None) == 1
    assert any("1 slots changed hands without an [EVICTION] line" in note for note in run.notes)


def test_clock_going_back(tmp_path: Path) -> None:
    lines = sample_lines()
    lines[-1] = lines[-1].replace("03:10:11", "03:10:10")
    copy_sample("base_n8_b0", tmp_path, "requests.jsonl", "plan.json")
    run = read(tmp_path, log(*lines))
    assert run.notes == (
        f"server.log: the clock goes back, first at line {len(lines)}; only the order of lines is used",
    )
    assert run.reused == 3


def test_new_year_is_not_a_step_back(tmp_path: Path) -> None:
    lines = [line.replace("11-30", "12-31") for line in TWO[:2]] + [line.replace("11-30", "01-01") for line in TWO[2:]]
    assert not any("clock" in note for note in read(tmp_path, log(*lines)).notes)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("padded_batch_size=", "bucket=", "3 of 3 [BUCKET] lines ([BUCKET]) are not as vllm-rbln 0.11.1 writes them"),
        ("[EVICTION] OB=", "[EVICTION] SLOT=", "1 of 6 [PFX] lines ([PFX] [EVICTION])"),
        ("[CACHE-HIT] REQUEST", "[CACHE-HIT] REQ", "1 of 6 [PFX] lines ([PFX] [CACHE-HIT])"),
        ("[CACHE-HIT]", "[CACHE-FOUND]", "1 of 6 [PFX] lines ([PFX] [CACHE-FOUND])"),
        ("OB_COUNT=1 OB", "SLOTS=1 OB", "[PFX] lines ([PFX] [ALLOC])"),
    ],
)
def test_other_stack_version(old: str, new: str, said: str, tmp_path: Path) -> None:
    """Lines that differ are counted and named; what hangs on them is not observed rather than wrong."""
    text = log(
        alloc("cmpl-00-0-a", 0), step(1, 1), step(1, 1), free("cmpl-00-0-a", 0),
        evict(0), alloc("cmpl-01-0-b", 0), hit("cmpl-01-0-b", 4), step(1, 1), free("cmpl-01-0-b", 0),
    )  # fmt: skip
    rows = [row(0, 0, cached_tokens=None), row(0, 1, cached_tokens=None)]
    assert read(tmp_path, text, *rows).reused == 1
    run = read(tmp_path, text.replace(old, new), *rows)
    assert any(said in note for note in run.notes), run.notes
    if "BUCKET" in said:
        assert run.histogram is None
    elif "CACHE" in said or "ALLOC" in said:
        assert run.reused is None
    if "EVICTION" in said or "ALLOC" in said:
        assert run.evictions is None


def test_several_slots_a_request_are_refused(tmp_path: Path) -> None:
    text = log(alloc("a-0-1", 0).replace("OB_COUNT=1 OB=[0]", "OB_COUNT=2 OB=[0, 1]"))
    with pytest.raises(sg.InputError, match="line 1: a-0-1 takes 2 slots; only servers with one slot a request"):
        read(tmp_path, text)


def test_endless_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotgrid.run.readers.vllm_rbln_log._LONGEST_LINE_BYTES", 1000)
    with pytest.raises(sg.InputError, match="line 1: longer than 0 MiB; not a text log"):
        read(tmp_path, "x" * 5000)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2)), min_size=1, max_size=30),
    st.integers(1, 400),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_blocks_do_not_matter(pairs: list[tuple[int, int]], block_bytes: int, ending: bytes) -> None:
    """The same lines in blocks of any size are the same events (the property streaming rests on)."""
    data = b"".join(step(n, n + extra).encode() + ending for n, extra in pairs)

    class Blocks:
        path = Path("server.log")
        cut = False

        def blocks(self, meter: object) -> list[bytes]:
            return [data[i : i + block_bytes] for i in range(0, len(data), block_bytes)]

    scanner = _Scanner("server.log")
    scanner.piece(Blocks(), None, last=True)  # type: ignore[arg-type]
    tables = log_tables(scanner.result)
    found = []
    for n, b, times in zip(tables.work_running, tables.work_bucket, tables.work_repeats, strict=True):
        found += [(int(n), int(b))] * int(times)
    assert found == [(n, n + extra) for n, extra in pairs]


def test_start_up_lines_do_not_turn_the_clock_back(tmp_path: Path) -> None:
    """What follows a start-up line is looked at once: a clock that only goes on gives no warning."""
    head = "[vllm-rbln] INFO 11-30 03:10:11 [a.py:1] "
    first = f"{head}Updating scheduler_config.max_num_seqs from 1 to 2"
    second = f"{head}Prefix block size is set to 128 based on prefill_chunk_size"
    later = free("a-0-1", 0).replace("03:10:11", "03:10:12")
    run = read(tmp_path, log(first, second, alloc("a-0-1", 0), later))
    assert not any("the clock goes back" in note for note in run.notes)

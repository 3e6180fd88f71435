"""The sample runs as they are, and as they come from real machines: colours, progress bars, rotation, gzip."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import slotgrid as sg
from tests.samples import NAMES, copy_sample, expected, sample_lines

TABLES = ("steps", "requests", "evictions")


def same_tables(a: sg.Run, b: sg.Run) -> None:
    for name in TABLES:
        assert getattr(a, name).equals(getattr(b, name)), name


@pytest.mark.parametrize("name", NAMES)
def test_totals(name: str, tmp_path: Path) -> None:
    run, told = sg.read_run(copy_sample(name, tmp_path)), expected(name)
    assert run.source == "measured"
    assert run.histogram is not None
    assert [list(entry) for entry in run.histogram.iter_rows()] == told["histogram"]
    for key in ("decode_steps", "returns", "reused", "cached_tokens", "computed_tokens", "prompt_tokens"):
        assert getattr(run, key) == told[key], key
    assert {c: run.evicted(c) for c in ("admission", "padding")} | {"unknown": run.evicted(None)} == told["evictions"]
    assert run.notes == ()
    assert run.plan_id == "n8b0"
    assert run.config is not None
    assert run.config.slots == (8 if name == "base_n8_b0" else 16)


def coloured(text: str) -> bytes:
    painted = text.replace("[vllm-rbln] DEBUG", "\x1b[32m[vllm-rbln] \x1b[1;36mDEBUG\x1b[0m")
    return painted.replace("[BUCKET] ", "\x1b[33m[BUCKET]\x1b[0m ").encode()


def with_progress_bars(text: str) -> bytes:
    bar = "Processed prompts:  50%|#####     | 8/16 [00:01<00:01]\r"
    lines = text.splitlines(keepends=True)
    return "".join(bar + bar + line if i % 7 == 0 else line for i, line in enumerate(lines)).encode()


def with_prefixes(text: str) -> bytes:
    return "".join(f"(EngineCore_DP0 pid=4711) {line}\n" for line in text.splitlines()).encode()


DISGUISES: dict[str, Callable[[str], bytes]] = {
    "colours": coloured,
    "bars": with_progress_bars,
    "prefix": with_prefixes,
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "cr_only": lambda text: text.replace("\n", "\r").encode() + b"\n",
    "all": lambda text: with_progress_bars(coloured(with_prefixes(text).decode()).decode()),
}


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("packed", [False, True])
def test_disguised(disguise: str, packed: bool, tmp_path: Path) -> None:
    plain = sg.read_run(copy_sample("base_n8_b0", tmp_path / "plain"))
    folder = copy_sample("base_n8_b0", tmp_path / "other", "requests.jsonl", "plan.json", "metrics.prom")
    data = DISGUISES[disguise]("\n".join(sample_lines()) + "\n")
    if packed:
        (folder / "server.log.gz").write_bytes(gzip.compress(data))
    else:
        (folder / "server.log").write_bytes(data)
    run = sg.read_run(folder)
    same_tables(run, plain)
    assert run.notes == ()


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("cut_lines", [False, True])
def test_rotated(ascending: bool, cut_lines: bool, tmp_path: Path) -> None:
    """Pieces cut anywhere, numbered as logrotate does or the other way round, the old ones packed. All clocks equal."""
    plain = sg.read_run(copy_sample("base_n8_b0", tmp_path / "plain"))
    data = ("\n".join(sample_lines()) + "\n").encode()
    cuts = sorted(random.Random(5).sample(range(10_000, len(data)), 3))
    if not cut_lines:
        cuts = [data.find(b"\n", cut) + 1 for cut in cuts]
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    folder = copy_sample("base_n8_b0", tmp_path / "other", "requests.jsonl", "plan.json", "metrics.prom")
    for i, piece in enumerate(pieces):
        number = i if ascending else len(pieces) - 1 - i
        name = "server.log" if number == 0 else f"server.log.{number}"
        if number >= 2:
            (folder / f"{name}.gz").write_bytes(gzip.compress(piece))
        else:
            (folder / name).write_bytes(piece)
    run = sg.read_run(folder)
    same_tables(run, plain)
    assert run.notes == ()


def test_rotated_by_clock(tmp_path: Path) -> None:
    """Where the clocks differ they decide, whatever the numbers say."""
    folder = copy_sample("base_n8_b0", tmp_path, "requests.jsonl", "plan.json")
    lines = sample_lines()
    (folder / "server.log.1").write_text("\n".join(lines[:300]) + "\n")
    later = [line.replace("03:10:11", "03:10:12") for line in lines[300:]]
    (folder / "server.log.2").write_text("\n".join(later) + "\n")
    run = sg.read_run(folder)
    assert (run.decode_steps, run.reused, run.notes) == (913, 3, ())


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    folder = copy_sample("base_n8_b0", tmp_path)
    seen: list[tuple[int, int]] = []
    sg.read_run(folder, progress=lambda done, total: seen.append((done, total)))
    total = sum((folder / name).stat().st_size for name in ("server.log", "requests.jsonl", "metrics.prom"))
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_saved_and_loaded(tmp_path: Path) -> None:
    run = sg.read_run(copy_sample("base_n8_b0", tmp_path / "in", "server.log", "requests.jsonl"))
    sg.save_run(run, tmp_path / "out")
    again = sg.read_run(tmp_path / "out")
    same_tables(again, run)
    assert again.to_dict() == run.to_dict()


def test_tables_that_were_not_observed_stay_so(tmp_path: Path) -> None:
    run = sg.read_run(copy_sample("base_n8_b0", tmp_path / "in", "requests.jsonl"))
    full = sg.read_run(copy_sample("base_n8_b0", tmp_path / "full"))
    sg.save_run(full, tmp_path / "out")
    sg.save_run(run, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"run.json", "requests.parquet"}
    again = sg.load_run(tmp_path / "out")
    assert again.steps is None
    assert again.evictions is None
    assert again.requests.equals(run.requests)


def test_a_saved_measured_run_takes_steps_from_the_log_beside_it(tmp_path: Path) -> None:
    """What a client saved (no steps) and the server's log in the same directory make one run."""
    plain = sg.read_run(copy_sample("base_n8_b0", tmp_path / "plain"))
    client = sg.read_run(copy_sample("base_n8_b0", tmp_path / "client", "requests.jsonl", "plan.json"))
    both = copy_sample("base_n8_b0", tmp_path / "both", "server.log")
    sg.save_run(client, both)
    run = sg.read_run(both)
    assert run.steps is not None
    assert plain.steps is not None
    assert run.steps.equals(plain.steps)
    assert run.reused == plain.reused
    assert run.plan_sha256 == plain.plan_sha256


def test_simulated_directory_is_read_as_it_is(tmp_path: Path, profile: sg.StackProfile) -> None:
    plan = sg.load_plan(copy_sample("base_n8_b0", tmp_path / "in", "plan.json") / "plan.json")
    run = sg.simulate(profile, sg.ServingConfig((1, 2, 4, 8)), plan)
    sg.save_run(run, tmp_path / "out")
    again = sg.read_run(tmp_path / "out")
    assert again.source == "simulated"
    assert isinstance(again.steps, pl.DataFrame)
    assert again.steps.equals(run.steps)

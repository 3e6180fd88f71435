"""Shared by all tests: data files, the built-in profile and workload, the real command line."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import slotgrid as sg

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parent.parent

# the same examples on every run: a failure in one place is a failure everywhere
settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("fixed")


def read_csv(name: str) -> list[dict[str, str]]:
    """Rows of a CSV file in tests/data."""
    with open(DATA / name, newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="session")
def profile() -> sg.StackProfile:
    return sg.load_profile("rbln-ca25-qwen3-4b")


@pytest.fixture(scope="session")
def two_turn() -> sg.Workload:
    return sg.load_workload("tracelab-two-turn")


@pytest.fixture(scope="session")
def golden_cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((DATA / "engine_cases.json").read_text())["cases"]
    return cases


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model for buckets 1, 2, 4, 8 with 8 slots of 1,024 tokens, compiled once."""
    from slotgrid.serve.backend import on_cores, split_cores
    from slotgrid.serve.compile import compile_model

    folder = tmp_path_factory.mktemp("artifact") / "tiny"
    cores = split_cores()
    with on_cores(None if cores is None else cores[0]):
        compile_model(buckets=(1, 2, 4, 8), slots=8, max_seq_len=1024, prefill_chunk=128, output=folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest static engine that shows every rule: buckets 1 and 2, three slots of 128 tokens, compiled once."""
    from slotgrid.serve.backend import on_cores, split_cores
    from slotgrid.serve.compile import compile_model

    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    cores = split_cores()
    with on_cores(None if cores is None else cores[0]):
        compile_model(buckets=(1, 2), slots=3, max_seq_len=128, prefill_chunk=16, output=folder)
    return folder


Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def slotgrid(tmp_path: Path) -> Command:
    """Run the real command line in an empty folder; returns the finished process.

    file_bytes: no file may grow beyond it there, which stands for a full disk.
    """

    def run(*arguments: str | Path, file_bytes: int | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        start = ["-m", "slotgrid"]
        if file_bytes is not None:
            # set by the new process itself: a function between fork and exec is no safe thing beside JAX's threads
            limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({file_bytes}, {file_bytes}))"
            start = ["-c", f"{limit}\nfrom slotgrid.cli.main import main\nmain()"]
        return subprocess.run(
            [sys.executable, *start, *map(str, arguments)],
            cwd=options.pop("cwd", tmp_path),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **options.pop("env", {})},
            **options,
        )

    return run


def assert_one_line_error(process: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr that holds every part."""
    assert process.returncode == 2, process.stderr
    assert process.stdout == ""
    lines = process.stderr.strip().splitlines()
    assert len(lines) == 1, process.stderr
    for part in parts:
        assert part in lines[0]

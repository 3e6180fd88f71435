"""``slotgrid rbln`` through the real command line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from slotgrid.stacks.rbln import releases
from tests.stacks import wheels
from tests.stacks.artifacts import write, written_config

PROFILE = "rbln-ca25-qwen3-4b"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slotgrid", "rbln", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def refused(process: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr with every part."""
    assert process.returncode == 2, process.stderr
    assert process.stdout == ""
    assert len(process.stderr.strip().splitlines()) == 1, process.stderr
    for part in parts:
        assert part in process.stderr


@pytest.fixture
def nine_slots(tmp_path: Path) -> Path:
    return write(tmp_path / "nine", written_config("0.12.0", batch_size=8, buckets=[8, 4, 2, 1], blocks=9, auto=True))


def test_inspect(nine_slots: Path) -> None:
    process = run("inspect", nine_slots, "--profile", PROFILE, "--json")
    assert process.returncode == 0, process.stderr
    data = json.loads(process.stdout)
    assert data["buckets"] == [1, 2, 4, 8]
    assert (data["slots"], data["max_running"], data["usable_slots"], data["extra_slots"]) == (9, 8, 9, 1)
    assert data["slot_bytes"] == 147_456 * 8_192
    assert data["kv_gib_per_device"] == 9 * 0.28125
    assert data["memory_gib_per_device"] == pytest.approx(2.6 + 9 * 0.28125)
    text = run("inspect", nine_slots).stdout
    assert "9 (9 usable); 1 above the batch size keep prefixes" in text
    assert "1,207,959,552 bytes over all devices" in text
    assert json.loads(run("inspect", nine_slots, "--json").stdout)["memory_gib_per_device"] is None


def test_commands_resize_then_serve(nine_slots: Path) -> None:
    options = ("--model", "Qwen/Qwen3-4B", "--devices", "4", "--release", "0.12.0", "--artifact", nine_slots)
    process = run("commands", "--buckets", "1,2,4,8@12", *options, "--output-dir", "new", "--observe", "e.jsonl")
    assert process.returncode == 0, process.stderr
    first, second = process.stdout.splitlines()
    assert shlex.split(first) == [
        *("optimum-rbln-cli", "--model-id", str(nine_slots)),
        *("--set-kvcache-num-blocks", "12", "--output-dir", "new"),
    ]
    assert second == (
        "VLLM_LOGGING_LEVEL=DEBUG VLLM_RBLN_METRICS=1 SLOTGRID_OBSERVE=e.jsonl "
        "vllm serve new --enable-prefix-caching --enable-prompt-tokens-details"
    )


def test_commands_say_why_a_folder_is_not_resized(tmp_path: Path) -> None:
    folder = write(tmp_path / "fixed", written_config("0.12.0", batch_size=8, buckets=[8, 1], blocks=8))
    process = run("commands", "--buckets", "1,8@9", "--model", "m/x", "--release", "0.12.0", "--artifact", folder)
    assert "--kvcache_num_blocks 9" in process.stdout
    assert "is not resized: its cache has a fixed size" in process.stderr


def test_commands_for_torch_compile() -> None:
    process = run(
        "commands", "--buckets", "1,4,8", "--model", "m/x", "--torch-compile", "--release", "0.12.0", "--json"
    )
    (command,) = json.loads(process.stdout)
    assert command["words"][-4:] == ["--rbln-decode-batch-bucket-manual-buckets", "1", "4", "8"]
    old = run("commands", "--buckets", "1,4,8", "--model", "m/x", "--torch-compile").stdout
    assert "VLLM_RBLN_DECODE_BATCH_BUCKET_MANUAL_BUCKETS=1,4,8 vllm serve m/x" in old


def test_bad_input(tmp_path: Path) -> None:
    refused(run("inspect", tmp_path / "none"), "not an artifact folder")
    refused(run("inspect", tmp_path), "holds no rbln_config.json")
    broken = written_config("0.11.1", batch_size=8, buckets=[8], blocks=8, layers=1)
    broken["decoder_batch_sizes"] = [4]
    refused(run("inspect", write(tmp_path / "b", broken)), "0.11.1: a single size that is not the batch size fails")
    refused(run("commands", "--buckets", "1,8", "--model", "m", "--release", "9"), "release: '9' is not known")
    refused(run("commands", "--buckets", "8,1", "--model", "m"), "sizes must ascend")
    refused(run("commands", "--buckets", "1,8", "--model", "m", "--torch-compile", "--observe", "x"), "--torch-compile")


def test_patch(tmp_path: Path) -> None:
    file = tmp_path / "model_base.py"
    original = (wheels.site_packages("0.11.2") / releases.MODEL_BASE).read_bytes()
    file.write_bytes(original)
    assert "original, as in vllm-rbln 0.11.1, 0.11.1.post1, 0.11.2" in run("patch", "status", "--file", file).stdout
    applied = json.loads(run("patch", "apply", "--file", file, "--json").stdout)
    assert applied["state"] == "patched"
    refused(run("patch", "apply", "--file", file), "already patched")
    assert run("patch", "revert", "--file", file).returncode == 0
    assert file.read_bytes() == original
    refused(run("patch", "revert", "--file", file), "not patched")
    refused(run("patch", "status", "--file", tmp_path), "Is a directory")
    refused(run("patch", "status"), "vllm-rbln is not installed")

"""Artifacts: what they record, and that a damaged or foreign one is refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from slotgrid.serve.artifact import Artifact, load_artifact, new_folder
from slotgrid.serve.compile import compile_model
from slotgrid.serve.executor import Executor


def test_it_records_what_was_fixed(made: Artifact) -> None:
    assert (made.buckets, made.slots, made.max_seq_len, made.prefill_chunk) == ((1, 2, 4, 8), 8, 1024, 128)
    assert [graph.name for graph in made.graphs] == ["decode-1", "decode-2", "decode-4", "decode-8", "prefill", "copy"]
    assert made.platform == "cpu"
    assert set(made.versions) == {"slotgrid", "jax", "jaxlib"}
    data = json.loads((made.folder / "artifact.json").read_text())
    assert data["compile_s"] == pytest.approx(sum(graph["compile_s"] for graph in data["graphs"]))
    for entry in data["graphs"] + data["data"]:
        assert (made.folder / entry["file"]).stat().st_size == entry["bytes"]
    # 12.6 million float32 weights; 9 slots of 1,024 rows of 4 layers x 2 x 2 heads x 64 float32
    weights = next(entry for entry in made.data if entry.name == "weights")
    assert weights.bytes == pytest.approx(12.6e6 * 4, rel=0.01)
    assert made.kv_bytes == 9 * 1024 * 4 * 2 * 2 * 64 * 4
    assert all(graph.bytes < 2**20 for graph in made.graphs)


@pytest.fixture
def copy(artifact: Path, tmp_path: Path) -> Path:
    """A copy whose JSON can be changed; the big files are links."""
    target = tmp_path / "copy"
    target.mkdir()
    for path in artifact.iterdir():
        if path.name == "artifact.json":
            shutil.copy(path, target)
        else:
            (target / path.name).symlink_to(path)
    return target


def change(folder: Path, **values: Any) -> Artifact:
    path = folder / "artifact.json"
    data = json.loads(path.read_text())
    data.update(values)
    path.write_text(json.dumps(data))
    return load_artifact(folder)


def test_another_version_device_or_processor_is_refused(copy: Path, made: Artifact) -> None:
    with pytest.raises(sg.InputError, match=r"compiled with jax 0\.1, installed is .*; compile again"):
        Executor(change(copy, versions={**made.versions, "jax": "0.1"}))
    with pytest.raises(sg.InputError, match=r"compiled for tpu \(v9\), this is cpu"):
        Executor(change(copy, versions=made.versions, platform="tpu", device_kind="v9"))
    with pytest.raises(sg.InputError, match="compiled on another, this is"):
        Executor(change(copy, platform="cpu", device_kind=made.device_kind, host="another"))


@pytest.mark.parametrize("name", ["decode-4.xla", "weights.npz"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "gone"])
def test_a_damaged_file_is_named(copy: Path, artifact: Path, name: str, damage: str) -> None:
    path = copy / name
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(content[:-1] if damage == "truncated" else content[:-1] + bytes((content[-1] ^ 1,)))
    with pytest.raises(sg.InputError, match=name):
        Executor(load_artifact(copy))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("{", "line 1"),
        ('{"format": "other"}', "not an artifact"),
        ('{"format": "slotgrid-artifact/1"}', "shape is missing"),
        ('{"format": "slotgrid-artifact/1", "shape": {"name": "x"}}', "missing"),
    ],
)
def test_a_wrong_config_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "artifact.json").write_text(text)
    with pytest.raises(sg.InputError, match=words) as caught:
        load_artifact(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_artifact_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(sg.InputError, match="make one with slotgrid compile -o"):
        load_artifact(tmp_path / "none")


def test_slots_are_at_most_those_compiled(made: Artifact) -> None:
    assert made.config(4, 2).to_dict() == {"buckets": [1, 2, 4, 8], "slots": 4, "max_running": 2}
    with pytest.raises(sg.InputError, match="--slots: 9; this artifact was compiled with 8"):
        made.config(9)
    with pytest.raises(sg.InputError, match="below max_running 9"):
        made.config(None, 9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prefill_chunk": 0}, "--prefill-chunk: 0"),
        ({"max_seq_len": 200}, "a multiple of the prefill chunk 128"),
        ({"max_seq_len": 64}, "a multiple of the prefill chunk 128"),
        ({"max_seq_len": 128 * 1024}, "up to 32768"),
        ({"buckets": ()}, "buckets: empty"),
        ({"slots": 0}, "slots: 0 is below 1"),
        ({"model": "huge"}, "--model: 'huge'; allowed: tiny, smollm2"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_compiling(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    sizes: dict[str, Any] = {"buckets": (1,), "slots": 1, "max_seq_len": 128, "prefill_chunk": 128}
    with pytest.raises(sg.InputError, match=words):
        compile_model(**{**sizes, **options}, output=tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_a_stopped_compilation_leaves_the_previous_artifact(tmp_path: Path) -> None:
    target = tmp_path / "a"
    with new_folder(target) as folder:
        (folder / "artifact.json").write_text("old")

    def stopped() -> None:
        with new_folder(target) as folder:
            (folder / "artifact.json").write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert (target / "artifact.json").read_text() == "old"
    with new_folder(target) as folder:
        (folder / "artifact.json").write_text("new")
    assert (target / "artifact.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_only_an_artifact_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "photo").write_text("mine")
    with pytest.raises(sg.InputError, match="exists and is not an artifact"), new_folder(tmp_path):
        raise AssertionError("not reached")
    with pytest.raises(sg.InputError, match="cannot write"), new_folder(tmp_path / "photo" / "a"):
        raise AssertionError("not reached")
    assert (tmp_path / "photo").read_text() == "mine"

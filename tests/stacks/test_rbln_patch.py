"""The log line, on a copy of the real file from the wheel."""

from __future__ import annotations

import ast
import logging
import os
from pathlib import Path

import pytest

import slotgrid as sg
from slotgrid.stacks.rbln import patch, releases
from tests.stacks import wheels


@pytest.fixture
def file(tmp_path: Path) -> Path:
    target = tmp_path / "model_base.py"
    target.write_bytes((wheels.site_packages("0.11.1") / releases.MODEL_BASE).read_bytes())
    return target


def test_apply_and_revert(file: Path) -> None:
    original = file.read_bytes()
    os.chmod(file, 0o640)
    assert patch.status(file).state == "original"
    assert patch.status(file).releases == ("0.11.1", "0.11.1.post1", "0.11.2")
    applied = patch.apply(file)
    assert (applied.state, applied.sha256) == ("patched", patch.PATCHED_SHA256)
    assert applied.backup is not None
    assert Path(applied.backup).read_bytes() == original
    patched = file.read_bytes()
    assert patched.replace(patch.LOG_LINE, b"") == original
    assert len(patched.splitlines()) == len(original.splitlines()) + 1
    assert file.stat().st_mode & 0o777 == 0o640
    reverted = patch.revert(file)
    assert file.read_bytes() == original
    assert (reverted.state, reverted.backup) == ("original", None)
    assert file.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in file.parent.iterdir()] == ["model_base.py"]


def test_the_line_stands_where_the_bucket_is_known(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Run the patched function itself: what it logs is what it returns."""
    patch.apply(file)
    (mixin,) = [
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "RBLNOptimumDecoderMixin"
    ]
    (method,) = [n for n in mixin.body if isinstance(n, ast.FunctionDef) and n.name == "preprocess_for_decoder"]
    for argument in method.args.args:
        argument.annotation = None

    class Tensor:
        def __init__(self, rows: int) -> None:
            self.shape = (rows, 1)

        def to(self, _: object) -> Tensor:
            return self

    class Anything:
        int64 = int32 = int16 = None

    class Model:
        use_multiple_decoder = True
        decoder_batch_sizes = (1, 4, 8)
        decoder_batch_size = 8

        def pad_decoder_items(self, *items: object, **_: object) -> object:
            return items

    names = {
        "torch": Anything,
        "logger": logging.getLogger("model_base"),
        "select_bucket_size": lambda n, sizes: next(size for size in sizes if size >= n),
    }
    exec(compile(ast.Module([method], []), str(file), "exec"), names)
    with caplog.at_level(logging.DEBUG, "model_base"):
        for running, bucket in ((1, 1), (3, 4), (8, 8)):
            result = names["preprocess_for_decoder"](Model(), False, *[Tensor(running)] * 3)  # type: ignore[operator]
            assert result["padded_batch_size"] == bucket
    assert caplog.messages == [f"[BUCKET] request_nums={n} padded_batch_size={b}" for n, b in ((1, 1), (3, 4), (8, 8))]


def test_revert_does_without_its_backup(file: Path) -> None:
    original = file.read_bytes()
    backup = patch.apply(file).backup
    assert backup is not None
    Path(backup).unlink()
    patch.revert(file)
    assert file.read_bytes() == original


def refused(file: Path, verb: str, message: str) -> None:
    before = {entry.name: entry.read_bytes() for entry in file.parent.iterdir()}
    with pytest.raises(sg.InputError, match=message) as caught:
        getattr(patch, verb)(file)
    assert "\n" not in str(caught.value)
    assert {entry.name: entry.read_bytes() for entry in file.parent.iterdir()} == before


def test_refusals_change_nothing(file: Path) -> None:
    refused(file, "revert", "not patched; nothing was changed")
    patch.apply(file)
    refused(file, "apply", "already patched; nothing was changed")
    file.write_bytes(file.read_bytes() + b"# mine\n")
    refused(file, "apply", "unknown SHA-256")
    refused(file, "revert", "unknown SHA-256")
    file.write_bytes((wheels.site_packages("0.12.0") / releases.MODEL_BASE).read_bytes())
    refused(file, "apply", "use SLOTGRID_OBSERVE instead")
    refused(file, "revert", "not patched")


def test_a_strange_backup_is_kept(file: Path) -> None:
    backup = file.with_name(file.name + patch.BACKUP_SUFFIX)
    backup.write_text("mine")
    refused(file, "apply", "exists and is not the original")
    assert backup.read_text() == "mine"


def test_missing_files() -> None:
    with pytest.raises(sg.InputError, match="No such file"):
        patch.status(Path("nowhere/model_base.py"))
    with pytest.raises(sg.InputError, match="vllm-rbln is not installed in this environment; name the file with"):
        patch.installed_file()


def test_installed_file_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    root = wheels.site_packages("0.11.1")
    monkeypatch.syspath_prepend(str(root))
    assert patch.installed_file() == root / releases.MODEL_BASE

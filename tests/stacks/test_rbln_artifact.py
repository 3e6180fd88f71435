"""Compiled folders: what the stack's own configuration classes write is read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from slotgrid.stacks.rbln.artifact import read_artifact
from tests.stacks.artifacts import write, written_config


@pytest.mark.parametrize("release", ["0.11.1", "0.11.2", "0.12.0"])
def test_what_the_stack_writes_is_read_back(tmp_path: Path, release: str) -> None:
    data = written_config(release, batch_size=8, buckets=[1, 4, 8, 2], blocks=8)
    left_open = written_config(release, batch_size=8, buckets=[1, 4, 8, 2], blocks=8, auto=True)
    assert read_artifact(write(tmp_path / "open", left_open)).resizable
    assert data["decoder_batch_sizes"] == [8, 4, 2, 1]
    artifact = read_artifact(write(tmp_path, data))
    assert artifact.config == sg.ServingConfig((1, 2, 4, 8))
    assert (artifact.usable_slots, artifact.extra_slots) == (8, 0)
    assert (artifact.optimum_version, artifact.npu, artifact.devices) == (release, "RBLN-CA25", 4)
    assert [part.name for part in artifact.parts] == ["prefill"] + [f"decoder_batch_{n}" for n in (8, 4, 2, 1)]
    assert all(part.devices == 4 for part in artifact.parts)
    # 36 layers x 8 heads x 128 x keys and values x 2 bytes x 8,192 tokens = 1.125 GiB a slot, 0.28125 a device
    assert artifact.slot_bytes == 147_456 * 8_192
    assert artifact.kv_gib_per_device == 8 * 0.28125
    assert artifact.block_tokens == 128
    assert not artifact.resizable


def test_one_bucket_when_the_list_is_absent(tmp_path: Path) -> None:
    data = written_config("0.11.1", batch_size=4, buckets=None, blocks=4)
    assert data.pop("decoder_batch_sizes") == [4]
    assert read_artifact(write(tmp_path, data)).config == sg.ServingConfig((4,))
    data["decoder_batch_sizes"] = None
    assert read_artifact(write(tmp_path, data)).config == sg.ServingConfig((4,))


@pytest.mark.parametrize(("blocks", "usable", "extra"), [(8, 8, 0), (9, 9, 1), (16, 16, 8), (7, 6, 0), (2, 1, 0)])
def test_blocks_above_and_below_the_batch_size(tmp_path: Path, blocks: int, usable: int, extra: int) -> None:
    data = written_config("0.12.0", batch_size=8, buckets=[8, 1], blocks=blocks)
    artifact = read_artifact(write(tmp_path, data))
    assert (artifact.config.slots, artifact.usable_slots, artifact.extra_slots) == (blocks, usable, extra)
    assert artifact.config.max_running == 8


def test_what_an_artifact_does_not_say_is_not_zero(tmp_path: Path) -> None:
    data = written_config("0.12.0", batch_size=2, buckets=None, blocks=2)
    data["cache_metas"] = []
    for part in data["_compile_cfgs"]:
        part["num_devices"] = None
    artifact = read_artifact(write(tmp_path, data))
    assert artifact.devices is None
    assert artifact.slot_bytes is None
    assert artifact.kv_gib_per_device is None
    assert not artifact.resizable
    assert json.loads(json.dumps(artifact.to_dict()))["slot_bytes"] is None


def test_fewer_heads_than_devices_are_copied(tmp_path: Path) -> None:
    data = written_config("0.12.0", batch_size=2, buckets=None, blocks=2)
    for meta in data["cache_metas"]:
        meta["shape"][1] = 2
    artifact = read_artifact(write(tmp_path, data))
    assert artifact.slot_bytes == 147_456 * 8_192 // 4
    assert artifact.slot_bytes_per_device == artifact.slot_bytes // 2


def changed(**changes: Any) -> dict[str, Any]:
    data = written_config("0.11.1", batch_size=8, buckets=[8, 4, 1], blocks=8, layers=1)
    for key, value in changes.items():
        if value is KeyError:
            del data[key]
        else:
            data[key] = value
    return data


BAD = [
    ({"batch_size": KeyError}, "batch_size is missing"),
    ({"batch_size": True}, "batch_size is True"),
    ({"max_seq_len": KeyError}, "max_seq_len is missing"),
    ({"kvcache_block_size": KeyError}, "kvcache_block_size is missing"),
    ({"kvcache_num_blocks": KeyError}, "kvcache_num_blocks is missing"),
    ({"kvcache_num_blocks": 0}, "never settled"),
    ({"kvcache_num_blocks": 1}, "kept for padding"),
    ({"prefill_chunk_size": KeyError}, "prefill_chunk_size is missing"),
    ({"attn_impl": KeyError}, "attn_impl is missing"),
    ({"attn_impl": "paged"}, "known are 'eager' and 'flash_attn'"),
    ({"cls_name": KeyError}, "cls_name is missing"),
    ({"kvcache_metas": KeyError}, "cache_metas is missing"),
    ({"kvcache_metas": {}}, "not a list"),
    ({"_compile_cfgs": KeyError}, "_compile_cfgs is missing"),
    ({"cache_impl": "hybrid"}, "sliding windows are not modelled"),
    ({"optimum_rbln_version": "0.9.3"}, "known are 0.11.1, 0.11.2, 0.12.0"),
    ({"optimum_rbln_version": KeyError}, "optimum_rbln_version is missing"),
    ({"decoder_batch_sizes": [4]}, "a single size that is not the batch size fails when the server loads it"),
    ({"decoder_batch_sizes": [4, 1]}, "ends at 4, batch_size is 8; they must agree"),
    ({"decoder_batch_sizes": [1, 4, 8]}, "descending and unique"),
    ({"decoder_batch_sizes": [8, 8]}, "descending and unique"),
    ({"decoder_batch_sizes": []}, "expected a list"),
    ({"decoder_batch_sizes": "8"}, "expected a list"),
    ({"_meta": {}}, "before 0.11"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_configs_are_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write(tmp_path, changed(**changes))
    with pytest.raises(sg.InputError) as caught:
        read_artifact(folder)
    text = str(caught.value)
    assert message in text
    assert str(folder / "rbln_config.json") in text
    assert "\n" not in text


def test_flash_attention_is_refused_with_the_reason(tmp_path: Path) -> None:
    data = written_config(
        "0.11.1",
        batch_size=8,
        buckets=[8],
        blocks=9,
        block_size=4096,
        attn_impl="flash_attn",
        kvcache_partition_len=4096,
        layers=1,
    )
    with pytest.raises(sg.InputError, match=r"up to 2 blocks of 4096; only one block a sequence \('eager'\)"):
        read_artifact(write(tmp_path, data))


def test_several_parts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(sg.InputError, match="a model of several parts"):
        read_artifact(write(tmp_path, {"optimum_rbln_version": "0.12.0", "language_model": {}}))


def test_not_an_artifact(tmp_path: Path) -> None:
    with pytest.raises(sg.InputError, match=r"holds no rbln_config.json"):
        read_artifact(tmp_path)
    with pytest.raises(sg.InputError, match="not an artifact folder"):
        read_artifact(tmp_path / "nothing")
    (tmp_path / "rbln_config.json").write_text("[1]")
    with pytest.raises(sg.InputError, match="not a JSON object"):
        read_artifact(tmp_path)
    (tmp_path / "rbln_config.json").write_text("{")
    with pytest.raises(sg.InputError, match="line 1"):
        read_artifact(tmp_path)

"""What a folder compiled by optimum-rbln holds. Source: the configuration classes of optimum-rbln 0.11.1 to 0.12.0."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.config import ServingConfig
from slotgrid.errors import InputError
from slotgrid.stacks.rbln.releases import ARTIFACT_VERSIONS

CONFIG_FILE = "rbln_config.json"
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1}
_GIB = 1 << 30


@dataclass(frozen=True)
class Part:
    """One compiled graph ("prefill", "decoder_batch_8", ...) and the devices it runs on (None: not written down)."""

    name: str
    devices: int | None


@dataclass(frozen=True)
class Artifact:
    """A compiled decoder-only model, one KV block a sequence.

    config: buckets, slots (``kvcache_num_blocks`` as it stands) and running limit (the batch size).
    usable_slots: slots requests can hold; with fewer than ``max_running`` the server keeps one back for padding.
    extra_slots: slots above the batch size; the server uses them to keep prefixes.
    block_tokens: unit of reuse (the prefill chunk unless the server is told otherwise).
    slot_bytes: KV bytes of one slot over all devices; None when the artifact does not describe its cache.
    resizable: the number of blocks was left to the compiler, so it can be changed without compiling again.
    """

    folder: str
    optimum_version: str
    model_class: str
    npu: str | None
    config: ServingConfig
    usable_slots: int
    max_seq_len: int
    slot_tokens: int
    block_tokens: int
    parts: tuple[Part, ...]
    devices: int | None
    slot_bytes: int | None
    slot_bytes_per_device: int | None
    resizable: bool

    @property
    def extra_slots(self) -> int:
        """KV slots beyond the running limit."""
        return max(0, self.config.slots - self.config.max_running)

    @property
    def kv_gib_per_device(self) -> float | None:
        """GiB of KV cache on each device; None when bytes or devices are not known."""
        if self.slot_bytes_per_device is None:
            return None
        return self.config.slots * self.slot_bytes_per_device / _GIB

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; what the artifact does not say is null."""
        return {
            "folder": self.folder,
            "optimum_version": self.optimum_version,
            "model_class": self.model_class,
            "npu": self.npu,
            **self.config.to_dict(),
            "usable_slots": self.usable_slots,
            "extra_slots": self.extra_slots,
            "max_seq_len": self.max_seq_len,
            "slot_tokens": self.slot_tokens,
            "block_tokens": self.block_tokens,
            "parts": [{"name": part.name, "devices": part.devices} for part in self.parts],
            "devices": self.devices,
            "slot_bytes": self.slot_bytes,
            "slot_bytes_per_device": self.slot_bytes_per_device,
            "kv_gib_per_device": self.kv_gib_per_device,
            "resizable": self.resizable,
        }

    def __repr__(self) -> str:
        return f"Artifact({self.folder!r}: {self.model_class}, {self.config.label}, {self.max_seq_len} tokens)"


def read_artifact(folder: str | Path) -> Artifact:
    """Read ``rbln_config.json`` of a compiled folder.

    Raises InputError naming file and key: not an artifact, an unknown version, a missing key, a bucket list that
    does not end at the batch size, or a cache layout that is not modelled (several blocks a sequence, windows).
    """
    target = Path(folder)
    path = target / CONFIG_FILE
    if not target.is_dir():
        raise InputError(f"{target}: not an artifact folder; expected a folder with {CONFIG_FILE}")
    if not path.is_file():
        raise InputError(f"{target}: not an artifact folder; it holds no {CONFIG_FILE}")
    data = files.read_json(path)
    where = str(path)
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: not a JSON object; expected what optimum-rbln writes")
    if "_meta" in data:
        raise InputError(f"{where}: written by an optimum-rbln before 0.11; compile the model again")
    version = _text(data, "optimum_rbln_version", where)
    if version.split(".post")[0] not in ARTIFACT_VERSIONS:
        raise InputError(f"{where}: optimum_rbln_version is {version!r}; known are {', '.join(ARTIFACT_VERSIONS)}")
    if "batch_size" not in data and any(name in data for name in ("language_model", "text_model")):
        raise InputError(f"{where}: a model of several parts; only decoder-only models with a batch_size are read")

    batch = _whole(data, "batch_size", where)
    max_seq_len = _whole(data, "max_seq_len", where)
    slot_tokens = _whole(data, "kvcache_block_size", where)
    _check_layout(data, where, max_seq_len, slot_tokens)
    blocks = _whole(data, "kvcache_num_blocks", where, least=0)
    if blocks == 0:
        raise InputError(f"{where}: kvcache_num_blocks is 0; the number of blocks was never settled, compile again")
    config = ServingConfig(_buckets(data, batch, version, where), slots=blocks, max_running=batch)
    kept_back = blocks < batch * math.ceil(max_seq_len / slot_tokens)
    if kept_back and blocks == 1:
        raise InputError(f"{where}: kvcache_num_blocks is 1 with batch_size {batch}: the one block is kept for padding")

    parts = _parts(data, where)
    named = [part.devices for part in parts if part.devices is not None]
    devices = _whole(data, "num_devices", where) if data.get("num_devices") is not None else max(named, default=None)
    metas = _metas(data, where)
    slot_bytes, device_bytes = _slot_bytes(metas, devices, where)
    return Artifact(
        folder=str(target),
        optimum_version=version,
        model_class=_text(data, "cls_name", where).removesuffix("Config"),
        npu=_optional_text(data, "npu", where) or next((n for n in _npus(data)), None),
        config=config,
        usable_slots=blocks - 1 if kept_back else blocks,
        max_seq_len=max_seq_len,
        slot_tokens=slot_tokens,
        block_tokens=_whole(data, "prefill_chunk_size", where),
        parts=parts,
        devices=devices,
        slot_bytes=slot_bytes,
        slot_bytes_per_device=device_bytes,
        resizable=bool(metas) and all(meta.get("is_auto") is True for meta in metas),
    )


def _check_layout(data: Mapping[str, Any], where: str, max_seq_len: int, slot_tokens: int) -> None:
    """Refuse what the engine does not model, with the reason."""
    attention = _text(data, "attn_impl", where)
    per_sequence = math.ceil(max_seq_len / slot_tokens)
    if attention == "flash_attn" or per_sequence > 1:
        partition = data.get("kvcache_partition_len")
        split = "" if partition is None else f" (kvcache_partition_len {partition})"
        raise InputError(
            f"{where}: attn_impl is {attention!r}{split}: a sequence of {max_seq_len} tokens takes up to "
            f"{per_sequence} blocks of {slot_tokens}; only one block a sequence ('eager') is modelled"
        )
    if attention != "eager":
        raise InputError(f"{where}: attn_impl is {attention!r}; known are 'eager' and 'flash_attn'")
    cache = data.get("cache_impl", "static")
    if cache != "static":
        raise InputError(f"{where}: cache_impl is {cache!r}: sliding windows are not modelled; only 'static' is")


def _buckets(data: Mapping[str, Any], batch: int, version: str, where: str) -> tuple[int, ...]:
    """Ascending bucket sizes; the file lists them descending, absent or null means one bucket."""
    sizes = data.get("decoder_batch_sizes")
    if sizes is None:
        return (batch,)
    if not isinstance(sizes, list) or not sizes or not all(_is_whole(size, 1) for size in sizes):
        raise InputError(f"{where}: decoder_batch_sizes is {sizes!r}; expected a list of whole numbers of at least 1")
    if any(upper <= lower for upper, lower in itertools.pairwise(sizes)):
        raise InputError(f"{where}: decoder_batch_sizes is {sizes}; the server needs them descending and unique")
    if sizes[0] != batch:
        reason = (
            "a single size that is not the batch size fails when the server loads it"
            if len(sizes) == 1
            else "steps between the two sizes would have no compiled graph"
        )
        raise InputError(
            f"{where}: decoder_batch_sizes {sizes} ends at {sizes[0]}, batch_size is {batch}; they must agree "
            f"(optimum-rbln {version}: {reason})"
        )
    return tuple(reversed(sizes))


def _compiled(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    parts = data.get("_compile_cfgs")
    return [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []


def _npus(data: Mapping[str, Any]) -> list[str]:
    return [str(part["npu"]) for part in _compiled(data) if part.get("npu")]


def _parts(data: Mapping[str, Any], where: str) -> tuple[Part, ...]:
    found = []
    for index, part in enumerate(_compiled(data)):
        at = f"{where}: _compile_cfgs[{index}]"
        devices = None if part.get("num_devices") is None else _whole(part, "num_devices", at)
        found.append(Part(_text(part, "compiled_model_name", at), devices))
    if not found:
        raise InputError(f"{where}: _compile_cfgs is missing or empty; expected one entry per compiled graph")
    return tuple(found)


def _metas(data: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    """Cache tensors: ``kvcache_metas`` of 0.11.1, ``cache_metas`` since 0.11.2."""
    key = next((name for name in ("cache_metas", "kvcache_metas") if name in data), None)
    if key is None:
        raise InputError(f"{where}: cache_metas is missing (kvcache_metas before 0.11.2)")
    metas = data[key]
    if not isinstance(metas, list) or not all(isinstance(meta, Mapping) for meta in metas):
        raise InputError(f"{where}: {key} is not a list of objects")
    for index, meta in enumerate(metas):
        kind = meta.get("layer_type")
        if kind != "full_attention":
            raise InputError(f"{where}: {key}[{index}].layer_type is {kind!r}; only 'full_attention' is modelled")
    return metas


def _slot_bytes(metas: list[Mapping[str, Any]], devices: int | None, where: str) -> tuple[int | None, int | None]:
    """Bytes of one block over all cache tensors, and on one device (heads are split, rounded up)."""
    if not metas:
        return None, None
    total = on_device = 0
    for index, meta in enumerate(metas):
        shape = meta.get("shape")
        if not isinstance(shape, list) or len(shape) != 4 or not all(_is_whole(size, 1) for size in shape):
            raise InputError(
                f"{where}: cache tensor {index}: shape is {shape!r}; expected [blocks, heads, tokens, head size]"
            )
        if meta.get("dtype") not in _BYTES:
            raise InputError(
                f"{where}: cache tensor {index}: dtype is {meta.get('dtype')!r}; known: {', '.join(_BYTES)}"
            )
        _, heads, tokens, size = shape
        row = tokens * size * _BYTES[meta["dtype"]]
        total += heads * row
        on_device += math.ceil(heads / (devices or 1)) * row
    return total, None if devices is None else on_device


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _whole(data: Mapping[str, Any], key: str, where: str, least: int = 1) -> int:
    if data.get(key) is None:
        raise InputError(f"{where}: {key} is missing; a whole number of at least {least}")
    if not _is_whole(data[key], least):
        raise InputError(f"{where}: {key} is {data[key]!r}; a whole number of at least {least}")
    return int(data[key])


def _text(data: Mapping[str, Any], key: str, where: str) -> str:
    if data.get(key) is None:
        raise InputError(f"{where}: {key} is missing; a text")
    value = data[key]
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}: {key} is {value!r}; a text")
    return value


def _optional_text(data: Mapping[str, Any], key: str, where: str) -> str | None:
    return None if data.get(key) is None else _text(data, key, where)

"""Compiled folders as the stack's own configuration classes write them, without compiling anything."""

from __future__ import annotations

import json
import logging
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.stacks import wheels

_DECODER = "optimum.rbln.transformers.models.decoderonly"


def optimum_stand_ins() -> dict[str, types.ModuleType]:
    """What the configuration classes and the command line import besides themselves."""
    names = ["rebel", "transformers", "transformers._typing", "safetensors", "safetensors.torch", "huggingface_hub"]
    names += ["optimum.rbln.transformers.utils.rbln_quantization", f"{_DECODER}.configuration_lora"]
    stand_ins = {name: wheels.stub(name) for name in (*names, "optimum.rbln.utils.runtime_utils")}
    log = types.ModuleType("optimum.rbln.utils.logging")
    log.get_logger = lambda *_: logging.getLogger("optimum")  # type: ignore[attr-defined]
    stand_ins[log.__name__] = log
    return stand_ins


def written_config(
    release: str,
    *,
    batch_size: int,
    buckets: Sequence[int] | None,
    blocks: int,
    max_seq_len: int = 8192,
    block_size: int = 8192,
    auto: bool = False,
    layers: int = 36,
    **changes: Any,
) -> dict[str, Any]:
    """The values of rbln_config.json as optimum-rbln ``release`` serializes them: a Qwen3-4B cache (8 heads of 128
    on 4 devices) unless told otherwise. auto: the cache is marked as sized by the compiler; for eager attention these
    releases settle the number of blocks first, so their own artifacts say false."""
    with wheels.imported(release, optimum_stand_ins()):
        module = wheels.load(f"{_DECODER}.configuration_decoderonly")
        compile_config = wheels.load("optimum.rbln.configuration_utils").RBLNCompileConfig
        make = module.RBLNDecoderOnlyModelForCausalLMConfig
        settings: dict[str, Any] = {
            "batch_size": batch_size,
            "max_seq_len": max_seq_len,
            "decoder_batch_sizes": None if buckets is None else list(buckets),
            "attn_impl": "eager",
            "kvcache_block_size": block_size,
            "kvcache_num_blocks": blocks,
            "prefill_chunk_size": 128,
            "num_devices": 4,
            "npu": "RBLN-CA25",
            "dtype": "bfloat16",
        }
        settings.update(changes)
        sized = make(**{**settings, "kvcache_num_blocks": 0 if auto else blocks})
        metas = []
        for layer in range(layers):
            for kind in ("key", "value"):
                name = f"past_{kind}_{layer}"
                if release == "0.11.1":
                    metas.append(module.KVCacheMeta.make(name, layer, 8, 128, "bfloat16", sized))
                else:
                    paged = wheels.load("optimum.rbln.transformers.cache_utils").FullAttentionKVCacheMeta
                    metas.append(paged.from_config(name, layer, 8, 128, "bfloat16", sized))
        config = make(**settings)
        parts = ["prefill"] + [f"decoder_batch_{size}" for size in config.decoder_batch_sizes]
        config.set_compile_cfgs([compile_config(name, [("input_ids", [1, 1], "int64")]) for name in parts])
        setattr(config, "kvcache_metas" if release == "0.11.1" else "cache_metas", metas)
        data: dict[str, Any] = json.loads(json.dumps(config._prepare_for_serialization()))
    return data


def write(folder: Path, data: Any) -> Path:
    """Write ``rbln_config.json`` into a folder and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rbln_config.json").write_text(json.dumps(data))
    return folder

"""Ahead-of-time compilation: one executable per bucket, one for prefill, one for copying a slot."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from slotgrid import files
from slotgrid.config import ServingConfig
from slotgrid.errors import InputError
from slotgrid.serve import artifact as art
from slotgrid.serve.shapes import ModelShape, find_model

Progress = Callable[[str, float, int], None]


def compile_model(
    *,
    buckets: Sequence[int],
    slots: int,
    max_seq_len: int,
    prefill_chunk: int,
    output: str | Path,
    model: str = "tiny",
    seed: int = 0,
    progress: Progress | None = None,
) -> art.Artifact:
    """Compile a model for fixed buckets and slots and write the artifact directory, whole or not at all.

    slots: KV slots of ``max_seq_len`` tokens. prefill_chunk: tokens of a prefill graph, also the block reuse counts
    in. seed: of the random weights (``tiny``). progress: called after each graph with name, seconds and bytes.
    Raises InputError when sizes do not fit together or the folder cannot be written.
    """
    shape = find_model(model)
    config = ServingConfig(buckets, slots=slots)
    if prefill_chunk < 1:
        raise InputError(f"--prefill-chunk: {prefill_chunk}; allowed: at least 1")
    if not prefill_chunk <= max_seq_len <= shape.positions or max_seq_len % prefill_chunk:
        raise InputError(
            f"--max-seq-len: {max_seq_len}; allowed: a multiple of the prefill chunk {prefill_chunk} "
            f"up to {shape.positions}"
        )
    from slotgrid.serve.backend import start_jax

    jax = start_jax()
    from jax.experimental import serialize_executable

    with art.new_folder(Path(output)) as folder:
        weights, data = _write_data(shape, seed, folder)
        abstract = _abstract(jax, shape, weights, slots, max_seq_len)
        graphs = []
        for name, function, arguments, donated in _graphs(jax, shape, abstract, config.buckets, prefill_chunk):
            begin = time.perf_counter()
            compiled = jax.jit(function, donate_argnums=donated).lower(*arguments).compile()
            seconds = time.perf_counter() - begin
            payload, _, _ = serialize_executable.serialize(compiled)
            graphs.append(art.add_file(folder, name, f"{name}.xla", payload, round(seconds, 3)))
            if progress is not None:
                progress(name, seconds, len(payload))
        device = jax.devices()[0]
        made = art.Artifact(
            folder=folder,
            shape=shape,
            buckets=config.buckets,
            slots=slots,
            max_seq_len=max_seq_len,
            prefill_chunk=prefill_chunk,
            platform=device.platform,
            device_kind=device.device_kind,
            host=art.host_name(),
            versions=art.versions(),
            graphs=tuple(graphs),
            data=tuple(data),
        )
        files.write_json(folder / art.CONFIG, made.to_dict())
    return art.load_artifact(output)


def _write_data(shape: ModelShape, seed: int, folder: Path) -> tuple[dict[str, Any], list[art.ArtifactFile]]:
    import numpy as np

    from slotgrid.serve.weights import flatten, random_weights

    data = []
    if shape.name == "smollm2":
        from slotgrid.serve.smollm2 import read_smollm2

        weights, tokenizer = read_smollm2(shape)
        data.append(art.add_file(folder, "tokenizer", "tokenizer.json", tokenizer.encode()))
    else:
        weights = random_weights(shape, seed)
    buffer = BytesIO()
    np.savez(buffer, **flatten(weights))  # type: ignore[arg-type]  # names are arrays, never allow_pickle
    data.append(art.add_file(folder, "weights", "weights.npz", buffer.getvalue()))
    return weights, data


def _abstract(jax: Any, shape: ModelShape, weights: Any, slots: int, max_seq_len: int) -> tuple[Any, Any]:
    """Shapes of the weights and of the KV memory."""
    import numpy as np

    struct = jax.ShapeDtypeStruct
    rows = struct((slots + 1, shape.kv_heads, max_seq_len, shape.head_dim), np.float32)
    return (
        jax.tree.map(lambda array: struct(array.shape, array.dtype), weights),
        tuple((rows, rows) for _ in range(shape.layers)),
    )


def _graphs(
    jax: Any, shape: ModelShape, abstract: tuple[Any, Any], buckets: Sequence[int], chunk: int
) -> list[tuple[str, Callable[..., Any], tuple[Any, ...], tuple[int, ...]]]:
    """(name, function, argument shapes, donated arguments) of every graph."""
    import numpy as np

    from slotgrid.serve import model

    weights, cache = abstract

    def ints(*size: int) -> Any:
        return jax.ShapeDtypeStruct(size, np.int32)

    graphs: list[tuple[str, Callable[..., Any], tuple[Any, ...], tuple[int, ...]]] = [
        (f"decode-{b}", partial(model.decode_step, shape), (weights, cache, ints(b), ints(b), ints(b)), (1,))
        for b in buckets
    ]
    prefill = (weights, cache, ints(chunk), ints(), ints(), ints())
    graphs.append((art.PREFILL, partial(model.prefill_chunk, shape), prefill, (1,)))
    graphs.append((art.COPY, model.copy_slot, (cache, ints(), ints()), (0,)))
    return graphs

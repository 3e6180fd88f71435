"""``slotgrid compile``: a static model, compiled ahead of time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotgrid.cli._common import JsonOption, note, print_json


def compile_(
    buckets: Annotated[str, typer.Option(help="Decode batch buckets, e.g. 1,2,4,8.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Artifact directory to write.", metavar="ARTIFACT")],
    slots: Annotated[int | None, typer.Option(help="KV slots; the top bucket unless given.")] = None,
    max_seq_len: Annotated[int, typer.Option(help="Tokens a slot holds.")] = 1024,
    prefill_chunk: Annotated[int, typer.Option(help="Tokens of a prefill graph, and the unit of reuse.")] = 128,
    model: Annotated[str, typer.Option(help="tiny (random weights) or smollm2 (see docs/serve.md).")] = "tiny",
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Compile a small real model for fixed buckets and KV slots; needs slotgrid[serve]."""
    from slotgrid.config import ServingConfig
    from slotgrid.serve.backend import on_cores, split_cores
    from slotgrid.serve.compile import compile_model
    from slotgrid.serve.require import require

    config = ServingConfig.parse(buckets, slots=slots)
    require("slotgrid compile", "jax")
    cores = split_cores()
    # compiled for the one core the engine will have: the code then never hands work to other threads
    with on_cores(None if cores is None else cores[0]):
        made = compile_model(
            buckets=config.buckets,
            slots=config.slots,
            max_seq_len=max_seq_len,
            prefill_chunk=prefill_chunk,
            output=output,
            model=model,
            seed=seed,
            progress=lambda name, seconds, size: note(f"{name}: {seconds:.2f} s, {size / 1024:.0f} KiB"),
        )
    if as_json:
        print_json(made.to_dict())
    else:
        note(
            f"{output}: {len(made.graphs)} graphs in {made.compile_s:.1f} s, "
            f"{made.total_bytes / 2**20:.1f} MiB, KV memory {made.kv_bytes / 2**20:.1f} MiB"
        )

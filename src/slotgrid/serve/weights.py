"""Weights of the tiny model: random, the same for the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.serve.shapes import ModelShape

Array = npt.NDArray[np.float32]


def random_weights(shape: ModelShape, seed: int) -> dict[str, Any]:
    """Weights as :mod:`slotgrid.serve.model` takes them, float32, drawn from one seeded generator.

    Logits of different tokens are far apart, so that outputs do not hang on the last bits of a sum.
    """
    random = np.random.default_rng(seed)

    def draw(rows: int, columns: int) -> Array:
        drawn = random.standard_normal((rows, columns), dtype=np.float32)
        drawn *= np.float32(rows**-0.5)
        return drawn

    hidden, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layers = []
    for _ in range(shape.layers):
        layer: dict[str, Array] = {
            "attention_norm": np.ones(hidden, np.float32),
            "q": draw(hidden, q),
            "k": draw(hidden, kv),
            "v": draw(hidden, kv),
            "o": draw(q, hidden),
            "feed_forward_norm": np.ones(hidden, np.float32),
            "gate": draw(hidden, shape.feed_forward),
            "up": draw(hidden, shape.feed_forward),
            "down": draw(shape.feed_forward, hidden),
        }
        if shape.qk_norm:
            layer["q_norm"] = np.ones(shape.head_dim, np.float32)
            layer["k_norm"] = np.ones(shape.head_dim, np.float32)
        layers.append(layer)
    weights: dict[str, Any] = {
        "embed": random.standard_normal((shape.vocabulary, hidden), dtype=np.float32),
        "norm": np.ones(hidden, np.float32),
        "layers": layers,
    }
    if not shape.tied:
        weights["head"] = draw(hidden, shape.vocabulary)
    return weights


def flatten(weights: Mapping[str, Any]) -> dict[str, Array]:
    """One name per array: ``embed``, ``layers.0.q`` ..."""
    return dict(_walk(weights, ""))


def unflatten(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """The inverse of :func:`flatten`."""
    weights: dict[str, Any] = {"layers": []}
    for name, array in arrays.items():
        head, _, rest = name.partition(".")
        if head != "layers":
            weights[head] = array
            continue
        index, _, key = rest.partition(".")
        while len(weights["layers"]) <= int(index):
            weights["layers"].append({})
        weights["layers"][int(index)][key] = array
    return weights


def _walk(value: Any, path: str) -> Iterator[tuple[str, Array]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}.{index}")
    else:
        yield path, value

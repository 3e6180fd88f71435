"""ModelShape: the sizes of a decoder, and the two models that can be compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from slotgrid.errors import InputError


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a pre-norm decoder with rotary positions, grouped query heads and a gated feed-forward.

    Lengths in elements. qk_norm: query and key heads are normalised before the rotation. tied: the output layer
    is the embedding. One KV row holds ``2 * layers * kv_heads * head_dim`` float32 values.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    positions: int
    rope_theta: float
    norm_epsilon: float
    qk_norm: bool
    tied: bool

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * 4

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelShape:
        return cls(**data)


TINY = ModelShape(
    name="tiny",
    layers=4,
    hidden=384,
    heads=6,
    kv_heads=2,
    head_dim=64,
    feed_forward=1024,
    vocabulary=8192,
    positions=32768,
    rope_theta=10_000.0,
    norm_epsilon=1e-6,
    qk_norm=True,
    tied=False,
)
# sizes as its GGUF metadata states them; the reader checks that they still do
SMOLLM2 = ModelShape(
    name="smollm2",
    layers=30,
    hidden=576,
    heads=9,
    kv_heads=3,
    head_dim=64,
    feed_forward=1536,
    vocabulary=49152,
    positions=8192,
    rope_theta=100_000.0,
    norm_epsilon=1e-5,
    qk_norm=False,
    tied=True,
)
MODELS = {shape.name: shape for shape in (TINY, SMOLLM2)}


def find_model(name: str) -> ModelShape:
    """A model by name. Raises InputError for an unknown one."""
    if name not in MODELS:
        raise InputError(f"--model: {name!r}; allowed: {', '.join(MODELS)}")
    return MODELS[name]

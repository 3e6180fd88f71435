"""The decoder as three pure functions of fixed shapes: one decode step, one prefill chunk, one slot copy.

KV memory is one pair of arrays per layer, float32[slots + 1, kv_heads, max_seq_len, head_dim]; the last row is the
spare slot that padding rows of a decode step write to. All three functions take it donated and give it back, so that
a step changes rows in place. Attention always spans ``max_seq_len`` positions and masks what is not there yet: the
time of a step depends on its compiled size and on nothing else.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from slotgrid.serve.shapes import ModelShape

# a pytree of float32 arrays: {"embed", "head"?, "norm", "layers": [{...}, ...]}
Weights = dict[str, Any]
# per layer (keys, values)
KvCache = tuple[tuple[jax.Array, jax.Array], ...]

_MASKED = -1e30


def decode_step(
    shape: ModelShape, weights: Weights, cache: KvCache, tokens: jax.Array, slots: jax.Array, positions: jax.Array
) -> tuple[jax.Array, jax.Array, KvCache]:
    """One token for each of B rows.

    tokens, slots, positions: int32[B], the token to append, its slot and its position there. Returns the most
    likely next tokens int32[B], the logits float32[B, vocabulary] and the cache.
    """
    rows = tokens.shape[0]
    x = weights["embed"][tokens]
    cos, sin = _rotation(shape, positions)
    spare, span = cache[0][0].shape[0] - 1, cache[0][0].shape[2]
    # padding rows write to the spare slot but read different ones: reading one slot again and again would be faster
    # than what real rows do, and a step must take as long however many of its rows are real
    read = jnp.where(slots == spare, jnp.arange(rows, dtype=jnp.int32) % max(spare, 1), slots)
    seen = jnp.arange(span)[None, :] <= positions[:, None]
    new_cache = []
    for layer, memory in zip(weights["layers"], cache, strict=True):
        keys, values = memory
        q, k, v = _project(shape, layer, x, cos, sin)
        # one write a row, in place; a scatter would copy the whole buffer
        for i in range(rows):
            at = (slots[i], 0, positions[i], 0)
            keys = lax.dynamic_update_slice(keys, k[i][None, :, None, :], at)
            values = lax.dynamic_update_slice(values, v[i][None, :, None, :], at)
        grouped = q.reshape(rows, shape.kv_heads, -1, shape.head_dim)
        scores = jnp.einsum("bgqd,bgsd->bgqs", grouped, keys[read]) * shape.head_dim**-0.5
        scores = jnp.where(seen[:, None, None, :], scores, _MASKED)
        mixed = jnp.einsum("bgqs,bgsd->bgqd", jax.nn.softmax(scores, axis=-1), values[read])
        x = _finish_layer(shape, layer, x, mixed.reshape(rows, -1))
        new_cache.append((keys, values))
    logits = _logits(shape, weights, x)
    return jnp.argmax(logits, axis=-1).astype(jnp.int32), logits, tuple(new_cache)


def prefill_chunk(
    shape: ModelShape,
    weights: Weights,
    cache: KvCache,
    tokens: jax.Array,
    slot: jax.Array,
    start: jax.Array,
    last: jax.Array,
) -> tuple[jax.Array, jax.Array, KvCache]:
    """One chunk of a prompt, T tokens at positions ``start`` to ``start + T - 1`` of ``slot``.

    tokens: int32[T]; slot, start, last: int32 scalars, ``last`` is the index within the chunk of its last real
    token (what follows is padding, overwritten by whatever comes next). Returns the most likely token after
    ``last`` int32[1], its logits float32[1, vocabulary] and the cache.
    """
    count = tokens.shape[0]
    x = weights["embed"][tokens]
    positions = start + jnp.arange(count, dtype=jnp.int32)
    cos, sin = _rotation(shape, positions)
    span = cache[0][0].shape[2]
    seen = jnp.arange(span)[None, :] <= positions[:, None]
    new_cache = []
    for layer, memory in zip(weights["layers"], cache, strict=True):
        keys, values = memory
        q, k, v = _project(shape, layer, x, cos, sin)
        at = (slot, 0, start, 0)
        keys = lax.dynamic_update_slice(keys, k.transpose(1, 0, 2)[None], at)
        values = lax.dynamic_update_slice(values, v.transpose(1, 0, 2)[None], at)
        size = (1, *keys.shape[1:])
        own_keys = lax.dynamic_slice(keys, (slot, 0, 0, 0), size)[0]
        own_values = lax.dynamic_slice(values, (slot, 0, 0, 0), size)[0]
        grouped = q.reshape(count, shape.kv_heads, -1, shape.head_dim)
        scores = jnp.einsum("tgqd,gsd->gqts", grouped, own_keys) * shape.head_dim**-0.5
        scores = jnp.where(seen[None, None], scores, _MASKED)
        mixed = jnp.einsum("gqts,gsd->tgqd", jax.nn.softmax(scores, axis=-1), own_values)
        x = _finish_layer(shape, layer, x, mixed.reshape(count, -1))
        new_cache.append((keys, values))
    logits = _logits(shape, weights, lax.dynamic_slice(x, (last, 0), (1, shape.hidden)))
    return jnp.argmax(logits, axis=-1).astype(jnp.int32), logits, tuple(new_cache)


def copy_slot(cache: KvCache, source: jax.Array, target: jax.Array) -> KvCache:
    """Copy all rows of slot ``source`` to slot ``target`` (int32 scalars)."""
    copied = []
    for layer in cache:
        pair = []
        for memory in layer:
            rows = lax.dynamic_slice(memory, (source, 0, 0, 0), (1, *memory.shape[1:]))
            pair.append(lax.dynamic_update_slice(memory, rows, (target, 0, 0, 0)))
        copied.append((pair[0], pair[1]))
    return tuple(copied)


def _project(
    shape: ModelShape, layer: Weights, x: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries [R, heads, D], keys and values [R, kv_heads, D] of R rows; queries and keys rotated."""
    normed = _norm(x, layer["attention_norm"], shape.norm_epsilon)
    q = (normed @ layer["q"]).reshape(-1, shape.heads, shape.head_dim)
    k = (normed @ layer["k"]).reshape(-1, shape.kv_heads, shape.head_dim)
    v = (normed @ layer["v"]).reshape(-1, shape.kv_heads, shape.head_dim)
    if shape.qk_norm:
        q = _norm(q, layer["q_norm"], shape.norm_epsilon)
        k = _norm(k, layer["k_norm"], shape.norm_epsilon)
    return _rotate(q, cos, sin), _rotate(k, cos, sin), v


def _finish_layer(shape: ModelShape, layer: Weights, x: jax.Array, mixed: jax.Array) -> jax.Array:
    x = x + mixed @ layer["o"]
    normed = _norm(x, layer["feed_forward_norm"], shape.norm_epsilon)
    added: jax.Array = (jax.nn.silu(normed @ layer["gate"]) * (normed @ layer["up"])) @ layer["down"]
    return x + added


def _logits(shape: ModelShape, weights: Weights, x: jax.Array) -> jax.Array:
    normed = _norm(x, weights["norm"], shape.norm_epsilon)
    if shape.tied:
        output: jax.Array = lax.dot_general(normed, weights["embed"], (((1,), (1,)), ((), ())))
    else:
        output = normed @ weights["head"]
    return output


def _norm(x: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * scale


def _rotation(shape: ModelShape, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos and sin [R, 1, D / 2] of R positions."""
    half = jnp.arange(shape.head_dim // 2, dtype=jnp.float32)
    angles = positions.astype(jnp.float32)[:, None] * shape.rope_theta ** (-2.0 * half / shape.head_dim)
    return jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]


def _rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    low, high = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, low * sin + high * cos], axis=-1)

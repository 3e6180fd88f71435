"""Runs what was compiled, and nothing else: every call goes to an executable loaded from the artifact."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.errors import InputError
from slotgrid.serve import artifact as art
from slotgrid.serve.backend import start_jax

Floats = npt.NDArray[np.float32]


class StepResult:
    """Next tokens of a step: the most likely ones at once, all logits only when asked for."""

    def __init__(self, tokens: Any, logits: Any, rows: int) -> None:
        self.most_likely: list[int] = np.asarray(tokens)[:rows].tolist()
        self._logits = logits

    def logits(self, row: int) -> Floats:
        """float32[vocabulary] of one row."""
        found: Floats = np.asarray(self._logits)[row]
        return found


class Executor:
    """The loaded executables, the weights and the KV memory of one server. Not thread-safe.

    Raises InputError when the artifact is damaged, or was made for another device or JAX version.
    """

    def __init__(self, artifact: art.Artifact) -> None:
        self.artifact = artifact
        self.spare_slot = artifact.slots
        self._jax = start_jax()
        self._check_environment()
        self._weights = self._load_weights()
        self._cache = self._new_cache()
        self._decode = {bucket: self._load(f"decode-{bucket}") for bucket in artifact.buckets}
        self._prefill = self._load(art.PREFILL)
        self._copy = self._load(art.COPY)

    def decode(self, bucket: int, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> StepResult:
        """One decode step of a compiled size; rows beyond the given ones are padding and go to the spare slot."""
        if bucket not in self._decode:
            raise InputError(
                f"decode batch {bucket} was not compiled; this artifact has {', '.join(map(str, self._decode))}"
            )
        if len(tokens) > bucket:
            raise InputError(f"{len(tokens)} requests do not fit a decode batch of {bucket}")
        rows = np.zeros((3, bucket), np.int32)
        rows[1] = self.spare_slot
        rows[:, : len(tokens)] = tokens, slots, positions
        chosen, logits, self._cache = self._decode[bucket](self._weights, self._cache, rows[0], rows[1], rows[2])
        return StepResult(chosen, logits, len(tokens))

    def prefill_chunk(self, tokens: Sequence[int], slot: int, start: int) -> StepResult:
        """One chunk of a prompt, at most ``prefill_chunk`` tokens from position ``start`` on."""
        chunk = np.zeros(self.artifact.prefill_chunk, np.int32)
        chunk[: len(tokens)] = tokens
        chosen, logits, self._cache = self._prefill(
            self._weights, self._cache, chunk, np.int32(slot), np.int32(start), np.int32(len(tokens) - 1)
        )
        return StepResult(chosen, logits, 1)

    def copy(self, source: int, target: int) -> None:
        """Copy a slot's KV rows to another slot."""
        self._cache = self._copy(self._cache, np.int32(source), np.int32(target))
        self._jax.block_until_ready(self._cache)

    def warm_up(self) -> None:
        """Run every executable once in the spare slot, so that the first request is not the slow one."""
        spare = self.spare_slot
        for bucket in self._decode:
            self.decode(bucket, [], [], [])
        self.prefill_chunk([0], spare, 0)
        self.copy(spare, spare)

    def _check_environment(self) -> None:
        made, here = self.artifact.versions, art.versions()
        for name in ("jax", "jaxlib"):
            if made.get(name) != here[name]:
                raise InputError(
                    f"{self.artifact.folder}: compiled with {name} {made.get(name)}, installed is {here[name]}; "
                    "compile again"
                )
        device = self._jax.devices()[0]
        if (device.platform, device.device_kind) != (self.artifact.platform, self.artifact.device_kind):
            raise InputError(
                f"{self.artifact.folder}: compiled for {self.artifact.platform} ({self.artifact.device_kind}), this is "
                f"{device.platform} ({device.device_kind}); compile again"
            )
        if device.platform == "cpu" and self.artifact.host != art.host_name():
            raise InputError(
                f"{self.artifact.folder}: compiled on {self.artifact.host}, this is {art.host_name()}; compile again"
            )

    def _load_weights(self) -> Any:
        from slotgrid.serve.weights import unflatten

        content = self.artifact.read("weights")
        try:
            with np.load(BytesIO(content), allow_pickle=False) as arrays:
                weights = unflatten({name: arrays[name] for name in arrays.files})
        except (ValueError, zipfile.BadZipFile) as error:
            raise InputError(f"{self.artifact.folder}: cannot read the weights: {error}") from None
        return self._jax.device_put(weights)

    def _new_cache(self) -> Any:
        made, shape = self.artifact, self.artifact.shape
        size = (made.slots + 1, shape.kv_heads, made.max_seq_len, shape.head_dim)
        return tuple(
            tuple(self._jax.device_put(np.zeros(size, np.float32)) for _ in range(2)) for _ in range(shape.layers)
        )

    def _load(self, name: str) -> Any:
        from jax.experimental import serialize_executable

        tree = self._jax.tree.structure
        arguments: tuple[Any, ...]
        results: Any
        if name == art.COPY:
            arguments, results = (self._cache, 0, 0), self._cache
        elif name == art.PREFILL:
            arguments, results = (self._weights, self._cache, 0, 0, 0, 0), (0, 0, self._cache)
        else:
            arguments, results = (self._weights, self._cache, 0, 0, 0), (0, 0, self._cache)
        content = self.artifact.read(name)
        try:
            return serialize_executable.deserialize_and_load(content, tree((arguments, {})), tree(results))
        except Exception as error:  # whatever the runtime raises for a payload it cannot use
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"{self.artifact.folder}: cannot load {name}: {first}; compile again") from None

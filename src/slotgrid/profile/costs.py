"""Cost functions of a stack: what a decode step and a prefill take, as pure functions on numbers and arrays.

step(n)    = fixed[bucket(n)] + base + per_request * n + per_context_token * (context tokens of the n)
prefill(q) = ceil(q / chunk) * (per_chunk + per_token * q) + constant, 0 for q = 0
             (+ cached_excess for small q on top of a cached prefix)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slotgrid.config import ServingConfig
from slotgrid.errors import UnmeasuredError
from slotgrid.profile.quantity import Quantity, Range

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DecodeCost:
    """Cost of one decode step in seconds.

    fixed_s: (bucket, seconds) of the measured buckets, ascending. Others follow the line between their measured
    neighbours; above the largest the line through the last two, below the smallest through the first two.
    running_range, context_range: numbers running and context tokens of one request the cost was measured with.
    residual_s: root mean square of what the measured steps are off this form; None when not known.
    """

    fixed_s: tuple[tuple[int, Quantity], ...]
    base_s: Quantity
    per_request_s: Quantity
    per_context_token_s: Quantity | None
    running_range: Range | None
    context_range: Range | None = None
    residual_s: Quantity | None = None

    def fixed(self, bucket: int) -> float:
        """Seconds of the bucket's fixed part. Raises UnmeasuredError with a single measured bucket."""
        points = [(size, quantity.value) for size, quantity in self.fixed_s]
        for size, value in points:
            if size == bucket:
                return value
        if len(points) < 2:
            raise UnmeasuredError(
                f"decode.fixed: bucket {bucket} is not measured and one measured bucket gives no line; "
                "measure a second one"
            )
        upper = next((i for i, (size, _) in enumerate(points) if size > bucket), len(points) - 1)
        upper = max(upper, 1)
        (x0, y0), (x1, y1) = points[upper - 1], points[upper]
        return y0 + (y1 - y0) * (bucket - x0) / (x1 - x0)

    def step_s(self, config: ServingConfig, most_running: int | None = None) -> Floats:
        """Seconds by running count without the context term: array of length n + 1, index 0 is 0.

        n is ``max_running`` or ``most_running``. Every value is positive or UnmeasuredError says which is not.
        """
        count = config.max_running if most_running is None else min(most_running, config.max_running)
        seconds = np.zeros(count + 1)
        fixed = {bucket: self.fixed(bucket) for bucket in config.buckets}
        base, slope = self.base_s.value, self.per_request_s.value
        for n in range(1, count + 1):
            bucket = config.bucket_for(n)
            seconds[n] = fixed[bucket] + base + slope * n
            if seconds[n] <= 0:
                raise UnmeasuredError(
                    f"decode: {n} running in bucket {bucket} would take {seconds[n]:g} s; "
                    "the measured buckets do not reach that far"
                )
        return seconds

    def seconds(self, running: Ints, bucket: Ints, context_tokens: Ints) -> Floats:
        """Seconds of single steps (int arrays of equal length). Raises UnmeasuredError for a bucket without a line."""
        sizes, at = np.unique(bucket, return_inverse=True)
        fixed = np.array([self.fixed(int(size)) for size in sizes])
        total: Floats = (
            fixed[at.ravel()] + self.base_s.value + self.per_request_s.value * running + self.context_s * context_tokens
        )
        return total

    @property
    def context_s(self) -> float:
        """Seconds per context token and step; 0 when the model has no such term."""
        return 0.0 if self.per_context_token_s is None else self.per_context_token_s.value

    def beyond(
        self, bucket_sizes: Iterable[int], running: Iterable[int], longest_context_tokens: int | None = None
    ) -> list[str]:
        """What of these lies outside the measured range, as short texts."""
        low, high = self.fixed_s[0][0], self.fixed_s[-1][0]
        sizes = sorted(size for size in set(bucket_sizes) if not low <= size <= high)
        notes = []
        if sizes:
            text = ", ".join(map(str, sizes))
            notes.append(f"decode steps of bucket{'s' if len(sizes) > 1 else ''} {text} (measured {low} to {high})")
        if self.running_range is not None:
            outside = [n for n in running if not self.running_range.covers(n)]
            if outside:
                notes.append(f"decode steps with up to {max(outside)} running (measured {self.running_range})")
        longest = longest_context_tokens
        if self.context_range is not None and longest is not None and longest > self.context_range.high:
            notes.append(f"decode steps with a context of {longest} tokens (measured {self.context_range})")
        return notes


@dataclass(frozen=True)
class PrefillCost:
    """Cost of a prefill of q computed tokens in seconds.

    cached_excess_s: added where at most ``cached_excess_tokens`` are computed on top of a cached prefix.
    """

    chunk_tokens: int
    per_chunk_s: Quantity
    per_token_s: Quantity
    constant_s: Quantity | None
    tokens_range: Range | None
    cached_excess_s: Quantity | None = None
    cached_excess_tokens: int = 0

    def seconds(self, computed_tokens: Ints, *, cached: bool = False) -> Floats:
        """Seconds for each entry of an int array of computed tokens; 0 where nothing is computed.

        cached: they are computed on top of a cached prefix.
        """
        chunks = -(-computed_tokens // self.chunk_tokens)
        seconds: Floats = chunks * (self.per_chunk_s.value + self.per_token_s.value * computed_tokens)
        if self.constant_s is not None:
            seconds = seconds + np.where(computed_tokens > 0, self.constant_s.value, 0.0)
        if cached and self.cached_excess_s is not None:
            small = (computed_tokens > 0) & (computed_tokens <= self.cached_excess_tokens)
            seconds = seconds + np.where(small, self.cached_excess_s.value, 0.0)
        return seconds

    def beyond(self, computed_tokens: Ints) -> list[str]:
        """What of these lies outside the measured range, as short texts."""
        if self.tokens_range is None:
            return []
        used = computed_tokens[computed_tokens > 0]
        notes = []
        for outside in (used[used < self.tokens_range.low], used[used > self.tokens_range.high]):
            if outside.size:
                notes.append(f"prefills of {outside.min()} to {outside.max()} tokens (measured {self.tokens_range})")
        return notes


@dataclass(frozen=True)
class CostModel:
    """Decode and prefill cost together: once as the clock that moves time, once as the price that is summed."""

    decode: DecodeCost
    prefill: PrefillCost


@dataclass(frozen=True)
class KvFacts:
    """Slot length and block length in tokens; whether generated tokens stay reusable; whether a slot is made of
    blocks that the server takes and returns one by one (``inner_blocks``); where these facts come from (``source``)."""

    slot_tokens: int
    block_tokens: int
    bytes_per_token: Quantity | None
    generated_reusable: bool
    inner_blocks: bool = False
    source: str = ""

    def reusable_tokens(self, prompt: Ints, previous_prompt: Ints, previous_output: Ints) -> Ints:
        """Tokens a returning request reuses if its previous turn's slot survives (int arrays of equal length):
        whole blocks of what that turn left, never the last prompt token."""
        left = previous_prompt + (previous_output - 1 if self.generated_reusable else 0)
        whole: Ints = np.minimum(left, prompt - 1) // self.block_tokens * self.block_tokens
        return whole


@dataclass(frozen=True)
class CompileModel:
    """seconds = base + per graph * (buckets + 1 for prefill); GiB = base + per bucket * buckets."""

    base_s: Quantity
    per_graph_s: Quantity
    artifact_base_gib: Quantity
    artifact_per_bucket_gib: Quantity
    buckets_range: Range | None

    def seconds(self, config: ServingConfig) -> float:
        """Seconds to compile ``config``."""
        return self.base_s.value + self.per_graph_s.value * (len(config.buckets) + 1)

    def artifact_gib(self, config: ServingConfig) -> float:
        """GiB the compiled artifact of ``config`` takes on disk."""
        return self.artifact_base_gib.value + self.artifact_per_bucket_gib.value * len(config.buckets)


@dataclass(frozen=True)
class MemoryModel:
    """GiB on the fullest device: fixed part + per slot * slots; ``device_gib`` is what a device holds."""

    devices: int
    device_gib: Quantity
    fixed_gib: Quantity
    fixed_fullest_gib: Quantity
    per_slot_gib: Quantity
    slots_range: Range | None

    def fullest_device_gib(self, config: ServingConfig) -> float:
        """GiB ``config`` takes on the fullest device."""
        return self.fixed_fullest_gib.value + self.per_slot_gib.value * config.slots

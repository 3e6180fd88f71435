"""Run: one execution, simulated or measured, as tables and the totals on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from slotgrid.config import ServingConfig

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class Run:
    """One execution. Times in seconds from the start of the run, lengths in tokens.

    steps: start_s, duration_s, kind ("prefill" | "decode"), running, bucket, session, turn, computed_tokens
        (session, turn and computed_tokens are null on decode steps; running on a prefill is the number of
        requests that wait for it; bucket is null there).
    requests: session, turn, prompt_tokens, cached_tokens, computed_tokens, output_tokens, arrival_s, admit_s,
        first_token_s, finish_s.
    evictions: time_s, session, cause ("admission" | "padding").
    decode_s, prefill_s: priced seconds; None when no price is known.
    """

    config: ServingConfig
    steps: pl.DataFrame
    requests: pl.DataFrame
    evictions: pl.DataFrame
    decode_s: float | None
    prefill_s: float | None
    stall_session_s: float | None
    wall_s: float
    source: str = "simulated"
    rules: str | None = None
    turnaround_s: float | None = None
    plan_id: str | None = None
    plan_sha256: str | None = None
    profile_id: str | None = None
    profile_sha256: str | None = None
    extrapolated: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device_time_s(self) -> float | None:
        """Priced decode plus priced prefill."""
        if self.decode_s is None or self.prefill_s is None:
            return None
        return self.decode_s + self.prefill_s

    @cached_property
    def histogram(self) -> pl.DataFrame:
        """Decode steps by running count and bucket: running, bucket, steps; sorted."""
        import polars as pl

        return (
            self.steps.filter(pl.col("kind") == "decode")
            .group_by("running", "bucket")
            .agg(pl.len().cast(pl.Int64).alias("steps"))
            .sort("running", "bucket")
        )

    @property
    def decode_steps(self) -> int:
        return int(self.histogram["steps"].sum())

    @property
    def padding_ratio(self) -> float | None:
        """1 - (sum of running) / (sum of buckets) over decode steps; None without any."""
        table = self.histogram
        padded = int((table["bucket"] * table["steps"]).sum())
        if padded == 0:
            return None
        return 1 - int((table["running"] * table["steps"]).sum()) / padded

    @property
    def returns(self) -> int:
        """Requests that continue a session."""
        return int((self.requests["turn"] > 0).sum())

    @property
    def reused(self) -> int:
        """Returns that found part of their prefix still in a slot."""
        return int(((self.requests["turn"] > 0) & (self.requests["cached_tokens"] > 0)).sum())

    @property
    def cached_tokens(self) -> int:
        return int(self.requests["cached_tokens"].sum())

    @property
    def computed_tokens(self) -> int:
        return int(self.requests["computed_tokens"].sum())

    def evicted(self, cause: str) -> int:
        """Evictions by cause ("admission" or "padding")."""
        return int((self.evictions["cause"] == cause).sum())

    def to_dict(self) -> dict[str, Any]:
        """The totals scripts read, as JSON values."""
        return {
            "device_time_s": self.device_time_s,
            "decode_s": self.decode_s,
            "prefill_s": self.prefill_s,
            "stall_session_s": self.stall_session_s,
            "wall_s": self.wall_s,
            "decode_steps": self.decode_steps,
            "padding_ratio": self.padding_ratio,
            "requests": self.requests.height,
            "returns": self.returns,
            "reused": self.reused,
            "cached_tokens": self.cached_tokens,
            "computed_tokens": self.computed_tokens,
            "evictions": {"admission": self.evicted("admission"), "padding": self.evicted("padding")},
            "histogram": [list(row) for row in self.histogram.iter_rows()],
            "config": self.config.to_dict(),
            "rules": self.rules,
            "turnaround_s": self.turnaround_s,
            "plan_id": self.plan_id,
            "plan_sha256": self.plan_sha256,
            "profile_id": self.profile_id,
            "extrapolated": list(self.extrapolated),
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        time_s = "device time unknown" if self.device_time_s is None else f"device time {self.device_time_s:.3f} s"
        padding = "" if self.padding_ratio is None else f", padding {self.padding_ratio:.1%}"
        return (
            f"Run({self.source}, {self.config.label}: {self.requests.height} requests, {time_s}, "
            f"reused {self.reused} of {self.returns}{padding})"
        )

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

    A measured run says only what its files show. A table that is None was not observed; a null cell was not
    observable (a null ``cached_tokens`` is not "no reuse"). Logs give an order and no usable clock, so measured
    tables carry further columns:

    steps: order (position in the log), repeats (equal decode steps, one after another, that the row stands for).
    requests: request_id, slot, admit_order, finish_order, planned_new_tokens, planned_output_tokens, and
        token_gaps_s (list of seconds between tokens) where the rows have token times.
    evictions: order, turn, slot; cause is null where the log does not tell which path evicted.
    """

    config: ServingConfig | None
    steps: pl.DataFrame | None
    requests: pl.DataFrame
    evictions: pl.DataFrame | None
    decode_s: float | None
    prefill_s: float | None
    stall_session_s: float | None
    wall_s: float | None
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
    def histogram(self) -> pl.DataFrame | None:
        """Decode steps by running count and bucket: running, bucket, steps; sorted. None when not observed."""
        import polars as pl

        if self.steps is None:
            return None
        if self.source == "measured" and not (self.steps["kind"] == "decode").any():
            return None  # admissions were logged, steps were not
        count = pl.col("repeats").cast(pl.Int64).sum() if "repeats" in self.steps.columns else pl.len()
        return (
            self.steps.filter(pl.col("kind") == "decode")
            .group_by("running", "bucket")
            .agg(count.cast(pl.Int64).alias("steps"))
            .sort("running", "bucket")
        )

    @property
    def decode_steps(self) -> int | None:
        """Decode steps of the run; None where steps were not observed."""
        return None if self.histogram is None else int(self.histogram["steps"].sum())

    @property
    def padding_ratio(self) -> float | None:
        """1 - (sum of running) / (sum of buckets) over decode steps; None without any."""
        table = self.histogram
        if table is None:
            return None
        padded = int((table["bucket"] * table["steps"]).sum())
        if padded == 0:
            return None
        return 1 - int((table["running"] * table["steps"]).sum()) / padded

    @property
    def returns(self) -> int | None:
        """Requests that continue a session; None when the sessions are not known."""
        turn = self.requests["turn"]
        return None if turn.is_empty() or turn.has_nulls() else int((turn > 0).sum())

    @property
    def reused(self) -> int | None:
        """Returns that found part of their prefix still in a slot; None unless every return's reuse is known."""
        if self.returns is None:
            return None
        cached = self.requests.filter(self.requests["turn"] > 0)["cached_tokens"]
        return None if cached.has_nulls() else int((cached > 0).sum())

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens found in the prefix cache, all requests; None where not observed."""
        return self._sum("cached_tokens")

    @property
    def computed_tokens(self) -> int | None:
        """Prompt tokens computed, all requests; None where not observed."""
        return self._sum("computed_tokens")

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens, all requests; None where not observed."""
        return self._sum("prompt_tokens")

    def evicted(self, cause: str | None) -> int | None:
        """Evictions by cause ("admission", "padding", None for those of unknown cause); None when not observed."""
        if self.evictions is None:
            return None
        causes = self.evictions["cause"]
        return int(causes.is_null().sum() if cause is None else (causes == cause).sum())

    def _sum(self, column: str) -> int | None:
        """Sum of a column; None when a cell is null or there is none."""
        import polars as pl

        cells = self.requests[column]
        # narrow columns are summed wide
        return None if cells.is_empty() or cells.has_nulls() else int(cells.cast(pl.Int64).sum())

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
            "histogram": None if self.histogram is None else [list(row) for row in self.histogram.iter_rows()],
            "config": None if self.config is None else self.config.to_dict(),
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
        label = "configuration not known" if self.config is None else self.config.label
        reuse = "reuse not observable" if self.reused is None else f"reused {self.reused} of {self.returns}"
        return f"Run({self.source}, {label}: {self.requests.height} requests, {time_s}, {reuse}{padding})"

"""Diagnosis: everything that was found out about one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from slotgrid.diagnose.buckets import OPPOSITE_WARNING, BucketChange
from slotgrid.diagnose.compare import Comparison
from slotgrid.diagnose.cost import ChannelA
from slotgrid.diagnose.interference import Floats, Stalls, TokenGaps, quantiles
from slotgrid.diagnose.order import EventOrder
from slotgrid.diagnose.padding import Alignment, Histogram
from slotgrid.diagnose.reuse import CAUSES, Returns
from slotgrid.diagnose.summary import Sentence
from slotgrid.diagnose.survival import Survival
from slotgrid.profile import StackProfile
from slotgrid.run import Run
from slotgrid.run.steady import SteadyLoad

# lost prefixes in the JSON, one entry each: a log of a million losses would not fit into memory as objects
MOST_LISTED = 10_000


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What one run lost and where. Parts that were not observed are None; ``not_observed`` says why.

    histogram: (running, bucket) -> decode steps. bucket_s: seconds of the same keys, priced or simulated.
    unmeasured: buckets that ran and whose price nobody measured -> "interpolated" or "extrapolated". window: what
    happened inside the evaluation window that was written beside the run; everything else is of the whole run.
    summary: sentences with the rule and the numbers behind each. warnings: what was odd in the files.
    """

    run: Run
    profile: StackProfile | None
    order: EventOrder | None
    histogram: Histogram | None
    alignment: Alignment | None
    bucket_s: Mapping[tuple[int, int], float] | None
    change: BucketChange | None
    returns: Returns | None
    survival: Survival | None
    stalls: Stalls | None
    first_token_s: Floats | None
    gaps: TokenGaps | None
    channel_a: ChannelA
    channel_b_s: float | None
    extrapolated: tuple[str, ...]
    unmeasured: Mapping[int, str]
    window: SteadyLoad | None
    warnings: tuple[str, ...]
    not_observed: Mapping[str, str]
    summary: tuple[Sentence, ...]
    comparison: Comparison | None = None

    @property
    def residual_s(self) -> float | None:
        """Channel B less channel A."""
        if self.channel_b_s is None or self.channel_a.total_s is None:
            return None
        return self.channel_b_s - self.channel_a.total_s

    @property
    def inner_hit_tokens(self) -> int | None:
        """``vllm:prefix_cache_hits_total``: tokens the inner block layer matched. Misleading, not reuse."""
        hits = (self.run.details.get("metrics") or {}).get("prefix_cache_hits")
        return None if hits is None else round(hits)

    @cached_property
    def lost_tokens(self) -> int | None:
        """Sum over returns of the tokens each lost; None unless every return's are known."""
        if self.returns is None or (self.returns.lost_tokens < 0).any():
            return None
        return int(self.returns.lost_tokens.sum())

    @property
    def beyond_rules(self) -> int:
        """Returns that reused more than the profile's rules say they could (generated tokens, another block?)."""
        if self.returns is None:
            return 0
        known = (self.returns.cached_tokens >= 0) & (self.returns.reusable_tokens >= 0)
        return int((known & (self.returns.cached_tokens > self.returns.reusable_tokens)).sum())

    @property
    def lost_returns(self) -> int | None:
        """Returns that reused less than they could have; None unless every return's are known."""
        if self.returns is None or (self.returns.lost_tokens < 0).any():
            return None
        return int((self.returns.lost_tokens > 0).sum())

    def causes(self) -> dict[str, int]:
        """Lost returns by cause."""
        if self.returns is None:
            return {}
        return {name: int((self.returns.cause == code).sum()) for code, name in enumerate(CAUSES)}

    def additional_prefill_s(self) -> tuple[float, float] | None:
        """Additional prefill seconds of all losses: (standalone, incremental); None where not known."""
        if self.returns is None or np.isnan(self.returns.standalone_s).any():
            return None
        return float(self.returns.standalone_s.sum()), float(self.returns.incremental_s.sum())

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as JSON values; null is "not observed"."""
        run, returns, a = self.run, self.returns, self.channel_a
        counts = {cause: run.evicted(cause) for cause in ("admission", "padding")}
        return {
            "decode_steps": run.decode_steps,
            "histogram": None
            if self.histogram is None
            else [[n, b, steps] for (n, b), steps in sorted(self.histogram.items())],
            "padding_ratio": None if self.alignment is None else self.alignment.padding_ratio,
            "returns": run.returns,
            "reused": run.reused,
            "reuse_observable": returns is not None and returns.observable,
            "prompt_tokens": run.prompt_tokens,
            "cached_tokens": run.cached_tokens,
            "computed_tokens": run.computed_tokens,
            "returns_computed_tokens": self._returns_computed(),
            "lost_tokens": self.lost_tokens,
            "returns_beyond_rules": self.beyond_rules,
            "inner_hit_tokens": self.inner_hit_tokens,
            "evictions": None if run.evictions is None else {**counts, "unknown": run.evicted(None)},
            "stall_session_s": None if self.stalls is None else self.stalls.stall_session_s,
            "channel_a": {"decode_s": a.decode_s, "prefill_s": a.prefill_s, "total_s": a.total_s},
            "channel_b_s": self.channel_b_s,
            "residual_s": self.residual_s,
            "requests": run.requests.height,
            "source": run.source,
            "config": None if run.config is None else run.config.to_dict(),
            "plan_id": run.plan_id,
            "plan_sha256": run.plan_sha256,
            "profile_id": None if self.profile is None else self.profile.id,
            "alignment": self._alignment_dict(),
            "reuse": self._reuse_dict(),
            "interference": self._interference_dict(),
            "window": None if self.window is None else self.window.to_dict(),
            "metrics": dict(run.details.get("metrics") or {}),
            "summary": [sentence.to_dict() for sentence in self.summary],
            "not_observed": dict(self.not_observed),
            "extrapolated": list(self.extrapolated),
            "warnings": list(self.warnings),
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
        }

    def _returns_computed(self) -> int | None:
        if self.returns is None or not self.returns.observable or (self.returns.prompt_tokens < 0).any():
            return None
        return int((self.returns.prompt_tokens - self.returns.cached_tokens).sum())

    def _alignment_dict(self) -> dict[str, Any] | None:
        if self.alignment is None or self.histogram is None:
            return None
        seconds = self.bucket_s
        change = self.change
        return {
            "utilization": self.alignment.utilization,
            "running_sum": self.alignment.running_sum,
            "bucket_sum": self.alignment.bucket_sum,
            "unmeasured_buckets": _named(self.unmeasured),
            "bucket_s": None if seconds is None else [[n, b, s] for (n, b), s in sorted(seconds.items())],
            "other_buckets": None
            if change is None
            else {
                "buckets": list(change.buckets),
                "fitted": change.fitted,
                "padding_ratio": change.after.padding_ratio,
                "decode_before_s": change.decode_before_s,
                "decode_after_s": change.decode_after_s,
                "unmeasured_buckets": _named(change.unmeasured),
                "every_count_s": change.floor_s,
                "every_count_unmeasured_buckets": _named(change.floor_unmeasured),
                "opposite_directions": change.opposite,
                "warning": OPPOSITE_WARNING,
                "by_running": [
                    {
                        "running": c.running,
                        "steps": c.steps,
                        "padded_before": c.padded_before,
                        "padded_after": c.padded_after,
                        "removed": c.removed,
                        "shapley_padding_drop": c.shapley_drop,
                    }
                    for c in change.changes
                ],
            },
        }

    def _reuse_dict(self) -> dict[str, Any] | None:
        returns = self.returns
        if returns is None:
            return None
        extra = self.additional_prefill_s()
        requests = self.run.requests
        lost_tokens = returns.lost_tokens
        lost = np.flatnonzero(lost_tokens > 0)
        listed = lost[:MOST_LISTED]
        session, turn = (requests[name].gather(returns.row[listed]).to_list() for name in ("session", "turn"))
        observable = returns.cached_tokens >= 0
        away = returns.away_s[~np.isnan(returns.away_s)]
        survival = self.survival
        return {
            "observable_returns": int(observable.sum()),
            "observable_reused": int((returns.cached_tokens[observable] > 0).sum()),
            "lost_returns": self.lost_returns,
            "causes": self.causes(),
            "own_admission": int(returns.own.sum()),
            "additional_prefill_standalone_s": None if extra is None else extra[0],
            "additional_prefill_incremental_s": None if extra is None else extra[1],
            "away_s": quantiles(away) if len(away) else None,
            "lost": [
                {
                    "session": session[k],
                    "turn": turn[k],
                    "lost_tokens": int(lost_tokens[i]),
                    "cause": CAUSES[returns.cause[i]] if returns.cause[i] >= 0 else None,
                    "own_admission": bool(returns.own[i]),
                    "admissions_between": int(returns.between[i]) if returns.between[i] >= 0 else None,
                    "away_s": None if np.isnan(returns.away_s[i]) else float(returns.away_s[i]),
                    "standalone_s": None if np.isnan(returns.standalone_s[i]) else float(returns.standalone_s[i]),
                    "incremental_s": None if np.isnan(returns.incremental_s[i]) else float(returns.incremental_s[i]),
                }
                for k, i in enumerate(listed.tolist())
            ],
            "lost_not_listed": len(lost) - len(listed),
            "survival": None
            if survival is None
            else {
                "slots": list(survival.slots),
                "kept": list(survival.kept),
                "own_slots": survival.own_slots,
                "agreement": survival.agreement,
            },
        }

    def _interference_dict(self) -> dict[str, Any]:
        stalls, gaps = self.stalls, self.gaps
        requests = self.run.requests
        return {
            "prefill_s": None if stalls is None else stalls.prefill_s,
            "prefill_beside_decode_s": None if stalls is None else stalls.beside_decode_s,
            "longest_waits": None
            if stalls is None
            else [
                {
                    "session": requests["session"][row],
                    "turn": requests["turn"][row],
                    "waited_s": float(stalls.waited_s[row]),
                }
                for row in stalls.longest
            ],
            "time_to_first_token_s": None if self.first_token_s is None else quantiles(self.first_token_s),
            "inter_token_gaps": None
            if gaps is None
            else {
                "gaps": gaps.gaps,
                **gaps.quantiles_s,
                "spikes": gaps.spikes,
                "requests_hit": gaps.requests_hit,
                "spike_excess_s": gaps.spike_excess_s,
            },
        }

    def __repr__(self) -> str:
        verdict = self.summary[-1].text if self.summary else "nothing observed"
        return f"Diagnosis({self.run!r}: {verdict})"


def _named(unmeasured: Mapping[int, str]) -> dict[str, str]:
    """Keys of JSON objects are text."""
    return {str(bucket): how for bucket, how in unmeasured.items()}

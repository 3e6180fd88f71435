"""Two runs of the same plan side by side; the other run is the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slotgrid.diagnose.cost import Agreement, agreement
from slotgrid.errors import InputError
from slotgrid.run import Run

if TYPE_CHECKING:
    from slotgrid.diagnose.result import Diagnosis


@dataclass(frozen=True)
class Comparison:
    """values: name -> (this run, baseline), None where not observed. agreement: both cost channels, None where one is
    missing. note: how it was known that the plans are the same."""

    values: Mapping[str, tuple[float | None, float | None]]
    agreement: Agreement | None
    note: str

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        a = self.agreement
        return {
            "values": {name: list(pair) for name, pair in self.values.items()},
            "ratio_a": None if a is None else a.ratio_a,
            "ratio_b": None if a is None else a.ratio_b,
            "difference": None if a is None else a.difference,
            "tau": None if a is None else a.tau,
            "agree": None if a is None else a.agree,
            "plans": self.note,
        }


def same_plan(run: Run, other: Run) -> str:
    """How the plans are known to be the same. Raises InputError when they differ or nothing tells."""
    if run.plan_sha256 is not None and other.plan_sha256 is not None:
        if run.plan_sha256 != other.plan_sha256:
            raise InputError(
                f"--compare: the plans differ ({run.plan_id} {run.plan_sha256[:12]} and {other.plan_id} "
                f"{other.plan_sha256[:12]}); only runs of the same plan can be compared"
            )
        return f"same plan {run.plan_id}"
    columns = ["session", "turn", "output_tokens"]
    mine, theirs = (r.requests.select(columns).sort(columns[:2]) for r in (run, other))
    if run.returns is None or other.returns is None:
        raise InputError(
            "--compare: neither a plan.json nor sessions in the request rows tell whether the plans are the same; "
            "add the plan to both directories"
        )
    if mine.height != theirs.height:
        raise InputError(f"--compare: the plans differ ({mine.height} and {theirs.height} requests)")
    for a, b in zip(mine.iter_rows(), theirs.iter_rows(), strict=True):
        if a != b:
            raise InputError(
                f"--compare: the plans differ: session {a[0]} turn {a[1]} with {a[2]} output tokens here, "
                f"session {b[0]} turn {b[1]} with {b[2]} there"
            )
    return "no common plan hash; the same sessions, turns and output tokens"


def compare(this: Diagnosis, baseline: Diagnosis) -> Comparison:
    """Both diagnoses side by side. Raises InputError when their plans differ."""
    note = same_plan(this.run, baseline.run)
    names: dict[str, Callable[[Diagnosis], float | None]] = {
        "device time, channel A (s)": lambda d: d.channel_a.total_s,
        "decode (s)": lambda d: d.channel_a.decode_s,
        "prefill (s)": lambda d: d.channel_a.prefill_s,
        "in flight, channel B (s)": lambda d: d.channel_b_s,
        "residual B - A (s)": lambda d: d.residual_s,
        "decode steps": lambda d: d.run.decode_steps,
        "padding ratio": lambda d: None if d.alignment is None else d.alignment.padding_ratio,
        "returns": lambda d: d.run.returns,
        "reused": lambda d: d.run.reused,
        "lost tokens": lambda d: d.lost_tokens,
        "computed tokens": lambda d: d.run.computed_tokens,
        "evictions by admission": lambda d: d.run.evicted("admission"),
        "evictions by padding": lambda d: d.run.evicted("padding"),
        "stall (session-s)": lambda d: None if d.stalls is None else d.stalls.stall_session_s,
    }
    values = {name: (read(this), read(baseline)) for name, read in names.items()}
    found = None
    a, b, base_a, base_b = this.channel_a.total_s, this.channel_b_s, baseline.channel_a.total_s, baseline.channel_b_s
    if a is not None and b is not None and base_a is not None and base_b is not None:
        found = agreement(a, b, base_a, base_b)
    return Comparison(values, found, note)

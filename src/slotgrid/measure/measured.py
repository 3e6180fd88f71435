"""From what the clients saw to a measured Run: its request table, whether it is valid, and what to warn of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from slotgrid.measure.lag import ClientLag
from slotgrid.plan import InputPlan
from slotgrid.run import Run

if TYPE_CHECKING:
    import polars as pl

    from slotgrid.measure.clients import Clients

# how a run may end
GOOD_ENDS = ("plan", "window")


def measured_run(*, plan: InputPlan, clients: Clients, lag: ClientLag, details: Mapping[str, Any]) -> Run:
    """The run as tables. Requests without a result are left out of them and counted in the details."""
    rows = sorted((row for row in clients.rows if row["error"] is None), key=lambda row: (row["session"], row["turn"]))
    reasons = invalid_reasons_of(clients)
    window = clients.window
    rule = clients.options.window
    sent = [row["arrival_s"] for row in clients.rows]
    done = [row["finish_s"] for row in clients.rows]
    return Run(
        config=None,
        steps=None,
        requests=request_table(rows),
        evictions=None,
        decode_s=None,
        prefill_s=None,
        stall_session_s=None,
        wall_s=max(done) - min(sent) if rows else None,
        source="measured",
        turnaround_s=turnaround_s(rows),
        plan_id=plan.plan_id,
        plan_sha256=plan.content_sha256,
        notes=(
            *(f"this run is not valid: {reason}" for reason in reasons),
            *_warnings(clients, rows, lag, details.get("misses_by_counters", 0)),
        ),
        details={
            **details,
            "valid": not reasons,
            "invalid_reasons": reasons,
            "stopped_by": clients.stopped_by,
            "window": None
            if window is None or rule is None
            else {"start_s": window.start_s, "end_s": window.end_s, "cycle_s": rule.cycle_s},
            "exhausted_clients": clients.exhausted,
            "last_sent_s": clients.last_sent_s if rows else None,
            "failures": dict(clients.failures),
            "http_errors": clients.http_errors,
            "retries": clients.retried,
            "client_lag": lag.to_dict(),
            "client_was_the_limit": bool(lag.warnings()),
            "request_tag": clients.run_tag,
        },
    )


def invalid_reasons_of(clients: Clients) -> list[str]:
    """Why the run must not be compared with others; empty when it may."""
    reasons = []
    if clients.stopped_by not in GOOD_ENDS:
        reasons.append(str(clients.stopped_by))
    elif clients.options.window is not None and clients.stopped_by != "window":
        reasons.append("the plan ended before the window did; it needs more sessions")
    for kind, count in clients.failures.most_common():
        plural = "requests" if count > 1 else "request"
        reasons.append(f"{count} {plural}: {kind} (first: {clients.first_failure[kind]})")
    if not clients.rows and not reasons:
        reasons.append("no request was sent")
    return reasons


def turnaround_s(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Median seconds between answer plus tool wait and the next request of the session; None without a return."""
    gaps = [row["arrival_s"] - row["planned_s"] for row in rows if row["turn"] > 0 and row["retries"] == 0]
    return max(0.0, median(gaps)) if gaps else None


def seam_tokens(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """(requests whose prompt has another length than planned, sum of the differences without sign)."""
    differ = [
        abs(row["prompt_tokens"] - row["planned_prompt_tokens"])
        for row in rows
        if row["prompt_tokens"] is not None and row["prompt_tokens"] != row["planned_prompt_tokens"]
    ]
    return len(differ), sum(differ)


def _warnings(clients: Clients, rows: Sequence[Mapping[str, Any]], lag: ClientLag, settled: int) -> list[str]:
    found = lag.warnings()
    count, tokens = seam_tokens(rows)
    if not clients.traits.exact:
        found.append(
            f"prompts were sent as text: {count} of {len(rows)} are longer or shorter than planned, by {tokens} tokens "
            "in all (the seam between pieces, and words of more or less than one token)"
        )
    elif count:
        found.append(
            f"{count} of {len(rows)} prompts are longer or shorter at the server than sent, by {tokens} tokens in all"
        )
    if clients.retried:
        found.append(f"{clients.retried} times a request was sent again ({clients.http_errors} HTTP errors)")
    unseen = sum(row["cached_tokens"] is None for row in rows)
    if unseen:
        found.append(
            f"{unseen} of {len(rows)} answers do not say how much was cached; not observable is not zero "
            "(vLLM needs --enable-prompt-tokens-details, and 0.22.0 leaves a miss out)"
        )
    elif settled:
        found.append(
            f"{settled} of {len(rows)} answers do not say how much was cached; by the server's counters it was nothing"
        )
    return found


def request_table(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """The request table of a measured run from result rows in plan order, see :class:`slotgrid.run.Run`."""
    import polars as pl

    def column(name: str, kind: Any) -> pl.Series:
        return pl.Series(name, [row[name] for row in rows], dtype=kind)

    prompt, told = column("prompt_tokens", pl.Int64), column("cached_tokens", pl.Int64)
    # more than the prompt has cannot be: how much it was is not known
    cached = told.set((told > prompt).fill_null(False), None)
    columns = [
        column("session", pl.Int64),
        column("turn", pl.Int64),
        prompt,
        cached,
        (prompt - cached).alias("computed_tokens"),
        column("output_tokens", pl.Int64),
        column("arrival_s", pl.Float64),
        pl.Series("admit_s", [None] * len(rows), dtype=pl.Float64),
        column("first_token_s", pl.Float64),
        column("finish_s", pl.Float64),
        column("request_id", pl.String),
        column("planned_new_tokens", pl.Int64),
        column("planned_output_tokens", pl.Int64),
    ]
    if any("token_times_s" in row for row in rows):
        times = [row.get("token_times_s") or () for row in rows]
        gaps = [[b - a for a, b in pairwise(t)] for t in times]
        columns.append(pl.Series("token_gaps_s", gaps, dtype=pl.List(pl.Float32)))
    return pl.DataFrame(columns)

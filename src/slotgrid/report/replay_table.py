"""A replay over HTTP as tables: what was asked for before it, what came of it after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from slotgrid.measure.dry_run import DryRun
from slotgrid.run import Run

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console


def dry_run_report(totals: DryRun, console: Console) -> None:
    """Print what a replay would send."""
    console.print(f"plan {totals.plan_id}, SHA-256 {totals.plan_sha256}")
    table = Table(box=None, show_header=False)
    table.add_row("clients", f"{totals.clients:,}", f"at least {totals.sessions_per_client:,} sessions each")
    table.add_row("turns", f"{totals.turns:,}", f"in {totals.sessions:,} sessions")
    limit = "not stated" if totals.max_seq_len is None else f"{totals.max_seq_len:,}"
    table.add_row("longest context", f"{totals.longest_context_tokens:,}", f"tokens; limit of the plan {limit}")
    table.add_row("prompts", f"{totals.prompt_tokens:,}", f"tokens, of which {totals.new_tokens:,} new")
    table.add_row("output", f"{totals.output_tokens:,}", "tokens")
    table.add_row("tool waits", f"{totals.total_wait_s:,.1f} s", "summed over all sessions")
    how = "the warm-up and the window alone" if totals.window else "starts and waits alone"
    table.add_row("shortest run", f"{totals.least_s:,.1f} s", f"{how}, as if every answer came at once")
    console.print(table)


def replay_report(run: Run, console: Console) -> None:
    """Print what the clients saw and whether the run can be used."""
    details = run.details
    server = details.get("server", {})
    console.print(f"replay of plan {run.plan_id} on {details.get('base_url')} (model {server.get('model')})")
    table = Table(box=None, show_header=False)
    table.add_row("requests", f"{run.requests.height:,}", _failures(details))
    table.add_row("wall", "none" if run.wall_s is None else f"{run.wall_s:.3f} s", _window(details))
    table.add_row("reused", "not observable" if run.reused is None else f"{run.reused:,} of {run.returns:,}", "returns")
    table.add_row("time to first token", *_spread(run.requests["first_token_s"] - run.requests["arrival_s"]))
    if "token_gaps_s" in run.requests.columns:
        table.add_row("between tokens", *_spread(run.requests["token_gaps_s"].explode()))
    lag = details.get("client_lag", {})
    mean = lag.get("in_flight_mean")
    table.add_row(
        "in flight", "none" if mean is None else f"{mean:.1f}", f"on average, at most {lag.get('in_flight_most')}"
    )
    table.add_row("sent late", _ms(lag.get("send_p99_ms")), f"99 % at most; event loop {_ms(lag.get('loop_p99_ms'))}")
    turnaround = "none" if run.turnaround_s is None else f"{run.turnaround_s * 1e3:.2f} ms"
    table.add_row("turnaround", turnaround, "from an answer and its tool wait to the next request, median")
    console.print(table)
    for text in run.notes:
        console.print(f"note: {text}")


def _failures(details: Any) -> str:
    failures = details.get("failures") or {}
    if not failures:
        return "no failures"
    return ", ".join(f"{count} {kind}" for kind, count in failures.items())


def _window(details: Any) -> str:
    window = details.get("window")
    end = details.get("stopped_by")
    stopped = f"ended by its {end}" if end in ("plan", "window") else str(end)
    if window is None:
        return stopped
    return f"{stopped}; window {window['start_s']:.1f} s to {window['end_s']:.1f} s"


def _spread(values: pl.Series) -> tuple[str, str]:
    """Median, and 95th and 99th percentile, of seconds."""
    known = values.drop_nulls()
    if known.is_empty():
        return "not known", ""
    middle, p95, p99 = (float(known.quantile(q, "linear") or 0.0) * 1e3 for q in (0.5, 0.95, 0.99))
    return f"{middle:.2f} ms", f"median; 95 % {p95:.2f} ms, 99 % {p99:.2f} ms"


def _ms(value: Any) -> str:
    return "none" if value is None else f"{value:.2f} ms"

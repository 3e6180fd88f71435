"""An evaluation window and ensembles as a few tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from slotgrid.engine.ensemble import Ensemble
from slotgrid.engine.steady import SteadyEnsemble
from slotgrid.run import Run
from slotgrid.run.steady import SteadyLoad

if TYPE_CHECKING:
    from rich.console import Console


def steady_report(steady: SteadyLoad, run: Run, console: Console) -> None:
    """Print what a run does per turn inside its window."""
    window = steady.window
    console.print(
        f"{run.source} run of plan {run.plan_id}: window {window.start_s:.1f} to {window.end_s:.1f} s, "
        f"{steady.requests} turns"
    )
    table = Table(box=None, show_header=False)
    parts = f"decode {_text(steady.decode_s, ' s')}, prefill {_text(steady.prefill_s, ' s')} in the window"
    table.add_row("device time", _text(steady.device_time_per_turn_s, " s a turn", 4), parts)
    table.add_row("reuse", _percent(steady.reuse_rate), f"{_text(steady.reused)} of {steady.later_turns} later turns")
    table.add_row("stall", _text(steady.stall_per_turn_s, " s a turn"), "session-seconds others wait for prefills")
    table.add_row("padding", _percent(steady.padding_ratio), f"nothing runs {_percent(steady.idle_share)} of the time")
    queue = f"at least one waits {_percent(steady.queue_share)} of the time"
    if steady.queue is not None:
        queue += ", p50 {}, p95 {}, p99 {} waiting".format(*steady.queue)
    table.add_row("queue", _text(steady.queue_mean, " waiting"), queue)
    for name, spread in (
        ("TTFT", steady.ttft),
        ("TTFT, later turns", steady.ttft_later),
        ("between tokens", steady.inter_token),
    ):
        if spread is None:
            table.add_row(name, "not observed", "")
        else:
            table.add_row(name, f"p50 {spread.p50_s:.4f} s", f"p95 {spread.p95_s:.4f} s, p99 {spread.p99_s:.4f} s")
    tokens = _text(steady.tokens_per_s, " output tokens/s", 1)
    table.add_row("throughput", _text(steady.turns_per_s, " turns/s"), tokens)
    console.print(table)
    if steady.keeps_up is False:
        console.print(
            f"not a steady state: {steady.requests} turns arrived in the window and only {steady.finished} finished; "
            "values per turn and percentiles depend on when one looks"
        )
    if steady.occupancy is not None:
        shares = Table("running", "share of decode steps", box=None)
        for n, share in steady.occupancy.items():
            shares.add_row(str(n), f"{share:.2%}")
        console.print(shares)
    for text in run.extrapolated:
        console.print(f"outside the measured range: {text}")
    for text in run.notes:
        console.print(f"note: {text}")


def ensemble_report(ensemble: Ensemble, console: Console) -> None:
    """Print means and prediction intervals, and the returns whose reuse is uncertain."""
    data = ensemble.to_dict()
    console.print(
        f"{ensemble.members} repeats of plan {', '.join(ensemble.plan_ids)} on {ensemble.config.label}, "
        f"clock: {ensemble.clock}"
    )
    names = {
        "device time": "device_time_s",
        "decode": "decode_s",
        "prefill": "prefill_s",
        "stall": "stall_session_s",
        "wall": "wall_s",
        "padding ratio": "padding_ratio",
        "reused": "reused",
    }
    _intervals({name: data[key] for name, key in names.items()}, data["level"], console)
    uncertain = [row for row in data["reuse_probability"] if 0 < row["probability"] < 1]
    console.print(
        f"reuse: {ensemble.returns - len(uncertain)} of {ensemble.returns} returns are the same in every repeat"
    )
    for row in uncertain[:20]:
        console.print(
            f"  plan {row['plan']} session {row['session']} turn {row['turn']}: reuse in {row['probability']:.0%}"
        )
    if len(uncertain) > 20:
        console.print(f"  and {len(uncertain) - 20} more (--json shows all)")
    _limits(ensemble, console)


def steady_ensemble_report(ensemble: SteadyEnsemble, console: Console) -> None:
    """Print means and prediction intervals of the window."""
    data = ensemble.to_dict()
    console.print(
        f"{data['members']} repeats of plan {ensemble.plan_id} on {ensemble.config.label}, rules {ensemble.rules}, "
        f"clock: {ensemble.clock}"
    )
    rows = {
        key.replace("_", " "): value
        for key, value in data.items()
        if value is None or (isinstance(value, dict) and "mean" in value)
    }
    _intervals(rows, data["level"], console)
    if data["members_keeping_up"] < data["members"]:
        away = data["members"] - data["members_keeping_up"]
        console.print(
            f"not a steady state in {away} of {data['members']} repeats: turns arrive faster than they finish"
        )
    _limits(ensemble, console)


def _limits(ensemble: Ensemble | SteadyEnsemble, console: Console) -> None:
    for text in ensemble.extrapolated:
        console.print(f"outside the measured range: {text}")
    for text in ensemble.notes:
        console.print(f"note: {text}")


def _intervals(rows: Mapping[str, Mapping[str, float | None] | None], level: float, console: Console) -> None:
    table = Table("", "mean", f"{level:.0%} of repeats", box=None)
    for name, row in rows.items():
        if row is None:
            table.add_row(name, "not known", "")
        elif row["low"] is None or row["high"] is None:
            table.add_row(name, _text(row["mean"], digits=4), "too few repeats")
        else:
            table.add_row(name, _text(row["mean"], digits=4), f"{row['low']:.4f} to {row['high']:.4f}")
    console.print(table)


def _text(value: Any, unit: str = "", digits: int = 3) -> str:
    if value is None:
        return "not observed"
    return f"{value}{unit}" if isinstance(value, int) else f"{value:.{digits}f}{unit}"


def _percent(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2%}"

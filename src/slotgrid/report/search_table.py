"""A search result as the page an engineer reads before compiling."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.table import Table

from slotgrid.search import Candidate, SearchResult
from slotgrid.stacks import compile_command

if TYPE_CHECKING:
    from rich.console import Console

_NEAR_TIES_NAMED = 8


def search_report(result: SearchResult, space: str, max_seq_len: int, top: int, console: Console) -> None:
    """Print counts, ranking, recommendation, its cost, near-ties, the compile command and the limits."""
    profile = result.profile
    best, chosen, ties = result.best, result.recommended, result.near_ties
    console.print(
        f"{profile.id}, workload {result.workload_id}, rules {result.rules.name}, turnaround {_turnaround(result)}"
    )
    console.print(f"{result.candidates:,} candidates ({space})")
    if result.clock != "price":
        console.print(f"clock: {result.clock}")
    if result.ensemble is not None:
        console.print(
            f"{result.ensemble} repeats of every plan, the same for all candidates; ratios are of mean seconds"
        )
    for reason, count in result.skipped.items():
        if count:
            console.print(f"{count:,} more skipped: over the {reason} budget")
    explored, evaluated = (count * (result.ensemble or 1) for count in result.plans)
    console.print(
        f"{result.candidates * explored:,} simulations to rank them and {result.candidates * evaluated:,} to check; "
        f"{result.simulated:,} distinct ones run, {result.elapsed_s:.2f} s"
        + (f"; {result.resumed:,} candidates taken from the ledger" if result.resumed else "")
    )
    console.print()
    console.print(_ranking(result, top, console.width))
    console.print(
        f"ratio: device time over the baseline {result.baseline.config.label}, "
        f"{'sum of seconds' if result.score == 'sum' else 'mean of the ratios'} over N = "
        f"{', '.join(map(str, result.sessions))}; evaluated: on plans the ranking has not seen; "
        "N columns: explored / evaluated"
    )
    console.print()

    near = f"{result.near_tie:g} of the best ratio"
    if result.ensemble is not None:
        near = f"{result.near_tie:g}, or not behind in 5 % of the repeats, of the best ratio"
    console.print(f"Recommended: buckets {_buckets(chosen)} with {chosen.config.slots} KV slots", style="bold")
    if len(ties) == 1:
        console.print(f"  the only candidate within {near}")
    elif chosen.config == best.config:
        console.print(
            f"  of {len(ties)} near-ties (within {near} {best.ratio:.4f}) the fewest "
            "compile seconds, then least memory, then smallest ratio: the best itself"
        )
    else:
        console.print(
            f"  of {len(ties)} near-ties (within {near} {best.ratio:.4f}, "
            f"{best.config.label}) the fewest compile seconds, then least memory, then smallest ratio"
        )
    if chosen.probability_best is not None and chosen.config != best.config:
        console.print(
            f"  it is the best in {chosen.probability_best:.1%} of the repeats, {best.config.label} in "
            f"{best.probability_best:.1%}; its mean ratio is {chosen.ratio - best.ratio:.4f} larger"
        )
    console.print(
        f"  device time {_change(chosen.ratio)} on the search inputs, {_change(chosen.ratio_evaluated)} on the "
        "evaluation inputs"
    )
    for n in result.sessions:
        console.print(
            f"  N = {n}: {chosen.ratio_by_sessions[n]:.4f} explored, {chosen.ratio_evaluated_by_sessions[n]:.4f} "
            f"evaluated; reused {chosen.reused_by_sessions[n]:g} of {result.returns_by_sessions[n]} returns "
            f"(baseline {result.baseline.reused_by_sessions[n]:g})"
        )
    console.print(f"  costs {_costs(result, chosen)}")
    if len(ties) > 1:
        named = [tie for tie in ties if tie.config != chosen.config][:_NEAR_TIES_NAMED]
        more = len(ties) - 1 - len(named)
        console.print(
            "  near-ties: "
            + "; ".join(f"{tie.config.label} ({tie.ratio:.4f})" for tie in named)
            + (f"; {more} more" if more else "")
        )
    for text in (*chosen.extrapolated, *result.extrapolated):
        console.print(f"  outside the measured range: {text}")
    for text in result.notes:
        console.print(f"  over all simulations run, {text}")
    console.print()
    _commands(result, max_seq_len, console)


def _turnaround(result: SearchResult) -> str:
    scatter = result.profile.scatter
    if result.ensemble is None or result.turnaround_given or scatter is None:
        return f"{result.turnaround_s * 1000:g} ms"
    return f"{scatter.turnaround_s.low * 1000:g} to {scatter.turnaround_s.high * 1000:g} ms"


def _ranking(result: SearchResult, top: int, width: int) -> Table:
    # a narrow terminal shows the ratios; the recommendation below names the rest
    by_sessions = result.sessions if width >= 90 + 12 * len(result.sessions) else ()
    costs = width >= 70
    table = Table(box=None, pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("buckets", no_wrap=True)
    cost_names = ("compile", "artifact", "memory") if costs else ()
    repeats = ("best in", "95 % of repeats") if result.ensemble is not None and costs else ()
    for name in ("slots", "ratio", *repeats, "evaluated", *(f"N={n}" for n in by_sessions), *cost_names):
        table.add_column(name, justify="right", no_wrap=True)
    ranked = list(enumerate(result.top(top), start=1))
    for rank, entry in [*ranked, (0, result.baseline)]:
        cost_texts = (
            "?" if entry.compile_s is None else f"{entry.compile_s:.0f} s",
            "?" if entry.artifact_gib is None else f"{entry.artifact_gib:.1f} GiB",
            "?" if entry.memory_gib_per_device is None else f"{entry.memory_gib_per_device:.1f} GiB",
        )
        table.add_row(
            str(rank) if rank else "base",
            _buckets(entry),
            str(entry.config.slots),
            f"{entry.ratio:.4f}",
            *(_repeat_texts(entry) if repeats else ()),
            f"{entry.ratio_evaluated:.4f}",
            *(f"{entry.ratio_by_sessions[n]:.3f}/{entry.ratio_evaluated_by_sessions[n]:.3f}" for n in by_sessions),
            *(cost_texts if costs else ()),
        )
    return table


def _repeat_texts(entry: Candidate) -> tuple[str, str]:
    share = "" if entry.probability_best is None else f"{entry.probability_best:.1%}"
    span = entry.ratio_interval
    return share, "" if span is None else f"{span[0]:.4f} to {span[1]:.4f}"


def _buckets(entry: Candidate) -> str:
    return ",".join(map(str, entry.config.buckets))


def _change(ratio: float) -> str:
    return f"x {ratio:.4f} ({(ratio - 1) * 100:+.1f} %)"


def _costs(result: SearchResult, entry: Candidate) -> str:
    parts = []
    if entry.compile_s is not None:
        parts.append(f"{entry.compile_s:.0f} s to compile ({entry.compile_s / 60:.1f} min)")
    if entry.artifact_gib is not None:
        parts.append(f"{entry.artifact_gib:.1f} GiB artifact")
    memory = result.profile.memory
    if entry.memory_gib_per_device is not None and memory is not None:
        parts.append(
            f"{entry.memory_gib_per_device:.2f} GiB of the {memory.device_gib.value:g} GiB of the fullest device"
        )
    return ", ".join(parts) if parts else "not known: the profile has no compile or memory model"


def _commands(result: SearchResult, max_seq_len: int, console: Console) -> None:
    chosen, best = result.recommended, result.best
    entries = [("Compile it:", chosen)]
    if best.config != chosen.config:
        entries.append(("Or the smallest ratio:", best))
    for title, entry in entries:
        words = compile_command(result.profile, entry.config, max_seq_len)
        if words is None:
            console.print(f"No compile command is known for stack {result.profile.stack or 'unnamed'!r}")
            return
        console.print(title)
        # unwrapped, so that it can be pasted
        console.out(f"  {shlex.join(words)}", highlight=False)

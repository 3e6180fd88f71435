"""A diagnosis as sections of tables and sentences: made once, printed on a console or set in a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slotgrid.diagnose import Diagnosis
from slotgrid.diagnose.buckets import OPPOSITE_WARNING
from slotgrid.diagnose.interference import SPIKE_FACTOR, quantiles
from slotgrid.diagnose.reuse import CAUSES

if TYPE_CHECKING:
    from rich.console import Console

NOT_OBSERVED = "not observed"
_LOST_NAMED = 12
_SURVIVAL_NAMED = 12


@dataclass(frozen=True)
class Grid:
    """A table. header is empty for pairs of a name, a value and a remark; right: columns aligned to the right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int]


Part = Grid | str


def seconds(value: float | None) -> str:
    return NOT_OBSERVED if value is None else f"{value:.3f} s"


def percent(value: float | None) -> str:
    return NOT_OBSERVED if value is None else f"{value * 100:.2f} %"


def count(value: float | None) -> str:
    return NOT_OBSERVED if value is None else f"{value:,}"


def _reuse(value: int | None) -> str:
    return "not observable" if value is None else f"{value:,}"


def headline(d: Diagnosis) -> str:
    """One line: what kind of run, of which plan, on which configuration."""
    run = d.run
    if run.config is None:
        config = "configuration not known"
    else:
        config = f"buckets {','.join(map(str, run.config.buckets))}, {run.config.slots} slots, "
        config += f"max running {run.config.max_running}"
    plan = "" if run.plan_id is None else f" of plan {run.plan_id}"
    return f"{run.source} run{plan}: {config}; {run.requests.height:,} requests"


def sections(d: Diagnosis) -> list[tuple[str, list[Part]]]:
    """Title and parts of every section that has something to say."""
    made: list[tuple[str, list[Part]]] = [
        ("Batch alignment", alignment_parts(d)),
        ("Reuse", reuse_parts(d)),
        ("Interference", interference_parts(d)),
        ("Cost", cost_parts(d)),
        ("Evaluation window", window_parts(d)),
        ("Compared with the baseline", comparison_parts(d)),
        ("Not observed", [f"{what}: {why}" for what, why in d.not_observed.items()]),
        ("Warnings", [*(f"outside the measured range: {text}" for text in d.extrapolated), *d.warnings]),
    ]
    return [(title, parts) for title, parts in made if parts]


def diagnosis_report(d: Diagnosis, console: Console) -> None:
    """Print the headline, the summary with its rule, and every section."""
    from rich.text import Text

    console.print(Text(headline(d)))
    console.print()
    console.print("Summary", style="bold")
    for sentence in d.summary:
        show_part(sentence.text, console)
    show_part(f"rule of the last sentence: {d.summary[-1].rule}", console, "dim")
    for title, parts in sections(d):
        console.print()
        console.print(title, style="bold")
        for part in parts:
            show_part(part, console)


def show_part(part: Part, console: Console, style: str = "") -> None:
    """Print a table or a sentence, a little to the right."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    # a name in square brackets is text here, not markup
    content: Table | Text
    if isinstance(part, str):
        content = Text(part, style)
    else:
        content = Table(box=None, show_header=bool(part.header), pad_edge=False)
        for i in range(len(part.rows[0])):
            name = part.header[i] if part.header else ""
            content.add_column(name, justify="right" if i in part.right else "left")
        for row in part.rows:
            content.add_row(*map(Text, row))
    console.print(Padding(content, (0, 0, 0, 2), expand=False))


def _pairs(rows: list[tuple[str, str, str]]) -> Grid:
    return Grid((), tuple(rows), frozenset({1}))


def alignment_parts(d: Diagnosis) -> list[Part]:
    """Totals, steps by running count and bucket, and the other bucket list."""
    if d.histogram is None or d.alignment is None:
        return [f"steps: {NOT_OBSERVED}"]
    a = d.alignment
    parts: list[Part] = [
        _pairs(
            [
                ("decode steps", f"{a.steps:,}", ""),
                ("padding ratio", percent(a.padding_ratio), "1 - (sum of running) / (sum of buckets)"),
                ("utilization", percent(a.utilization), f"{a.running_sum:,} of {a.bucket_sum:,} rows"),
            ]
        )
    ]
    change = d.change
    drops = {c.running: c for c in change.changes} if change is not None else {}
    columns = ["running", "bucket", "steps", "padded rows", "seconds"]
    if change is not None:
        columns += [f"padded with {','.join(map(str, change.buckets))}", "part of the drop"]
    rows = []
    for (running, bucket), steps in sorted(d.histogram.items()):
        cells = [str(running), str(bucket), f"{steps:,}", f"{(bucket - running) * steps:,}"]
        mark = " *" if bucket in d.unmeasured else ""
        cells.append("-" if d.bucket_s is None else f"{d.bucket_s[running, bucket]:.3f}{mark}")
        if change is not None:
            entry = drops[running]
            cells += [f"{entry.padded_after:,}", f"{entry.shapley_drop:+.4f}"]
        rows.append(tuple(cells))
    parts.append(Grid(tuple(columns), tuple(rows), frozenset(range(len(columns)))))
    if d.unmeasured and d.bucket_s is not None:
        parts.append(f"* price {_how(d.unmeasured)}: nobody measured it")
    if change is not None:
        how = "fitted to the observed counts" if change.fitted else "as asked"
        text = (
            f"buckets {','.join(map(str, change.buckets))} ({how}), same steps: padding "
            f"{percent(change.before.padding_ratio)} -> {percent(change.after.padding_ratio)}"
        )
        if change.decode_before_s is not None and change.decode_after_s is not None:
            text += f", decode {change.decode_before_s:.3f} -> {change.decode_after_s:.3f} s"
            if change.unmeasured:
                text += f" (price {_how(change.unmeasured)}: nobody measured it)"
        parts.append(text)
        if change.opposite:
            parts.append("here they do: padding and priced decode time move in opposite directions")
        parts.append(OPPOSITE_WARNING)
    return parts


def _how(unmeasured: Mapping[int, str]) -> str:
    """Which buckets' prices are interpolated and which extrapolated."""
    kinds = []
    for kind in ("interpolated", "extrapolated"):
        sizes = [str(bucket) for bucket, how in unmeasured.items() if how == kind]
        if sizes:
            kinds.append(f"{kind} for bucket {', '.join(sizes)}")
    return " and ".join(kinds)


def window_parts(d: Diagnosis) -> list[Part]:
    """The evaluation window of steady load."""
    w = d.window
    if w is None:
        return []
    rows = [
        ("window", f"{w.window.seconds:.1f} s", f"from {w.window.start_s:.1f} to {w.window.end_s:.1f} s of the run"),
        ("turns", count(w.requests), f"{w.requests / w.window.seconds:.3f} a second; sent in the window"),
        ("reused", _reuse(w.reused), f"of {w.later_turns:,} returns"),
        ("device time a turn", seconds(w.device_time_per_turn_s), "decode of its steps, prefill of its turns"),
        ("padding ratio", percent(w.padding_ratio), ""),
    ]
    if w.ttft is not None:
        rows.append(("time to first token", seconds(w.ttft.p50_s), f"median; p95 {seconds(w.ttft.p95_s)}"))
    return [_pairs(rows)]


def reuse_parts(d: Diagnosis) -> list[Part]:
    """Totals, causes of losses, how long returns stayed away, the survival curve."""
    returns, run = d.returns, d.run
    hits = d.inner_hit_tokens
    rows = [
        ("returns", count(run.returns), "requests that continue a session"),
        ("reused", _reuse(run.reused), "found their prefix in a slot"),
        (
            "prompt tokens",
            count(run.prompt_tokens),
            f"cached {_reuse(run.cached_tokens)}, computed {_reuse(run.computed_tokens)}",
        ),
    ]
    if hits is not None:
        rows.append(("prefix_cache_hits", count(hits), "misleading: the server counts its inner block layer"))
    if run.evictions is not None:
        unknown = run.evicted(None)
        text = f"{run.evicted('admission')} by admission, {run.evicted('padding')} by the padding slot"
        rows.append(("evictions", count(run.evictions.height), text + (f", {unknown} not told" if unknown else "")))
    if returns is None:
        return [_pairs(rows)]
    where = "" if d.lost_returns is None else f"in {d.lost_returns:,} returns"
    rows.append(("lost tokens", _reuse(d.lost_tokens), where))
    if d.beyond_rules:
        text = "returns found more than the profile's rules allow: generated tokens, other blocks, shared prefixes?"
        rows.append(("beyond the rules", f"{d.beyond_rules:,}", text))
    extra = d.additional_prefill_s()
    if extra is not None:
        rows.append(("additional prefill", seconds(extra[1]), "computed less what the prefix would have left"))
        rows.append(("", seconds(extra[0]), "prefill of the lost tokens alone (second definition)"))
    away = returns.away_s[~np.isnan(returns.away_s)]
    if len(away):
        q = quantiles(away)
        rows.append(("away", seconds(q["p50"]), f"median; p95 {seconds(q['p95'])}, longest {seconds(q['max'])}"))
    parts: list[Part] = [_pairs(rows)]
    lost = np.flatnonzero(returns.lost_tokens > 0)
    if len(lost):
        header = ("session", "turn", "lost tokens", "admissions between", "away", "additional prefill", "cause")
        named = []
        session, turn = run.requests["session"], run.requests["turn"]
        for i in lost[np.argsort(-returns.lost_tokens[lost], kind="stable")][:_LOST_NAMED].tolist():
            cause = NOT_OBSERVED if returns.cause[i] < 0 else CAUSES[returns.cause[i]]
            named.append(
                (
                    str(session[int(returns.row[i])]),
                    str(turn[int(returns.row[i])]),
                    f"{returns.lost_tokens[i]:,}",
                    "-" if returns.between[i] < 0 else str(returns.between[i]),
                    "-" if np.isnan(returns.away_s[i]) else f"{returns.away_s[i]:.3f} s",
                    "-" if np.isnan(returns.incremental_s[i]) else f"{returns.incremental_s[i]:.3f} s",
                    cause + (" (its own)" if returns.own[i] else ""),
                )
            )
        parts.append(Grid(header, tuple(named), frozenset(range(6))))
        if len(lost) > _LOST_NAMED:
            parts.append(f"{len(lost) - _LOST_NAMED} more lost prefixes (--json names them)")
    if d.survival is not None:
        s = d.survival
        step = max(1, len(s.slots) // _SURVIVAL_NAMED)
        shown = [
            f"{slots}{'*' if slots == s.own_slots else ''}: {kept}"
            for i, (slots, kept) in enumerate(zip(s.slots, s.kept, strict=True))
            if i % step == 0 or slots == s.own_slots or i == len(s.slots) - 1
        ]
        agree = "" if s.agreement is None else f"; replay agrees with {s.agreement:.1%} of the observed returns"
        parts.append(f"kept of {s.returns} by slots, same order of events (* this run): {', '.join(shown)}{agree}")
    return parts


def interference_parts(d: Diagnosis) -> list[Part]:
    """Stalls, who waited longest, time to first token, inter-token gaps."""
    s, g = d.stalls, d.gaps
    rows = []
    if s is None:
        rows.append(("stall", NOT_OBSERVED, ""))
    else:
        rows.append(("stall", f"{s.stall_session_s:.3f} s", "session-seconds others wait; never added to device time"))
        rows.append(("prefill", seconds(s.prefill_s), f"{seconds(s.beside_decode_s)} of it beside decoding requests"))
        if s.longest:
            session, turn = d.run.requests["session"], d.run.requests["turn"]
            named = ", ".join(f"session {session[r]} turn {turn[r]} {s.waited_s[r]:.3f} s" for r in s.longest[:3])
            rows.append(("longest waits", f"{s.waited_s[s.longest[0]]:.3f} s", named))
    if d.first_token_s is not None:
        q = quantiles(d.first_token_s)
        rows.append(("time to first token", seconds(q["p50"]), _tail(q)))
    if g is not None:
        rows.append(("inter-token gap", f"{g.quantiles_s['p50'] * 1000:.2f} ms", _tail(g.quantiles_s)))
        rows.append(
            (
                "spikes",
                f"{g.spikes:,}",
                f"gaps above {SPIKE_FACTOR:g} x the median, in {g.requests_hit} of {g.requests} requests, "
                f"{g.spike_excess_s:.3f} s above it",
            )
        )
    return [_pairs(rows)]


def _tail(q: dict[str, float]) -> str:
    return f"median; p95 {seconds(q['p95'])}, p99 {seconds(q['p99'])}, largest {seconds(q['max'])}"


def cost_parts(d: Diagnosis) -> list[Part]:
    """Channels A and B and the residual."""
    a = d.channel_a
    rows = [
        (
            "channel A",
            seconds(a.total_s),
            f"decode {seconds(a.decode_s)}, prefill {seconds(a.prefill_s)}"
            if a.total_s is not None or not a.missing
            else f"needs {' and '.join(a.missing)}",
        ),
        ("channel B", seconds(d.channel_b_s), "at least one request in flight, as the clients saw it"),
        ("residual", seconds(d.residual_s), "B - A"),
    ]
    return [_pairs(rows)]


def comparison_parts(d: Diagnosis) -> list[Part]:
    """Both runs side by side, and whether the channels agree."""
    c = d.comparison
    if c is None:
        return []
    rows = []
    for name, (mine, theirs) in c.values.items():
        cells = ["-" if v is None else f"{v:,}" if isinstance(v, int) else f"{v:,.3f}" for v in (mine, theirs)]
        ratio = "" if mine is None or not theirs else f"{mine / theirs:.4f}"
        rows.append((name, *cells, ratio))
    parts: list[Part] = [c.note, Grid(("", "this run", "baseline", "ratio"), tuple(rows), frozenset({1, 2, 3}))]
    if c.agreement is None:
        parts.append("channels cannot be compared: one is not observed or a baseline of 0")
    else:
        a = c.agreement
        verdict = "agree" if a.agree else "do NOT agree"
        parts.append(
            f"ratio A {a.ratio_a:.4f}, ratio B {a.ratio_b:.4f}, difference {a.difference:.4f}: the channels {verdict} "
            f"within tau = max(0.02, r_base / B_base) = {a.tau:.4f}"
        )
    return parts

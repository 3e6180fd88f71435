"""Still pictures of a study: predicted against observed, channels, slots, compile cost against saving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slotgrid.report.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SKY,
    Picture,
    legend_above,
    new_figure,
    png_of,
    whole_ticks,
)
from slotgrid.report.study_tables import left_out_text
from slotgrid.study.breakeven import NO_DECISION, BreakEven
from slotgrid.study.decide import PASSED
from slotgrid.study.overview import SetOverview
from slotgrid.study.resample import LEAST_VALUES
from slotgrid.study.settings import SIMULATED, STEADY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (BLUE, ORANGE, GREEN, RED, GREY, SKY)
_NOT_PASSED = "the decision on that comparison is not passed, so the saving is not established"
_MARKS = ("o", "s", "^", "D", "v", "P")


def set_pictures(s: SetOverview) -> list[Picture]:
    """Every picture a data set has numbers for."""
    made = []
    if s.plans.load == STEADY and s.verdict is not None:
        made += [_steady_cost(s), _steady_reuse(s)]
    else:
        made.append(_ratios(s))
        if s.verdict is not None:
            made.append(_channels(s))
    if s.saturation is not None:
        made.append(_saturation(s))
    if any(cost.compile_s is not None for cost in s.costs[1:]):
        made.append(_cost_and_saving(s))
        made.append(_break_even(s))
    return made


def _word(s: SetOverview) -> str:
    """What the runs are called: a simulated run is never said to be measured."""
    return "simulated stand-in" if s.basis == SIMULATED else "measured"


def _name(s: SetOverview, what: str) -> str:
    return f"{s.plans.name}-{what}"


def _ratios(s: SetOverview) -> Picture:
    """Predicted and observed ratios side by side, replicates in grey."""
    labels = [f"N = {p.sessions}\n{p.arm}" for p in s.predicted]
    x = np.arange(len(labels), dtype=float)
    figure, axes = new_figure(4.2)
    axes.axhline(1.0, color=GREY, linewidth=1)
    rows = [] if s.verdict is None else s.verdict.data["comparisons"]
    if rows:
        low, high = s.entry.settings.device_time.equal_band
        axes.axhspan(low, high, color=SKY, alpha=0.25, linewidth=0, label=f"counts as equal [{low:g}, {high:g}]")
    point = np.array([p.ratio for p in s.predicted])
    axes.scatter(x - 0.16, point, color=BLUE, marker="o", s=50, label="predicted", zorder=3)
    if (bars := _bars(s)) is not None:
        axes.errorbar(x - 0.16, point, yerr=bars, fmt="none", color=BLUE, capsize=4)
    if rows:
        axes.scatter(x, [c["ratio_a"] for c in rows], color=RED, marker="s", s=46, label=f"{_word(s)}, A", zorder=3)
        axes.scatter(
            x + 0.16, [c["ratio_b"] for c in rows], color=ORANGE, marker="D", s=40, label=f"{_word(s)}, B", zorder=3
        )
        for at, c in zip(x, rows, strict=True):
            ratios = [r["ratio_a"] for r in c["replicates"]]
            own = "replicates, A" if at == 0 else None
            axes.scatter([at] * len(ratios), ratios, color=GREY, marker="_", s=90, linewidth=1.2, label=own, zorder=2)
    for at, p in zip(x, s.predicted, strict=True):
        if p.sessions in s.plans.exploratory:
            axes.axvspan(at - 0.5, at + 0.5, color="#f1f1f1", linewidth=0, zorder=0)
    axes.set_xticks(x, labels)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_ylabel("device time over the baseline's")
    legend_above(axes, 3)
    text = "Sums over replicates."
    if any(p.interval is not None for p in s.predicted):
        text += " Bars: 95 % of the ensemble."
    elif not s.entry.settings.ensemble:
        text += " No ensemble was registered, so predictions have no interval."
    if s.plans.exploratory:
        text += " Grey columns: exploratory N, no decision."
    if not rows:
        text += " There is no verdict yet; until then only predictions are shown."
    title = "Predicted against observed" if rows else "Predicted device time"
    return Picture(_name(s, "ratios"), f"{title}, set {s.plans.name}", text, png_of(figure))


def _bars(s: SetOverview) -> Any:
    """Lengths of the error bars, or None without ensembles."""
    if any(p.interval is None for p in s.predicted):
        return None
    ends = [(p.ratio - p.interval.low, p.interval.high - p.ratio) for p in s.predicted if p.interval is not None]
    # a point prediction may lie a hair outside its own ensemble
    return np.maximum(np.array(ends).T, 0.0)


def _channels(s: SetOverview) -> Picture:
    """Difference of the channels against its tolerance."""
    assert s.verdict is not None
    rows = s.verdict.data["comparisons"]
    figure, axes = new_figure(3.2)
    x = np.arange(len(rows), dtype=float)
    difference = [c["difference"] for c in rows]
    colours = [RED if c["difference"] > c["tolerance"] else BLUE for c in rows]
    axes.bar(x, difference, width=0.55, color=colours)
    for at, c in zip(x, rows, strict=True):
        own = "tolerance" if at == 0 else None
        axes.plot([at - 0.4, at + 0.4], [c["tolerance"]] * 2, color="black", linewidth=2, label=own)
        axes.annotate(
            f"{c['difference']:.4f}",
            (at, c["difference"]),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axes.set_xticks(x, [f"N = {c['sessions']}\n{c['arm']}" for c in rows])
    axes.set_ylim(0, max([*difference, *(c["tolerance"] for c in rows)]) * 1.2)
    axes.set_ylabel("|A - B| of the ratios")
    legend_above(axes, 1)
    over = sum(c["difference"] > c["tolerance"] for c in rows)
    text = f"{len(rows) - over} of {len(rows)} comparisons agree in both channels"
    text += "." if not over else "; the red ones do not, and their decision is withheld."
    return Picture(_name(s, "channels"), f"Channel agreement, set {s.plans.name}", text, png_of(figure))


def _saturation(s: SetOverview) -> Picture:
    """Device time against slots, relative to the fewest: every cell and the median."""
    assert s.saturation is not None
    order = [s.saturation.steps[0].fewer, *(step.more for step in s.saturation.steps)]
    slots = [s.entry.settings.arm(name).config.slots for name in order]
    steady = s.plans.load == STEADY
    cells: dict[tuple[int, str], dict[str, float]] = {}
    for o in s.outcomes:
        cells.setdefault((o.sessions, o.replicate), {})[o.arm] = o.per_turn_s if steady else o.device_s
    figure, axes = new_figure(3.8)
    values = np.array([[row[name] / row[order[0]] for name in order] for row in cells.values()])
    sessions = [n for n, _ in cells]
    judged = np.array([n in s.plans.sessions for n in sessions])
    for n, colour in zip(sorted(set(sessions)), _COLOURS * 9, strict=False):
        mine = values[[i for i, m in enumerate(sessions) if m == n]]
        axes.plot(slots, mine.T, color=colour, alpha=0.35, linewidth=1)
        label = f"N = {n}, replicates" if n in s.plans.sessions else f"N = {n}, exploratory"
        axes.plot([], [], color=colour, label=label)
    median = np.median(values[judged], axis=0)
    axes.plot(slots, median, color="black", marker="o", linewidth=2, label="median over cells")
    for step, more in zip(s.saturation.steps, slots[1:], strict=True):
        axes.axvline(more, color=GREY, linewidth=0.6, linestyle=":")
        axes.annotate(
            step.decision,
            (more, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-4, -1),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=9,
            color=GREY if step.decision == "saturated" else RED,
        )
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.12 * (high - low))
    axes.set_xticks(slots)
    axes.set_xlabel("KV slots")
    axes.set_ylabel("device time over that\nwith the fewest slots")
    legend_above(axes, 4)
    text = f"From {s.basis} device times. "
    detail = ""
    if s.saturation.enough is not None:
        cost = next(cost for cost in s.costs if cost.arm == s.saturation.enough)
        detail = f" ({cost.slots} slots"
        detail += "" if cost.memory_gib_per_device is None else f", {cost.memory_gib_per_device:.1f} GiB of a device"
        detail += "" if cost.compile_s is None else f", {cost.compile_s:.0f} s to compile"
        detail += ")"
    text += f"{s.saturation.conclusion(detail)}."
    if s.saturation.left_out:
        text += f" {left_out_text(s.saturation)}"
    return Picture(_name(s, "saturation"), f"More slots, set {s.plans.name}", text, png_of(figure))


def _cost_and_saving(s: SetOverview) -> Picture:
    """Saving over compile time, one point an arm and N."""
    figure, axes = new_figure(3.6)
    axes.axhline(0.0, color=GREY, linewidth=1)
    base = {(o.sessions, o.replicate): o for o in s.outcomes if o.arm == s.entry.settings.baseline.name}
    base_s: dict[int, list[float]] = {}
    for (n, _), o in base.items():
        base_s.setdefault(n, []).append(o.per_turn_s if s.plans.load == STEADY else o.device_s)
    for (n, rows), mark, colour in zip(_by_sessions(s), _MARKS * 9, _COLOURS * 9, strict=False):
        known = [b for b in rows if b.compile_s is not None]
        saved = [100 * b.saved_s / (sum(base_s[n]) / len(base_s[n])) for b in known]
        cost_min = [(b.compile_s or 0) / 60 for b in known]
        faces = [colour if _established(b) else "none" for b in known]
        axes.scatter(cost_min, saved, marker=mark, facecolors=faces, edgecolors=colour, linewidths=1.5, s=60)
        axes.scatter([], [], marker=mark, color=colour, s=60, label=f"N = {n}")
        for b, x, y in zip(known, cost_min, saved, strict=True):
            axes.annotate(b.arm, (x, y), xytext=(7, -3), textcoords="offset points", fontsize=8)
    axes.margins(x=0.15, y=0.2)
    axes.set_xlim(left=0)
    axes.set_xlabel("minutes to compile")
    axes.set_ylabel("device time saved, %")
    legend_above(axes, 6)
    text = f"Saving: {s.basis}, against {s.entry.settings.baseline.name}. Compile time: what is known of each arm."
    if s.verdict is not None:
        text += f" Hollow: {_NOT_PASSED}."
    return Picture(_name(s, "cost"), f"Compile cost against saving, set {s.plans.name}", text, png_of(figure))


def _break_even(s: SetOverview) -> Picture:
    """Runs until a compile time has paid for itself, for any compile time."""
    figure, axes = new_figure(3.8)
    known = [cost.compile_s for cost in s.costs if cost.compile_s is not None]
    top_min = max([*known, 600.0]) / 60 * 1.3
    span = np.linspace(0, top_min, 50)
    unit = s.break_even[0].unit
    never = []
    styles = ["-", "--", ":", "-."] * 9
    for (n, rows), colour in zip(_by_sessions(s), _COLOURS * 9, strict=False):
        for b, style in zip(rows, styles, strict=False):
            if b.saved_s <= 0:
                never.append(f"{b.arm} at N = {n}")
                continue
            axes.plot(span, span * 60 / b.saved_s, style, color=colour, label=f"N = {n}, {_decided(b)}")
            if b.compile_s is not None and b.runs is not None:
                axes.scatter([b.compile_s / 60], [b.runs], color=colour, s=36, zorder=3)
    axes.set_xlim(0, top_min)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("minutes to compile")
    axes.set_ylabel(f"{unit} until it has paid")
    whole_ticks(axes.yaxis)
    if axes.lines:
        _legend_of_many(axes)
    text = f"Points: the compile time known of each arm. Saving: {s.basis}."
    if s.verdict is not None:
        text += f" In brackets: {_NOT_PASSED}."
    if never:
        text += f" Never pays: {', '.join(never)}."
    return Picture(_name(s, "break-even"), f"Break-even, set {s.plans.name}", text, png_of(figure))


def _established(b: BreakEven) -> bool:
    """Whether nothing was decided against the saving; a predicted one has no decision at all."""
    return b.decision in (PASSED, NO_DECISION)


def _decided(b: BreakEven) -> str:
    """The arm, with the decision where it does not confirm the saving."""
    return b.arm if _established(b) else f"{b.arm} ({b.decision})"


def _legend_of_many(axes: Axes) -> None:
    handles, _ = axes.get_legend_handles_labels()
    legend_above(axes, min(4, max(1, len(handles))))


def _by_sessions(s: SetOverview) -> list[tuple[int, Sequence[Any]]]:
    counts = sorted({b.sessions for b in s.break_even})
    return [(n, [b for b in s.break_even if b.sessions == n]) for n in counts]


def _steady_cost(s: SetOverview) -> Picture:
    """Cost ratio per cell: prediction and observed median with its interval."""
    assert s.verdict is not None
    cells = [c for c in s.verdict.data["cells"] if c["cost"] is not None]
    figure, axes = new_figure(4.0)
    x = np.arange(len(cells), dtype=float)
    axes.axhline(1.0, color=GREY, linewidth=1)
    medians = np.array([c["cost"]["point"] for c in cells])
    ends = np.array([[c["cost"]["point"] - c["cost"]["low"], c["cost"]["high"] - c["cost"]["point"]] for c in cells]).T
    axes.errorbar(x + 0.1, medians, yerr=ends, fmt="s", color=RED, capsize=4, label=f"{_word(s)}, median of replicates")
    axes.scatter(
        x - 0.1, [c["cost_predicted"] for c in cells], color=BLUE, marker="o", s=46, label="predicted", zorder=3
    )
    _cell_ticks(axes, x, cells)
    axes.set_ylabel("device time per turn\nover the baseline's")
    legend_above(axes, 2)
    text = "Bars: paired bootstrap over replicates, 95 %."
    if len(s.plans.replicates) < LEAST_VALUES:
        text = f"Bars: bootstrap over {len(s.plans.replicates)} replicates, too few for a 95 % interval."
    text += " Grey columns: exploratory N."
    return Picture(_name(s, "ratios"), f"Predicted against observed, set {s.plans.name}", text, png_of(figure))


def _steady_reuse(s: SetOverview) -> Picture:
    """Reuse rate per cell."""
    assert s.verdict is not None
    cells = s.verdict.data["cells"]
    figure, axes = new_figure(3.6)
    x = np.arange(len(cells), dtype=float)
    nothing = float("nan")
    for key, shift, mark, colour, label in (
        ("reuse_predicted", -0.1, "o", BLUE, "predicted"),
        ("reuse", 0.1, "s", RED, _word(s)),
    ):
        values = [nothing if c[key] is None else c[key] for c in cells]
        axes.scatter(x + shift, values, marker=mark, color=colour, s=46, label=label, zorder=3)
    null = s.entry.settings.steady.null_reuse
    if null is not None:
        axes.axhline(null, color=GREY, linestyle="--", linewidth=1, label="null predictor")
    _cell_ticks(axes, x, cells)
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("reuse rate of later turns")
    legend_above(axes, 3)
    return Picture(_name(s, "reuse"), f"Reuse, set {s.plans.name}", "Pooled over replicates.", png_of(figure))


def _cell_ticks(axes: Axes, x: Any, cells: Sequence[dict[str, Any]]) -> None:
    axes.set_xticks(x, [f"N = {c['sessions']}\n{c['arm']}" for c in cells])
    axes.set_xlim(-0.5, len(cells) - 0.5)
    for at, c in zip(x, cells, strict=True):
        if c["exploratory"]:
            axes.axvspan(at - 0.5, at + 0.5, color="#f1f1f1", linewidth=0, zorder=0)

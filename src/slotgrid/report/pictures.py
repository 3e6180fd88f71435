"""Still pictures of a diagnosis (matplotlib): steps, slots, timeline, in-flight intervals, survival."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slotgrid import files
from slotgrid.diagnose import Diagnosis
from slotgrid.diagnose.timeline import Timeline, build_timeline
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

# more than this cannot be told apart on a page; the picture then shows the beginning and says so
MOST_REQUESTS = 240


def draw_pictures(d: Diagnosis) -> list[Picture]:
    """Every picture the run has data for."""
    pictures = []
    if d.histogram:
        pictures.append(_steps(d))
    timeline = build_timeline(d, MOST_REQUESTS)
    if timeline is not None and timeline.requests:
        if timeline.held:
            pictures.append(_slots(d, timeline))
        pictures.append(_timeline(d, timeline))
    if d.channel_b_s is not None:
        pictures.append(_in_flight(d))
    if d.survival is not None and len(d.survival.slots) > 1:
        pictures.append(_survival(d))
    return pictures


def save_pictures(pictures: Sequence[Picture], folder: Path) -> list[Path]:
    """Write each picture as PNG; returns the paths."""
    paths = []
    for picture in pictures:
        path = folder / f"{picture.name}.png"
        with files.replacing(path) as temporary:
            temporary.write_bytes(picture.png)
        paths.append(path)
    return paths


def _steps(d: Diagnosis) -> Picture:
    """Computed rows by running count and bucket: real ones and padding."""
    assert d.histogram is not None
    entries = sorted(d.histogram.items())
    figure, axes = new_figure(4.2)
    place = np.arange(len(entries))
    steps = np.array([count for _, count in entries])
    running = np.array([n for (n, _), _ in entries])
    bucket = np.array([b for (_, b), _ in entries])
    axes.bar(place, running * steps, color=BLUE, label="rows of running requests")
    axes.bar(
        place,
        (bucket - running) * steps,
        bottom=running * steps,
        color="white",
        edgecolor=ORANGE,
        hatch="////",
        label="padding",
    )
    if len(entries) <= 24:
        for x, top, count in zip(place, bucket * steps, steps, strict=True):
            axes.annotate(f"{count:,}", (x, top), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8)
        axes.margins(y=0.12)
    thin = max(1, len(entries) // 24)
    axes.set_xticks(place[::thin], [f"{n}\nin {b}" for n, b in zip(running[::thin], bucket[::thin], strict=True)])
    axes.set_xlabel("running requests, in bucket")
    axes.set_ylabel("rows computed over all steps")
    legend_above(axes, 2)
    ratio = d.alignment.padding_ratio if d.alignment is not None else None
    share = "" if ratio is None else f"; {ratio:.1%} of all rows are padding"
    return Picture(
        "steps",
        "Decode steps by running count and bucket",
        f"Each bar: rows computed with that many requests running in that bucket (number: decode steps){share}.",
        png_of(figure),
    )


def _axis_label(timeline: Timeline) -> str:
    return "decode steps and admissions" if timeline.in_order else "seconds"


def _beginning(d: Diagnosis, timeline: Timeline) -> str:
    total = d.run.requests.height
    return f" The first {timeline.requests} of {total:,} requests." if timeline.requests < total else ""


def _slots(d: Diagnosis, timeline: Timeline) -> Picture:
    """Lifelines of slots: running, idle with a prefix, evicted."""
    slots = sorted({held.slot for held in timeline.held})
    row = {slot: i for i, slot in enumerate(slots)}
    figure, axes = new_figure(min(1.6 + 0.3 * len(slots), 14))
    running: dict[int, list[tuple[float, float]]] = {}
    idle: dict[int, list[tuple[float, float]]] = {}
    for held in timeline.held:
        running.setdefault(held.slot, []).append((held.start_s, held.released_s - held.start_s))
        idle.setdefault(held.slot, []).append((held.released_s, held.end_s - held.released_s))
    for slot in slots:
        axes.broken_barh(idle[slot], (row[slot] - 0.3, 0.6), facecolors=SKY, linewidth=0)
        axes.broken_barh(running[slot], (row[slot] - 0.3, 0.6), facecolors=BLUE, edgecolors="white", linewidth=0.6)
    from matplotlib.patches import Patch

    handles: list[object] = [Patch(color=BLUE, label="running"), Patch(color=SKY, label="idle, prefix kept")]
    kinds = {0: ("by admission", "v"), 1: ("for padding", "o"), 2: ("cause not told", "s")}
    for cause, (words, marker) in kinds.items():
        for cost in (True, False):
            marks = [e for e in timeline.evicted if e.cause == cause and e.cost_reuse is cost and e.slot in row]
            if marks:
                handles.append(
                    axes.scatter(
                        [e.time_s for e in marks],
                        [row[e.slot] for e in marks],
                        marker=marker,
                        s=46,
                        color=RED if cost else GREY,
                        edgecolors="white",
                        linewidths=0.8,
                        zorder=3,
                        label=f"evicted {words}, {'cost a reuse' if cost else 'not missed'}",
                    )
                )
    axes.set_yticks(range(len(slots)), [str(slot) for slot in slots])
    axes.set_ylim(len(slots) - 0.4, -0.6)
    axes.set_ylabel("KV slot")
    axes.set_xlabel(_axis_label(timeline))
    axes.set_xlim(0, timeline.end_s or 1)
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    missed = sum(e.cost_reuse for e in timeline.evicted)
    return Picture(
        "slots",
        "Lifelines of the slots",
        f"{len(timeline.evicted)} evictions, {missed} of them cost a reuse. Times: {timeline.basis}."
        + _beginning(d, timeline),
        png_of(figure),
    )


def _timeline(d: Diagnosis, timeline: Timeline) -> Picture:
    """Prefill and decode on one axis; a stall is as high as requests wait."""
    figure, axes = new_figure(4.2)
    x, running, bucket = [0.0], [0], [0]
    for part in timeline.decodes:
        if part.start_s > x[-1] + 1e-9:
            x += [x[-1], part.start_s]
            running += [0, 0]
            bucket += [0, 0]
        x += [part.start_s, part.end_s]
        running += [part.running] * 2
        bucket += [part.bucket] * 2
    if timeline.decodes:
        axes.fill_between(x, running, color=BLUE, linewidth=0, label="decode: running requests")
        axes.fill_between(
            x, running, bucket, facecolor="white", edgecolor=ORANGE, hatch="////", linewidth=0, label="padding"
        )
    low = -0.9
    prefills = [(p.start_s, p.end_s - p.start_s) for p in timeline.prefills]
    axes.broken_barh(prefills, (low, 0.7), facecolors=GREEN, linewidth=0, label="prefill")
    first = True
    for p in timeline.prefills:
        if p.waiting:
            axes.fill_between(
                [p.start_s, p.end_s],
                [p.waiting] * 2,
                color=RED,
                linewidth=0,
                label="stall: requests waiting for the prefill" if first else None,
            )
            first = False
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlim(0, timeline.end_s or 1)
    axes.set_ylim(bottom=low - 0.2)
    axes.set_xlabel(_axis_label(timeline))
    axes.set_ylabel("requests")
    whole_ticks(axes.yaxis)
    axes.set_yticks([tick for tick in axes.get_yticks() if tick >= 0 and tick <= axes.get_ylim()[1]])
    legend_above(axes, 4)
    stall = "" if d.stalls is None else f" Stalls add up to {d.stalls.stall_session_s:.3f} session-seconds."
    return Picture(
        "timeline",
        "Prefill, decode and stalls",
        f"The stall area is the session-seconds others wait while a prefill runs.{stall} Times: {timeline.basis}."
        + _beginning(d, timeline),
        png_of(figure),
    )


def _in_flight(d: Diagnosis) -> Picture:
    """One line a request, from sent to done; colour: what became of its prefix."""
    requests = d.run.requests.with_row_index("row").sort("arrival_s")
    total = requests.height
    requests = requests.head(MOST_REQUESTS)
    fate = dict.fromkeys(range(total), "first turn")
    if d.returns is None:
        fate = dict.fromkeys(fate, "request")
    else:
        for i, row in enumerate(d.returns.row.tolist()):
            lost, cached = int(d.returns.lost_tokens[i]), int(d.returns.cached_tokens[i])
            fate[row] = (
                "return, reuse not observable" if cached < 0 else "return, prefix lost" if lost > 0 else "return"
            )
    colours = {
        "first turn": GREY,
        "request": BLUE,
        "return": GREEN,
        "return, prefix lost": RED,
        "return, reuse not observable": ORANGE,
    }
    names = {"return": "return, prefix found"}
    figure, axes = new_figure(min(2.0 + 0.11 * requests.height, 14))
    by_fate: dict[str, list[tuple[int, float, float]]] = {}
    for y, (row, sent, done) in enumerate(requests.select("row", "arrival_s", "finish_s").iter_rows()):
        by_fate.setdefault(fate[row], []).append((y, sent, done))
    for name, colour in colours.items():
        if name in by_fate:
            at, begin, end = (np.array(column) for column in zip(*by_fate[name], strict=True))
            axes.hlines(at, begin, end, color=colour, linewidth=3, label=names.get(name, name))
    spans = list(requests.select("arrival_s", "finish_s").iter_rows())
    base = len(spans) + max(1.0, 0.04 * len(spans))
    for left, right in _merged(spans):
        axes.hlines(base, left, right, color="black", linewidth=5)
    axes.set_ylim(base + 1, -1)
    axes.set_yticks([base], ["any in flight"])
    axes.set_xlabel("seconds, client clock")
    axes.set_ylabel("requests by time sent")
    legend_above(axes, 4)
    part = f" The first {MOST_REQUESTS} of {total:,} requests." if total > MOST_REQUESTS else ""
    return Picture(
        "in_flight",
        "Requests in flight",
        f"Black: at least one request in flight, {sum(right - left for left, right in _merged(spans)):.3f} s"
        + (f" of these; channel B {d.channel_b_s:.3f} s in all." if part else " (channel B).")
        + part,
        png_of(figure),
    )


def _merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _survival(d: Diagnosis) -> Picture:
    """Returns that keep their prefix, by slots."""
    s = d.survival
    assert s is not None
    figure, axes = new_figure(3.4)
    axes.plot(s.slots, s.kept, color=BLUE, marker="o", markersize=4, label="replay of the same order of events")
    own = s.kept_at(s.own_slots)
    if own is not None:
        axes.scatter([s.own_slots], [own], s=90, color=RED, zorder=3, label=f"this run, {s.own_slots} slots")
    axes.axhline(s.returns, color=GREY, linestyle="--", linewidth=1, label=f"all {s.returns} returns")
    axes.set_ylim(0, max(s.returns, 1) * 1.08)
    axes.set_xlabel("KV slots")
    axes.set_ylabel("returns that keep their prefix")
    whole_ticks(axes.xaxis)
    whole_ticks(axes.yaxis)
    legend_above(axes, 3)
    agree = "" if s.agreement is None else f" At this run's slots the replay agrees with {s.agreement:.1%} of returns."
    return Picture(
        "survival",
        "Survival of prefixes against slots",
        f"The order of admissions, releases and steps is held fixed.{agree}",
        png_of(figure),
    )

"""One line on stderr that follows a replay."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slotgrid.measure.arms import Progress
from slotgrid.measure.clients import Status


@contextmanager
def replay_display(label: str = "replay") -> Iterator[Callable[[Status], None] | None]:
    """What to call with each status; None when stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False, markup=False)
    with Live(console=console, transient=True, refresh_per_second=5) as live:
        yield lambda status: live.update(status_line(status, label))


@contextmanager
def measure_display(
    note: Callable[[str], None],
) -> Iterator[tuple[Callable[[Progress], None] | None, Callable[[str], None]]]:
    """What to call with a measurement's progress (None when stderr is not a terminal) and with its notes."""
    if not sys.stderr.isatty():
        yield None, note
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False, markup=False)
    with Live(console=console, transient=True, refresh_per_second=5) as live:
        yield (lambda progress: live.update(progress_line(progress))), console.print


def progress_line(progress: Progress) -> str:
    """``condition 2 of 6, BASE r0: replaying 12 s: ...``."""
    head = f"condition {progress.condition + 1} of {progress.conditions}, {progress.arm} r{progress.replicate}: "
    return head + (progress.phase if progress.replay is None else status_line(progress.replay, progress.phase))


def status_line(status: Status, label: str = "replay") -> str:
    """``replay 12 s: 340 of 1,000 turns done, 8 active, 4 waiting for tools, 0 errors, about 31 s left``."""
    window = ""
    if status.window is not None:
        now = status.elapsed_s
        window = ", warm-up" if now < status.window.start_s else ", in the window"
    left = "" if status.eta_s is None else f", about {_duration(status.eta_s)} left"
    return (
        f"{label} {_duration(status.elapsed_s)}: {status.done:,} of {status.total:,} turns done, "
        f"{status.active} active, {status.waiting} waiting for tools, {status.errors} errors{window}{left}"
    )


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"

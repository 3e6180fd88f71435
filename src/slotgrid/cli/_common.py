"""What the commands share: reading options, printing JSON, a console that knows where it writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotgrid.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

# Nothing is wrapped or cut when the output goes to a file or a pipe.
_PIPE_WIDTH = 10_000
_MOST_NUMBERS = 10_000

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]

# options that several commands share
BaselineOption = Annotated[str, typer.Option(help="Buckets of the baseline, e.g. 1,2,4,8 or 1,2,4,8@9 (9 slots).")]
BlocksOption = Annotated[str | None, typer.Option(help="Blocks: several plans per seed, e.g. 0,1,2.")]
ClockOption = Annotated[
    str | None, typer.Option(help="What moves time: price or operating; the profile's unless given.")
]
CompileBudgetOption = Annotated[str | None, typer.Option(help="Longest compile time with unit, e.g. 30m.")]
EvalSeedsOption = Annotated[str | None, typer.Option(help="Seeds of the plans that check the ranking.")]
ExploreSeedsOption = Annotated[str | None, typer.Option(help="Seeds of the plans that rank candidates.")]
ExtraSlotsOption = Annotated[str, typer.Option(help="KV slots above the batch size, e.g. +0,+1,+4.")]
IntermediateOption = Annotated[
    str | None, typer.Option(help="Sizes allowed between 1 and the batch; all unless given.")
]
MaxBucketsOption = Annotated[int, typer.Option(help="Most bucket sizes of a candidate.")]
MemoryBudgetOption = Annotated[
    str | None,
    typer.Option(help="Most memory of a device with unit, e.g. 15.7GiB; the profile's unless given."),
]
NearTieOption = Annotated[
    float,
    typer.Option(help="Ratios this close to the best are near-ties; with repeats also what is not behind in 5 %."),
]
ProfileOption = Annotated[str, typer.Option(help="Built-in profile id or TOML file.")]
RepeatsOption = Annotated[
    int | None, typer.Option(help="Repeats of every plan that differ by what is random on a real server.")
]
RepeatsSeedOption = Annotated[int, typer.Option(help="Seed of the repeats.")]
RulesOption = Annotated[str | None, typer.Option(help="real or paper; the profile's unless given.")]
ScoreOption = Annotated[str, typer.Option(help="sum (of seconds) or mean (of ratios per session count).")]
TurnaroundOption = Annotated[str | None, typer.Option(help="Client turnaround with unit, e.g. 0.8ms.")]
WithoutOption = Annotated[
    str | None,
    typer.Option(help="Corrections of the operating clock to leave out: decode, context, prefill, excess."),
]
WorkloadOption = Annotated[str, typer.Option(help="Built-in workload name or TOML file.")]


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Read ``8,10,12``, ``8-16`` or ``8-16:4``, also mixed. Raises InputError naming the option."""
    numbers: list[int] = []
    for part in text.split(","):
        span, colon, step = part.strip().partition(":")
        first, dash, last = span.partition("-")
        try:
            if dash:
                span_of = range(int(first), int(last) + 1, int(step) if colon else 1)
                if len(span_of) > _MOST_NUMBERS:
                    raise InputError(f"{option}: {text!r} names {len(span_of):,} numbers; at most {_MOST_NUMBERS:,}")
                values = list(span_of)
            elif colon:
                raise ValueError
            else:
                values = [int(first)]
        except ValueError:
            values = []
        if not values:
            raise InputError(f"{option}: {text!r}; expected whole numbers like 8,10,12 or a range like 8-16 or 8-16:4")
        numbers += values
    return tuple(numbers)


def seconds(text: str | None, option: str) -> float | None:
    """Read a duration with its unit, such as ``30m`` or ``0.8ms``."""
    from slotgrid.units import parse_quantity

    return None if text is None else parse_quantity(text, "time", option)


def words(text: str | None) -> tuple[str, ...]:
    """Read ``context, excess``; None is none."""
    return tuple(part.strip() for part in text.split(",")) if text else ()


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False) + "\n")


def console() -> Console:
    """A console on stdout: as wide as the terminal, without a limit in a file or pipe. Text is shown as it is: ids and
    paths may hold brackets."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False, markup=False, emoji=False)
    return Console(highlight=False, markup=False, emoji=False, width=_PIPE_WIDTH)


def note(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr)


def progress_bar(label: str, unit: str) -> AbstractContextManager[Callable[[int, int], None] | None]:
    """A progress bar on stderr, or None when stderr is not a terminal."""
    if not sys.stderr.isatty():
        return nullcontext(None)
    return _RichBar(label, unit)


class _RichBar(AbstractContextManager[Callable[[int, int], None]]):
    def __init__(self, label: str, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn(label),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(label, total=None)

    def __enter__(self) -> Callable[[int, int], None]:
        self._progress.start()
        return lambda done, total: self._progress.update(self._task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

"""The running limit: how many streams generate at the same time.

Decides: the limit, up to the number of streams that was tried. Cannot tell a limit of running requests from one of
slots: the smaller of the two is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slotgrid.measure.calibrate.bench import Bench
from slotgrid.measure.calibrate.plans import together
from slotgrid.measure.calibrate.rows import Seen

PROMPT_TOKENS = 8
OUTPUT_TOKENS = 16


@dataclass(frozen=True)
class RunningLimit:
    """most: streams seen together. tried: streams sent. reached: more were sent than ran."""

    most: int
    tried: int

    @property
    def reached(self) -> bool:
        return self.most < self.tried


def probe(bench: Bench, most_streams: int) -> RunningLimit:
    """Send twice as many streams until some of them wait for others to finish."""
    streams = 2
    while True:
        streams = min(streams, most_streams)
        name = f"limit-n{streams}"
        plan = together(bench.id(name), streams=streams, prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS)
        found = RunningLimit(most_together(bench.replay(name, plan)), streams)
        if found.reached or streams == most_streams:
            return found
        streams *= 2


def most_together(rows: Sequence[Seen]) -> int:
    """Most requests between their first and their last token at any time."""
    changes = sorted([(row.first_token_s, 1) for row in rows] + [(row.finish_s, -1) for row in rows])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most

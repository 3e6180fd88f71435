"""The running limit: how many streams generate at the same time.

Decides: the limit, up to the number of streams that was tried. It is reached when a request that was there before
another one finished got its first token only after that: it waited for the place. Streams that merely did not overlap
(a slow client, short answers) say nothing, and the replay is made again. Cannot tell a limit of running requests from
one of slots: the smaller of the two is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slotgrid.measure.calibrate.bench import Bench
from slotgrid.measure.calibrate.plans import together
from slotgrid.measure.calibrate.rows import Seen

PROMPT_TOKENS = 8
OUTPUT_TOKENS = 16
REPEATS = 3


@dataclass(frozen=True)
class RunningLimit:
    """most: streams seen together. tried: streams sent. waited: some waited for others to finish; where fewer ran than
    were sent and none waited, ``most`` is only what was seen. reached: the limit is known."""

    most: int
    tried: int
    waited: bool

    @property
    def reached(self) -> bool:
        return self.most < self.tried and self.waited

    @property
    def open(self) -> bool:
        """Fewer ran together than were sent, and nothing says why."""
        return self.most < self.tried and not self.waited


def probe(bench: Bench, most_streams: int) -> RunningLimit:
    """Send twice as many streams until some of them wait for others to finish; again where they did not overlap."""
    streams = 2
    while True:
        streams = min(streams, most_streams)
        for r in range(REPEATS):
            name = f"limit-n{streams}" + (f"-r{r}" if r else "")
            plan = together(bench.id(name), streams=streams, prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS)
            rows = bench.replay(name, plan)
            found = RunningLimit(most_together(rows), streams, waited(rows))
            if not found.open:
                break
        if found.most < streams or streams == most_streams:
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


def waited(rows: Sequence[Seen]) -> bool:
    """Whether some request had arrived before another finished, and got its first token only after that."""
    # the last token, not the end of the answer: that is stamped after whatever else arrived with it
    return any(
        late.arrival_s < done.token_times_s[-1] <= late.first_token_s
        for late in rows
        for done in rows
        if late is not done
    )

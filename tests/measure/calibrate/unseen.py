"""An input that calibrations have not seen, replayed in between their own replays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import slotgrid as sg
from slotgrid.measure.calibrate.rows import Seen
from slotgrid.measure.calibrate.target import Known, Target


def unseen(number: int = 0) -> sg.InputPlan:
    """Eight clients on eight slots: some returns find their prefix, some do not. Prompts differ by number."""
    clients = []
    for i in range(8):
        turns = (sg.Turn(150 + 70 * (i % 5), 20 + 7 * (i % 4), 0.5 * (i % 3)), sg.Turn(12, 15, 1.5), sg.Turn(140, 18))
        clients.append(sg.Client(0.4 * i, (sg.Session(f"s{i}", turns),)))
    return sg.InputPlan(f"unseen-{number}", tuple(clients))


def unseen_small(number: int = 0) -> sg.InputPlan:
    """The same for the smallest engine: six clients on three slots of 128 tokens, two run at once."""
    clients = []
    for i in range(6):
        turns = (sg.Turn(40 + 9 * (i % 3), 8 + 3 * (i % 2), 0.3 * (i % 3)), sg.Turn(6, 5, 0.1), sg.Turn(18, 7))
        clients.append(sg.Client(0.25 * i, (sg.Session(f"s{i}", turns),)))
    return sg.InputPlan(f"unseen-small-{number}", tuple(clients))


class InTurns:
    """A target that also replays the unseen plan now and then, so that a slow hour of the machine meets both.

    around: entered for each replay of the calibration itself.
    """

    def __init__(
        self,
        target: Target,
        replay_unseen: Callable[[int], None],
        every: int,
        around: Callable[[sg.InputPlan], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._target = target
        self._replay_unseen = replay_unseen
        self._every = every
        self._around = around
        self._count = 0

    @property
    def known(self) -> Known:
        return self._target.known

    def replay(self, plan: sg.InputPlan, folder: Path) -> list[Seen]:
        turn, rest = divmod(self._count, self._every)
        if rest == self._every // 2:
            self._replay_unseen(turn)
        self._count += 1
        with self._around(plan):
            return self._target.replay(plan, folder)

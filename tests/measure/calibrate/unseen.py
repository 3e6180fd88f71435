"""An input that calibrations have not seen, replayed in between their own replays."""

from __future__ import annotations

from collections.abc import Callable
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


class InTurns:
    """A target that also replays the unseen plan now and then, so that a slow hour of the machine meets both."""

    def __init__(self, target: Target, replay_unseen: Callable[[int], None], every: int) -> None:
        self._target = target
        self._replay_unseen = replay_unseen
        self._every = every
        self._count = 0

    @property
    def known(self) -> Known:
        return self._target.known

    def replay(self, plan: sg.InputPlan, folder: Path) -> list[Seen]:
        turn, rest = divmod(self._count, self._every)
        if rest == self._every // 2:
            self._replay_unseen(turn)
        self._count += 1
        return self._target.replay(plan, folder)

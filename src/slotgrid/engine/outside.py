"""What simulations ask of a profile outside the ranges it was measured in."""

from __future__ import annotations

import numpy as np

from slotgrid.config import ServingConfig
from slotgrid.engine.prepare import Ints
from slotgrid.profile import StackProfile


class Outside:
    """Collects what one or many simulations of a configuration used; :meth:`texts` says what was not measured."""

    def __init__(self, profile: StackProfile, config: ServingConfig) -> None:
        self._profile, self._config = profile, config
        self._running: set[int] = set()
        self._computed = np.empty(0, np.int64)
        self._longest_context = 0

    def add(self, running: Ints, computed_tokens: Ints, longest_context_tokens: int) -> None:
        """running: numbers that ran together; computed_tokens: sizes of prefills; both in any order, also repeated."""
        self._running.update(int(n) for n in np.unique(running))
        self._computed = np.union1d(self._computed, computed_tokens)
        self._longest_context = max(self._longest_context, longest_context_tokens)

    def texts(self) -> tuple[str, ...]:
        """Short texts, the clock's marked as such where it is not the price."""
        running = sorted(self._running)
        buckets = {self._config.bucket_for(n) for n in running}
        price, clock = self._profile.price, self._profile.clock
        found = price.decode.beyond(buckets, running) + price.prefill.beyond(self._computed)
        if clock is not price:
            beyond = clock.decode.beyond(buckets, running, self._longest_context)
            found += [f"clock: {text}" for text in (*beyond, *clock.prefill.beyond(self._computed))]
        return tuple(found)

"""Imported by a server's process: its steps take a stated time instead of computing, so that what else the machine does
is not in them. Everything around them is the real server: scheduler, slots, engine thread, event log, HTTP."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from slotgrid.serve.executor import Executor, StepResult

# long against what HTTP and a busy machine add between steps
FIXED_S = {1: 0.016, 2: 0.022, 4: 0.030, 8: 0.040}
REQUEST_S = 0.0005
CHUNK_S = 0.030
TOKEN = 300


def _until(end_s: float) -> None:
    while (left := end_s - time.monotonic()) > 0:
        time.sleep(left)


def decode(
    self: Executor, bucket: int, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]
) -> StepResult:
    """A decode step of a bucket."""
    _until(time.monotonic() + FIXED_S[bucket] + REQUEST_S * len(tokens))
    return StepResult(np.full(len(tokens), TOKEN), None, len(tokens))


def prefill_chunk(self: Executor, tokens: Sequence[int], slot: int, start: int) -> StepResult:
    """A chunk of a prompt."""
    _until(time.monotonic() + CHUNK_S)
    return StepResult(np.full(1, TOKEN), None, 1)


def copy(self: Executor, source: int, target: int) -> None:
    """A hit's copy costs nothing here."""


for made in (decode, prefill_chunk, copy):
    setattr(Executor, made.__name__, made)

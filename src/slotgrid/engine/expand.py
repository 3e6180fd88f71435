"""From recorded segments to single decode steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.engine._jit import jit

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Scalar = Any


@jit
def expand_steps(
    segment_start_s: Floats,
    segment_running: Ints,
    segment_steps: Ints,
    segment_context: Ints,
    step_s: Floats,
    context_s: Scalar,
    start_s: Floats,
    duration_s: Floats,
    running: Ints,
) -> None:
    """Write out the single decode steps of recorded segments, with the same additions in the same order."""
    at = 0
    for i in range(segment_steps.shape[0]):
        now = segment_start_s[i]
        n = segment_running[i]
        dt = step_s[n]
        context = segment_context[i]
        for _ in range(segment_steps[i]):
            if context_s == 0.0:
                after = now + dt
                duration_s[at] = dt
            else:
                duration_s[at] = dt + context_s * context
                after = now + (dt + context_s * context)
                context += n
            start_s[at] = now
            running[at] = n
            at += 1
            now = after

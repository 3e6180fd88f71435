"""JAX as this engine uses it: one core, no work in the background."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any


def start_jax() -> Any:
    """Import JAX with steps that finish before they return. Call it from the thread, and on the core, that computes.

    The CPU backend sizes its thread pool by the cores its first caller may use.
    """
    import jax

    # a step that is still being computed when its call returns could not be timed
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]
    jax.devices()
    return jax


def split_cores() -> tuple[set[int], set[int]] | None:
    """(core for the engine, cores for everything else), or None with a single core or on a system without affinity."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return None
    return {cores[-1]}, set(cores[:-1])


@contextlib.contextmanager
def on_cores(cores: set[int] | None) -> Iterator[None]:
    """The calling thread, and threads it starts, on these cores; None changes nothing."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

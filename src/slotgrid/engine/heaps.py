"""Heaps and the waiting queue of the event loop, on flat arrays; the caller keeps the sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from slotgrid.engine._jit import jit

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
# array elements and counters: a NumPy scalar interpreted, a machine integer compiled
Scalar = Any

# Arrivals are compared in these ticks per second when the waiting queue is ordered.
ARRIVAL_TICKS_PER_S = 1e9
# Keys pack (order, request) into one integer; requests stay below 2**31.
REQUEST_BITS = 31
REQUEST_MASK = (1 << 31) - 1


@jit
def heap_push(heap: Ints, size: Scalar, key: Scalar) -> None:
    """Put an int64 key into a binary heap of ``size`` keys; returns nothing, the caller counts."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if heap[parent] <= key:
            break
        heap[i] = heap[parent]
        i = parent
    heap[i] = key


@jit
def heap_pop(heap: Ints, size: Scalar) -> Scalar:
    """Take the smallest key out of a heap of ``size`` keys (size >= 1)."""
    top = heap[0]
    last = heap[size - 1]
    end = size - 1
    i = 0
    while True:
        child = 2 * i + 1
        if child >= end:
            break
        if child + 1 < end and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= last:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = last
    return top


@jit
def future_push(times: Floats, requests: Ints, size: Scalar, time: Scalar, request: Scalar) -> None:
    """Put (time, request) into the heap of future arrivals, ordered by time, then request."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if times[parent] < time or (times[parent] == time and requests[parent] < request):
            break
        times[i] = times[parent]
        requests[i] = requests[parent]
        i = parent
    times[i] = time
    requests[i] = request


@jit
def future_pop(times: Floats, requests: Ints, size: Scalar) -> None:
    """Remove the earliest future arrival (size >= 1); read it from index 0 before."""
    end = size - 1
    time = times[end]
    request = requests[end]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= end:
            break
        right = child + 1
        if right < end and (
            times[right] < times[child] or (times[right] == times[child] and requests[right] < requests[child])
        ):
            child = right
        if times[child] > time or (times[child] == time and requests[child] > request):
            break
        times[i] = times[child]
        requests[i] = requests[child]
        i = child
    times[i] = time
    requests[i] = request


@jit
def waiting_insert(keys: Ints, requests: Ints, head: Scalar, tail: Scalar, time: Scalar, request: Scalar) -> None:
    """Append to the waiting queue, moving back over entries that arrived in the same tick but rank later.

    Arrivals come out of the future heap in order, so the walk back is almost always empty.
    """
    key = np.int64(np.rint(time * ARRIVAL_TICKS_PER_S))
    i = tail
    while i > head and (keys[i - 1] > key or (keys[i - 1] == key and requests[i - 1] > request)):
        keys[i] = keys[i - 1]
        requests[i] = requests[i - 1]
        i -= 1
    keys[i] = key
    requests[i] = request

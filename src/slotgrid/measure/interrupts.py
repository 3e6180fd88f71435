"""Signals that end a command in order: SIGTERM and SIGHUP (the terminal was closed) do what ctrl-c does."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

# SIGHUP is not known everywhere
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextlib.contextmanager
def ended_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP, so that nothing is left behind. A signal that is ignored (nohup)
    stays so. Only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {}
    for number in ENDING:
        handler = signal.getsignal(number)
        # ctrl-c raises already; None was set outside of Python and could not be put back
        if number != signal.SIGINT and handler not in (signal.SIG_IGN, None):
            before[number] = handler
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

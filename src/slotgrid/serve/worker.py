"""The engine in its own thread, on its own core: commands in, step reports out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from slotgrid.serve.backend import on_cores
from slotgrid.serve.engine import Engine, StepReport
from slotgrid.serve.generation import Request


@dataclass(frozen=True)
class Load:
    """How busy the engine is after a step."""

    waiting: int = 0
    running: int = 0
    slots_in_use: int = 0
    capacity: int = 1


class Worker:
    """Runs an engine until it is closed.

    make_engine is called in the thread, so that everything the backend starts lives on ``cores``. on_step gets every
    report (None when only the load changed), on_failure the exception that ended the thread, both in that thread.
    """

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        *,
        cores: set[int] | None,
        on_step: Callable[[StepReport | None, Load], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._make_engine = make_engine
        self._cores = cores
        self._on_step = on_step
        self._on_failure = on_failure
        self._commands: deque[tuple[Literal["add"], Request] | tuple[Literal["cancel"], str]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._ready = threading.Event()
        self._load_error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread and wait until the engine is loaded. Raises what loading raised."""
        self._thread.start()
        self._ready.wait()
        if self._load_error is not None:
            raise self._load_error

    def add(self, request: Request) -> None:
        self._tell(("add", request))

    def cancel(self, request: str) -> None:
        self._tell(("cancel", request))

    def close(self) -> None:
        """Stop after the current step and wait for the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _tell(self, command: tuple[Literal["add"], Request] | tuple[Literal["cancel"], str]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _run(self) -> None:
        with on_cores(self._cores):
            try:
                engine = self._make_engine()
            except BaseException as error:
                self._load_error = error
                self._ready.set()
                return
            self._ready.set()
            try:
                self._serve(engine)
            except BaseException as error:
                self._on_failure(error)

    def _serve(self, engine: Engine) -> None:
        while True:
            with self._wake:
                while not (self._commands or self._closing or engine.waiting or engine.running):
                    self._wake.wait()
                if self._closing:
                    return
                commands = list(self._commands)
                self._commands.clear()
            for command in commands:
                if command[0] == "add":
                    engine.add(command[1])
                else:
                    engine.cancel(command[1])
            report = engine.step()
            if report is not None or commands:
                self._on_step(report, Load(engine.waiting, engine.running, engine.slots_in_use, engine.capacity))

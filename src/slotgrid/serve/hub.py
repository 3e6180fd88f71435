"""Between the engine's thread and the event loop: one queue of tokens for each open request."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from slotgrid.serve.engine import StepReport
from slotgrid.serve.generation import Request
from slotgrid.serve.metrics import Metrics
from slotgrid.serve.protocol import ApiError, Generation
from slotgrid.serve.worker import Load, Worker


@dataclass(frozen=True)
class Token:
    """One generated token of a request, its text and how much of the prompt was reused."""

    id: int
    text: str
    finish_reason: str | None
    cached_tokens: int


class Ticket:
    """An open request: its tokens as they come. Closing it early cancels the request; closing twice is fine."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.queue: asyncio.Queue[Token | ApiError] = asyncio.Queue()
        self._hub = hub
        self._name = name
        self._finished = False
        self._closed = False

    async def tokens(self) -> AsyncIterator[Token]:
        """Every token; raises ApiError when the request could not be served to its end."""
        while not self._finished:
            item = await self.queue.get()
            if isinstance(item, ApiError):
                raise item
            self._finished = item.finish_reason is not None
            yield item

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._hub.forget(self._name, finished=self._finished)


class Hub:
    """Open requests and their tickets; lives in the event loop. A ticket never holds more than max_tokens.

    most_open: open requests, running or waiting, before new ones are answered with 503.
    """

    def __init__(self, *, metrics: Metrics, most_open: int) -> None:
        self.metrics = metrics
        self.accepting = True
        self._most_open = most_open
        self._tickets: dict[str, Ticket] = {}
        self._cached: dict[str, int] = {}
        self._counter = itertools.count()
        self._worker: Worker | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def attach(self, worker: Worker) -> None:
        self._worker = worker

    def knows(self, name: str) -> bool:
        return name in self._tickets

    def open(self, name: str, wanted: Generation, eos_ids: frozenset[int]) -> Ticket:
        """Send a request to the engine; whoever gets the ticket must close it. Raises ApiError 503."""
        if not self.accepting or self._worker is None:
            raise ApiError(503, "the server is shutting down", kind="server_error", code="unavailable")
        if len(self._tickets) >= self._most_open:
            raise ApiError(
                503, f"{self._most_open} requests are open already; try later", kind="server_error", code="overloaded"
            )
        ticket = self._tickets[name] = Ticket(self, name)
        self._empty.clear()
        self.metrics.arrived(name, time.monotonic_ns())
        self._worker.add(
            Request(
                id=name,
                prompt=wanted.prompt,
                max_tokens=wanted.max_tokens,
                order=(next(self._counter),),
                eos_ids=eos_ids,
                temperature=wanted.temperature,
                top_p=wanted.top_p,
                seed=wanted.seed,
                stop=wanted.stop,
            )
        )
        return ticket

    def stepped(self, report: StepReport | None, load: Load) -> None:
        """Hand the tokens of a step to whoever waits for them; without a report only the load has changed."""
        self.metrics.loaded(load)
        if report is None:
            return
        self.metrics.stepped(report)
        if report.request in self._tickets:
            self._cached[report.request] = report.cached_tokens or 0
        for output in report.outputs:
            ticket = self._tickets.get(output.request)
            if ticket is not None:
                cached = self._cached[output.request]
                ticket.queue.put_nowait(Token(output.token, output.text, output.finish_reason, cached))

    def fail_all(self, message: str) -> None:
        """End every open request with an error and take no more."""
        self.accepting = False
        for ticket in self._tickets.values():
            ticket.queue.put_nowait(ApiError(503, message, kind="server_error", code="unavailable"))

    async def drained(self) -> None:
        """Wait until no request is open."""
        await self._empty.wait()

    def forget(self, name: str, *, finished: bool) -> None:
        """A ticket was closed; what is not finished is cancelled."""
        del self._tickets[name]
        self._cached.pop(name, None)
        if not self._tickets:
            self._empty.set()
        if not finished:
            self.metrics.gone(name)
            assert self._worker is not None
            self._worker.cancel(name)

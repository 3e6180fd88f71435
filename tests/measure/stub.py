"""A protocol double: an OpenAI-compatible server that answers at once, or misbehaves as told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

PATIENCE_S = 60.0


@dataclass
class Exchange:
    """One request and the connection to answer it on."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter
    index: int = 0

    @property
    def request_id(self) -> str | None:
        return self.headers.get("x-request-id")

    @property
    def is_probe(self) -> bool:
        return self.request_id is None

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, status: int, body: Any = None, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        await self.send(f"HTTP/1.1 {status} X\r\ncontent-length: {len(content)}\r\n{extra}\r\n".encode() + content)

    async def begin(self) -> None:
        await self.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    async def event(self, value: Any) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        data = f"data: {text}\n\n".encode()
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def token(self, number: int, *, ids: bool = True, last: bool = False, reason: str = "length") -> None:
        choice: dict[str, Any] = {"index": 0, "text": f" w{number}", "finish_reason": reason if last else None}
        if ids:
            choice["token_ids"] = [5000 + number]
        await self.event({"id": f"cmpl-{self.request_id or 'probe'}", "model": "stub", "choices": [choice]})

    async def end(self, count: int, *, cached: int | None = 0) -> None:
        prompt = self.body["prompt"]
        usage: dict[str, Any] = {
            "prompt_tokens": len(prompt) if isinstance(prompt, list) else len(prompt.split()),
            "completion_tokens": count,
        }
        if cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        await self.event({"id": f"cmpl-{self.request_id or 'probe'}", "choices": [], "usage": usage})
        await self.event("[DONE]")
        await self.send(b"0\r\n\r\n")

    async def answer(self, count: int | None = None, *, ids: bool = True, cached: int | None = 0) -> None:
        """A whole answer of ``count`` tokens, as many as asked for unless given."""
        count = self.body["max_tokens"] if count is None else count
        await self.begin()
        for number in range(count):
            await self.token(number, ids=ids, last=number == count - 1)
        await self.end(count, cached=cached)

    def reset(self) -> None:
        """Break the connection."""
        self.writer.transport.abort()


Behaviour = Callable[[Exchange], Awaitable[None]]


async def whole_answer(exchange: Exchange) -> None:
    await exchange.answer()


@dataclass
class Stub:
    """A running double. behave: what it does with a completion that is not a probe. seen: completions, in order."""

    behave: Behaviour = whole_answer
    probe: Behaviour = whole_answer
    models: Any = field(default_factory=lambda: {"data": [{"id": "stub", "max_model_len": 4096}]})
    metrics: bytes | None = None
    tls: ssl.SSLContext | None = None
    seen: list[Exchange] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    @property
    def asked(self) -> list[Exchange]:
        """Completions without the probe's."""
        return [exchange for exchange in self.seen if not exchange.is_probe]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines if line)}
                content = await reader.readexactly(int(headers.get("content-length", 0)))
                path = first.split(" ")[1]
                await self._route(Exchange(path, headers, json.loads(content or b"{}"), writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _route(self, exchange: Exchange) -> None:
        if exchange.path == "/v1/models":
            await exchange.reply(200 if self.models else 404, self.models)
        elif exchange.path == "/health":
            await exchange.reply(200)
        elif exchange.path == "/metrics" and self.metrics is not None:
            await exchange.reply(200, self.metrics)
        elif exchange.path == "/v1/completions":
            exchange.index = len(self.asked)
            self.seen.append(exchange)
            await (self.probe if exchange.is_probe else self.behave)(exchange)
        else:
            await exchange.reply(404, {"error": {"message": "no such path"}})


@contextlib.contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """Run a double on a free port in a thread of its own."""
    ready = threading.Event()
    stopping: list[Callable[[], None]] = []

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(
            stub.serve, "127.0.0.1", stub.port, ssl=stub.tls, limit=1 << 24, backlog=1024
        )
        stub.port = server.sockets[0].getsockname()[1]
        stopping.append(lambda: loop.call_soon_threadsafe(stop.set))
        ready.set()
        await stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield stub
    finally:
        stopping[0]()
        thread.join(PATIENCE_S)

"""A running server: the engine's thread, the HTTP side, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import uvicorn

from slotgrid.config import ServingConfig
from slotgrid.errors import InputError, RunError
from slotgrid.serve.app import Settings, make_app
from slotgrid.serve.artifact import Artifact
from slotgrid.serve.backend import on_cores, split_cores
from slotgrid.serve.engine import Engine, StepReport
from slotgrid.serve.events import EventLog
from slotgrid.serve.hub import Hub
from slotgrid.serve.load import load_engine, make_scheduler
from slotgrid.serve.metrics import Metrics
from slotgrid.serve.tokens import load_tokenizer
from slotgrid.serve.worker import Load, Worker


@dataclass(frozen=True)
class ServerOptions:
    """How to serve an artifact. drain_s: seconds open requests get to finish after SIGTERM or ctrl-c."""

    config: ServingConfig
    rules: str
    host: str
    port: int
    model_name: str
    api_key: str | None
    events: Path | None
    drain_s: float
    max_body_bytes: int
    most_open: int


def serve(
    artifact: Artifact,
    options: ServerOptions,
    *,
    on_ready: Callable[[str], None],
    note: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or ctrl-c. ``on_ready`` gets the base URL once requests are answered.

    Raises InputError when the address, the event log or the artifact cannot be used, KeyboardInterrupt after ctrl-c,
    RunError when the engine failed.
    """
    # what can be refused is refused before the executables are loaded
    make_scheduler(artifact, options.config, options.rules)
    with _listen(options.host, options.port) as listener, contextlib.ExitStack() as stack:
        stream = None
        if options.events is not None:
            stream = stack.enter_context(_event_file(options.events))

        def lost(error: OSError) -> None:
            note(f"{options.events}: cannot write: {error.strerror or error}; the event log ends here, serving goes on")

        events = EventLog(stream, time.monotonic_ns, lost)
        cores = split_cores()
        with on_cores(None if cores is None else cores[1]):
            asyncio.run(_serve(artifact, options, listener, events, None if cores is None else cores[0], on_ready))


async def _serve(
    artifact: Artifact,
    options: ServerOptions,
    listener: socket.socket,
    events: EventLog,
    engine_cores: set[int] | None,
    on_ready: Callable[[str], None],
) -> None:
    loop = asyncio.get_running_loop()
    tokenizer = load_tokenizer(artifact)
    hub = Hub(metrics=Metrics(options.model_name), most_open=options.most_open)
    stopping = asyncio.Event()
    at_once = asyncio.Event()
    interrupted = False
    failure: list[BaseException] = []

    def make_engine() -> Engine:
        engine = load_engine(
            artifact, config=options.config, rules=options.rules, events=events, token_bytes=tokenizer.token_bytes
        )
        engine.log_start(versions=artifact.versions, clock="monotonic", unix_ns=time.time_ns())
        # what is loaded stays: a full collection over it would stop every request for about 0.1 s now and then
        gc.collect()
        gc.freeze()
        return engine

    def on_step(report: StepReport | None, load: Load) -> None:
        loop.call_soon_threadsafe(hub.stepped, report, load)

    def on_failure(error: BaseException) -> None:
        failure.append(error)
        loop.call_soon_threadsafe(at_once.set)
        loop.call_soon_threadsafe(stopping.set)

    def on_signal(number: int) -> None:
        nonlocal interrupted
        interrupted = interrupted or number == signal.SIGINT
        # the second signal does not wait for open requests
        (at_once if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    worker = Worker(make_engine, cores=engine_cores, on_step=on_step, on_failure=on_failure)
    hub.attach(worker)
    worker.start()
    app = make_app(
        hub=hub,
        tokenizer=tokenizer,
        settings=Settings(
            model_name=options.model_name,
            max_seq_len=artifact.max_seq_len,
            vocabulary=artifact.shape.vocabulary,
            api_key=options.api_key,
            max_body_bytes=options.max_body_bytes,
        ),
    )
    server = _Server(
        uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5, lifespan="off")
    )
    serving = asyncio.ensure_future(server.serve([listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    on_ready(_url(listener))
    try:
        await stopping.wait()
        await _drain(hub, at_once, options.drain_s, bool(failure))
    finally:
        server.should_exit = True
        await serving
        worker.close()
    if failure:
        raise RunError(f"the engine failed: {failure[0]!r}") from failure[0]
    if interrupted:
        raise KeyboardInterrupt


async def _drain(hub: Hub, at_once: asyncio.Event, drain_s: float, failed: bool) -> None:
    """Let open requests finish, or end them with an error when time is up or a second signal comes."""
    hub.accepting = False
    waits = [asyncio.ensure_future(hub.drained()), asyncio.ensure_future(at_once.wait())]
    await asyncio.wait(waits, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    hub.fail_all("the engine failed" if failed else "the server was shut down before the request was finished")


class _Server(uvicorn.Server):
    """Without uvicorn's own signal handlers: they end the process instead of draining."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024)
        # accepted connections inherit it. asyncio sets it only where the protocol number is given, which create_server
        # does not; a small write behind an unacknowledged one, the first token behind its headers, would wait 40 ms
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen on {host}, port {port}: {reason}") from None


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def _event_file(path: Path) -> Iterator[IO[str]]:
    try:
        if path.exists() and path.stat().st_size > 0:
            raise InputError(f"--events: {path} exists and is not empty; give another file")
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = open(path, "w", encoding="utf-8")  # noqa: SIM115  # closed below, where a full disk may show again
    except OSError as error:
        raise InputError(f"--events: {path}: cannot write: {error.strerror or error}") from None
    try:
        yield stream
    finally:
        # what could not be written was said when it happened
        with contextlib.suppress(OSError):
            stream.close()

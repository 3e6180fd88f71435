"""A server process for tests, and a client that is only a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# how long a test waits for what must happen; never how fast it must be
PATIENCE_S = 120.0


@dataclass
class Server:
    """A running ``slotgrid serve``."""

    process: subprocess.Popen[str]
    url: str
    port: int
    events: Path

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, answer = self.raw("POST", path, content, headers)
        return status, json.loads(answer) if answer else {}

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        status, answer = self.raw("GET", path, b"", headers)
        return status, answer.decode()

    def raw(self, method: str, path: str, content: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        from http.client import HTTPConnection

        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, content, {key.replace("_", "-"): v for key, v in headers.items()})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def open_stream(self, body: dict[str, Any]) -> socket.socket:
        """Send a streaming request and leave the reading to the caller."""
        content = json.dumps({**body, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        connection.sendall(head.encode() + content)
        return connection

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples with these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        _, text = self.get("/metrics")
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def wait_event(self, **wanted: Any) -> dict[str, Any]:
        """The first event with these fields, as soon as it is in the log."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for line in self.events.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    event = json.loads(line)
                    if wanted.items() <= event.items():
                        return dict(event)
            time.sleep(0.01)
        raise AssertionError(f"no event {wanted}")

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; exit code and everything on stderr."""
        self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, stderr


@contextlib.contextmanager
def running(
    artifact: Path, folder: Path, *options: str, events: Path | None = None, before: str = "pass"
) -> Iterator[Server]:
    """Start a server on a free port; it is ended at the end of the block if it still runs.

    before: Python to run in the server's process first, to break something in it.
    """
    log = events or folder / "events.jsonl"
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{before}\nfrom slotgrid.cli.main import main\nmain()",
            "serve",
            str(artifact),
            "--port",
            "0",
            "--json",
            "--events",
            str(log),
            *options,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        line = process.stdout.readline() if ready else ""
        if not line:
            process.kill()
            raise AssertionError(f"the server did not start: {process.communicate()[1]}")
        url = json.loads(line)["base_url"]
        yield Server(process, url, int(url.rpartition(":")[2]), log)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def read_events(connection: socket.socket) -> Iterator[str]:
    """The data lines of a streaming answer, until its end mark or the end of the connection."""
    with connection.makefile("rb") as stream:
        for line in stream:
            if line.startswith(b"data: "):
                text = line[6:].strip().decode()
                yield text
                if text == "[DONE]":
                    return


async def stream_one(port: int, body: dict[str, Any]) -> list[dict[str, Any]]:
    """One streaming request; every chunk. Raises AssertionError when the end mark is missing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    try:
        content = json.dumps({**body, "stream": True}).encode()
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        )
        await writer.drain()
        chunks = []
        while line := await reader.readline():
            if line.startswith(b"data: "):
                text = line[6:].strip()
                if text == b"[DONE]":
                    return chunks
                chunks.append(json.loads(text))
        raise AssertionError(f"the stream ended without its end mark after {len(chunks)} chunks")
    finally:
        writer.close()

"""Two hundred streaming clients for a minute: nothing lost, memory flat. ``make test-slow``."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from slotgrid.run.readers.event_log import run_from_events
from tests.serve.client import PATIENCE_S, running, stream_one

pytestmark = pytest.mark.slow
CLIENTS = 200
LOAD_S = 60.0


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))


async def one_client(port: int, index: int, until: float, done: list[int]) -> None:
    """Request after request; every one must bring all its tokens and its usage."""
    count = 0
    while time.monotonic() < until:
        body = {
            "prompt": [300 + index, 300 + count, *range(300, 300 + index % 40)],
            "max_tokens": 8 + index % 9,
            "ignore_eos": True,
            "temperature": 0,
            "stream_options": {"include_usage": True},
        }
        chunks = await asyncio.wait_for(stream_one(port, body), PATIENCE_S)
        assert len(chunks) == body["max_tokens"] + 1
        assert chunks[-1]["usage"]["completion_tokens"] == body["max_tokens"]
        count += 1
    done[index] = count


async def load(port: int, pid: int) -> tuple[list[int], list[int]]:
    """Requests done by each client, and the server's memory in KiB each second from a third of the time on."""
    begin = time.monotonic()
    done = [0] * CLIENTS
    clients = asyncio.gather(*(one_client(port, i, begin + LOAD_S, done) for i in range(CLIENTS)))
    memory = []
    while not clients.done():
        await asyncio.wait({clients}, timeout=1.0)
        if LOAD_S / 3 < time.monotonic() - begin < LOAD_S:
            memory.append(resident_kib(pid))
    await clients
    return done, memory


def test_nothing_is_lost_and_memory_is_flat(artifact: Path, tmp_path: Path) -> None:
    with running(artifact, tmp_path) as server:
        done, memory = asyncio.run(load(server.port, server.process.pid))
        assert min(done) >= 1
        assert server.metric("vllm:request_success_total", finished_reason="length") == sum(done)
        assert server.metric("vllm:request_success_total") == sum(done)
        assert server.metric("vllm:num_requests_running") == 0
        assert server.metric("vllm:num_requests_waiting") == 0
        third = len(memory) // 3
        early, late = max(memory[:third]), max(memory[-third:])
        print(f"{sum(done)} requests, memory {early} KiB then {late} KiB")
        assert late < early + 8 * 1024
        code, stderr = server.stop()
        assert code == 0, stderr
    run = run_from_events(server.events)
    assert run.requests.height == sum(done)

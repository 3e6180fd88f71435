"""How many sessions one core of the client drives: ``python benchmarks/replay_client.py [CLIENTS] [STEP_MS]``.

A double of a server in another process gives every open request one token each step, as a batching engine does; the
client runs on one core, the double on the others. Prints what the client says of itself and its share of the core.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import slotgrid as sg
from slotgrid.measure.replay import replay_over_http

USAGE = (
    b'data: {"id":"%s","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,'
    b'"prompt_tokens_details":{"cached_tokens":0}}}\n\ndata: [DONE]\n\n'
)
TOKEN = b'data: {"id":"%s","object":"text_completion","created":1,"model":"stub","choices":[{"index":0,"text":" bako",\
"logprobs":null,"finish_reason":null,"token_ids":[5000]}],"usage":null}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def serve(port: int, step_s: float) -> None:
    """The double: one token a step for everybody, at a steady beat."""
    waiting: list[asyncio.Future[None]] = []

    def chunk(data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if b": " in line)
            body = await reader.readexactly(int(fields.get(b"content-length", 0)))
            if b" /v1/models" in head:
                content = b'{"data":[{"id":"stub"}]}'
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(content), content))
                continue
            if b"/v1/completions" not in head:
                writer.write(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")
                continue
            tokens = int(body.split(b'"max_tokens":')[1].split(b",")[0])
            prompt = body.split(b"]")[0].count(b",") + 1
            name = b"cmpl-" + fields.get(b"x-request-id", b"probe")
            writer.write(HEAD)
            for _ in range(tokens):
                beat = loop.create_future()
                waiting.append(beat)
                await beat
                writer.write(chunk(TOKEN % name))
            writer.write(chunk(USAGE % (name, prompt, tokens)) + b"0\r\n\r\n")

    await asyncio.start_server(answer, "127.0.0.1", port, limit=1 << 24, backlog=1024)
    print("ready", flush=True)
    while True:
        await asyncio.sleep(step_s)
        woken, waiting[:] = waiting[:], []
        for beat in woken:
            beat.set_result(None)


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(int(sys.argv[2]), float(sys.argv[3])))
        return
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    step_ms = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    port = 18_765
    cores = sorted(os.sched_getaffinity(0))
    server = subprocess.Popen(
        [sys.executable, __file__, "serve", str(port), str(step_ms / 1e3)],
        stdout=subprocess.PIPE,
    )
    try:
        assert server.stdout is not None
        server.stdout.readline()
        os.sched_setaffinity(server.pid, set(cores[:-1]) or set(cores))
        os.sched_setaffinity(0, {cores[-1]})
        turns = [(1200, 150, 1.0), (8, 120, 0.5), (8, 100, 2.0), (8, 80, 0.0)]
        plan = sg.InputPlan(
            "load",
            tuple(
                sg.Client(5.0 * c / clients, (sg.Session(f"s{c}", tuple(sg.Turn(*turn) for turn in turns)),))
                for c in range(clients)
            ),
        )
        began, cpu = time.monotonic(), time.process_time()
        run = replay_over_http(plan=plan, base_url=f"http://127.0.0.1:{port}")
        seconds, used = time.monotonic() - began, time.process_time() - cpu
    finally:
        server.kill()
        server.wait()
    lag = run.details["client_lag"]
    tokens = int(run.requests["output_tokens"].sum())
    print(f"{clients} clients, a token every {step_ms:g} ms for each open request, valid: {run.details['valid']}")
    print(f"{run.requests.height} turns and {tokens:,} tokens in {seconds:.1f} s: {tokens / seconds:,.0f} tokens/s")
    print(f"at most {lag['in_flight_most']} requests at once, {lag['in_flight_mean']:.0f} on average")
    print(f"client used {used / seconds:.0%} of its core")
    print(f"sent late: median {lag['send_p50_ms']:.2f} ms, 99 % {lag['send_p99_ms']:.2f} ms")
    print(f"event loop late: 99 % {lag['loop_p99_ms']:.2f} ms")
    for note in run.notes:
        print(f"note: {note}")


if __name__ == "__main__":
    main()

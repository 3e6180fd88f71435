"""The protocol double as a process of its own: ``python stub_server.py PORT MODE``. Notes each start in starts.txt."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.measure.stub import PATIENCE_S, Exchange, Stub

SETTING = os.environ.get("ARM_SETTING", "")


async def until_released(exchange: Exchange) -> None:
    """Begins an answer, says so, and finishes it when it is released."""
    await exchange.begin()
    await exchange.token(0)
    Path(f"holding-{SETTING}").touch()
    while not Path(f"released-{SETTING}").exists():
        await asyncio.sleep(0.01)
    for number in range(1, exchange.body["max_tokens"]):
        await exchange.token(number, last=number == exchange.body["max_tokens"] - 1)
    await exchange.end(exchange.body["max_tokens"])


async def dies(exchange: Exchange) -> None:
    if exchange.index == 1:
        print("device lost", flush=True)
        os._exit(7)
    await exchange.answer()


async def hangs(exchange: Exchange) -> None:
    await asyncio.sleep(PATIENCE_S)


async def fails_once(exchange: Exchange) -> None:
    """The first server of this folder answers with an error, later ones as they should."""
    if len(Path("starts.txt").read_text().splitlines()) == 1:
        await exchange.reply(500, {"error": {"message": "not warm yet"}})
    else:
        await exchange.answer()


BEHAVIOURS = {
    "hold": until_released,
    "deaf-hold": until_released,
    "dies": dies,
    "hangs": hangs,
    "fails-once": fails_once,
}


def main() -> None:
    port, mode = int(sys.argv[1]), sys.argv[2]
    with open("starts.txt", "a") as stream:
        stream.write(f"{os.getpid()} {mode} {port} {SETTING}\n")
    if mode == "broken":
        print("starting up\nno device found", flush=True)
        sys.exit(3)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # a worker of the same group
        worker = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        Path("worker.txt").write_text(str(worker.pid))
    if mode == "deaf-hold":
        signal.signal(signal.SIGTERM, lambda number, frame: Path(f"asked-to-end-{SETTING}").touch())
    stub = Stub(metrics=b'vllm:prompt_tokens_total{model_name="m"} 3.0\n')
    if mode in BEHAVIOURS:
        stub.behave = BEHAVIOURS[mode]

    async def serve() -> None:
        async with await asyncio.start_server(stub.serve, "127.0.0.1", port, limit=1 << 24) as server:
            await server.serve_forever()

    asyncio.run(serve())


if __name__ == "__main__":
    main()

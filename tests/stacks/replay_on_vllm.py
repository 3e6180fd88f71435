"""replay, diagnose and calibrate against vLLM's own server: ``make test-stack`` (not in CI), about six minutes.

Starts ``tests.stacks.vllm_server`` in the environment with vLLM, runs the commands as a user does, prints what they
found and asserts what must hold: every prompt and answer as long as planned, cached tokens as vLLM's prefix cache must
give them, the rules that calibration concludes, and how a run ends when the server fails. Costs are printed; on a busy
machine they may stay undecided, but must not be decided wrongly.

``--record FOLDER`` only writes answers as they came over the wire, for tests/data/vllm_0.22.0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import slotgrid as sg
from slotgrid.plan import Client, InputPlan, Session, Turn

ROOT = Path(__file__).resolve().parents[2]
# as tests.stacks.vllm_server says them, which cannot be imported without vLLM
MODEL, MAX_MODEL_LEN, MAX_NUM_SEQS, BLOCK, BLOCKS = "stand-in", 1024, 8, 16, 257
DECODE_MS = {1: 8.0, 2: 10.0, 4: 13.0, 8: 19.0}
SHARED = 40
IN_PIECES = "mixed into decode steps: streams slow down over several steps"
IN_ONE_STEP = "mixed into one decode step: streams get their tokens that late, together with the prompt's first"
START_S, STOP_S = 180.0, 30.0


def the_plan() -> InputPlan:
    """Four clients with two sessions of three turns; two of them share a prefix that one has computed before."""
    clients = []
    for c in range(4):
        turns = (Turn(90 + 11 * c, 20, 0.2), Turn(37, 33, 0.1), Turn(55, 18, 0.0))
        shared = ("system", SHARED) if c % 2 else (None, 0)
        clients.append(Client(0.3 * c, tuple(Session(f"c{c}s{s}", turns, *shared) for s in range(2))))
    return InputPlan("vllm", tuple(clients))


def long_answers() -> InputPlan:
    """Answers that are long enough to end a server in the middle of them."""
    turns = (*(Turn(30, 60, 0.05) for _ in range(7)), Turn(30, 60, 0.0))
    return InputPlan("long-answers", tuple(Client(0.0, (Session(f"s{c}", turns),)) for c in range(4)))


def too_long() -> InputPlan:
    turns = (Turn(900, 60, 0.0), Turn(100, 20, 0.0))
    return InputPlan("too-long", (Client(0.0, (Session("s", turns),)),))


class Server:
    """The server's process and address."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process, self.url = process, url

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def engine_core(self) -> int:
        """The id of its engine's process."""
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == self.process.pid and b"EngineCore" in (folder / "cmdline").read_bytes():
                    return int(folder.name)
        raise AssertionError("the server has no process EngineCore")


@contextlib.contextmanager
def vllm(python: str, folder: Path, *options: str) -> Iterator[Server]:
    """vLLM on a free port; its whole process group is ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(folder / "server.log", "ab") as log:
        process = subprocess.Popen(
            [python, "-m", "tests.stacks.vllm_server", "--port", str(port), *options],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    server = Server(process, f"http://127.0.0.1:{port}")
    try:
        end = time.monotonic() + START_S
        while True:
            assert process.poll() is None, (folder / "server.log").read_text()[-2000:]
            assert time.monotonic() < end, "the server is not ready"
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{server.url}/health", timeout=5):
                break
            time.sleep(0.2)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def command(folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """``slotgrid`` with these words; its exit code must be the one given."""
    done = subprocess.run(
        [sys.executable, "-m", "slotgrid", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, f"slotgrid {' '.join(words)}: exit code {done.returncode}\n{done.stderr}"
    return done


def rows_of(run: Path) -> dict[tuple[int, int], dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "requests.jsonl").read_text().splitlines()]
    return {(row["session"], row["turn"]): row for row in rows}


def expected_cached(plan: InputPlan) -> dict[tuple[int, int], int]:
    """Whole blocks of what was computed before, generated tokens included; never the last token of a prompt, and the
    last token of an answer was never computed. The first session with the shared prefix finds nothing."""
    found: dict[tuple[int, int], int] = {}
    first = next(i for i, (_, session) in enumerate(plan.sessions()) if session.prefix_id is not None)
    for i, (_, session) in enumerate(plan.sessions()):
        known = session.prefix_tokens if i != first else 0
        prompt = 0
        for t, turn in enumerate(session.turns):
            prompt += turn.new_tokens
            found[i, t] = min(known, prompt - 1) // BLOCK * BLOCK
            known = prompt + turn.output_tokens - 1
            prompt += turn.output_tokens
    return found


def check_replay(folder: Path, server: Server) -> None:
    plan = the_plan()
    plan.save(folder / "plan.json")
    version = server.get("/version")["version"]
    print(f"vLLM {version}, {server.get('/v1/models')['data'][0]['max_model_len']} tokens a sequence")
    command(folder, "replay", "plan.json", "--base-url", server.url, "--dry-run")
    done = command(folder, "replay", "plan.json", "--base-url", server.url, "-o", "run", "--token-times")
    print(done.stdout)
    run = sg.load_run(folder / "run")
    told = run.details["server"]
    assert run.details["valid"]
    assert (told["max_seq_len"], told["returns_ids"]) == (MAX_MODEL_LEN, True)
    # ids above the vocabulary were refused inside a stream of status 200, and the next range was taken
    assert told["tokens"] == {"low": 1000, "high": 8000}
    rows, expected, gaps_ms = rows_of(folder / "run"), expected_cached(plan), []
    sessions = [session for _, session in plan.sessions()]
    unsaid = 0
    for key, row in rows.items():
        times = row["token_times_s"]
        assert row["prompt_tokens"] == row["planned_prompt_tokens"], row
        assert row["output_tokens"] == len(times) == sessions[key[0]].turns[key[1]].output_tokens, row
        assert (row["cached_tokens"] or 0) == expected[key], row
        assert row["request_id"].startswith("cmpl-"), row
        unsaid += row["cached_tokens"] is None
        gaps_ms += [1e3 * (b - a) for a, b in pairwise(times)]
        # tokens may come together, an answer can not be faster than its steps
        assert row["finish_s"] - row["arrival_s"] >= 0.9e-3 * min(DECODE_MS.values()) * (len(times) - 1), row
    assert len(rows) == plan.turn_count == len(expected)
    # what vLLM leaves out of an answer is settled by its counters
    assert run.details["misses_by_counters"] == unsaid > 0
    assert run.cached_tokens == sum(expected.values())
    together = sum(gap < 1.0 for gap in gaps_ms)
    print(
        f"{len(rows)} requests, all as long as planned; cached tokens {run.cached_tokens} of {run.prompt_tokens}, each "
        f"as vLLM's prefix cache must give it, {unsaid} times not said; between tokens {median(gaps_ms):.2f} ms in "
        f"the median, {together} of {len(gaps_ms)} tokens within 1 ms of the one before"
    )
    done = command(folder, "replay", "plan.json", "--base-url", server.url, "-o", "text", "--prompts", "text")
    assert sg.load_run(folder / "text").details["valid"]
    print(f"prompts as text: {next(note for note in sg.load_run(folder / 'text').notes if 'as text' in note)}")


def check_calibration(folder: Path, server: Server, *, name: str, mixed: str) -> None:
    """mixed: what is said of prompts beside streams, where it is decided."""
    words = ("calibrate", "--base-url", server.url, "-o", f"{name}.toml", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "slotgrid", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    result = json.loads(done.stdout)
    found = {finding["name"]: finding for finding in result["findings"]}
    for finding in result["findings"]:
        print(f"  {finding['name']:<28} {finding.get('value') or 'not decided: ' + finding.get('reason', '')}")

    def value(name: str) -> str:
        return str(found[name].get("value") or "")

    assert value("reuse block") == f"{BLOCK} tokens, whole blocks, never the last token"
    assert value("generated tokens") == "stay reusable"
    assert value("running together") == str(MAX_NUM_SEQS)
    assert value("prefill beside streams") in ("", mixed), found["prefill beside streams"]
    assert value("slots").startswith(f"none, a pool of blocks for about {(BLOCKS - 1) * BLOCK:,} tokens"), found[
        "slots"
    ]
    assert value("slots are taken").startswith("by tokens")
    assert value("a request that hits").startswith("stays")
    assert value("eviction order") == "lru by use"
    assert result["config"] is None
    if value("buckets in the times"):
        assert value("buckets in the times").startswith("1,2,4,8 ("), found["buckets in the times"]
    if done.returncode == 1:
        print(f"no profile: {'; '.join(result['missing'])}")
        return
    profile = sg.load_profile(str(folder / f"{name}.toml"))
    for cost, quantity in profile.provenance:
        if quantity.interval is not None:
            print(f"  {cost:<36} {quantity.text}")
    command(folder, "diagnose", "run", "--profile", f"{name}.toml")
    # with more slots than sessions nothing is lost, as in a pool that holds them all
    predicted = sg.simulate(profile, sg.ServingConfig((1, 2, 4, 8), slots=16), the_plan())
    measured = sg.load_run(folder / "run")
    print(
        f"the replayed plan with this profile: {predicted.wall_s:.2f} s and {predicted.reused} returns reused, "
        f"measured {measured.wall_s:.2f} s and {measured.reused}"
    )
    assert predicted.reused == measured.reused


def check_faults(folder: Path, server: Server) -> None:
    """Ends the server."""
    too_long().save(folder / "too-long.json")
    long_answers().save(folder / "long.json")
    done = command(folder, "replay", "too-long.json", "--base-url", server.url, "-o", "too-long", code=2)
    print(f"too long a prompt: {done.stderr.strip()}")
    assert not (folder / "too-long").exists()
    done = command(folder, "replay", "long.json", "--base-url", server.url, "-o", "none", "--model", "no", code=1)
    print(f"another model: {done.stderr.strip()}")
    words = ("replay", "long.json", "--base-url", server.url, "-o", "killed")
    core = server.engine_core()
    with subprocess.Popen([sys.executable, "-m", "slotgrid", *words], cwd=folder, stderr=subprocess.PIPE) as replay:
        rows = folder / "killed" / "requests.jsonl"
        while not (rows.exists() and rows.stat().st_size):
            assert replay.poll() is None, "the replay ended before its first row"
            time.sleep(0.01)
        os.kill(core, signal.SIGKILL)
        assert replay.stderr is not None
        said = replay.stderr.read().decode().strip().splitlines()[-1]
    assert replay.returncode == 1, said
    print(f"engine killed: {said}")
    run = sg.load_run(folder / "killed")
    assert not run.details["valid"]
    assert run.requests.height, "the answers from before are kept"
    server.process.wait(STOP_S)
    done = command(folder, "replay", "long.json", "--base-url", server.url, "-o", "gone", code=1)
    print(f"server gone: {done.stderr.strip()}")


def record(server: Server, folder: Path) -> None:
    """Bytes of three streamed answers as they came: a prompt's first time, its second, and ids above the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    prompt = list(range(1001, 1041))
    for name, ids in (("miss", prompt), ("hit", prompt), ("refused", [*prompt, 31_999])):
        body = {
            "model": MODEL,
            "prompt": ids,
            "max_tokens": 6,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            f"{server.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            (folder / f"{name}.sse").write_bytes(answer.read())


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--server-python", default=".venv-stack/bin/python")
    options.add_argument("--record", type=Path, default=None)
    given = options.parse_args()
    # not resolved: the link tells Python its environment
    python = str(Path(given.server_python).absolute())
    with tempfile.TemporaryDirectory(prefix="replay-on-vllm-") as name:
        folder = Path(name)
        with vllm(python, folder) as server:
            if given.record is not None:
                record(server, given.record)
                return 0
            check_replay(folder, server)
            check_calibration(folder, server, name="in-pieces", mixed=IN_PIECES)
            check_faults(folder, server)
        with vllm(python, folder, "--max-num-batched-tokens", str(MAX_MODEL_LEN)) as server:
            print("the same where a step has room for the longest prompt, as vLLM does it unless told otherwise")
            check_calibration(folder, server, name="one-step", mixed=IN_ONE_STEP)
    print("all as it must be")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``slotgrid serve`` as its clients see it: a real process on 127.0.0.1, the official client, and rude ones."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from slotgrid.run.readers.event_log import run_from_events
from tests.conftest import Command, assert_one_line_error
from tests.serve.client import PATIENCE_S, Server, read_events, running, stream_one

PROMPT = " bako dedi fugo"
GREEDY = {"temperature": 0.0}


@pytest.fixture(scope="module")
def server(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(artifact, tmp_path_factory.mktemp("serve"), "--max-body", "64KiB") as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


# --- what the official client sees -------------------------------------------------------------------------


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=6, temperature=0, extra_body={"return_token_ids": True}
    )
    choice = answer.choices[0]
    assert answer.object == "text_completion"
    assert choice.finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 6, 9)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    ids, prompt_ids = choice.model_extra["token_ids"], choice.model_extra["prompt_token_ids"]
    assert (len(ids), len(prompt_ids)) == (6, 3)
    # token ids say the same as text
    again = client.completions.create(model="tiny", prompt=prompt_ids, max_tokens=6, temperature=0)
    assert again.choices[0].text == choice.text
    assert again.id != answer.id


def test_streaming_says_the_same_and_ends_with_usage(client: openai.OpenAI) -> None:
    options = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
    whole = client.completions.create(**options)
    chunks = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert len(chunks) == 7
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 5 + ["length"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1
    without = list(client.completions.create(**options, stream=True))
    assert len(without) == 6


def test_chat(client: openai.OpenAI) -> None:
    options = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "temperature": 0}
    whole = client.chat.completions.create(**options)
    assert whole.object == "chat.completion"
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage.completion_tokens == 5
    chunks = list(
        client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}, extra_body={"return_token_ids": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len(chunks[0].model_extra["prompt_token_ids"]) == whole.usage.prompt_tokens
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 5


def test_stop_ends_the_answer_and_is_left_out(client: openai.OpenAI) -> None:
    options = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    text = client.completions.create(**options).choices[0].text
    stop = text[len(text) // 2 :][:4]
    answer = client.completions.create(**options, stop=[stop])
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens < 8
    streamed = client.completions.create(**options, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == answer.choices[0].text


def test_a_seed_repeats(client: openai.OpenAI) -> None:
    def ask(seed: int) -> str:
        return client.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, seed=seed).choices[0].text

    assert ask(1) == ask(1) != ask(2)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").model_extra["max_model_len"] == 1024
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_reuse_is_reported_and_the_cliff_is_at_slots_minus_one(client: openai.OpenAI) -> None:
    """Eight slots: a return after six other requests finds its prefix, after seven it does not."""
    for others, expected in ((6, 256), (7, 0)):
        prompt = [300 + others] * 300
        client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
        for i in range(others):
            client.completions.create(model="tiny", prompt=[400 + 10 * others + i] * 130, max_tokens=1)
        back = client.completions.create(model="tiny", prompt=[*prompt, 5], max_tokens=1)
        assert back.usage.prompt_tokens_details.cached_tokens == expected


def test_errors_have_openais_shape_and_status(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="the prompt is 1100 tokens; the slot length is 1024") as caught:
        client.completions.create(model="tiny", prompt=[300] * 1100)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "prompt"
    with pytest.raises(openai.BadRequestError, match="slot length is 1024") as caught:
        client.completions.create(model="tiny", prompt=PROMPT, max_tokens=10**9)
    assert caught.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError, match="the model 'gpt' does not exist"):
        client.completions.create(model="gpt", prompt=PROMPT)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}], temperature=-1)


# --- what rude clients see ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"{", "line 1"),
        (b"[1]", "JSON object"),
        (b'"x"', "JSON object"),
        (b"\xff", "UTF-8"),
        (b"[" * 60_000, "nested too deeply"),
        (b'{"prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}", "body"),
        (b'{"prompt": "x", "max_tokens": 1e400}', "max_tokens"),
        (b'{"prompt": "\\ud800"}', "surrogate"),
        (b'{"prompt": {"a": 1}}', "prompt"),
        (b'{"prompt": "x", "stop": [1]}', "stop"),
        (b'{"prompt": "x", "stream": "no"}', "stream"),
    ],
)
def test_nonsense_is_a_400_and_the_server_stays_up(server: Server, body: bytes, words: str) -> None:
    status, answer = server.post("/v1/completions", body)
    assert status == 400
    assert words in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert server.get("/health")[0] == 200


def test_other_paths_and_methods(server: Server) -> None:
    assert server.post("/v1/nothing", {})[0] == 404
    status, answer = server.post("/health", {})
    assert (status, answer["error"]["type"]) == (405, "invalid_request_error")
    assert server.get("/v1/completions")[0] == 405


def test_a_body_over_the_limit_is_refused_also_without_a_length(server: Server) -> None:
    status, answer = server.post("/v1/completions", b"x" * 70_000)
    assert status == 413
    assert "65536 bytes" in answer["error"]["message"]
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
        connection.sendall(b"8000\r\n" + b"x" * 0x8000 + b"\r\n1\r\nx\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_not_http_at_all(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"\x16\x03\x01hello\r\n\r\n")
        assert b"400" in connection.recv(200)
    assert server.get("/health")[0] == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_is_cancelled(server: Server, stream: bool) -> None:
    name = f"leaver-{stream}"
    body = json.dumps({"prompt": PROMPT, "max_tokens": 1000, "ignore_eos": True, "stream": stream, **GREEDY}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: {name}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode() + body)
        server.wait_event(event="allocation", request=f"cmpl-{name}")
    release = server.wait_event(event="release", request=f"cmpl-{name}")
    assert release["cancelled"]
    assert release["output_tokens"] < 1000
    assert server.metric("vllm:request_success_total", finished_reason="abort") >= 1


def test_request_ids_are_the_clients_and_unique_while_served(server: Server) -> None:
    body = {"prompt": PROMPT, "max_tokens": 2, **GREEDY}
    assert server.post("/v1/completions", body, X_Request_Id="mine-1")[1]["id"] == "cmpl-mine-1"
    assert server.post("/v1/completions", body, X_Request_Id="a b")[0] == 400
    content = json.dumps({**body, "max_tokens": 900, "ignore_eos": True, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: twin\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode() + content)
        server.wait_event(event="allocation", request="cmpl-twin")
        status, answer = server.post("/v1/completions", body, X_Request_Id="twin")
        assert (status, answer["error"]["param"]) == (400, "x-request-id")


def test_a_client_that_stops_reading_hinders_nobody(server: Server) -> None:
    stalled = [
        server.open_stream({"prompt": [500 + i], "max_tokens": 900, "ignore_eos": True, **GREEDY}) for i in range(3)
    ]
    try:
        for connection in stalled:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        status, answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8, **GREEDY})
        assert (status, answer["usage"]["completion_tokens"]) == (200, 8)
    finally:
        for connection in stalled:
            connection.close()
    assert server.get("/health")[0] == 200


# --- many at once ------------------------------------------------------------------------------------------


def test_requests_beyond_the_running_limit_queue_and_nothing_is_lost(server: Server) -> None:
    async def all_of_them() -> list[list[dict[str, object]]]:
        bodies = [
            {"prompt": [600 + i] * 5, "max_tokens": 6, "stream_options": {"include_usage": True}, "ignore_eos": True}
            for i in range(40)
        ]
        return await asyncio.gather(*(stream_one(server.port, {**body, **GREEDY}) for body in bodies))

    answers = asyncio.run(all_of_them())
    assert [chunks[-1]["usage"]["completion_tokens"] for chunks in answers] == [6] * 40  # type: ignore[index]
    assert all(len(chunks) == 7 for chunks in answers)
    starts = [json.loads(line) for line in server.events.read_text().splitlines() if '"step_start"' in line]
    assert max(event["running"] for event in starts) == 8


def test_metrics_have_vllms_names_and_add_up(server: Server) -> None:
    names = ("prompt_tokens", "prompt_tokens_cached", "generation_tokens")
    before = {name: server.metric(f"vllm:{name}_total") for name in names}
    prompt = [777] * 260
    for extra in ([], [5]):
        server.post("/v1/completions", {"prompt": prompt + extra, "max_tokens": 4, "ignore_eos": True, **GREEDY})
    grown = {name: server.metric(f"vllm:{name}_total") - before[name] for name in names}
    assert grown == {"prompt_tokens": 521, "prompt_tokens_cached": 256, "generation_tokens": 8}
    assert server.metric("vllm:num_requests_running") == 0
    assert server.metric("vllm:num_requests_waiting") == 0
    count = server.metric("vllm:request_prefill_time_seconds_count", model_name="tiny")
    assert count > 0
    _, text = server.get("/metrics")
    for name in (
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_prefill_kv_computed_tokens",
        "request_prompt_tokens",
        "request_generation_tokens",
    ):
        assert f"vllm:{name}_bucket" in text
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "request_success_total"):
        assert f"vllm:{name}{{" in text


def test_the_event_log_is_a_run(server: Server) -> None:
    server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2, **GREEDY}, X_Request_Id="last")
    server.wait_event(event="release", request="cmpl-last")
    run = run_from_events(server.events)
    assert run.decode_steps > 0
    assert run.requests.filter(run.requests["request_id"] == "cmpl-last").height == 1
    assert (run.requests["cached_tokens"] + run.requests["computed_tokens"] == run.requests["prompt_tokens"]).all()
    assert (run.requests["arrival_s"] <= run.requests["admit_s"]).all()
    assert run.details["clock"] == "monotonic"


# --- the end -----------------------------------------------------------------------------------------------

LONG = {"prompt": PROMPT, "max_tokens": 150, "ignore_eos": True, "stream_options": {"include_usage": True}, **GREEDY}


def test_sigterm_lets_open_requests_finish(artifact: Path, tmp_path: Path) -> None:
    with running(artifact, tmp_path, "--api-key", "secret", "--served-model-name", "mine") as server:
        # /v1 needs the key, health does not
        assert server.post("/v1/completions", {"prompt": "x"})[0] == 401
        assert server.get("/v1/models", Authorization="Bearer wrong")[0] == 401
        assert '"mine"' in server.get("/v1/models", Authorization="Bearer secret")[1]
        assert server.get("/health")[0] == 200
        body = json.dumps({**LONG, "stream": True}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
            connection.sendall(head.encode() + body)
            events = read_events(connection)
            next(events)
            server.process.send_signal(signal.SIGTERM)
            rest = list(events)
        assert rest[-1] == "[DONE]"
        assert json.loads(rest[-2])["usage"]["completion_tokens"] == 150
        _, stderr = server.process.communicate(timeout=PATIENCE_S)
        assert server.process.returncode == 0, stderr
        assert "Traceback" not in stderr


def test_what_cannot_finish_in_time_fails_cleanly(artifact: Path, tmp_path: Path) -> None:
    with running(artifact, tmp_path, "--drain", "0s") as server:
        with server.open_stream({**LONG, "max_tokens": 1000}) as connection:
            events = read_events(connection)
            next(events)
            server.process.send_signal(signal.SIGTERM)
            rest = list(events)
        assert rest[-1] == "[DONE]"
        assert "shut down before" in json.loads(rest[-2])["error"]["message"]
        _, stderr = server.process.communicate(timeout=PATIENCE_S)
        assert server.process.returncode == 0
        assert "Traceback" not in stderr


def test_ctrl_c_ends_an_idle_server(artifact: Path, tmp_path: Path) -> None:
    with running(artifact, tmp_path, "--rules", "paper", "--slots", "4", "--max-running", "4") as server:
        start = server.wait_event(event="start")
        assert (start["rules"], start["config"]) == ("paper", {"buckets": [1, 2, 4, 8], "slots": 4, "max_running": 4})
        code, stderr = server.stop(signal.SIGINT)
    assert code == 130
    assert stderr.strip().splitlines()[-1] == "slotgrid: interrupted"
    assert "Traceback" not in stderr


def test_a_full_disk_ends_the_event_log_and_not_the_server(artifact: Path, tmp_path: Path) -> None:
    with running(artifact, tmp_path, events=Path("/dev/full")) as server:
        status, answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3, **GREEDY})
        assert (status, answer["usage"]["completion_tokens"]) == (200, 3)
        code, stderr = server.stop()
    assert code == 0
    assert stderr.count("No space left on device; the event log ends here") == 1


def test_a_failing_engine_fails_its_requests_and_ends_the_server(artifact: Path, tmp_path: Path) -> None:
    broken = (
        "import slotgrid.serve.executor as executor\n"
        "real = executor.Executor.decode\n"
        "def decode(self, bucket, tokens, *rest):\n"
        "    if tokens: raise RuntimeError('device lost')\n"
        "    return real(self, bucket, tokens, *rest)\n"
        "executor.Executor.decode = decode"
    )
    with running(artifact, tmp_path, before=broken) as server:
        status, answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3, **GREEDY})
        assert (status, answer["error"]["message"]) == (503, "the engine failed")
        _, stderr = server.process.communicate(timeout=PATIENCE_S)
    assert server.process.returncode == 1
    assert stderr.strip().splitlines()[-1] == "slotgrid: error: the engine failed: RuntimeError('device lost')"


# --- what is refused at the start --------------------------------------------------------------------------


def test_serve_refuses_in_one_line(slotgrid: Command, artifact: Path, tmp_path: Path) -> None:
    assert_one_line_error(slotgrid("serve", tmp_path), "not an artifact", "slotgrid compile")
    assert_one_line_error(slotgrid("serve", artifact, "--slots", "9"), "compiled with 8")
    assert_one_line_error(slotgrid("serve", artifact, "--rules", "fair"), "rules: 'fair'; allowed: real, paper")
    assert_one_line_error(slotgrid("serve", artifact, "--slots", "1"), "leaves no usable slot")
    assert_one_line_error(slotgrid("serve", artifact, "--drain", "9"), "--drain")
    assert_one_line_error(slotgrid("serve", artifact, "--host", "256.0.0.1"), "cannot listen on 256.0.0.1")
    (tmp_path / "log").write_text("old")
    assert_one_line_error(slotgrid("serve", artifact, "--port", "0", "--events", tmp_path / "log"), "not empty")
    assert (tmp_path / "log").read_text() == "old"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_one_line_error(slotgrid("serve", artifact, "--port", port), f"port {port}", "in use")


def test_compile_and_replay_refuse_in_one_line(slotgrid: Command, artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(
        json.dumps({"plan": [[[40, 2, 0.0]]]})  # a published two-turn sample
    )
    replay = ("replay", "plan.json", "-o", "run")
    assert_one_line_error(slotgrid(*replay), "either --base-url (a server) or --artifact")
    assert_one_line_error(slotgrid(*replay, "--artifact", artifact, "--clock", "wall"), "allowed: cpu")
    assert_one_line_error(slotgrid(*replay, "--artifact", tmp_path), "not an artifact")
    compile_ = ("compile", "--buckets", "1,2", "-o", "a")
    assert_one_line_error(slotgrid("compile", "--buckets", "2,1", "-o", "a"), "sizes must ascend")
    assert_one_line_error(slotgrid(*compile_, "--max-seq-len", "100"), "multiple of the prefill chunk")
    assert_one_line_error(slotgrid("compile", "--buckets", "1", "-o", "."), "exists and is not an artifact")


def test_replay_and_compile_print_json(slotgrid: Command, artifact: Path, tmp_path: Path) -> None:
    done = slotgrid("compile", "--buckets", "1", "--max-seq-len", "128", "-o", "one", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert [graph["name"] for graph in made["graphs"]] == ["decode-1", "prefill", "copy"]
    # a line for each graph with its seconds, and one for all
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["decode-1", "prefill", "copy"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"]
    (tmp_path / "plan.json").write_text(json.dumps({"plan": [[[40, 3, 0.5], [8, 2, 0.0]]]}))
    done = slotgrid("replay", "plan.json", "--artifact", "one", "--clock", "cpu", "-o", "run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["requests"] == 2
    assert (tmp_path / "run" / "events.jsonl").exists()
    # a second run takes the place of the first
    before = (tmp_path / "run" / "run.json").read_bytes()
    (tmp_path / "plan.json").write_text(json.dumps({"plan": [[[100, 40, 0.0]]]}))
    assert_one_line_error(
        slotgrid("replay", "plan.json", "--artifact", "one", "-o", "run"), "exceed the compiled length"
    )
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_an_interrupted_compilation_leaves_what_was_there(artifact: Path, tmp_path: Path) -> None:
    arguments = ["compile", "--buckets", "1,2,4", "-o", str(tmp_path / "a")]
    process = subprocess.Popen(
        [sys.executable, "-m", "slotgrid", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    # the first graph is there, the others are not
    assert process.stderr.readline().startswith("decode-1:")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert stderr.strip().splitlines()[-1] == "slotgrid: interrupted"
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_replay_leaves_the_previous_run(slotgrid: Command, artifact: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    arguments = ["replay", str(plan), "--artifact", str(artifact), "-o", str(tmp_path / "run")]
    plan.write_text(json.dumps({"plan": [[[40, 2, 0.0]]]}))
    assert slotgrid(*arguments).returncode == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    plan.write_text(json.dumps({"plan": [[[40, 980, 0.0]]] * 8}))
    process = subprocess.Popen(
        [sys.executable, "-m", "slotgrid", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + PATIENCE_S
    # the new log grows in a hidden file beside the old one
    while not any('"step_end"' in path.read_text() for path in (tmp_path / "run").glob(".events.jsonl.*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert stderr.strip().splitlines() == ["slotgrid: interrupted"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_without_the_extra_one_line_says_what_to_install(slotgrid: Command, artifact: Path, tmp_path: Path) -> None:
    # an import hook that hides the packages, as if they were not installed
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util, importlib.machinery\n"
        "real = importlib.util.find_spec\n"
        "hidden = {'jax', 'starlette', 'uvicorn', 'prometheus_client'}\n"
        "importlib.util.find_spec = lambda name, *a: None if name in hidden else real(name, *a)\n"
    )
    env = {"PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))}
    (tmp_path / "plan.json").write_text(json.dumps({"plan": [[[40, 2, 0.0]]]}))
    for arguments in (
        ("compile", "--buckets", "1", "-o", "x"),
        ("serve", artifact),
        ("replay", "plan.json", "--artifact", artifact, "-o", "x"),
    ):
        assert_one_line_error(slotgrid(*arguments, env=env), "pip install 'slotgrid[serve]'", "jax")

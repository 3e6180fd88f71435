"""Servers that fail, and a run that ends with what it has: every fault has a name and makes the run invalid."""

from __future__ import annotations

import asyncio
import email.utils
import json
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from slotgrid.cli.main import run
from slotgrid.measure import http
from slotgrid.measure.http import Endpoint, Outcome, may_ask_again, retry_after
from slotgrid.measure.options import ReplayOptions
from slotgrid.measure.replay import replay_over_http
from slotgrid.measure.traits import ServerTraits
from tests.conftest import DATA, Command
from tests.measure.stub import PATIENCE_S, Exchange, Stub, serving
from tests.measure.test_replay import TRAITS, chain, plan_of, rows_of

# two sessions of two turns for one client
PLAN = plan_of([chain((20, 4, 0.0), (5, 4, 0.0)), chain((20, 4, 0.0), (5, 4, 0.0))])
QUICK = ReplayOptions(backoff_s=0.0)


def near(stub: Stub) -> Endpoint:
    """A double that falls silent by mistake fails its test in less than the usual five minutes."""
    return Endpoint(stub.url, silence_s=20.0)


def first_only(fault: Callable[[Exchange], Awaitable[None]]) -> Callable[[Exchange], Awaitable[None]]:
    """The fault for the first request, whole answers after it."""

    async def behave(exchange: Exchange) -> None:
        await (fault(exchange) if exchange.index == 0 else exchange.answer())

    return behave


async def reset_before_anything(exchange: Exchange) -> None:
    exchange.reset()


async def reset_after_two_tokens(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.token(0)
    await exchange.token(1)
    exchange.reset()


async def closed_without_end_mark(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.token(0)
    await exchange.send(b"0\r\n\r\n")


async def error_in_the_stream(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.token(0)
    await exchange.event({"error": {"message": "the engine failed"}})
    await exchange.send(b"0\r\n\r\n")


async def never_ending(exchange: Exchange) -> None:
    await exchange.begin()
    number = 0
    while not exchange.writer.is_closing():
        await exchange.token(number)
        number += 1


async def not_sse(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.event("{not json")
    await exchange.send(b"0\r\n\r\n")


async def teapot(exchange: Exchange) -> None:
    await exchange.reply(400, {"error": {"message": "no such parameter"}})


async def one_object(exchange: Exchange) -> None:
    await exchange.reply(200, {"object": "text_completion", "choices": [{"text": " a", "finish_reason": "length"}]})


async def html_page(exchange: Exchange) -> None:
    await exchange.reply(502, b"<html>\n<h1>Bad gateway</h1>", connection="close")


# fault, kind counted, part of the row's error, tokens in the row
FAULTS: list[tuple[Callable[[Exchange], Awaitable[None]], str, str, int | None]] = [
    (reset_after_two_tokens, "connection lost", "closed the connection after 2 tokens", 2),
    (closed_without_end_mark, "cut stream", "after 1 tokens without its end mark", 1),
    (error_in_the_stream, "error in the stream", "the engine failed", 1),
    (not_sse, "error in the stream", "not JSON", None),
    (one_object, "not a stream", "the server sent JSON in one piece", None),
    (teapot, "HTTP 400", "no such parameter", None),
]


@pytest.mark.parametrize(("fault", "kind", "said", "tokens"), FAULTS, ids=[fault.__name__ for fault, *_ in FAULTS])
def test_a_fault_ends_its_session_and_is_counted(
    fault: Any, kind: str, said: str, tokens: int | None, tmp_path: Path
) -> None:
    with serving(Stub(behave=first_only(fault))) as stub:
        run = replay_over_http(
            plan=PLAN,
            base_url=near(stub),
            output=tmp_path / "run",
            traits=TRAITS,
            options=QUICK,
        )
    rows = rows_of(tmp_path / "run")
    # the second turn of the first session is not sent, the other session is whole
    assert [(row["session"], row["turn"]) for row in rows] == [(0, 0), (1, 0), (1, 1)]
    assert said in rows[0]["error"]
    assert (rows[0]["retries"], rows[0]["output_tokens"]) == (0, tokens)
    assert [row["error"] for row in rows[1:]] == [None, None]
    assert run.details["failures"] == {kind: 1}
    (reason,) = run.details["invalid_reasons"]
    assert reason.startswith(f"1 request: {kind} (first: session 0 turn 0")
    assert run.requests["session"].to_list() == [1, 1]
    assert any(reason in note for note in run.notes)
    # what was saved says the same, and can be diagnosed
    assert sg.load_run(tmp_path / "run").details["valid"] is False
    assert sg.diagnose(tmp_path / "run").run.requests.height == 2


@pytest.mark.parametrize("fault", [reset_before_anything, html_page], ids=lambda x: x.__name__)
def test_what_generated_nothing_is_sent_again(fault: Any, tmp_path: Path) -> None:
    with serving(Stub(behave=first_only(fault))) as stub:
        run = replay_over_http(
            plan=PLAN,
            base_url=near(stub),
            output=tmp_path / "run",
            traits=TRAITS,
            options=QUICK,
        )
    rows = rows_of(tmp_path / "run")
    assert [row["retries"] for row in rows] == [1, 0, 0, 0]
    assert (run.details["valid"], run.details["retries"]) == (True, 1)
    assert any("1 times a request was sent again" in note for note in run.notes)
    first, again = (exchange.request_id for exchange in stub.asked[:2])
    assert again == f"{first}r1"


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_a_busy_server_is_asked_a_bounded_number_of_times(status: int, tmp_path: Path) -> None:
    async def busy(exchange: Exchange) -> None:
        await exchange.reply(status, {"error": {"message": "try later"}}, retry_after="0")

    # without Retry-After the wait would be an hour
    options = ReplayOptions(backoff_s=3600.0, retries=2, failures_in_a_row=100)
    with serving(Stub(behave=busy)) as stub:
        run = replay_over_http(
            plan=PLAN,
            base_url=near(stub),
            output=tmp_path / "run",
            traits=TRAITS,
            options=options,
        )
    assert len(stub.asked) == 2 * 3
    assert run.details["failures"] == {f"HTTP {status}": 2}
    assert run.details["http_errors"] == 6
    assert [row["status"] for row in rows_of(tmp_path / "run")] == [status, status]
    assert run.requests.height == 0


def test_what_will_not_pass_is_not_sent_again() -> None:
    assert [status for status in (400, 404, 429, 500, 501, 502, 505, 507, 599) if may_ask_again(status)] == [
        429,
        500,
        502,
        507,
        599,
    ]


def test_the_last_request_was_sent_when_its_last_attempt_was() -> None:
    attempts = 0

    async def busy_at_last(exchange: Exchange) -> None:
        nonlocal attempts
        attempts += exchange.index >= 3
        await (exchange.reply(503) if 0 < attempts < 3 else exchange.answer())

    with serving(Stub(behave=busy_at_last)) as stub:
        run = replay_over_http(plan=PLAN, base_url=near(stub), traits=TRAITS, options=QUICK)
    assert (run.details["retries"], run.details["stopped_by"]) == (2, "plan")
    assert run.details["last_sent_s"] == run.requests["arrival_s"].to_list()[-1]


def test_retry_after_is_seconds_or_a_date() -> None:
    now = 1_800_000_000.0
    assert retry_after("7", now) == 7.0
    assert retry_after(email.utils.formatdate(now + 30, usegmt=True), now) == 30.0
    assert retry_after(email.utils.formatdate(now - 30, usegmt=True), now) == 0.0
    assert retry_after("soon", now) is None
    assert retry_after(None, now) is None


def test_an_answer_that_does_not_end_is_cut() -> None:
    with serving(Stub(behave=first_only(never_ending))) as stub:
        run = replay_over_http(plan=PLAN, base_url=near(stub), traits=TRAITS, options=QUICK)
    assert run.details["failures"] == {"longer than asked": 1}
    assert "more than max_tokens 4 tokens" in run.details["invalid_reasons"][0]
    assert run.requests["session"].to_list() == [1, 1]


def test_another_number_of_tokens_than_asked_is_counted_and_goes_on() -> None:
    async def stops_early(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.token(0)
        # the end of the text, although told to ignore it
        await exchange.token(1, last=True, reason="stop")
        await exchange.end(2)

    with serving(Stub(behave=first_only(stops_early))) as stub:
        run = replay_over_http(plan=PLAN, base_url=near(stub), traits=TRAITS, options=QUICK)
    assert run.requests["output_tokens"].to_list() == [2, 4, 4, 4]
    assert run.details["invalid_reasons"] == ["1 request: another number of tokens (first: session 0 turn 0: 2 of 4)"]
    # the conversation goes on with what there is
    assert len(stub.asked[1].body["prompt"]) == 20 + 2 + 5


def test_more_cached_than_the_prompt_has_makes_the_run_invalid_and_is_not_known(tmp_path: Path) -> None:
    async def boasts(exchange: Exchange) -> None:
        await exchange.answer(cached=21)

    with serving(Stub(behave=first_only(boasts))) as stub:
        run = replay_over_http(plan=PLAN, base_url=near(stub), output=tmp_path / "run", traits=TRAITS, options=QUICK)
    assert run.details["invalid_reasons"] == [
        "1 request: more cached than the prompt has (first: session 0 turn 0: 21 of 20 tokens)"
    ]
    assert run.requests["cached_tokens"].to_list() == [None, 0, 0, 0]
    assert run.requests["computed_tokens"].to_list() == [None, 29, 20, 29]
    # the row is what the server said
    assert rows_of(tmp_path / "run")[0]["cached_tokens"] == 21


def test_a_transfer_that_does_not_end_with_its_answer_is_not_waited_for() -> None:
    async def lingers(exchange: Exchange) -> None:
        await exchange.begin()
        for number in range(4):
            await exchange.token(number, last=number == 3)
        await exchange.event({"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 4}})
        await exchange.event("[DONE]")
        # the last chunk never comes
        await asyncio.sleep(PATIENCE_S)

    with serving(Stub(behave=lingers)) as stub:
        run = replay_over_http(plan=PLAN, base_url=near(stub), traits=TRAITS, options=QUICK)
    assert (run.details["failures"], run.requests["output_tokens"].to_list()) == ({}, [4] * 4)
    assert run.turnaround_s is not None
    # of a wait of a second nothing is left but the noise of the machine
    assert run.turnaround_s < 0.7


def test_a_server_that_falls_silent_is_given_up() -> None:
    async def silent(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.token(0)
        await asyncio.sleep(PATIENCE_S)

    with serving(Stub(behave=first_only(silent))) as stub:
        run = replay_over_http(plan=PLAN, base_url=Endpoint(stub.url, silence_s=0.2), traits=TRAITS, options=QUICK)
    assert run.details["failures"] == {"silence": 1}
    assert "no data for 0.2 s after 1 tokens" in run.details["invalid_reasons"][0]


def test_a_server_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_CONNECT_S", 0.1)

    async def ask_it() -> Outcome:
        over = asyncio.Event()

        async def deaf(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await over.wait()
            writer.close()

        server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1024)
        endpoint = Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", silence_s=0.2)
        try:
            async with endpoint.session() as session, asyncio.timeout(PATIENCE_S):
                return await http.ask(session, endpoint, b"x" * 20_000_000, max_tokens=1)
        finally:
            over.set()
            server.close()

    outcome = asyncio.run(ask_it())
    assert (outcome.kind, outcome.error, outcome.again) == ("silence", "silence: no data for 0.2 s", False)


def test_a_server_that_is_gone_ends_the_run(tmp_path: Path) -> None:
    with serving(Stub()) as stub:
        pass
    plan = plan_of([chain((20, 4, 0.0))] * 50)
    run = replay_over_http(plan=plan, base_url=near(stub), output=tmp_path / "run", traits=TRAITS, options=QUICK)
    # three in a row, each tried again
    assert [row["retries"] for row in rows_of(tmp_path / "run")] == [3, 3, 3]
    assert run.details["invalid_reasons"][0] == (
        "3 requests failed one after another, the last with no connection: connection refused"
    )
    assert run.details["stopped_by"].startswith("3 requests failed")


def test_whoever_watches_the_server_can_end_the_run() -> None:
    dead = threading.Event()

    async def dies(exchange: Exchange) -> None:
        dead.set()
        await asyncio.sleep(PATIENCE_S)

    with serving(Stub(behave=dies)) as stub:
        run = replay_over_http(
            plan=PLAN,
            base_url=near(stub),
            traits=TRAITS,
            watch=lambda: "the server died" if dead.is_set() else None,
        )
    assert run.details["invalid_reasons"] == ["the server died"]
    assert run.requests.height == 0


def test_certificates_are_checked_and_can_be_given() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(DATA / "tls" / "server.pem", DATA / "tls" / "server.key")
    with serving(Stub(tls=context)) as stub:
        run = replay_over_http(plan=PLAN, base_url=near(stub), traits=TRAITS, options=QUICK)
        # the first session's, then the second's: nothing to try again
        assert run.details["failures"] == {"TLS error": 2}
        assert "self-signed certificate" in run.details["invalid_reasons"][0]
        for trusting in (
            Endpoint(stub.url, ca_file=str(DATA / "tls" / "server.pem")),
            Endpoint(stub.url, verify=False),
        ):
            assert replay_over_http(plan=PLAN, base_url=trusting, traits=TRAITS, options=QUICK).details["valid"]
    with pytest.raises(sg.errors.InputError, match="--ca-file: nowhere: cannot be read as certificates"):
        replay_over_http(plan=PLAN, base_url=Endpoint("https://127.0.0.1:1", ca_file="nowhere"), traits=TRAITS)


# --- through the command line --------------------------------------------------------------------------


def start(folder: Path, url: str, plan: sg.InputPlan, before: str = "pass") -> subprocess.Popen[str]:
    """The command in a process of its own. before: Python to run in it first."""
    plan.save(folder / "plan.json")
    code = f"{before}\nfrom slotgrid.cli.main import main\nmain()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "replay", "plan.json", "--base-url", url, "-o", "run", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def keep_alive(exchange: Exchange) -> None:
    await exchange.begin()
    for number in range(exchange.body["max_tokens"]):
        for _ in range(10):
            await exchange.send(b"e\r\n: keep-alive\n\n\r\n")
        await exchange.token(number, last=number == exchange.body["max_tokens"] - 1)
    await exchange.end(exchange.body["max_tokens"])


async def two_pieces_a_token(exchange: Exchange) -> None:
    await exchange.begin()
    for number in range(exchange.body["max_tokens"] + 3):
        await exchange.token(number, ids=False)
    await exchange.end(exchange.body["max_tokens"])


async def empty_events(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.token(0)
    while True:
        await exchange.event({"id": "x", "choices": []})


AS_TEXT = replace(TRAITS, returns_ids=False)


@pytest.mark.parametrize(("behave", "traits"), [(keep_alive, TRAITS), (two_pieces_a_token, AS_TEXT)])
def test_comments_and_pieces_are_no_tokens_too_many(behave: Any, traits: ServerTraits) -> None:
    with serving(Stub(behave=behave)) as stub:
        run = replay_over_http(plan=PLAN, base_url=near(stub), traits=traits, options=QUICK)
    assert (run.details["invalid_reasons"], run.requests["output_tokens"].to_list()) == ([], [4] * 4)


def test_a_stream_of_empty_events_is_cut_and_says_so() -> None:
    with serving(Stub(behave=first_only(empty_events))) as stub:
        run = replay_over_http(plan=PLAN, base_url=near(stub), traits=TRAITS, options=QUICK)
    assert run.details["failures"] == {"more events than an answer has": 1}
    assert any("with 1 of 4 tokens" in reason for reason in run.details["invalid_reasons"])


class Hold:
    """Answers the first ``count`` requests and leaves the next one open; ``reached`` is set then."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.reached = threading.Event()

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.index < self.count:
            await exchange.answer()
            return
        await exchange.begin()
        await exchange.token(0)
        self.reached.set()
        await asyncio.sleep(PATIENCE_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_run_keeps_what_it_has_and_says_why(number: signal.Signals, tmp_path: Path) -> None:
    hold = Hold(2)
    with serving(Stub(behave=hold)) as stub:
        process = start(tmp_path, stub.url, PLAN)
        assert hold.reached.wait(PATIENCE_S)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert stderr.splitlines()[-1].startswith(f"slotgrid: error: the run is not valid: stopped by {number.name}")
    assert "Traceback" not in stderr
    printed = json.loads(stdout)
    assert (printed["requests"], printed["replay"]["valid"]) == (2, False)
    rows = rows_of(tmp_path / "run")
    assert [row["error"] for row in rows] == [None, None, f"given up: stopped by {number.name}"]
    # the token that had come is known
    assert (rows[2]["status"], rows[2]["output_tokens"]) == (200, 1)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["details"]["invalid_reasons"] == [
        f"stopped by {number.name}"
    ]


def test_a_killed_run_keeps_its_rows(tmp_path: Path) -> None:
    hold = Hold(3)
    with serving(Stub(behave=hold)) as stub:
        process = start(tmp_path, stub.url, PLAN)
        assert hold.reached.wait(PATIENCE_S)
        process.kill()
        process.communicate(timeout=PATIENCE_S)
    assert [row["error"] for row in rows_of(tmp_path / "run")] == [None] * 3
    assert not (tmp_path / "run" / "run.json").exists()
    result = sg.diagnose(tmp_path / "run")
    assert result.run.requests.height == 3
    assert any("1 of the 4 turns of plan.json have no request row" in note for note in result.run.notes)


@pytest.mark.parametrize(("room", "sessions"), [(20_000, 40), (4_000, 12)])
def test_a_full_disk_ends_the_run_with_what_fits(room: int, sessions: int, tmp_path: Path) -> None:
    small_files = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))"
    with serving(Stub()) as stub:
        process = start(tmp_path, stub.url, plan_of([chain((20, 40, 0.0))] * sessions), small_files)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "requests.jsonl: cannot write: File too large" in stderr.splitlines()[-1]
    assert "Traceback" not in stderr
    *whole, cut = (tmp_path / "run" / "requests.jsonl").read_text().split("\n")
    assert cut
    assert all(json.loads(line)["error"] is None for line in whole)
    if room == 20_000:
        saved = sg.load_run(tmp_path / "run")
        assert saved.details["invalid_reasons"][0].endswith("cannot write: File too large")
        # the row that did not fit is known, too
        assert saved.requests.height == len(whole) + 1


def test_a_server_that_cannot_be_reached_is_one_line(slotgrid: Command, tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.json")
    done = slotgrid("replay", "plan.json", "--base-url", "http://127.0.0.1:1", "-o", "run")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "slotgrid: error: http://127.0.0.1:1: no connection: connection refused\n"
    assert not (tmp_path / "run").exists()


def test_bad_options_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, folder = str(tmp_path / "plan.json"), str(tmp_path / "run")
    PLAN.save(plan)
    (tmp_path / "empty.json").write_text("")
    to_server = ("replay", plan, "--base-url", "http://127.0.0.1:1")
    for arguments, said in (
        (to_server, "-o is missing"),
        ((*to_server[:3], "nonsense", "-o", folder), "--base-url: 'nonsense'"),
        ((*to_server[:3], "http://[::1", "-o", folder), "--base-url: 'http://[::1'; expected an address"),
        ((*to_server, "-o", folder, "--cycle", "3s"), "--cycle is of a window"),
        ((*to_server, "-o", folder, "--window", "0s"), "window: 0 s; allowed: more than 0"),
        ((*to_server, "-o", folder, "--window", "120"), "has no unit"),
        ((*to_server, "-o", folder, "--prompts", "x"), "allowed: auto, ids, text"),
        ((*to_server, "-o", plan), "a file; give a directory"),
        (("replay", str(tmp_path / "empty.json"), *to_server[2:], "-o", folder), "the file is empty"),
        (("replay", plan, "--artifact", "x", "--window", "3s", "-o", folder), "--window goes with --base-url"),
    ):
        assert run(list(arguments)) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.strip().splitlines()
        assert said in line
    assert not (tmp_path / "run").exists()


def test_a_dry_run_adds_up_and_sends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of([chain((40, 3, 1.5), (8, 2, 0.0)), chain((30, 2, 0.0))], [chain((20, 4, 9.0), (8, 2, 0.0))])
    plan.save(tmp_path / "plan.json")
    arguments = ["replay", str(tmp_path / "plan.json"), "--dry-run"]
    assert run([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "plan_id": "p",
        "plan_sha256": plan.content_sha256,
        "clients": 2,
        "sessions": 3,
        "sessions_per_client": 1,
        "turns": 5,
        "longest_context_tokens": 53,
        "max_seq_len": None,
        "new_tokens": 106,
        "prompt_tokens": 40 + 51 + 30 + 20 + 32,
        "output_tokens": 13,
        "total_wait_s": 10.5,
        "least_s": 9.0,
        "window": False,
    }
    assert run([*arguments, "--window", "120s", "--cycle", "20s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["least_s"] == 180.0
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert "longest context  53" in shown
    assert "9.0 s" in shown


def test_an_answer_without_the_ids_the_server_promised_ends_its_session() -> None:
    async def forgets(exchange: Exchange) -> None:
        await exchange.answer(ids=False)

    with serving(Stub(behave=first_only(forgets))) as stub:
        run = replay_over_http(plan=PLAN, base_url=near(stub), traits=TRAITS, options=QUICK)
    assert run.details["failures"] == {"no token ids": 1}
    assert run.requests["session"].to_list() == [1, 1]

"""Plans replayed over HTTP against a protocol double: what is sent, in which order, and what is kept."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import slotgrid as sg
from slotgrid.errors import InputError, RunError
from slotgrid.measure.clients import Status
from slotgrid.measure.options import ReplayOptions, WindowRule
from slotgrid.measure.prompts import TextConversation, TokenRange, segment
from slotgrid.measure.replay import replay_over_http, server_traits
from slotgrid.measure.traits import ServerTraits
from slotgrid.run.steady import find_window
from tests.measure.stub import Exchange, Stub, serving

TRAITS = ServerTraits("stub", None, TokenRange(1000, 8000), True, True, 1.0, ())
QUICK = ReplayOptions(backoff_s=0.0)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


def chain(*turns: tuple[int, int, float]) -> sg.Session:
    return sg.Session("s", tuple(sg.Turn(*turn) for turn in turns))


def plan_of(*clients: list[sg.Session], starts: tuple[float, ...] = ()) -> sg.InputPlan:
    """Clients with their sessions; session ids made unique."""
    built = []
    for c, sessions in enumerate(clients):
        named = tuple(sg.Session(f"c{c}s{i}", s.turns, s.prefix_id, s.prefix_tokens) for i, s in enumerate(sessions))
        built.append(sg.Client(starts[c] if starts else 0.0, named))
    return sg.InputPlan("p", tuple(built))


TWO_CLIENTS = plan_of(
    [chain((40, 3, 0.01), (8, 2, 0.02), (5, 1, 0.0)), chain((30, 2, 0.0))],
    [chain((20, 4, 0.03), (8, 2, 0.0))],
    starts=(0.0, 0.02),
)


def test_every_turn_is_sent_as_planned_and_kept(tmp_path: Path) -> None:
    with serving(Stub()) as stub:
        run = replay_over_http(plan=TWO_CLIENTS, base_url=f"{stub.url}/v1/", output=tmp_path / "run", options=QUICK)
    assert (run.details["valid"], run.details["stopped_by"], run.notes) == (True, "plan", run.notes)
    by_name = {(r["session"], r["turn"]): r for r in rows_of(tmp_path / "run")}
    assert sorted(by_name) == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)]
    bodies = {exchange.request_id: exchange.body for exchange in stub.asked}
    encodings = {exchange.request_id: exchange.headers["accept-encoding"] for exchange in stub.asked}
    for (session, turn), row in by_name.items():
        body = bodies[row["request_id"].removeprefix("cmpl-")]
        planned = list(TWO_CLIENTS.sessions())[session][1].turns[turn]
        assert body["max_tokens"] == planned.output_tokens == row["output_tokens"] == len(row["token_times_s"])
        assert (body["temperature"], body["ignore_eos"], body["seed"], body["stream"]) == (0, True, 20260819, True)
        assert encodings[row["request_id"].removeprefix("cmpl-")] == "identity"
        assert body["stream_options"] == {"include_usage": True}
        assert len(body["prompt"]) == row["prompt_tokens"] == row["planned_prompt_tokens"]
        assert (row["status"], row["error"], row["cached_tokens"], row["retries"]) == (200, None, 0, 0)
        assert row["planned_s"] <= row["arrival_s"] <= row["first_token_s"] <= row["finish_s"]
        if turn:
            before = by_name[session, turn - 1]
            wait_s = list(TWO_CLIENTS.sessions())[session][1].turns[turn - 1].tool_wait_s
            assert row["planned_s"] == pytest.approx(before["finish_s"] + wait_s, abs=2e-6)
            # exactly what the server has seen, then what it generated, then the new tokens
            last = bodies[before["request_id"].removeprefix("cmpl-")]
            generated = [5000 + i for i in range(before["output_tokens"])]
            start = [*last["prompt"], *generated]
            assert body["prompt"][: len(start)] == start
            assert len(body["prompt"]) - len(start) == planned.new_tokens
    # a client's next session starts when the last one ends, and clients start when the plan says
    assert by_name[1, 0]["planned_s"] == pytest.approx(by_name[0, 2]["finish_s"], abs=2e-6)
    assert by_name[2, 0]["planned_s"] == pytest.approx(0.02, abs=2e-6)
    saved = sg.load_run(tmp_path / "run")
    assert (saved.plan_sha256, saved.requests.height) == (TWO_CLIENTS.content_sha256, 6)
    assert sg.load_plan(tmp_path / "run" / "plan.json").content_sha256 == TWO_CLIENTS.content_sha256
    assert (saved.returns, saved.reused, saved.cached_tokens) == (3, 0, 0)


def test_the_same_plan_sends_the_same_prompts_and_shares_prefixes() -> None:
    session = sg.Session("a", (sg.Turn(50, 1, 0.0), sg.Turn(9, 1)), "system", 20)
    other = sg.Session("b", (sg.Turn(60, 1),), "system", 20)
    tokens = TokenRange(300, 400)
    (shared, first), (again, second) = segment("p", session, 0, 0, tokens), segment("p", other, 1, 0, tokens)
    assert (shared, first) == segment("p", session, 0, 0, tokens)
    assert (len(shared), len(first), len(second), shared == again) == (20, 30, 40, True)
    assert first != second[:30]
    assert segment("q", session, 0, 1, tokens) != segment("p", session, 0, 1, tokens)
    assert segment("p", session, 0, 1, tokens)[0] == []
    assert min(shared + first) >= 300
    assert max(shared + first) < 400


@pytest.mark.parametrize("words_per_token", [48 / 49, 0.2, 0.01])
def test_a_shared_prefix_as_words_leaves_sessions_their_own_words(words_per_token: float) -> None:
    session = sg.Session("a", (sg.Turn(1010, 1),), "system", 1000)
    prompts, prefixes = [], []
    for index in range(3):
        prefix, own = segment("p", session, index, 0, TokenRange(0, 1 << 16))
        talk = TextConversation(words_per_token)
        talk.append(prefix)
        prefixes.append(talk.json())
        talk.append(own)
        prompts.append(json.loads(talk.json()))
        assert talk.planned_tokens == 1010
        expected = max(1, round(1000 * words_per_token)) + max(1, round(10 * words_per_token))
        assert len(prompts[-1].split()) == expected
        assert prompts[-1].startswith(json.loads(prefixes[-1]))
    assert len(set(prefixes)) == 1
    assert len(set(prompts)) == 3


def test_only_clients_between_two_requests_are_waiting() -> None:
    # one has had an answer and waits for its tool, one has not begun
    plan = plan_of([chain((10, 1, 3600.0), (5, 1, 0.0))], [chain((10, 1, 0.0))], starts=(0.0, 3600.0))
    seen: list[Status] = []

    def enough() -> str | None:
        return "enough" if seen and seen[-1].done else None

    with serving(Stub()) as stub:
        replay_over_http(plan=plan, base_url=stub.url, traits=TRAITS, options=QUICK, progress=seen.append, watch=enough)
    at_the_end = next(status for status in seen if status.done)
    assert (at_the_end.active, at_the_end.waiting, at_the_end.done, at_the_end.total) == (0, 1, 1, 3)


def test_a_server_is_asked_once_what_it_can_do() -> None:
    with serving(Stub()) as stub:
        traits = server_traits(stub.url)
        assert (traits.model, traits.max_seq_len, traits.exact, traits.reports_cached) == ("stub", 4096, True, True)
        assert len(stub.seen) == 1

    async def small_vocabulary(exchange: Exchange) -> None:
        if max(exchange.body["prompt"]) >= 3000:
            await exchange.reply(400, {"error": {"message": "out of vocabulary"}})
        else:
            await exchange.answer()

    with serving(Stub(probe=small_vocabulary)) as stub:
        assert server_traits(stub.url).tokens == TokenRange(264, 2000)


async def text_only(exchange: Exchange) -> None:
    """A server that takes text and tells no ids; a word is two of its tokens."""
    if isinstance(exchange.body["prompt"], list):
        await exchange.reply(400, {"error": {"message": "prompt must be text"}})
        return
    exchange.body["prompt"] += exchange.body["prompt"]
    await exchange.answer(ids=False, cached=None)


def test_ids_that_are_refused_inside_the_stream_are_refused() -> None:
    """vLLM 0.22 has sent its status 200 when it finds an id above the vocabulary."""

    async def small_vocabulary(exchange: Exchange) -> None:
        ids = exchange.body["prompt"]
        if isinstance(ids, str) or max(ids) < 8000:
            await exchange.answer()
            return
        await exchange.begin()
        message = f"Token id {max(ids)} is out of vocabulary"
        await exchange.event({"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}})
        await exchange.event("[DONE]")
        await exchange.send(b"0\r\n\r\n")

    with serving(Stub(probe=small_vocabulary)) as stub:
        traits = server_traits(stub.url)
    assert (traits.tokens, traits.exact) == (TokenRange(1000, 8000), True)
    assert [max(exchange.body["prompt"]) for exchange in stub.seen] == [31_999, 7_999]


def test_an_engine_that_is_dead_is_named_before_the_run() -> None:
    async def dead(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.event({"error": {"message": "EngineCore encountered an issue", "code": 500}})
        await exchange.event("[DONE]")

    with (
        serving(Stub(probe=dead)) as stub,
        pytest.raises(RunError, match="refuses a small completion: error in the stream: EngineCore"),
    ):
        server_traits(stub.url)


def test_text_prompts_count_their_seam_and_unknown_reuse_stays_unknown(tmp_path: Path) -> None:
    with serving(Stub(behave=text_only, probe=text_only)) as stub:
        run = replay_over_http(plan=TWO_CLIENTS, base_url=stub.url, output=tmp_path / "run", options=QUICK)
    traits = run.details["server"]
    assert (traits["tokens"], traits["words_per_token"]) == (None, 0.5)
    # the answer is part of the next prompt, word for word
    first, second = (
        e.body["prompt"] for e in stub.asked if e.request_id and "s0t" in e.request_id and "t2" not in e.request_id
    )
    half = first[: len(first) // 2]
    assert second.startswith(half + " w0 w1 w2 ")
    assert run.details["valid"]
    assert run.requests["cached_tokens"].null_count() == 6
    assert run.reused is None
    assert any("the seam between pieces" in note for note in run.notes)
    assert any("6 of 6 answers do not say how much was cached" in note for note in run.notes)
    # diagnosed like any other run; reuse is not observable
    result = sg.diagnose(tmp_path / "run").to_dict()
    assert (result["returns"], result["reused"], result["reuse_observable"]) == (3, None, False)


def test_hundreds_of_sessions_are_in_flight_at_once() -> None:
    """The double answers nobody until everybody has asked."""
    clients = 256
    everybody = threading.Event()
    together: list[asyncio.Future[None]] = []

    async def wait_for_all(exchange: Exchange) -> None:
        if not everybody.is_set():
            future = asyncio.get_running_loop().create_future()
            together.append(future)
            if len(together) == clients:
                everybody.set()
                for waiting in together:
                    waiting.set_result(None)
            await future
        await exchange.answer()

    plan = plan_of(*[[chain((20, 8, 0.0), (4, 8, 0.0))]] * clients)
    seen = []
    with serving(Stub(behave=wait_for_all)) as stub:
        run = replay_over_http(plan=plan, base_url=stub.url, traits=TRAITS, progress=seen.append)
    assert run.details["valid"]
    assert run.requests.height == 2 * clients
    assert run.details["client_lag"]["in_flight_most"] == clients
    last = seen[-1]
    assert (last.done, last.total, last.active, last.waiting, last.errors) == (512, 512, 0, 0, 0)


def test_nothing_is_written_without_an_output_and_token_times_can_be_left_out(tmp_path: Path) -> None:
    with serving(Stub()) as stub:
        run = replay_over_http(plan=TWO_CLIENTS, base_url=stub.url, traits=TRAITS, token_times=False)
        assert "token_gaps_s" not in run.requests.columns
        run = replay_over_http(plan=TWO_CLIENTS, base_url=stub.url, traits=TRAITS)
        assert [len(gaps) for gaps in run.requests["token_gaps_s"]] == [2, 1, 0, 1, 3, 1]
    # no probe was sent where the traits are known
    assert all(exchange.request_id for exchange in stub.seen)


def test_metrics_are_kept_from_before_and_after(tmp_path: Path) -> None:
    with serving(Stub(metrics=b'vllm:prompt_tokens_total{model_name="m"} 3.0\n')) as stub:
        replay_over_http(plan=TWO_CLIENTS, base_url=stub.url, output=tmp_path / "run", traits=TRAITS)
        names = sorted(path.name for path in (tmp_path / "run").glob("*.prom"))
        assert names == ["metrics-after.prom", "metrics-before.prom"]
        options = ReplayOptions(metrics=False)
        replay_over_http(plan=TWO_CLIENTS, base_url=stub.url, output=tmp_path / "other", traits=TRAITS, options=options)
        assert list((tmp_path / "other").glob("*.prom")) == []


def test_fixed_arrivals_are_sent_when_the_plan_says() -> None:
    plan = plan_of([chain((20, 1, 0.0), (4, 1, 0.0))]).with_arrivals([0.01, 0.05])
    with serving(Stub()) as stub:
        run = replay_over_http(plan=plan, base_url=stub.url, traits=TRAITS)
    first, second = run.requests["arrival_s"]
    assert first >= 0.01
    assert second >= 0.05


# --- windows -------------------------------------------------------------------------------------------


def many_sessions(clients: int, sessions: int) -> sg.InputPlan:
    return plan_of(*[[chain((20, 2, 0.002), (4, 2, 0.0))] * sessions for _ in range(clients)])


def test_a_window_ends_the_run_and_nothing_is_sent_after_it(tmp_path: Path) -> None:
    rule = WindowRule(cycle_s=0.02, evaluation_s=0.3)
    plan = many_sessions(3, 2000)
    with serving(Stub()) as stub:
        run = replay_over_http(plan=plan, base_url=stub.url, output=tmp_path / "run", traits=TRAITS, window=rule)
    window = run.details["window"]
    assert (run.details["valid"], run.details["stopped_by"]) == (True, "window")
    assert window["end_s"] - window["start_s"] == pytest.approx(0.3)
    rows = rows_of(tmp_path / "run")
    assert max(row["planned_s"] for row in rows) < window["end_s"]
    assert run.details["last_sent_s"] <= window["end_s"]
    # every answer that was on its way has arrived
    assert all(row["error"] is None for row in rows)
    # the rule that read it off while it ran is the one that reads it off the finished run
    offline = find_window(run, plan, cycle_s=rule.cycle_s, evaluation_s=rule.evaluation_s, warmup_s=None)
    assert offline.start_s == pytest.approx(window["start_s"])


def test_a_plan_that_runs_out_says_how_many_sessions_are_needed() -> None:
    with serving(Stub()) as stub:
        run = replay_over_http(
            plan=many_sessions(2, 3), base_url=stub.url, traits=TRAITS, window=WindowRule(0.0, 3600.0)
        )
    (reason,) = run.details["invalid_reasons"]
    assert "runs out of sessions" in reason
    assert "sessions per client are needed, the plan has 3" in reason
    assert run.details["exhausted_clients"] in ([0], [1])


# --- what is refused -----------------------------------------------------------------------------------


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    with serving(Stub()) as stub:
        replay_over_http(plan=TWO_CLIENTS, base_url=stub.url, output=tmp_path / "run", traits=TRAITS)
        before = (tmp_path / "run" / "requests.jsonl").read_bytes()
        with pytest.raises(InputError, match=r"run\.json is there already; give another directory"):
            replay_over_http(plan=TWO_CLIENTS, base_url=stub.url, output=tmp_path / "run", traits=TRAITS)
        (tmp_path / "run" / "run.json").unlink()
        with pytest.raises(InputError, match=r"requests\.jsonl is there already"):
            replay_over_http(plan=TWO_CLIENTS, base_url=stub.url, output=tmp_path / "run", traits=TRAITS)
    assert (tmp_path / "run" / "requests.jsonl").read_bytes() == before


def test_a_plan_too_long_for_the_server_is_not_sent(tmp_path: Path) -> None:
    with serving(Stub(models={"data": [{"id": "stub", "max_model_len": 50}]})) as stub:
        with pytest.raises(InputError, match=r"turn 1: prompt 51 \+ output 2 tokens exceed what http"):
            replay_over_http(plan=TWO_CLIENTS, base_url=stub.url, output=tmp_path / "run", options=QUICK)
        assert stub.asked == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("prompts", ["auto", "text"])
def test_a_server_that_refuses_unknown_arguments_is_sent_none(prompts: str) -> None:
    async def strict(exchange: Exchange) -> None:
        if "return_token_ids" in exchange.body:
            await exchange.reply(400, {"error": {"message": "unrecognized argument: return_token_ids"}})
        else:
            await exchange.answer(ids=False)

    with serving(Stub(behave=strict, probe=strict)) as stub:
        run = replay_over_http(plan=TWO_CLIENTS, base_url=stub.url, options=ReplayOptions(prompts=prompts))
    assert run.details["valid"]
    assert (run.details["server"]["tokens"], run.details["server"]["returns_ids"]) == (None, False)
    # asked for text it is not even tried
    assert sum("return_token_ids" in exchange.body for exchange in stub.seen) == (0 if prompts == "text" else 5)


def test_a_server_that_breaks_on_ids_gets_text() -> None:
    async def breaks(exchange: Exchange) -> None:
        if isinstance(exchange.body["prompt"], list):
            await exchange.reply(500, {"error": {"message": "list has no attribute split"}}, retry_after="0")
        else:
            await exchange.answer()

    with serving(Stub(probe=breaks)) as stub:
        traits = server_traits(stub.url)
        assert (traits.tokens, traits.returns_ids) == (None, True)
        assert len(stub.seen) == 5 + 1
        with pytest.raises(RunError, match="HTTP 500: list has no attribute split"):
            server_traits(stub.url, prompts="ids")


async def unwilling(exchange: Exchange) -> None:
    await exchange.reply(401, {"error": {"message": "wrong key"}})


async def elsewhere(exchange: Exchange) -> None:
    await exchange.reply(307, b"", location="https://other.example/llm/v1/completions")


@pytest.mark.parametrize(
    ("stub", "said"),
    [
        (Stub(models=None), "names no model; give one with --model"),
        (Stub(models=[1]), "names no model"),
        (Stub(probe=unwilling), "HTTP 401: wrong key"),
        (Stub(probe=elsewhere), "HTTP 307: redirects to https://other.example/llm; give that address"),
    ],
)
def test_a_server_that_cannot_be_used_is_named_before_the_run(stub: Stub, said: str, tmp_path: Path) -> None:
    with serving(stub), pytest.raises(RunError, match=said):
        replay_over_http(plan=TWO_CLIENTS, base_url=stub.url, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://x",
        "http://",
        "http://x:99999",
        "http://[::1",
        "http://x/?a=1",
        "http://x#f",
        "http://x y",
    ],
)
def test_an_address_that_is_none_is_bad_input(url: str) -> None:
    with pytest.raises(InputError, match="--base-url"):
        replay_over_http(plan=TWO_CLIENTS, base_url=url)


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="prompts: 'words'; allowed: auto, ids, text"):
        ReplayOptions(prompts="words")
    with pytest.raises(InputError, match="retries"):
        ReplayOptions(retries=-1)
    for bad in ((0.0, 0.0), (-1.0, 5.0), (0.0, float("nan"))):
        with pytest.raises(InputError, match=r"allowed: (seconds of at least|more than) 0"):
            WindowRule(*bad)


def test_sessions_that_arrive_by_themselves_need_a_stated_warm_up() -> None:
    plan = plan_of(*[[chain((20, 2, 0.0))]] * 200, starts=tuple(0.002 * c for c in range(200)))
    with serving(Stub()) as stub:
        with pytest.raises(InputError, match="open-loop plan renews no client"):
            replay_over_http(plan=plan, base_url=stub.url, traits=TRAITS, window=WindowRule(0.0, 0.1))
        assert stub.asked == []
        rule = WindowRule(0.0, 0.1, warmup_s=0.05)
        run = replay_over_http(plan=plan, base_url=stub.url, traits=TRAITS, window=rule)
        assert (run.details["valid"], run.details["stopped_by"]) == (True, "window")
        assert run.details["window"] == {"start_s": 0.05, "end_s": pytest.approx(0.15), "cycle_s": 0.0}
        assert run.requests.height < 200
        longer = replay_over_http(plan=plan, base_url=stub.url, traits=TRAITS, window=WindowRule(0.0, 3600.0, 0.05))
    assert longer.details["invalid_reasons"] == ["the plan ended before the window did; it needs more sessions"]

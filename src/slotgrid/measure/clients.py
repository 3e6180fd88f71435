"""The clients of a plan as closed loops in one event loop: who sends what when, and when to stop."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slotgrid.errors import InputError
from slotgrid.measure.answer import Answer
from slotgrid.measure.http import Endpoint, Outcome, ask
from slotgrid.measure.journal import Journal
from slotgrid.measure.options import ReplayOptions, WindowRule
from slotgrid.measure.prompts import Conversation, TextConversation, TokenConversation, TokenRange, segment
from slotgrid.measure.traits import ServerTraits, request_body
from slotgrid.plan import InputPlan, Session, Turn
from slotgrid.run.window import Window, check_lasting, warmup_end_s

if TYPE_CHECKING:
    import aiohttp

_LONGEST_BACKOFF_S = 30.0
_FEWEST_FAILURES = 3
# of a request that was on its way when the run ended
GIVEN_UP = "given up"
# words are drawn from these when prompts are text
_ANY_TOKENS = TokenRange(0, 1 << 16)


@dataclass(frozen=True)
class Status:
    """Where a replay is. active: requests in flight; waiting: clients between an answer and their next request;
    done and total: turns (total is what the plan holds, more than a window needs); eta_s: None when not known."""

    active: int
    waiting: int
    done: int
    total: int
    errors: int
    elapsed_s: float
    eta_s: float | None
    window: Window | None


@dataclass
class _Place:
    """Where a client is in its plan."""

    turns_left: int
    finished: int = 0


@dataclass
class _Sending:
    """One turn on its way. due, called: monotonic seconds; called at its first attempt."""

    client: int
    session: Session
    index: int
    turn: int
    name: str
    due: float
    prompt_tokens: int
    called: float = 0.0
    attempts: int = 0

    @property
    def planned(self) -> Turn:
        return self.session.turns[self.turn]


class Clients:
    """All clients of one run. Times that leave this class are seconds from its start.

    late_s: of each request, how much later than planned it was sent. spans_s: (sent, done) of each. rows: every row
    written. Call :meth:`run` once.
    """

    def __init__(
        self,
        plan: InputPlan,
        endpoint: Endpoint,
        session: aiohttp.ClientSession,
        traits: ServerTraits,
        options: ReplayOptions,
        journal: Journal,
    ) -> None:
        self.plan = plan
        # a window rule has its cycle from here on
        self.options = options if options.window is None else replace(options, window=options.window.of(plan))
        self.traits = traits
        self.rows: list[dict[str, Any]] = []
        self.late_s: list[float] = []
        self.spans_s: list[tuple[float, float]] = []
        self.failures: Counter[str] = Counter()
        self.first_failure: dict[str, str] = {}
        self.http_errors = 0
        self.retried = 0
        self.window: Window | None = None
        self.stopped_by: str | None = None
        # when the headers of the last request left, retries included
        self.last_sent_s = 0.0
        self.exhausted: list[int] = []
        # in a server's log, requests of two replays must not share ids
        self.run_tag = uuid.uuid4().hex[:8]
        self._endpoint = endpoint
        self._session = session
        self._journal = journal
        self._places = [_Place(sum(len(session.turns) for session in client.sessions)) for client in plan.clients]
        self._first_index = _first_indices(plan)
        self._tasks: list[asyncio.Task[None]] = []
        self._in_flight: set[int] = set()
        self._waiting: set[int] = set()
        self._finish: list[tuple[int, float]] = []
        self._in_a_row = 0
        self._closing = False
        self._origin = 0.0
        self._end: asyncio.TimerHandle | None = None
        most = options.failures_in_a_row
        self._most_failures = max(_FEWEST_FAILURES, len(plan.clients)) if most is None else most

    async def run(self) -> None:
        """Run to the end of the plan or the window, or until stopped. Raises what went wrong besides requests."""
        self._origin = time.monotonic()
        rule = self.options.window
        if rule is not None and rule.warmup_s is not None:
            self._begin_window(rule.warmup_s, rule)
        self._tasks = [asyncio.ensure_future(self._client(c)) for c in range(len(self.plan.clients))]
        try:
            results = await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            if self._end is not None:
                self._end.cancel()
            for task in self._tasks:
                task.cancel()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result
        if self.stopped_by is None:
            self.stopped_by = "plan"

    def stop(self, reason: str) -> None:
        """End the run now: requests in flight are given up and written as failed. The first reason counts."""
        if self.stopped_by is None or self.stopped_by == "window":
            self.stopped_by = reason
        self._closing = True
        for task in self._tasks:
            task.cancel()

    def status(self) -> Status:
        """Where the run is now."""
        now = time.monotonic() - self._origin
        done = len(self.rows)
        if self.window is not None:
            eta: float | None = max(0.0, self.window.end_s - now)
        else:
            eta = None if self.options.window is not None else self._eta_s(now)
        return Status(
            active=len(self._in_flight),
            waiting=len(self._waiting),
            done=done,
            total=self.plan.turn_count,
            errors=sum(self.failures.values()),
            elapsed_s=now,
            eta_s=eta,
            window=self.window,
        )

    def _eta_s(self, now: float) -> float | None:
        """The client that is furthest behind goes on at its own pace."""
        ends = [
            now / place.finished * place.turns_left for place in self._places if place.finished and place.turns_left
        ]
        return max(ends) if ends else None

    # --- one client --------------------------------------------------------------------------------

    async def _client(self, c: int) -> None:
        try:
            await self._run_sessions(c)
        except Exception as error:
            # nobody waits for the others of a run that broke
            self.stop(f"the client broke: {error!r}")
            raise

    async def _run_sessions(self, c: int) -> None:
        client = self.plan.clients[c]
        due = self._origin + client.start_s
        for s, session in enumerate(client.sessions):
            done = await self._run_session(c, self._first_index[c] + s, session, due)
            if done is None:
                return
            due = done
        self._places[c].turns_left = 0
        self._run_out(c)

    async def _run_session(self, c: int, index: int, session: Session, due: float) -> float | None:
        """Every turn of a session; when its last answer was there, or None when the run is over."""
        talk = self._conversation()
        place = self._places[c]
        for t, turn in enumerate(session.turns):
            for piece in segment(self.plan.plan_id, session, index, t, self.traits.tokens or _ANY_TOKENS):
                talk.append(piece)
            body = request_body(
                talk.json(),
                model=self.traits.model,
                max_tokens=turn.output_tokens,
                seed=self.options.seed,
                return_ids=self.traits.returns_ids,
            )
            if turn.arrival_s is not None:
                due = max(due, self._origin + turn.arrival_s)
            # before its first request a client waits for nobody
            if t > 0 or index > self._first_index[c]:
                self._waiting.add(c)
            try:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            finally:
                self._waiting.discard(c)
            if self._over():
                return None
            name = f"{self.run_tag}s{index}t{t}"
            outcome = await self._request(_Sending(c, session, index, t, name, due, talk.planned_tokens), body)
            place.turns_left -= 1
            if outcome.error is not None:
                place.turns_left -= len(session.turns) - t - 1
                return outcome.finished
            place.finished += 1
            self._finished(c, outcome.finished)
            talk.answered(outcome.answer.text, outcome.answer.token_ids, outcome.answer.output_tokens)
            due = outcome.finished + turn.tool_wait_s
        return outcome.finished

    def _conversation(self) -> Conversation:
        return TokenConversation() if self.traits.exact else TextConversation(self.traits.words_per_token)

    async def _request(self, sending: _Sending, body: bytes) -> Outcome:
        """One turn with its retries; its row is written whatever happens."""
        sending.called = time.monotonic()
        self._in_flight.add(sending.client)
        outcome = Outcome(Answer(), sending.called)
        try:
            while True:
                outcome = Outcome(Answer(), time.monotonic())
                retry = f"r{sending.attempts}" if sending.attempts else ""
                sending.attempts += 1
                await ask(
                    self._session,
                    self._endpoint,
                    body,
                    max_tokens=sending.planned.output_tokens,
                    headers={"x-request-id": sending.name + retry},
                    outcome=outcome,
                )
                self._sent(outcome)
                if outcome.error is None and self.traits.exact and outcome.answer.token_ids is None:
                    outcome.fail("no token ids", "the answer does not tell the ids of its tokens")
                if outcome.error is not None and outcome.status not in (None, 200):
                    self.http_errors += 1
                if not outcome.again or sending.attempts > self.options.retries or self._over():
                    break
                self.retried += 1
                await asyncio.sleep(self._backoff_s(outcome, sending.attempts))
                if self._over():
                    break
        except asyncio.CancelledError:
            self._sent(outcome)
            outcome.finished = time.monotonic()
            outcome.fail(GIVEN_UP, str(self.stopped_by))
            self._write(sending, outcome)
            raise
        finally:
            self._in_flight.discard(sending.client)
        self._write(sending, outcome)
        return outcome

    def _sent(self, outcome: Outcome) -> None:
        if outcome.sent is not None:
            self.last_sent_s = max(self.last_sent_s, self._time(outcome.sent))

    def _backoff_s(self, outcome: Outcome, attempts: int) -> float:
        asked_s = outcome.retry_after_s
        wait_s = self.options.backoff_s * 2 ** (attempts - 1) if asked_s is None else asked_s
        return min(wait_s, _LONGEST_BACKOFF_S)

    # --- what a request leaves ----------------------------------------------------------------------

    def _write(self, sending: _Sending, outcome: Outcome) -> None:
        answer, planned = outcome.answer, sending.planned
        index, t = sending.index, sending.turn
        ok = outcome.error is None
        times = [self._time(at) for at in answer.token_times_s]
        late = max(0.0, sending.called - sending.due)
        row: dict[str, Any] = {
            "session": index,
            "turn": t,
            "session_id": sending.session.id,
            "client": sending.client,
            "request_id": answer.request_id or f"cmpl-{sending.name}",
            "status": outcome.status,
            "error": outcome.error,
            "planned_s": self._time(sending.due),
            "arrival_s": self._time(outcome.called if outcome.sent is None else outcome.sent),
            "first_token_s": times[0] if times else None,
            "finish_s": self._time(outcome.finished),
            "late_s": round(late, 6),
            "retries": sending.attempts - 1,
            "planned_new_tokens": planned.new_tokens,
            "planned_output_tokens": planned.output_tokens,
            "planned_prompt_tokens": sending.prompt_tokens,
            "prompt_tokens": answer.prompt_tokens,
            "output_tokens": answer.output_tokens if ok or times else None,
            "cached_tokens": answer.cached_tokens,
            "finish_reason": answer.finish_reason,
        }
        if self.options.token_times:
            row["token_times_s"] = times
        self.rows.append(row)
        self.late_s.append(late)
        self.spans_s.append((row["arrival_s"], row["finish_s"]))
        if not ok:
            self._count_failure(outcome, index, t)
        else:
            self._in_a_row = 0
            if answer.output_tokens != planned.output_tokens:
                self._count("another number of tokens", f"{answer.output_tokens} of {planned.output_tokens}", index, t)
            cached, prompt = answer.cached_tokens, answer.prompt_tokens
            if cached is not None and prompt is not None and cached > prompt:
                self._count("more cached than the prompt has", f"{cached} of {prompt} tokens", index, t)
        try:
            self._journal.write(row)
        except OSError as error:
            self.stop(f"{self._journal.path}: cannot write: {error.strerror or error}")

    def _count_failure(self, outcome: Outcome, index: int, t: int) -> None:
        if outcome.kind == GIVEN_UP:
            return
        assert outcome.kind is not None
        assert outcome.error is not None
        detail = outcome.error.removeprefix(outcome.kind).lstrip(": ")
        self._count(outcome.kind, detail, index, t)
        self._in_a_row += 1
        if self._in_a_row >= self._most_failures:
            self.stop(f"{self._in_a_row} requests failed one after another, the last with {outcome.error}")

    def _count(self, kind: str, detail: str, index: int, t: int) -> None:
        self.failures[kind] += 1
        self.first_failure.setdefault(kind, f"session {index} turn {t}" + (f": {detail}" if detail else ""))

    # --- the window --------------------------------------------------------------------------------

    def _over(self) -> bool:
        if self._closing:
            return True
        return self.window is not None and time.monotonic() - self._origin >= self.window.end_s

    def _finished(self, c: int, finished: float) -> None:
        rule = self.options.window
        if rule is None or self.window is not None:
            return
        self._finish.append((c, self._time(finished)))
        if any(place.finished < 2 for place in self._places):
            return
        start_s = self._warmup_end(rule)
        if start_s is not None:
            self._begin_window(start_s, rule)

    def _begin_window(self, start_s: float, rule: WindowRule) -> None:
        self.window = Window(start_s, start_s + rule.evaluation_s)
        wait_s = self._origin + self.window.end_s - time.monotonic()
        self._end = asyncio.get_running_loop().call_later(max(0.0, wait_s), self._window_over)

    def _warmup_end(self, rule: WindowRule) -> float | None:
        import numpy as np

        client, finish = zip(*self._finish, strict=True)
        return warmup_end_s(np.asarray(client), np.asarray(finish, float), len(self.plan.clients), rule.cycle_s or 0.0)

    def _window_over(self) -> None:
        """Nothing more is sent; answers on their way are waited for."""
        if self.stopped_by is None:
            self.stopped_by = "window"
        self._closing = True
        for c, task in enumerate(self._tasks):
            if c not in self._in_flight:
                task.cancel()

    def _run_out(self, c: int) -> None:
        """A client has no session left. With a window that is not over yet the run cannot be used."""
        rule = self.options.window
        # in an open loop a client has one session and others come after it
        if rule is None or self.plan.open_loop or self._over():
            return
        now_s = time.monotonic() - self._origin
        self.exhausted.append(c)
        window = self.window or Window(now_s, max(now_s, 3 * (rule.cycle_s or 0.0)) + rule.evaluation_s)
        lasts = [now_s if i == c else float("inf") for i in range(len(self._places))]
        import numpy as np

        try:
            check_lasting(window, np.asarray(lasts), len(self.plan.clients[c].sessions))
        except InputError as error:
            self.stop(str(error))

    def _time(self, at: float) -> float:
        return round(at - self._origin, 6)


def _first_indices(plan: InputPlan) -> list[int]:
    """Index of each client's first session in plan order."""
    firsts, count = [], 0
    for client in plan.clients:
        firsts.append(count)
        count += len(client.sessions)
    return firsts

"""The engine: one scheduling decision, the step it asks for, its events. No threads, no sockets, any clock."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from slotgrid import event_format as names
from slotgrid._version import __version__
from slotgrid.config import ServingConfig
from slotgrid.serve.events import FORMAT, EventLog
from slotgrid.serve.executor import StepResult
from slotgrid.serve.generation import Request, Sampler, TextStream
from slotgrid.serve.scheduler import Decode, Prefill, Scheduler

FinishReason = Literal["stop", "length"]


class Runner(Protocol):
    """What runs the steps: :class:`slotgrid.serve.executor.Executor`, or a test's."""

    def decode(self, bucket: int, tokens: list[int], slots: list[int], positions: list[int]) -> StepResult: ...

    def prefill_chunk(self, tokens: tuple[int, ...], slot: int, start: int) -> StepResult: ...

    def copy(self, source: int, target: int) -> None: ...


@dataclass(frozen=True)
class Output:
    """One token of one request. ``text`` is what became certain with it."""

    request: str
    token: int
    text: str
    finish_reason: FinishReason | None


@dataclass(frozen=True)
class StepReport:
    """What one step did. Times in nanoseconds of the engine's clock.

    running: requests in a decode step, or those that waited for a prefill. request, prompt_tokens and cached_tokens
    are None on decode steps.
    """

    kind: Literal["prefill", "decode"]
    start_ns: int
    end_ns: int
    running: int
    outputs: tuple[Output, ...]
    request: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass
class _Active:
    """A request the engine knows."""

    request: Request
    sampler: Sampler
    text: TextStream | None
    arrival_ns: int
    tokens: list[int] = field(default_factory=list)


class Engine:
    """Requests in, tokens out. ``step`` does the next thing there is to do, or returns None.

    token_bytes: bytes of a token, to make text; None makes none (and finds no stop texts).
    """

    def __init__(
        self,
        *,
        runner: Runner,
        scheduler: Scheduler,
        config: ServingConfig,
        prefill_chunk: int,
        events: EventLog,
        token_bytes: Callable[[int], bytes] | None = None,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._config = config
        self._chunk = prefill_chunk
        self._events = events
        self._token_bytes = token_bytes
        self._active: dict[str, _Active] = {}
        self._steps = 0

    def log_start(self, *, versions: dict[str, str], clock: str, unix_ns: int | None = None) -> None:
        """The first event: what serves, with which configuration and rules. unix_ns: the wall clock now."""
        self._events.write(
            names.START,
            format=FORMAT,
            writer=f"slotgrid-serve {__version__}",
            versions=versions,
            # nothing foreign is wrapped
            files={},
            known=True,
            unix_ns=unix_ns,
            clock=clock,
            config=self._config.to_dict(),
            rules=self._scheduler.rules.name,
            block_tokens=self._chunk,
        )
        self._events.flush()

    @property
    def waiting(self) -> int:
        return self._scheduler.waiting

    @property
    def running(self) -> int:
        return self._scheduler.running

    @property
    def slots_in_use(self) -> int:
        return self._scheduler.slots_in_use

    @property
    def capacity(self) -> int:
        return self._scheduler.capacity

    def add(self, request: Request, arrival_ns: int | None = None) -> None:
        """Queue a request, as of now unless ``arrival_ns`` is given."""
        arrival = self._events.clock_ns() if arrival_ns is None else arrival_ns
        text = None if self._token_bytes is None else TextStream(self._token_bytes, request.stop)
        self._active[request.id] = _Active(request, Sampler(request), text, arrival)
        self._scheduler.add(request.id, request.prompt, request.order)

    def cancel(self, request: str) -> None:
        """Give a request up; unknown ids (it may just have finished) are ignored."""
        active = self._active.get(request)
        if active is None:
            return
        del self._active[request]
        if not self._scheduler.drop(request):
            gone = {"cancelled": True, "output_tokens": len(active.tokens)}
            self._events.changes(self._scheduler.finish(request), released=gone)
            self._events.flush()

    def step(self) -> StepReport | None:
        decision = self._scheduler.schedule()
        if decision is None:
            return None
        if isinstance(decision, Prefill):
            self._events.changes(decision.changes, allocated=self._described(decision.request))
            report = self._prefill(decision)
        else:
            self._events.changes(decision.changes)
            report = self._decode(decision)
        done = [output for output in report.outputs if output.finish_reason is not None]
        self._events.write(
            names.STEP_END,
            report.end_ns,
            step=self._steps,
            finished=[self._finished(output) for output in done] or None,
        )
        self._steps += 1
        for output in done:
            del self._active[output.request]
            self._events.changes(self._scheduler.finish(output.request))
        self._events.flush()
        return report

    def _prefill(self, decision: Prefill) -> StepReport:
        active = self._active[decision.request]
        prompt = active.request.prompt
        computed = len(prompt) - decision.cached_tokens
        start_ns = self._events.clock_ns()
        self._events.write(
            names.STEP_START,
            start_ns,
            step=self._steps,
            kind="prefill",
            running=decision.running,
            request=decision.request,
            computed_tokens=computed,
        )
        if decision.source is not None:
            self._runner.copy(decision.source, decision.slot)
        for at in range(decision.cached_tokens, len(prompt), self._chunk):
            result = self._runner.prefill_chunk(prompt[at : at + self._chunk], decision.slot, at)
        output = self._take(active, result, 0)
        end_ns = self._events.clock_ns()
        return StepReport(
            "prefill",
            start_ns,
            end_ns,
            decision.running,
            (output,),
            decision.request,
            len(prompt),
            decision.cached_tokens,
        )

    def _decode(self, decision: Decode) -> StepReport:
        active = [self._active[request] for request, _ in decision.rows]
        bucket = self._config.bucket_for(len(active))
        start_ns = self._events.clock_ns()
        self._events.write(
            names.STEP_START, start_ns, step=self._steps, kind="decode", running=len(active), bucket=bucket
        )
        result = self._runner.decode(
            bucket,
            [entry.tokens[-1] for entry in active],
            [slot for _, slot in decision.rows],
            [len(entry.request.prompt) + len(entry.tokens) - 1 for entry in active],
        )
        outputs = tuple(self._take(entry, result, row) for row, entry in enumerate(active))
        end_ns = self._events.clock_ns()
        return StepReport("decode", start_ns, end_ns, len(active), outputs)

    def _take(self, active: _Active, result: StepResult, row: int) -> Output:
        """The next token of a request, and whether it is the last."""
        request, text = active.request, ""
        token = active.sampler.choose(result, row)
        active.tokens.append(token)
        reason: FinishReason | None = None
        if token in request.eos_ids:
            reason = "stop"
        elif active.text is not None:
            text = active.text.push(token)
            if active.text.stopped:
                reason = "stop"
        if reason is None and len(active.tokens) >= request.max_tokens:
            reason = "length"
        if reason is not None and active.text is not None:
            text += active.text.end()
        return Output(request.id, token, text, reason)

    def _described(self, request: str) -> dict[str, Any]:
        """What the log says of a request when it gets its slot."""
        active = self._active[request]
        return {
            "prompt_tokens": len(active.request.prompt),
            "arrival_ns": active.arrival_ns,
            "session": active.request.session,
            "turn": active.request.turn,
            "prefix": _prefix(active.request.prompt, self._chunk),
        }

    def _finished(self, output: Output) -> dict[str, Any]:
        tokens = len(self._active[output.request].tokens)
        return {"request": output.request, "output_tokens": tokens, "reason": output.finish_reason}


def _prefix(prompt: tuple[int, ...], block_tokens: int) -> str | None:
    """What a later request of the same conversation shares: a hash of the first whole block, None without one."""
    if len(prompt) < block_tokens:
        return None
    content = b"".join(token.to_bytes(4, "little") for token in prompt[:block_tokens])
    return hashlib.blake2b(content, digest_size=8).hexdigest()

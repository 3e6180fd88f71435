"""What a server can do, asked once: does it take prompts as token ids, return ids, report cached tokens."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from slotgrid.errors import RunError
from slotgrid.measure.http import Endpoint, Outcome, ask, get_text
from slotgrid.measure.prompts import TokenRange, words

if TYPE_CHECKING:
    import aiohttp

# ids that are ordinary tokens in nearly every vocabulary: above bytes and special tokens, below its end
_RANGES = (TokenRange(1000, 32_000), TokenRange(1000, 8_000), TokenRange(264, 2_000), TokenRange(264, 500))
_PROBE_WORDS = 48
_TRIES = 5
_LONGEST_WAIT_S = 10.0


@dataclass(frozen=True)
class ServerTraits:
    """What was found out. max_seq_len: as the server states it, or None.

    tokens: ids it takes in prompts, None when prompts must be text. returns_ids: it tells the ids it generates.
    reports_cached: the probe's usage said how much was cached (None cannot be told: some servers only say it on a hit).
    words_per_token: for prompts as text. requests: ids of the probe's own requests, as a server log names them.
    """

    model: str
    max_seq_len: int | None
    tokens: TokenRange | None
    returns_ids: bool
    reports_cached: bool
    words_per_token: float
    requests: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether the next prompt can begin with exactly the tokens the server has seen."""
        return self.tokens is not None and self.returns_ids

    def to_dict(self) -> dict[str, Any]:
        """The traits as JSON values."""
        return asdict(self)


def request_body(prompt: bytes, *, model: str, max_tokens: int, seed: int, return_ids: bool) -> bytes:
    """One streaming completion: exactly ``max_tokens`` tokens, greedy. prompt: a JSON value."""
    rest: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": 0,
        "top_p": 1,
        "seed": seed,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if return_ids:
        rest["return_token_ids"] = True
    return b'{"prompt":' + prompt + b"," + json.dumps(rest, separators=(",", ":")).encode()[1:]


async def find_traits(
    session: aiohttp.ClientSession, endpoint: Endpoint, *, model: str | None = None, prompts: str = "auto"
) -> ServerTraits:
    """Ask a server for its model, then send it one small request (a few where token ids are refused).

    prompts: "auto", "ids" or "text". Raises RunError naming what went wrong.
    """
    found, limit = await _model(session, endpoint)
    name = model or found
    if name is None:
        raise RunError(f"{endpoint.root}/v1/models: names no model; give one with --model")
    if prompts != "text":
        for tokens in _RANGES:
            ids = [tokens.low + 7 * i for i in range(1, 9)] + [tokens.high - 1]
            outcome = await _probe(session, endpoint, json.dumps(ids).encode(), name, broken_is_no=prompts == "auto")
            # a server that breaks on ids breaks on others, too
            if outcome.error is None or outcome.status == 500:
                break
        if outcome.error is None and (outcome.answer.token_ids is not None or prompts == "ids"):
            if outcome.answer.token_ids is None:
                raise RunError(f"{endpoint.root}: does not return the token ids it generates; use --prompts text")
            return _traits(outcome, name, limit, tokens=tokens, words_per_token=1.0)
        if prompts == "ids":
            raise RunError(f"{endpoint.root}: does not take prompts as token ids: {outcome.error}")
    prompt = json.dumps(words(range(_PROBE_WORDS))).encode()
    # not of OpenAI's interface: some servers refuse what they do not know
    for return_ids in (False,) if prompts == "text" else (True, False):
        outcome = await _probe(session, endpoint, prompt, name, return_ids=return_ids, broken_is_no=return_ids)
        if outcome.error is None:
            break
    if outcome.error is not None:
        raise RunError(f"{endpoint.root}: the server refuses a small completion: {outcome.error}")
    counted = outcome.answer.prompt_tokens
    return _traits(outcome, name, limit, tokens=None, words_per_token=_PROBE_WORDS / counted if counted else 1.0)


def _traits(
    outcome: Outcome, model: str, limit: int | None, *, tokens: TokenRange | None, words_per_token: float
) -> ServerTraits:
    answer = outcome.answer
    return ServerTraits(
        model=model,
        max_seq_len=limit,
        tokens=tokens,
        returns_ids=answer.token_ids is not None,
        reports_cached=answer.cached_tokens is not None,
        words_per_token=words_per_token,
        requests=() if answer.request_id is None else (answer.request_id,),
    )


async def _probe(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    prompt: bytes,
    model: str,
    *,
    return_ids: bool = True,
    broken_is_no: bool = False,
) -> Outcome:
    """A request for one token; tried again while the server is busy or starting. 4xx is an answer, too, and so is an
    error instead of the first token: vLLM 0.22 checks token ids when it has sent its status already. broken_is_no: 500
    at the last try is an answer, too."""
    body = request_body(prompt, model=model, max_tokens=1, seed=0, return_ids=return_ids)
    for attempt in range(_TRIES):
        outcome = await ask(session, endpoint, body, max_tokens=1)
        if outcome.status is not None and 400 <= outcome.status < 500 and outcome.status not in (401, 403, 404, 429):
            return outcome
        if outcome.error is None or (outcome.answer.error is not None and not outcome.answer.token_times_s):
            return outcome
        # nobody listens there: asking again is for servers that are there
        if not outcome.again or outcome.kind == "no connection" or attempt == _TRIES - 1:
            if broken_is_no and outcome.status == 500:
                return outcome
            break
        wait_s = outcome.retry_after_s if outcome.retry_after_s is not None else 0.2 * 2**attempt
        await asyncio.sleep(min(wait_s, _LONGEST_WAIT_S))
    raise RunError(f"{endpoint.root}: {outcome.error}")


async def _model(session: aiohttp.ClientSession, endpoint: Endpoint) -> tuple[str | None, int | None]:
    """The first model's name and its longest sequence, where the server says them."""
    text, outcome = await get_text(session, endpoint, "/v1/models")
    if text is None and outcome.status != 404:
        raise RunError(f"{endpoint.root}: {outcome.error}")
    try:
        entry = json.loads(text or "null")["data"][0]
        name, limit = entry.get("id"), entry.get("max_model_len")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None, None
    return (name if isinstance(name, str) else None), (limit if isinstance(limit, int) else None)

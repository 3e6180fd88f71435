"""The HTTP side: OpenAI's routes on top of a :class:`slotgrid.serve.worker.Worker`."""

from __future__ import annotations

import asyncio
import hmac
import time
import uuid
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from slotgrid.serve import protocol
from slotgrid.serve.hub import Hub, Ticket
from slotgrid.serve.limits import BodyLimit
from slotgrid.serve.protocol import ApiError, Generation
from slotgrid.serve.replies import ChatReply, CompletionReply, Reply
from slotgrid.serve.tokens import Tokenizer

# only these may stand in a request id a client chooses; it goes into logs and headers
_ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/")
_LONGEST_ID = 128


@dataclass(frozen=True)
class Settings:
    """What the HTTP side needs to know. Lengths in tokens, body limit in bytes."""

    model_name: str
    max_seq_len: int
    vocabulary: int
    api_key: str | None
    max_body_bytes: int


def make_app(*, hub: Hub, tokenizer: Tokenizer, settings: Settings) -> Starlette:
    """The ASGI application."""
    created = int(time.time())

    async def completions(request: HttpRequest) -> Response:
        data = await _body(request)
        checked = protocol.completion(data, tokenizer, settings.vocabulary, settings.max_seq_len)
        return await answer(request, checked, CompletionReply)

    async def chat_completions(request: HttpRequest) -> Response:
        data = await _body(request)
        return await answer(request, protocol.chat(data, tokenizer, settings.max_seq_len), ChatReply)

    async def _body(request: HttpRequest) -> dict[str, Any]:
        _check_key(request, settings.api_key)
        data = protocol.parse_body(await request.body())
        model = data.get("model")
        if model is not None and model != settings.model_name:
            shown = str(model)[:80]
            raise ApiError(
                404,
                f"the model {shown!r} does not exist; this server has {settings.model_name!r}",
                param="model",
                code="model_not_found",
            )
        return data

    async def answer(request: HttpRequest, checked: Generation, kind: type[Reply]) -> Response:
        name = _request_id(request.headers.get("x-request-id"), kind.prefix)
        if hub.knows(name):
            raise ApiError(400, f"a request with id {name!r} is being served", param="x-request-id")
        reply = kind(name, settings.model_name, checked)
        ticket = hub.open(name, checked, frozenset() if checked.ignore_eos else tokenizer.eos_ids)
        if checked.stream:
            return _Stream(reply, ticket, {"x-request-id": name, "cache-control": "no-cache"})
        try:
            whole = await _until_disconnect(request, _collect(reply, ticket))
        finally:
            ticket.close()
        return _json(200, whole, {"x-request-id": name})

    async def models(request: HttpRequest) -> Response:
        _check_key(request, settings.api_key)
        return _json(200, {"object": "list", "data": [_model()]})

    async def model(request: HttpRequest) -> Response:
        _check_key(request, settings.api_key)
        if request.path_params["name"] != settings.model_name:
            raise ApiError(404, "no such model", param="model", code="model_not_found")
        return _json(200, _model())

    def _model() -> dict[str, Any]:
        return {
            "id": settings.model_name,
            "object": "model",
            "created": created,
            "owned_by": "slotgrid",
            "root": settings.model_name,
            "max_model_len": settings.max_seq_len,
        }

    async def health(_: HttpRequest) -> Response:
        return Response(status_code=200 if hub.accepting else 503)

    async def metrics(_: HttpRequest) -> Response:
        return Response(hub.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    app = Starlette(
        routes=[
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, Exception: _unexpected},
    )
    app.add_middleware(BodyLimit, limit_bytes=settings.max_body_bytes)
    return app


class _Stream(StreamingResponse):
    """Server-sent events: one per token, usage when asked for, the end mark. Closes its ticket whatever happens."""

    def __init__(self, reply: Reply, ticket: Ticket, headers: dict[str, str]) -> None:
        super().__init__(_events(reply, ticket), media_type="text/event-stream", headers=headers)
        self._ticket = ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # here and not in the generator: a client can be gone before its first event
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ticket.close()


async def _events(reply: Reply, ticket: Ticket) -> AsyncIterator[bytes]:
    try:
        for value in reply.opening():
            yield _event(value)
        async for token in ticket.tokens():
            yield _event(reply.chunk(token))
        for value in reply.closing():
            yield _event(value)
    except ApiError as error:
        # the status has been sent; this is how the API says it late
        yield _event(error.body)
    yield b"data: [DONE]\n\n"


async def _collect(reply: Reply, ticket: Ticket) -> dict[str, Any]:
    async for token in ticket.tokens():
        reply.chunk(token)
    return reply.whole()


async def _until_disconnect(request: HttpRequest, work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """The result of ``work``, which is cancelled when the client goes away."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "the client closed the connection")
        return task.result()
    finally:
        for pending in (task, watch):
            pending.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


def _check_key(request: HttpRequest, api_key: str | None) -> None:
    if api_key is None:
        return
    given = request.headers.get("authorization", "")
    if not hmac.compare_digest(given.encode(), f"Bearer {api_key}".encode()):
        raise ApiError(401, "wrong or missing API key", kind="authentication_error", code="invalid_api_key")


def _request_id(wanted: str | None, prefix: str) -> str:
    if wanted is None:
        return f"{prefix}-{uuid.uuid4().hex}"
    if not 0 < len(wanted) <= _LONGEST_ID or not _ID_CHARACTERS.issuperset(wanted):
        raise ApiError(
            400, f"x-request-id: up to {_LONGEST_ID} letters, digits and -_.:/ are allowed", param="x-request-id"
        )
    return f"{prefix}-{wanted}"


def _json(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(protocol.encode_json(value), status, headers, media_type="application/json")


def _event(value: Any) -> bytes:
    return b"data: " + protocol.encode_json(value) + b"\n\n"


async def _api_error(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _json(error.status, error.body)


async def _http_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: f"no such path: {request.url.path}", 405: f"{request.method} is not allowed here"}
    made = ApiError(error.status_code, text.get(error.status_code, str(error.detail)))
    return _json(error.status_code, made.body, dict(error.headers or {}))


async def _unexpected(_: HttpRequest, error: Exception) -> Response:
    return _json(500, ApiError(500, "internal error", kind="server_error").body)

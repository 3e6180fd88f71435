"""A limit on request bodies, before anything reads them whole."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slotgrid.serve.protocol import ApiError, encode_json


class BodyLimit:
    """ASGI middleware: a body of more than ``limit_bytes`` is answered with 413, also one that states no length."""

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self._app = app
        self._limit = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stated = dict(scope["headers"]).get(b"content-length", b"")
        if stated.isdigit() and int(stated) > self._limit:
            await self._refuse(send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise _TooLargeError
            return message

        try:
            await self._app(scope, counted, send)
        except _TooLargeError:
            await self._refuse(send)

    async def _refuse(self, send: Send) -> None:
        body = encode_json(ApiError(413, f"the request body is over the limit of {self._limit} bytes").body)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            # the rest of the body will not be read
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class _TooLargeError(BaseException):
    """Passes through every handler between the body and the middleware."""

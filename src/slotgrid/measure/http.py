"""The connection to a server: its address, one streamed completion, and every way it can fail by name.

Needs aiohttp, imported when a connection is opened.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from slotgrid.errors import InputError
from slotgrid.measure.answer import Answer, error_text

if TYPE_CHECKING:
    import aiohttp

# of the 5xx those that will be the same the next time: not implemented, HTTP version not supported
_NEVER = frozenset({501, 505})
_CONNECT_S = 10.0
_PAGE_S = 30.0
# the end of a transfer is with the end mark, or close behind; a client that waits longer for it is late with its turn
_REST_S = 0.05
# besides tokens: usage, the end mark; an answer with more of them is not going to end
_MORE_EVENTS = 4


@dataclass(frozen=True)
class Endpoint:
    """Where and how to reach a server.

    base_url: with or without ``/v1``. ca_file: certificates to trust instead of the system's; verify False trusts any.
    silence_s: a request without a byte for this long has failed. Raises InputError for an address that is none.
    """

    base_url: str
    api_key: str | None = None
    ca_file: str | None = None
    verify: bool = True
    silence_s: float = 300.0

    def __post_init__(self) -> None:
        check_address(self.base_url, "--base-url")

    @property
    def root(self) -> str:
        """The address without ``/v1`` and without a slash at the end."""
        return self.base_url.rstrip("/").removesuffix("/v1")

    def session(self) -> aiohttp.ClientSession:
        """A session with as many connections as asked for, kept open between requests. Call it inside a loop."""
        import aiohttp

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=600, ssl=self._ssl()),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=self.silence_s),
            headers={} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"},
            trace_configs=[_sent_trace()],
        )

    def _ssl(self) -> ssl.SSLContext | bool:
        if not self.verify:
            return False
        if self.ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise InputError(f"--ca-file: {self.ca_file}: cannot be read as certificates: {error}") from None


def check_address(url: str, name: str) -> None:
    """Raise InputError, beginning with ``name``, for what is not the address of a server."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and not any(map(str.isspace, url))
    except ValueError:
        # a bracket that is not closed, say
        good = False
    if not good:
        raise InputError(f"{name}: {url!r}; expected an address like http://127.0.0.1:8000")
    try:
        _ = parts.port
    except ValueError:
        raise InputError(f"{name}: {url!r}: the port is not a number up to 65535") from None
    if "?" in url or "#" in url:
        # paths are put behind it
        raise InputError(f"{name}: {url!r}: has a query or a fragment; expected an address like http://127.0.0.1:8000")


def _sent_trace() -> aiohttp.TraceConfig:
    """Stamps when a request's headers were handed to its connection (connecting is over then)."""
    import aiohttp

    async def stamp(_: Any, context: Any, __: Any) -> None:
        made = context.trace_request_ctx
        if made is not None:
            made["sent"] = time.monotonic()

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(stamp)
    return trace


@dataclass
class Outcome:
    """One attempt. called, sent, finished: monotonic seconds; sent is None when no connection came about.

    status: HTTP status, None without one. error: None when the answer is whole. kind: the error without its details.
    again: sending the same request again is safe, for nothing was generated. retry_after_s: what the server asked for.
    """

    answer: Answer
    called: float
    sent: float | None = None
    finished: float = 0.0
    status: int | None = None
    error: str | None = None
    kind: str | None = None
    again: bool = False
    retry_after_s: float | None = None

    def fail(self, kind: str, detail: str) -> None:
        self.kind = kind
        self.error = f"{kind}: {detail}" if detail else kind


async def ask(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    body: bytes,
    *,
    max_tokens: int,
    headers: Mapping[str, str] | None = None,
    outcome: Outcome | None = None,
) -> Outcome:
    """Send one streaming request to ``/v1/completions`` and read its answer to the end. Never raises but for
    cancellation; a cancelled request's connection is closed. outcome: a fresh one to fill in, so that what there was
    of a cancelled answer is known."""
    import aiohttp

    made: dict[str, float] = {}
    if outcome is None:
        outcome = Outcome(Answer(), time.monotonic())
    answer = outcome.answer
    try:
        request = session.post(
            f"{endpoint.root}/v1/completions",
            data=body,
            # a compressed stream comes in blocks, and its tokens have the times of those
            headers={"content-type": "application/json", "accept-encoding": "identity", **(headers or {})},
            trace_request_ctx=made,
            # it would be followed with a GET, or at the cost of a second connection each time
            allow_redirects=False,
        )
        # a server that takes a connection and does not read: the session's limits are of connecting and reading
        async with asyncio.timeout(_CONNECT_S + endpoint.silence_s):
            response = await request
        async with response:
            outcome.status = response.status
            if response.status != 200:
                await _refused(outcome, response)
                return outcome
            async for data in response.content.iter_any():
                answer.feed(data, time.monotonic())
                if answer.ended or answer.events > max_tokens + _MORE_EVENTS:
                    break
            outcome.finished = time.monotonic()
            answer.close()
            _judge(outcome, max_tokens)
            if outcome.error is None:
                await _read_rest(response)
            else:
                # whatever the server still sends is not wanted
                response.close()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        _failed(outcome, error, endpoint)
    finally:
        outcome.finished = outcome.finished or time.monotonic()
        answer.close()
        outcome.sent = made.get("sent")
    return outcome


async def _read_rest(response: aiohttp.ClientResponse) -> None:
    """The end of the transfer, which keeps the connection open for the next request; not worth waiting long for."""
    try:
        async with asyncio.timeout(_REST_S):
            await response.content.read()
    except TimeoutError:
        response.close()


def _judge(outcome: Outcome, max_tokens: int) -> None:
    answer = outcome.answer
    if answer.error is not None:
        outcome.fail("error in the stream" if answer.streamed else "not a stream", answer.error)
    elif answer.output_tokens > max_tokens:
        # the server's own count where it was told: a token may come in several pieces
        outcome.fail("longer than asked", f"more than max_tokens {max_tokens} tokens")
    elif not answer.ended and answer.events > max_tokens + _MORE_EVENTS:
        detail = f"cut after {answer.events} of them with {answer.output_tokens} of {max_tokens} tokens"
        outcome.fail("more events than an answer has", detail)
    elif not answer.ended:
        outcome.fail("cut stream", f"the stream ended after {len(answer.token_times_s)} tokens without its end mark")


async def _refused(outcome: Outcome, response: aiohttp.ClientResponse) -> None:
    text = (await response.content.read(1 << 16)).decode(errors="replace")
    try:
        message = error_text(json.loads(text))
    except ValueError:
        message = error_text(text)
    location = response.headers.get("location")
    if 300 <= response.status < 400 and location is not None:
        to = urljoin(str(response.url), location).removesuffix("/").removesuffix("/v1/completions")
        message = f"redirects to {to}; give that address"
    outcome.fail(f"HTTP {response.status}", message or (response.reason or ""))
    outcome.again = may_ask_again(response.status)
    outcome.retry_after_s = retry_after(response.headers.get("retry-after"), time.time())
    response.close()


def may_ask_again(status: int) -> bool:
    """Whether the same request may be sent again after this status: nothing was generated, and it may pass."""
    return status == 429 or (500 <= status < 600 and status not in _NEVER)


def retry_after(text: str | None, now_s: float) -> float | None:
    """Seconds a ``Retry-After`` header asks for: a number or a date; None when it is neither."""
    if text is None:
        return None
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now_s)
    except ValueError:
        return None


def _failed(outcome: Outcome, error: BaseException, endpoint: Endpoint) -> None:
    import aiohttp

    outcome.answer.close()
    tokens = len(outcome.answer.token_times_s)
    after = f" after {tokens} tokens" if outcome.status == 200 else ""
    # the text of an OSError without its number and address, which name the same server again and again
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    inner = getattr(error, "os_error", None)
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError | ssl.SSLError):
        detail = getattr(getattr(error, "certificate_error", None), "verify_message", None) or reason
        outcome.fail("TLS error", str(detail))
    elif isinstance(error, TimeoutError) and outcome.sent is None and outcome.status is None and _connecting(error):
        outcome.fail("no connection", f"no connection within {_CONNECT_S:g} s")
        outcome.again = True
    elif isinstance(error, TimeoutError):
        outcome.fail("silence", f"no data for {endpoint.silence_s:g} s{after}")
    elif isinstance(error, aiohttp.ClientConnectorError):
        number = getattr(inner, "errno", None)
        # asyncio hides the reason behind "Connect call failed"; positive numbers are the system's own
        named = os.strerror(number) if isinstance(number, int) and number > 0 else getattr(inner, "strerror", None)
        outcome.fail("no connection", str(named or reason).lower())
        outcome.again = True
    else:
        outcome.fail("connection lost", f"the server closed the connection{after}")
        # the usual end of a connection kept open between requests, too
        outcome.again = outcome.status is None


def _connecting(error: BaseException) -> bool:
    import aiohttp

    return isinstance(error, aiohttp.ConnectionTimeoutError)


async def get_text(session: aiohttp.ClientSession, endpoint: Endpoint, path: str) -> tuple[str | None, Outcome]:
    """The text of a page, None when there is none to be had, and how asking for it went."""
    import aiohttp

    outcome = Outcome(Answer(), time.monotonic())
    try:
        total = aiohttp.ClientTimeout(total=min(_PAGE_S, endpoint.silence_s), sock_connect=_CONNECT_S)
        async with session.get(endpoint.root + path, timeout=total) as response:
            outcome.status = response.status
            if response.status == 200:
                return (await response.read()).decode(errors="replace"), outcome
            await _refused(outcome, response)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        _failed(outcome, error, endpoint)
    return None, outcome

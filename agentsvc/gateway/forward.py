"""Passing one HTTP request on to a sandbox, and its answer back, as they come.

Nothing is kept but what is on its way: each side waits for the other one to take what it sent.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

import aiohttp
import yarl
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from agentsvc.errors import AgentsvcError, MalformedBody, PortUnavailable
from agentsvc.gateway.headers import is_safe, to_client, was_decoded
from agentsvc.gateway.lifetime import Lifetimes, with_client
from agentsvc.gateway.target import Target
from agentsvc.http.keys import IS_FORWARDED

CLIENT_GONE: Final = 499
"""The status in the log of a request whose client did not wait for the answer."""

_KEEP_SECONDS: Final = 2.0
"""How long an idle connection is kept: agent servers end theirs after 5 s."""
_LINE_BYTES: Final = 64 * 1024
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_EVENT_STREAM: Final = "text/event-stream"


class Forwarder:
    """The connections to the ports of all sandboxes; open it once, close it at the end."""

    def __init__(self, lifetimes: Lifetimes, *, connect_seconds: float) -> None:
        self._lifetimes = lifetimes
        self._connect_seconds = connect_seconds
        self._kept: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the sessions; needs a running event loop."""
        self._kept = self._session(force_close=False)
        # What changes something goes over a connection of its own: one that was kept may be
        # closed by the other side in the moment it is used, and nobody would know what happened.
        self._fresh = self._session(force_close=True)

    async def close(self) -> None:
        """Close all connections."""
        for session in (self._kept, self._fresh):
            if session is not None:
                await session.close()
        self._kept = self._fresh = None

    async def forward(self, request: web.Request, target: Target) -> web.StreamResponse:
        """Return what the sandbox answers, sent already; raises PortUnavailable, MalformedBody."""
        life = with_client(request)
        try:
            async with life:
                return await self._exchange(request, target, life)
        except TimeoutError as exc:
            if not life.expired():
                raise
            if request.get(IS_FORWARDED, False):
                raise ConnectionResetError("the client has gone, or the server stops") from exc
            return web.Response(status=CLIENT_GONE)

    async def _exchange(
        self, request: web.Request, target: Target, life: asyncio.Timeout
    ) -> web.StreamResponse:
        body = _Body(request)
        if target.edit_body is not None:
            await body.edit(target.edit_body)
        upstream = await self._ask(request, target, body)
        try:
            response = _begin(target, upstream)
            request[IS_FORWARDED] = True
            await response.prepare(request)
            if upstream.content_type == _EVENT_STREAM:
                with self._lifetimes.endless(life):
                    await _copy(upstream, response)
            else:
                await _copy(upstream, response)
            await response.write_eof()
            if not body.is_unfinished:
                upstream.release()
        finally:
            # What is left of the answer, or of the body, is wanted by nobody.
            upstream.close()
        return response

    async def _ask(
        self, request: web.Request, target: Target, body: "_Body"
    ) -> aiohttp.ClientResponse:
        session = self._fresh if body.exists or not _is_safe(request) else self._kept
        if session is None:
            raise PortUnavailable("The server is stopping")
        headers = target.headers.copy()
        if body.exists and body.length is not None:
            headers[hdrs.CONTENT_LENGTH] = str(body.length)
        try:
            return await session.request(
                request.method,
                yarl.URL(target.full_url, encoded=True),
                headers=headers,
                data=body.parts() if body.exists else None,
                expect100=body.is_awaited,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            raise body.failure or _unavailable(exc) from exc

    def _session(self, *, force_close: bool) -> aiohttp.ClientSession:
        connector = (
            aiohttp.TCPConnector(limit=0, force_close=True)
            if force_close
            else aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_SECONDS)
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_seconds),
            skip_auto_headers=(
                hdrs.USER_AGENT,
                hdrs.ACCEPT,
                hdrs.ACCEPT_ENCODING,
                hdrs.CONTENT_TYPE,
            ),
            auto_decompress=False,
            trust_env=False,
            max_line_size=_LINE_BYTES,
            max_field_size=_LINE_BYTES,
        )


class _Body:
    """The body of a client's request, on its way to a sandbox."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.exists = request.can_read_body
        self.length = None if was_decoded(request.headers) else request.content_length
        self.is_unfinished = self.exists
        self.failure: AgentsvcError | None = None
        self._edited: bytes | None = None

    async def edit(self, change: Callable[[bytes], bytes]) -> None:
        """Read the whole body and put another one in its place; raises MalformedBody."""
        try:
            self._edited = change(b"".join([part async for part in self.parts()]))
        except (web.RequestPayloadError, HttpProcessingError) as exc:
            raise self.failure or MalformedBody("The body is not whole") from exc
        self.length = len(self._edited)

    @property
    def is_awaited(self) -> bool:
        """Whether the client waits to be told to send it."""
        return self.exists and self._request.get(AWAITS_CONTINUE, False)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes; asked for the first part when the sandbox wants it."""
        if self._edited is not None:
            yield self._edited
            return
        request = self._request
        if self.is_awaited:
            request[AWAITS_CONTINUE] = False
            await request.writer.write(_CONTINUE)
            request.writer.output_size = 0
        try:
            # Even nothing makes the head go out, which must not wait for the first byte.
            yield request.content.read_nowait()
            async for chunk in request.content.iter_any():
                yield chunk
        except (web.RequestPayloadError, HttpProcessingError) as exc:
            # Without this aiohttp reads on after the answer and logs the same error as its own.
            request.content.feed_eof()
            self.failure = MalformedBody(
                "The body is not what its headers say", detail=type(exc).__name__
            )
            raise
        self.is_unfinished = False


AWAITS_CONTINUE: Final[web.RequestKey[bool]] = web.RequestKey("awaits_continue", bool)
"""Whether the client waits for a 100 that was not sent yet."""


def _begin(target: Target, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    """Return the answer, without its body; raises PortUnavailable for one that cannot be given."""
    headers = to_client(upstream.headers, target.confines)
    if upstream.status < web.HTTPOk.status_code or not is_safe(headers):
        raise PortUnavailable("The server in the sandbox does not answer in HTTP")
    response = web.StreamResponse(
        status=upstream.status, reason=upstream.reason or "", headers=headers
    )
    if hdrs.TRANSFER_ENCODING not in upstream.headers:
        response.content_length = upstream.content_length
    return response


async def _copy(upstream: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
    try:
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
    except (aiohttp.ClientError, OSError) as exc:
        # Too late for another answer: that the connection ends early says it was not all.
        raise ConnectionResetError("the sandbox broke off its answer") from exc


def _is_safe(request: web.Request) -> bool:
    return request.method in (hdrs.METH_GET, hdrs.METH_HEAD)


def _unavailable(exc: Exception) -> PortUnavailable:
    return PortUnavailable("Nothing answers at this port of the sandbox", detail=type(exc).__name__)

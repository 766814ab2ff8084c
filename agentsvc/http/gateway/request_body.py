"""Forwards the body of a client's request to a sandbox."""

from collections.abc import Callable
from typing import Final

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from agentsvc.base import AgentsvcError, MalformedBody
from agentsvc.http.gateway.connection_pool import ConnectionBroken, PooledConnection
from agentsvc.http.gateway.headers import was_decoded
from agentsvc.http.keys import AWAITS_CONTINUE
from agentsvc.http.server.connections import send_continue
from agentsvc.http.wire import parse_in_thread

LAST_CHUNK: Final = b"0\r\n"
_WITH_BODY: Final = frozenset({hdrs.METH_POST, hdrs.METH_PUT, hdrs.METH_PATCH})


class RequestBody:
    """The body of a client's request."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.exists = request.can_read_body
        self._length = None if was_decoded(request.headers) else request.content_length
        self._edited: bytes | None = None
        self.is_sent = not self.exists
        self.failure: AgentsvcError | None = None
        """The error of a malformed body, once it was found."""

    async def edit(self, change: Callable[[bytes], bytes]) -> None:
        """Read the whole body and replace it with `change(body)`, in a thread if it is large.

        Raises MalformedBody.
        """
        send_continue(self._request)
        try:
            self._edited = await parse_in_thread(await self._request.content.read(), change)
        except (web.RequestPayloadError, HttpProcessingError) as exc:
            raise self._malformed(exc) from exc
        self._length = len(self._edited)

    @property
    def is_here(self) -> bool:
        """Whether the whole body has been received."""
        return not self.exists or self._edited is not None or self._request.content.is_eof()

    def framing(self) -> tuple[tuple[str, str], ...]:
        """Return the framing headers, and `Expect` if the client waits for `100 Continue`."""
        if not self.exists:
            is_said = self._request.method in _WITH_BODY or self._length == 0
            return ((hdrs.CONTENT_LENGTH, "0"),) if is_said else ()
        length = (
            (hdrs.TRANSFER_ENCODING, "chunked")
            if self._length is None
            else (hdrs.CONTENT_LENGTH, str(self._length))
        )
        is_awaited = self._request.get(AWAITS_CONTINUE, False)
        return (length, (hdrs.EXPECT, "100-continue")) if is_awaited else (length,)

    def take(self) -> bytes:
        """Return the whole received body with its framing; raises MalformedBody."""
        if not self.exists:
            return b""
        try:
            data = self._request.content.read_nowait() if self._edited is None else self._edited
        except (web.RequestPayloadError, HttpProcessingError) as exc:
            raise self._malformed(exc) from exc
        self.is_sent = True
        self._request[AWAITS_CONTINUE] = False
        return self._frame(data) + self._end()

    async def pump(self, connection: PooledConnection) -> None:
        """Stream the body to a connection; a malformed body fails the connection."""
        try:
            await self._pass(connection)
        except (ConnectionBroken, ConnectionError):
            # The task that reads the response gets the same error.
            return
        except (web.RequestPayloadError, HttpProcessingError) as exc:
            connection.fail(self._malformed(exc))
            return
        self.is_sent = True

    async def _pass(self, connection: PooledConnection) -> None:
        content = self._request.content
        while data := await content.readany():
            # A client may send the body without waiting for `100 Continue`.
            await connection.send(self._frame(data))
        self._request[AWAITS_CONTINUE] = False
        if end := self._end():
            await connection.send(end)

    def _frame(self, data: bytes) -> bytes:
        is_chunk = self._length is None and data
        return b"%x\r\n%b\r\n" % (len(data), data) if is_chunk else data

    def _end(self) -> bytes:
        return LAST_CHUNK + b"\r\n" if self._length is None else b""

    def _malformed(self, exc: Exception) -> AgentsvcError:
        # Otherwise aiohttp reads on after the response and logs the same error again.
        self._request.content.feed_eof()
        self.failure = MalformedBody(
            "The body does not match its headers", detail=type(exc).__name__
        )
        return self.failure

"""The body of a client's request, on its way to a sandbox."""

from collections.abc import Callable
from typing import Final

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from agentsvc.base import AgentsvcError, MalformedBody
from agentsvc.http.gateway.connection_pool import ConnectionBroken, PooledConnection
from agentsvc.http.gateway.headers import was_decoded
from agentsvc.http.keys import AWAITS_CONTINUE
from agentsvc.http.server.connections import ask_for_body
from agentsvc.http.wire import read_apart

LAST_CHUNK: Final = b"0\r\n"
_WITH_BODY: Final = frozenset({hdrs.METH_POST, hdrs.METH_PUT, hdrs.METH_PATCH})


class RequestBody:
    """What a client sends, as it comes."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.exists = request.can_read_body
        self._length = None if was_decoded(request.headers) else request.content_length
        self._edited: bytes | None = None
        self.is_sent = not self.exists
        self.failure: AgentsvcError | None = None
        """What is wrong with it, as far as it has come."""

    async def edit(self, change: Callable[[bytes], bytes]) -> None:
        """Read the whole body and put another one in its place, in a thread where it is long.

        Raises MalformedBody.
        """
        ask_for_body(self._request)
        try:
            self._edited = await read_apart(await self._request.content.read(), change)
        except (web.RequestPayloadError, HttpProcessingError) as exc:
            raise self._malformed(exc) from exc
        self._length = len(self._edited)

    @property
    def is_here(self) -> bool:
        """Whether all of it has come."""
        return not self.exists or self._edited is not None or self._request.content.is_eof()

    def framing(self) -> tuple[tuple[str, str], ...]:
        """Return the headers that say where it ends, and whether it is to be asked for."""
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
        """Return all of a body that is here, framed; raises MalformedBody."""
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
        """Send the body over a connection as it comes; the connection fails where that fails."""
        try:
            await self._pass(connection)
        except (ConnectionBroken, ConnectionError):
            # Who reads the answer hears of it, too, be it the sandbox or the client that has gone.
            return
        except (web.RequestPayloadError, HttpProcessingError) as exc:
            connection.fail(self._malformed(exc))
            return
        self.is_sent = True

    async def _pass(self, connection: PooledConnection) -> None:
        content = self._request.content
        while data := await content.readany():
            # It may come without being asked for.
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
        # Without this aiohttp reads on after the answer and logs the same error as its own.
        self._request.content.feed_eof()
        self.failure = MalformedBody(
            "The body is not what its headers say", detail=type(exc).__name__
        )
        return self.failure

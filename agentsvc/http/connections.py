"""What one client's connection may cost: how many there are in all, and how long one may be of no use.

A client that sends no request, sends one too slowly or does not take its answer is let go, so
that it does not hold up the others.
"""

import asyncio
import contextlib
import logging
import socket
from typing import Any, Final

from aiohttp import StreamReader, hdrs, web
from aiohttp.http import HttpRequestParser
from aiohttp.http_parser import RawRequestMessage

from agentsvc.config import ServerConfig
from agentsvc.errors import CapacityExceeded, TooManyRequests
from agentsvc.http.chunks import BadChunks, BadField, ChunkReader, read_fields
from agentsvc.http.connection_limit import Connection, ConnectionLimit
from agentsvc.http.door import Outside
from agentsvc.http.keys import AWAITS_CONTINUE, REFUSED_FOR
from agentsvc.http.measures import Measures, Refusal
from agentsvc.http.passage import Passage, Rest, SizedRest, Taker
from agentsvc.http.patience import Seldom
from agentsvc.http.wire import refusal_of

log = logging.getLogger(__name__)

_EVICTED_SECONDS: Final = 3.0
"""How long, at least, who had to make room is kept from coming again at once."""
_HEAD_END: Final = b"\r\n\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def connection_options(
    limits: ServerConfig, measures: Measures, connection_limit: ConnectionLimit, outside: Outside
) -> dict[str, Any]:
    """Return what makes a server's connections keep the limits.

    Until a request has come, aiohttp closes what is older than its keep-alive time.
    """
    own = {"limits": limits, "measures": measures, "seldom": Seldom()}
    counted = {"connection_limit": connection_limit, "outside": outside}
    return {**own, **counted, "keepalive_timeout": limits.idle_seconds}


def count_request(request: web.Request, client: str | None = None) -> None:
    """Take in that a connection has brought a request, of this client if a proxy names one."""
    if isinstance(request.protocol, BoundedConnection):
        request.protocol.count_request(client)


def show_key(request: web.Request, sandbox_id: str = "") -> None:
    """Count a connection among those with a good key, of this sandbox if it is not a user's.

    Raises TooManyRequests if the sandbox has too many of them.
    """
    connection = request.protocol
    if isinstance(connection, BoundedConnection) and not connection.show_key(sandbox_id):
        request[REFUSED_FOR] = Refusal.SANDBOX_CONNECTIONS
        raise TooManyRequests("This sandbox has too many connections")


def ask_for_body(request: web.Request) -> None:
    """Tell a client that waits for it to send its body; does nothing for any other."""
    if request.get(AWAITS_CONTINUE, False) and request.transport is not None:
        request[AWAITS_CONTINUE] = False
        request.transport.write(_CONTINUE)


def is_last(request: web.Request) -> bool:
    """Whether the connection is to end with this request."""
    return isinstance(request.protocol, BoundedConnection) and request.protocol.is_last


def trailers_of(request: web.Request) -> tuple[tuple[str, str], ...]:
    """Return the trailers behind a body that was read to its end.

    There are none of a request that came together with another one.
    """
    connection = request.protocol
    if not isinstance(connection, BoundedConnection):
        return ()
    return connection.trailers_behind(request.content)


def hand_over(request: web.Request, taker: Taker, *, read_bytes: int) -> bool:
    """Have the rest of a body of which this much was read go to a taker as it comes.

    Returns whether it does; if not, there is more to be read as usual. What is compressed is undone
    by aiohttp on the way and cannot be handed over.
    """
    connection = request.protocol
    is_plain = hdrs.CONTENT_ENCODING not in request.headers and hdrs.UPGRADE not in request.headers
    if not is_plain or not isinstance(connection, BoundedConnection):
        return False
    is_read = read_bytes == request.content.total_bytes
    return is_read and connection.hand_over(request.content, request.content_length, taker)


def left_bytes(request: web.Request) -> int:
    """Return how much of a body that was handed over has not come yet; 0 if that is not known."""
    connection = request.protocol
    return connection.left_bytes if isinstance(connection, BoundedConnection) else 0


def skip(request: web.Request, count: int) -> None:
    """Take in that so much of a body that was handed over went another way.

    It was read from the socket, past the connection, and is not more than `left_bytes`.
    """
    if isinstance(request.protocol, BoundedConnection):
        request.protocol.skip(count)


def take_back(request: web.Request) -> None:
    """Let what still comes of a body that was handed over be lost."""
    if isinstance(request.protocol, BoundedConnection):
        request.protocol.take_back()


class BoundedConnection(web.RequestHandler):
    """A connection that keeps the limits."""

    __slots__ = (
        "_chunked_body",
        "_chunks",
        "_connection_limit",
        "_counted",
        "_has_asked",
        "_has_flowed",
        "_is_last",
        "_last_bytes",
        "_left",
        "_limits",
        "_measures",
        "_next_look",
        "_outside",
        "_passage",
        "_passed_body",
        "_seldom",
        "_trailers",
        "_wire",
    )

    def __init__(
        self,
        manager: web.Server,
        *,
        limits: ServerConfig,
        measures: Measures,
        connection_limit: ConnectionLimit,
        outside: Outside,
        seldom: Seldom,
        **options: Any,
    ) -> None:
        super().__init__(manager, **options)
        self._limits = limits
        self._measures = measures
        self._seldom = seldom
        self._connection_limit = connection_limit
        self._outside = outside
        self._counted: Connection | None = None
        self._has_asked = False
        # Kept until the client is gone; what aiohttp knows is forgotten when it is to be closed.
        self._wire: asyncio.Transport | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._left = 0
        self._has_flowed = False
        self._last_bytes = b""
        self._chunks: ChunkReader | None = None
        self._chunked_body: StreamReader | None = None
        self._passage: Passage | None = None
        self._passed_body: StreamReader | None = None
        self._trailers = b""
        self._is_last = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for requests, or refuse the connection if there are too many."""
        super().connection_made(transport)
        self._wire = self.transport
        address = self.peername[0] if isinstance(self.peername, tuple) else ""
        self._counted = self._connection_limit.enter(address, self._evict)
        if self._counted is None:
            self._refuse_all()
        self._look()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the client."""
        if self._next_look is not None:
            self._next_look.cancel()
        if self._counted is not None:
            self._connection_limit.leave(self._counted)
        self._wire = self._next_look = None
        super().connection_lost(exc)

    def count_request(self, client: str | None) -> None:
        """Take in that a request has come, of this client if a proxy names one."""
        self._has_asked = True
        if self._counted is not None:
            self._connection_limit.begin_request(self._counted, client)

    def show_key(self, sandbox_id: str) -> bool:
        """Take in that a good key was shown; return whether whose it is may have the connection."""
        return self._counted is None or self._connection_limit.show_key(self._counted, sandbox_id)

    def resume_writing(self) -> None:
        """Go on with an answer of which the client has taken most that was waiting."""
        self._has_flowed = True
        super().resume_writing()

    @property
    def is_last(self) -> bool:
        """Whether no request is taken after this one."""
        return self._is_last

    def data_received(self, data: bytes) -> None:
        """Take in bytes, and note the trailers among them, which aiohttp reads past.

        What follows trailers on a connection is not taken: to aiohttp (3.14.5) the last one of
        them is the first header of the next request, be that somebody else's.
        """
        if self._passage is not None:
            data = self._pass_on(self._passage, data)
            if not data:
                return
        known, is_behind = len(self._messages), self._reading_paused or not data
        super().data_received(data)
        rest = self._follow(data) if self._chunks is not None else None
        if len(self._messages) > known and not self._is_last:
            begun = self._last_bytes + data if rest is None else rest
            self._begin_following(known, begun, is_behind=is_behind)
        if self._is_last:
            self._stop_after_it()
        self._last_bytes = data[-3:] or self._last_bytes

    def hand_over(self, body: StreamReader, length: int | None, taker: Taker) -> bool:
        """Have the rest of the body that is being read go to a taker; say whether it does.

        What has been parsed of it must have been read.
        """
        is_held = self._reading_paused or self._buffer_paused or bool(self._messages)
        if is_held or body.is_eof() or self._close or self.transport is None:
            return False
        if length is not None:
            rest: Rest = SizedRest(length - body.total_bytes)
        elif self._chunks is not None and self._chunks.body_bytes == body.total_bytes:
            rest = self._chunks
        else:
            return False
        self._passage, self._passed_body = Passage(rest, taker), body
        return True

    @property
    def left_bytes(self) -> int:
        """How much of a body that was handed over has not come yet; 0 if that is not known."""
        return self._passage.left_bytes if self._passage is not None else 0

    def skip(self, count: int) -> None:
        """Take in that so much of a body that was handed over went another way."""
        if self._passage is not None and self._passage.skip(count):
            self._end_passage(self._passage)

    def take_back(self) -> None:
        """Let what still comes of a body that was handed over be lost."""
        if self._passage is not None:
            self._passage.leave()
            self._resume_transport_reading()

    def trailers_behind(self, body: StreamReader) -> tuple[tuple[str, str], ...]:
        """Return the trailers that came behind a body."""
        if body is not self._chunked_body:
            return ()
        try:
            return tuple(read_fields(self._trailers))
        except BadField:
            return ()

    def _pass_on(self, passage: Passage, data: bytes) -> bytes:
        """Pass on what has come of a body, and return what comes behind it."""
        body = self._passed_body
        if not data or body is None:
            return b""
        try:
            end = passage.feed(data)
        except BadChunks as exc:
            failure = web.RequestPayloadError(str(exc))
            self._passage = self._passed_body = self._chunks = None
            body.set_exception(failure)
            passage.end(failure)
            self.close()
            return b""
        if end is None:
            return b""
        self._end_passage(passage)
        return b"" if self._is_last else data[end:]

    def _end_passage(self, passage: Passage) -> None:
        """Have what comes next read as a request."""
        body = self._passed_body
        self._passage = self._passed_body = None
        if self._chunks is not None:
            self._trailers, self._chunks = self._chunks.trailers, None
            self._is_last = bool(self._trailers)
        # The old one waits for the rest of this body for ever.
        self._parser = self._make_parser()
        self._last_bytes = b""
        if body is not None:
            body.feed_eof()
        passage.end()
        if self._is_last:
            self.close()

    def _make_parser(self) -> HttpRequestParser:
        return HttpRequestParser(
            self,
            self._loop,
            self._read_bufsize,
            max_line_size=self.max_line_size,
            max_headers=self.max_headers,
            max_field_size=self.max_field_size,
            payload_exception=web.RequestPayloadError,
            max_msg_queue_size=self._max_msg_queue_size,
        )

    def _begin_following(self, known: int, data: bytes, *, is_behind: bool) -> None:
        """Follow the first body in chunks among those that have just begun."""
        fresh = list(self._messages)[known:]
        for message, body in fresh:
            if not isinstance(message, RawRequestMessage) or not message.chunked:
                continue
            self._chunked_body, self._trailers = body, b""
            _, end, rest = data.partition(_HEAD_END)
            if is_behind or len(fresh) > 1 or not end:
                # It cannot be told where it begins.
                self._is_last = True
                return
            self._chunks = ChunkReader()
            self._follow(rest)

    def _follow(self, data: bytes) -> bytes:
        """Follow a body in chunks and return what comes behind it."""
        if self._chunks is None:
            return data
        try:
            _, end = self._chunks.feed(data)
        except BadChunks:
            # It is another body than was thought, or none: aiohttp says so itself.
            self._chunks, self._is_last = None, True
            return b""
        if end is None:
            return b""
        self._trailers, self._chunks = self._chunks.trailers, None
        self._is_last = bool(self._trailers)
        return data[end:]

    def _stop_after_it(self) -> None:
        """Take no request that came after the one with trailers."""
        bodies = [body for _, body in self._messages]
        keeps = bodies.index(self._chunked_body) + 1 if self._chunked_body in bodies else 0
        # What is no request is an error, which is answered and ends the connection itself.
        while len(bodies) > keeps and isinstance(self._messages[-1][0], RawRequestMessage):
            self._messages.pop()
            bodies.pop()
        if self._chunked_body is None or self._chunked_body.is_eof():
            self.close()

    def _look(self) -> None:
        """Let a client go that has taken nothing since the last look, though something waited."""
        if self._wire is None:
            return
        left = self._wire.get_write_buffer_size()
        if 0 < self._left <= left and not self._has_flowed:
            log.info("client does not take its answer, connection ended", extra={"bytes": left})
            self._wire.abort()
            return
        self._left, self._has_flowed = left, False
        self._next_look = self._loop.call_later(self._limits.stall_seconds, self._look)

    def _evict(self) -> None:
        """Make room for another connection; who has asked nothing yet is told why."""
        if self._wire is None:
            return
        self._note_refusal(Refusal.KEYLESS_CONNECTIONS)
        crowded = TooManyRequests("Too many connections without a good key")
        with contextlib.suppress(OSError):
            # Its end is held open, so that the client notices nothing yet; all else is let go.
            left: socket.socket = self._wire.get_extra_info("socket").dup()
            self._outside.hold(left, None if self._has_asked else crowded, seconds=_EVICTED_SECONDS)
        self._wire.abort()

    def _refuse_all(self) -> None:
        self._note_refusal(Refusal.CONNECTIONS)
        if self._wire is not None:
            full = CapacityExceeded("The server has too many connections now")
            self._wire.write(refusal_of(full))
        self.force_close()

    def _note_refusal(self, reason: Refusal) -> None:
        if self._seldom.is_due(reason):
            extra = {"reason": str(reason), "connections": len(self._connection_limit)}
            log.info("connection refused", extra=extra)
        self._measures.refuse(reason)

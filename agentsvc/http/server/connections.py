"""Limits of client connections: how many there are, and how long one may be idle or slow.

A connection stands between the socket and aiohttp's protocol. A client that sends no request, sends
one too slowly or does not take its answer is let go, so that it does not hold up the others.
"""

import asyncio
import logging
from typing import Final, cast

from aiohttp import hdrs, web

from agentsvc.base import AgentsvcError, Throttle, TooManyRequests, spread
from agentsvc.config import ServerConfig
from agentsvc.http.keys import AWAITS_CONTINUE, ON_LOST, REFUSED_FOR
from agentsvc.http.server.connection_limit import ConnectionLimit, CountedConnection
from agentsvc.http.server.delayed_refusal import HOLD_SECONDS, LINES_A_MINUTE
from agentsvc.http.server.metrics_registry import Refusal, RequestMetrics
from agentsvc.http.wire import refusal_of

log = logging.getLogger(__name__)

_LINGER_SECONDS: Final = 1.0
"""How long a connection that was refused stays open, for the answer to arrive."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def count_request(request: web.Request, client: str | None = None) -> None:
    """Take in that a connection has brought a request, of this client if a proxy names one."""
    connection = connection_of(request)
    if connection is not None:
        connection.count_request(client)


def show_key(request: web.Request, *, sandbox_id: str = "", user_id: str = "") -> None:
    """Count a connection among those with a good key, of this sandbox or of this user.

    Raises TooManyRequests if that caller has too many of them.
    """
    connection = connection_of(request)
    if connection is None or connection.show_key(sandbox_id, user_id):
        return
    is_sandbox = bool(sandbox_id)
    request[REFUSED_FOR] = Refusal.SANDBOX_CONNECTIONS if is_sandbox else Refusal.USER_CONNECTIONS
    who = "sandbox" if is_sandbox else "user"
    raise TooManyRequests(f"This {who} has too many connections")


def ask_for_body(request: web.Request) -> None:
    """Tell a client that waits for it to send its body; does nothing for any other."""
    if request.get(AWAITS_CONTINUE, False) and request.transport is not None:
        request[AWAITS_CONTINUE] = False
        request.transport.write(_CONTINUE)


def is_last(request: web.Request) -> bool:
    """Whether the connection is to end with this request.

    To aiohttp (3.14.5) the last trailer of a body in chunks is the first header of the next request,
    be that somebody else's: behind such a body no request is taken.
    """
    return hdrs.TRANSFER_ENCODING in request.headers


def connection_of(request: web.BaseRequest) -> "ClientConnection | None":
    """Return the connection of a request; None once it has ended, or where another server made it."""
    transport = request.transport
    protocol = transport.get_protocol() if transport is not None else None
    return protocol if isinstance(protocol, ClientConnection) else None


class Shared:
    """What all connections of a server have in common."""

    def __init__(
        self,
        server: web.Server,
        limits: ServerConfig,
        limit: ConnectionLimit,
        measures: RequestMetrics,
    ) -> None:
        self.server = server
        self.limits = limits
        self.limit = limit
        self.measures = measures
        self.refused: set[asyncio.Transport] = set()
        """What waits to be told that it was refused, of which no handler knows."""
        self._log_throttle = Throttle(LINES_A_MINUTE)

    def note_refusal(self, reason: Refusal, address: str) -> None:
        """Count a connection that was refused, and say so now and then."""
        self.measures.refuse(reason)
        if self._log_throttle.admits(f"{reason} {address}"):
            extra = {"reason": str(reason), "address": address, "connections": len(self.limit)}
            log.info("connection refused", extra=extra)


class ClientConnection(asyncio.Protocol):
    """One client's connection, which keeps the limits; what comes over it goes to aiohttp."""

    def __init__(self, shared: Shared) -> None:
        self.request: web.BaseRequest | None = None
        """The request that is being served."""
        self._shared = shared
        self._handler: web.RequestHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._counted: CountedConnection | None = None
        self._address = ""
        self._has_asked = False
        self._timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._has_sent = self._has_received = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for requests, or refuse the connection if there are too many."""
        wire = self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) else ""
        try:
            self._counted = self._shared.limit.enter(self._address, self._evict)
        except AgentsvcError as exc:
            is_address = isinstance(exc, TooManyRequests)
            reason = Refusal.ADDRESS_CONNECTIONS if is_address else Refusal.CONNECTIONS
            self._refuse(wire, exc, reason)
            return
        self._handler = self._shared.server()
        self._handler.connection_made(transport)
        self._check_time()

    def data_received(self, data: bytes) -> None:
        """Take in what has come."""
        if self._handler is not None:
            self._has_received = True
            self._handler.data_received(data)
        elif self._transport is not None:
            # With something unread the end would be a reset, and the answer be lost.
            self._transport.close()

    def eof_received(self) -> None:
        """Take in that the client sends nothing more."""
        if self._handler is not None:
            self._handler.eof_received()

    def pause_writing(self) -> None:
        """Wait until the client takes its answer."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Go on with an answer of which the client has taken most that was waiting."""
        self._has_sent = True
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the client, and tell who serves a request of it and wants to know."""
        if self._timer is not None:
            self._timer.cancel()
        if self._counted is not None:
            self._shared.limit.leave(self._counted)
        if self._transport is not None:
            self._shared.refused.discard(self._transport)
        tell = self.request.get(ON_LOST) if self.request is not None else None
        if self._handler is not None:
            self._handler.connection_lost(exc)
        self._transport = self._handler = self._timer = self.request = None
        if tell is not None:
            tell()

    def count_request(self, client: str | None) -> None:
        """Take in that a request has come, of this client if a proxy names one."""
        self._has_asked = True
        if self._counted is not None:
            self._shared.limit.begin_request(self._counted, client)

    def show_key(self, sandbox_id: str, user_id: str) -> bool:
        """Take in that a good key was shown; return whether whose it is may have the connection."""
        return self._counted is None or self._shared.limit.show_key(
            self._counted, sandbox_id=sandbox_id, user_id=user_id
        )

    def _check_time(self) -> None:
        """Let a client go that has taken nothing of an answer since the last look.

        The body of a request that does not come is given up.
        """
        if self._transport is None:
            return
        unsent = self._transport.get_write_buffer_size()
        if 0 < self._unsent_bytes <= unsent and not self._has_sent:
            log.info(
                "connection closed, the client does not read the response", extra={"bytes": unsent}
            )
            self._transport.abort()
            return
        if self.request is not None and not self._has_received:
            _give_up_body(self.request, self._transport)
        self._unsent_bytes, self._has_sent, self._has_received = unsent, False, False
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._shared.limits.stall_seconds, self._check_time)

    def _evict(self) -> None:
        """Make room for another connection; who has asked nothing yet is told why."""
        self._shared.note_refusal(Refusal.KEYLESS_CONNECTIONS, self._address)
        if self._transport is None:
            return
        if not self._has_asked:
            crowded = TooManyRequests("Too many connections without a good key")
            self._transport.write(refusal_of(crowded))
            self._transport.close()
        else:
            self._transport.abort()

    def _refuse(self, transport: asyncio.Transport, error: AgentsvcError, reason: Refusal) -> None:
        """Tell a client that it cannot have a connection, after a while: at once it would come back at once."""
        shared = self._shared
        shared.note_refusal(reason, self._address)
        if not transport.can_write_eof() or len(shared.refused) >= shared.limits.max_connections:
            transport.write(refusal_of(error))
            transport.close()
            return
        shared.refused.add(transport)
        transport.pause_reading()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(spread(HOLD_SECONDS), self._tell_refusal, transport, error)

    def _tell_refusal(self, transport: asyncio.Transport, error: AgentsvcError) -> None:
        transport.resume_reading()
        transport.write(refusal_of(error))
        transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(_LINGER_SECONDS, transport.close)


def _give_up_body(request: web.BaseRequest, transport: asyncio.Transport) -> None:
    """End a body of which nothing comes though somebody could read it."""
    body = request.content
    is_awaited = transport.is_reading() and not request.get(AWAITS_CONTINUE, False)
    if is_awaited and not body.is_eof() and body.exception() is None:
        body.set_exception(web.RequestPayloadError("the rest does not come"))

"""Limits of client connections: their number, and how long one may be idle or stalled.

`ClientConnection` wraps aiohttp's protocol. It closes the connection of a client that sends no
request, stalls in the middle of one, or does not read its response.
"""

import asyncio
import logging
from typing import Final, cast

from aiohttp import hdrs, web

from agentsvc.base import AgentsvcError, Throttle, TooManyRequests, spread
from agentsvc.config import ServerConfig
from agentsvc.http.keys import AWAITS_CONTINUE, ON_LOST, REFUSAL_REASON
from agentsvc.http.server.connection_limit import ConnectionLimit, CountedConnection
from agentsvc.http.server.delayed_refusal import HOLD_SECONDS, LINES_A_MINUTE
from agentsvc.http.server.metrics_registry import Refusal, RequestMetrics
from agentsvc.http.wire import raw_error_response

log = logging.getLogger(__name__)

_LINGER_SECONDS: Final = 1.0
"""Seconds that a refused connection stays open, so that the response arrives."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def count_request(request: web.Request, client: str | None = None) -> None:
    """Record a request on its connection, from `client` if a trusted proxy names one."""
    connection = connection_of(request)
    if connection is not None:
        connection.count_request(client)


def show_key(request: web.Request, *, sandbox_id: str = "", user_id: str = "") -> None:
    """Count a request's connection for an authenticated sandbox or user.

    Raises TooManyRequests if that caller has too many.
    """
    connection = connection_of(request)
    if connection is None or connection.show_key(sandbox_id, user_id):
        return
    is_sandbox = bool(sandbox_id)
    request[REFUSAL_REASON] = (
        Refusal.SANDBOX_CONNECTIONS if is_sandbox else Refusal.USER_CONNECTIONS
    )
    who = "sandbox" if is_sandbox else "user"
    raise TooManyRequests(f"This {who} has too many connections")


def send_continue(request: web.Request) -> None:
    """Send `100 Continue` if the client waits for it."""
    if request.get(AWAITS_CONTINUE, False) and request.transport is not None:
        request[AWAITS_CONTINUE] = False
        request.transport.write(_CONTINUE)


def is_last(request: web.Request) -> bool:
    """Whether to close the connection after this request.

    aiohttp (3.14.5) parses the last trailer of a chunked body as the first header of the next
    request, which may be another client's: no request is accepted after such a body.
    """
    return hdrs.TRANSFER_ENCODING in request.headers


def connection_of(request: web.BaseRequest) -> "ClientConnection | None":
    """Return the connection of a request; None if it is closed or of another server class."""
    transport = request.transport
    protocol = transport.get_protocol() if transport is not None else None
    return protocol if isinstance(protocol, ClientConnection) else None


class Shared:
    """State that all connections of a server share."""

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
        """Refused connections that wait for their delayed response."""
        self._log_throttle = Throttle(LINES_A_MINUTE)

    def note_refusal(self, reason: Refusal, address: str) -> None:
        """Count a refused connection, and log it at most once a minute per reason and address."""
        self.measures.refuse(reason)
        if self._log_throttle.admits(f"{reason} {address}"):
            extra = {"reason": str(reason), "address": address, "connections": len(self.limit)}
            log.info("connection refused", extra=extra)


class ClientConnection(asyncio.Protocol):
    """A client's connection, which enforces the limits and forwards data to aiohttp's protocol."""

    def __init__(self, shared: Shared) -> None:
        self.request: web.BaseRequest | None = None
        """The request in progress."""
        self._shared = shared
        self._handler: web.RequestHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._counted: CountedConnection | None = None
        self._address = ""
        self._has_requested = False
        self._timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._has_sent = self._has_received = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection and start its HTTP protocol, or refuse it at a limit."""
        client = self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) else ""
        try:
            self._counted = self._shared.limit.enter(self._address, self._evict)
        except AgentsvcError as exc:
            is_address = isinstance(exc, TooManyRequests)
            reason = Refusal.ADDRESS_CONNECTIONS if is_address else Refusal.CONNECTIONS
            self._refuse(client, exc, reason)
            return
        self._handler = self._shared.server()
        self._handler.connection_made(transport)
        self._check_stall()

    def data_received(self, data: bytes) -> None:
        """Forward data to the HTTP protocol."""
        if self._handler is not None:
            self._has_received = True
            self._handler.data_received(data)
        elif self._transport is not None:
            # Closing with unread data would reset the connection and lose the response.
            self._transport.close()

    def eof_received(self) -> None:
        """Forward the end of the client's data."""
        if self._handler is not None:
            self._handler.eof_received()

    def pause_writing(self) -> None:
        """Pause writing until the client reads its response."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Resume writing, and note that the client has read data."""
        self._has_sent = True
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Release the connection, and call the callback of the request in progress."""
        if self._timer is not None:
            self._timer.cancel()
        if self._counted is not None:
            self._shared.limit.leave(self._counted)
        if self._transport is not None:
            self._shared.refused.discard(self._transport)
        on_lost = self.request.get(ON_LOST) if self.request is not None else None
        if self._handler is not None:
            self._handler.connection_lost(exc)
        self._transport = self._handler = self._timer = self.request = None
        if on_lost is not None:
            on_lost()

    def count_request(self, client: str | None) -> None:
        """Record a request, from `client` if a trusted proxy names one."""
        self._has_requested = True
        if self._counted is not None:
            self._shared.limit.begin_request(self._counted, client)

    def show_key(self, sandbox_id: str, user_id: str) -> bool:
        """Count the connection for its caller; returns False if the caller has too many."""
        return self._counted is None or self._shared.limit.show_key(
            self._counted, sandbox_id=sandbox_id, user_id=user_id
        )

    def _check_stall(self) -> None:
        """Close the connection if the client has read nothing of its response since the last check.

        Also fails a request body that has received nothing since then.
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
            _fail_stalled_body(self.request, self._transport)
        self._unsent_bytes, self._has_sent, self._has_received = unsent, False, False
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._shared.limits.stall_seconds, self._check_stall)

    def _evict(self) -> None:
        """Close the connection in favour of another one; send an error if it had no request yet."""
        self._shared.note_refusal(Refusal.KEYLESS_CONNECTIONS, self._address)
        if self._transport is None:
            return
        if not self._has_requested:
            error = TooManyRequests("Too many connections without a good key")
            self._transport.write(raw_error_response(error))
            self._transport.close()
        else:
            self._transport.abort()

    def _refuse(self, transport: asyncio.Transport, error: AgentsvcError, reason: Refusal) -> None:
        """Send an error after a delay, so that the client does not reconnect at once, and close."""
        shared = self._shared
        shared.note_refusal(reason, self._address)
        if not transport.can_write_eof() or len(shared.refused) >= shared.limits.max_connections:
            transport.write(raw_error_response(error))
            transport.close()
            return
        shared.refused.add(transport)
        transport.pause_reading()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(spread(HOLD_SECONDS), self._send_refusal, transport, error)

    def _send_refusal(self, transport: asyncio.Transport, error: AgentsvcError) -> None:
        transport.resume_reading()
        transport.write(raw_error_response(error))
        transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(_LINGER_SECONDS, transport.close)


def _fail_stalled_body(request: web.BaseRequest, transport: asyncio.Transport) -> None:
    """Fail a request body that is being read but receives nothing."""
    body = request.content
    is_awaited = transport.is_reading() and not request.get(AWAITS_CONTINUE, False)
    if is_awaited and not body.is_eof() and body.exception() is None:
        body.set_exception(web.RequestPayloadError("the rest of the body was not received in time"))

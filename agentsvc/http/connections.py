"""What one client's connection may cost: how many there are, and how long they may be of no use.

A client that sends no request, sends one too slowly or does not take its answer is let go, so
that it does not hold up the others.
"""

import asyncio
import logging
from typing import Any

from aiohttp import web

from agentsvc.config import ServerConfig
from agentsvc.errors import CapacityExceeded
from agentsvc.http.wire import error_body
from agentsvc.values import new_id

log = logging.getLogger(__name__)


def connection_options(limits: ServerConfig) -> dict[str, Any]:
    """Return what makes a server's connections keep the limits.

    Until a request has come, aiohttp closes what is older than its keep-alive time.
    """
    return {"limits": limits, "keepalive_timeout": limits.idle_seconds}


class BoundedConnection(web.RequestHandler):
    """A connection that keeps the limits."""

    __slots__ = ("_has_flowed", "_left", "_limits", "_next_look", "_wire")

    def __init__(self, manager: web.Server, *, limits: ServerConfig, **options: Any) -> None:
        super().__init__(manager, **options)
        self._limits = limits
        # Kept until the client is gone; what aiohttp knows is forgotten when it is to be closed.
        self._wire: asyncio.Transport | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._left = 0
        self._has_flowed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for requests, or refuse the connection if there are too many."""
        super().connection_made(transport)
        self._wire = self.transport
        if self._manager is not None:
            self._check_number(len(self._manager.connections))
        self._look()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the client."""
        if self._next_look is not None:
            self._next_look.cancel()
        self._wire = self._next_look = None
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """Go on with an answer of which the client has taken most that was waiting."""
        self._has_flowed = True
        super().resume_writing()

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

    def _check_number(self, number: int) -> None:
        if number <= self._limits.max_connections or self._wire is None:
            return
        log.info("connection refused", extra={"connections": number})
        self._wire.write(_refusal())
        self.force_close()


def _refusal() -> bytes:
    request_id = new_id()
    body = error_body(CapacityExceeded("The server has too many connections now"), request_id)
    head = (
        "HTTP/1.1 503 Service Unavailable",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"X-Request-Id: {request_id}",
        "Retry-After: 1",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body

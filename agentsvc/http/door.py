"""Where clients come in: a few at a time, and of each address not more than there may be.

Who is one too many has no connection made for it; it waits outside to be told so. It may be one
of very many, which are to cost the others as little as can be.
"""

import asyncio
import contextlib
import logging
import socket
from typing import Final

from agentsvc.errors import AgentsvcError, TooManyRequests
from agentsvc.http.connection_limit import ConnectionLimit
from agentsvc.http.measures import Measures, Refusal
from agentsvc.http.patience import HOLD_SECONDS, Seldom
from agentsvc.http.wire import refusal_of
from agentsvc.values import spread

log = logging.getLogger(__name__)

_AT_ONCE: Final = 2
_REFUSED_AT_ONCE: Final = 32
_MOST_READ: Final = 65536


class Door(socket.socket):
    """A listening socket, taken over from another one, that lets clients in.

    No more than a few are let in before the others have had their turn of the event loop.
    """

    def __init__(
        self,
        listener: socket.socket,
        limit: ConnectionLimit,
        measures: Measures,
        outside: "Outside",
    ) -> None:
        family, kind, protocol = listener.family, listener.type, listener.proto
        super().__init__(family, kind, protocol, fileno=listener.detach())
        self._limit = limit
        self._measures = measures
        self._outside = outside
        self._seldom = Seldom()
        self._came = self._refused = 0

    def accept(self) -> tuple[socket.socket, object]:
        """Return who comes next and from where; raises BlockingIOError if it is the others' turn."""
        try:
            while self._came < _AT_ONCE and self._refused < _REFUSED_AT_ONCE:
                client, address = super().accept()
                if self._limit.admits(address[0] if address else ""):
                    self._came += 1
                    return client, address
                self._refused += 1
                self._turn_away(client, address[0])
        except OSError:
            self._came = self._refused = 0
            raise
        self._came = self._refused = 0
        raise BlockingIOError

    def close(self) -> None:
        """Listen no longer; who waits outside is not told anything."""
        super().close()
        self._outside.clear()

    def _turn_away(self, client: socket.socket, address: str) -> None:
        if self._seldom.is_due(address):
            log.info("connection refused", extra={"address": address})
        self._measures.refuse(Refusal.ADDRESS_CONNECTIONS)
        self._outside.hold(client, TooManyRequests("Too many connections come from this address"))


class Outside:
    """Where those who are turned away wait for the end of their connection, so that they come back late.

    They are `most` at a time; beyond that it ends at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}

    def hold(
        self,
        client: socket.socket,
        error: AgentsvcError | None,
        *,
        seconds: float = HOLD_SECONDS,
    ) -> None:
        """Take a client over, and end its connection after a while, with an answer if there is one."""
        if len(self._waiting) >= self._most:
            _end(client, error)
            return
        loop = asyncio.get_running_loop()
        self._waiting[client] = loop.call_later(spread(seconds), self._end, client, error)

    def clear(self) -> None:
        """End all that wait, without a word."""
        while self._waiting:
            client, timer = self._waiting.popitem()
            timer.cancel()
            client.close()

    def _end(self, client: socket.socket, error: AgentsvcError | None) -> None:
        del self._waiting[client]
        _end(client, error)


def _end(client: socket.socket, error: AgentsvcError | None) -> None:
    """End the connection of a client, with the reason as far as it takes that at once."""
    with client, contextlib.suppress(OSError):
        with contextlib.suppress(BlockingIOError):
            # A connection that is closed with something unread is reset, and the answer may be lost.
            client.recv(_MOST_READ, socket.MSG_DONTWAIT)
        if error is not None:
            client.send(refusal_of(error), socket.MSG_DONTWAIT)
        client.shutdown(socket.SHUT_WR)

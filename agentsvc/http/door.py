"""Where clients come in: a few at a time, and of each address not more than there may be.

Who is one too many has no connection made for it; it waits outside to be told so. It may be one
of very many, which are to cost the others as little as can be.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from agentsvc.errors import TooManyRequests
from agentsvc.http.crowds import Crowd
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
        self, listener: socket.socket, crowd: Crowd, measures: Measures, outside: "Outside"
    ) -> None:
        family, kind, protocol = listener.family, listener.type, listener.proto
        super().__init__(family, kind, protocol, fileno=listener.detach())
        self._crowd = crowd
        self._measures = measures
        self._outside = outside
        self._came = self._refused = 0

    def accept(self) -> tuple[socket.socket, object]:
        """Return who comes next and from where; raises BlockingIOError if it is the others' turn."""
        try:
            while self._came < _AT_ONCE and self._refused < _REFUSED_AT_ONCE:
                client, address = super().accept()
                entered_as = self._crowd.enter(address[0] if address else "")
                if entered_as is not None:
                    self._came += 1
                    return _Guest(client, partial(self._crowd.leave, entered_as)), address
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
        self._measures.refuse(Refusal.ADDRESS_CONNECTIONS)
        self._outside.hold(client, address)


class Outside:
    """Where those who are turned away at the doors wait to be told so.

    They are `most` at a time; beyond that they are told at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._seldom = Seldom()

    def hold(self, client: socket.socket, address: str) -> None:
        """Take a client over, and tell it after a while."""
        if self._seldom.is_due(address):
            log.info("connection refused", extra={"address": address})
        if len(self._waiting) >= self._most:
            _tell(client)
            return
        loop = asyncio.get_running_loop()
        self._waiting[client] = loop.call_later(spread(HOLD_SECONDS), self._tell, client)

    def clear(self) -> None:
        """End all that wait, without a word."""
        while self._waiting:
            client, timer = self._waiting.popitem()
            timer.cancel()
            client.close()

    def _tell(self, client: socket.socket) -> None:
        del self._waiting[client]
        _tell(client)


class _Guest(socket.socket):
    """The connection of a client, which leaves when it is closed."""

    def __init__(self, client: socket.socket, leave: Callable[[], None]) -> None:
        family, kind, protocol = client.family, client.type, client.proto
        super().__init__(family, kind, protocol, fileno=client.detach())
        self._leave: Callable[[], None] | None = leave

    def close(self) -> None:
        """End the connection."""
        super().close()
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


def _tell(client: socket.socket) -> None:
    """End the connection of a client with the reason, as far as it takes it at once."""
    error = TooManyRequests("Too many connections come from this address")
    with client, contextlib.suppress(OSError):
        with contextlib.suppress(BlockingIOError):
            # A connection that is closed with something unread is reset, and the answer may be lost.
            client.recv(_MOST_READ, socket.MSG_DONTWAIT)
        client.send(refusal_of(error), socket.MSG_DONTWAIT)
        client.shutdown(socket.SHUT_WR)

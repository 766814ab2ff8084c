"""How long a request that is passed on lives: as long as its client, and not beyond the server."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from agentsvc.http.keys import ON_LOST


class Lifetimes:
    """Knows what has no end of its own, to end it when the server stops."""

    def __init__(self) -> None:
        self._endless: set[asyncio.Timeout] = set()
        self._is_over = False

    @contextmanager
    def endless(self, life: asyncio.Timeout) -> Iterator[None]:
        """Let what happens inside end when the server stops."""
        self._endless.add(life)
        if self._is_over:
            _end(life)
        try:
            yield
        finally:
            self._endless.discard(life)

    def end(self) -> None:
        """End all that has no end of its own, also what begins from now on."""
        self._is_over = True
        for life in self._endless:
            _end(life)


def with_client(request: web.Request) -> asyncio.Timeout:
    """Return a scope that ends, as if timed out, when the client of a request goes."""
    life = asyncio.timeout(0 if request.transport is None else None)
    request[ON_LOST] = lambda: _end(life)
    return life


def _end(life: asyncio.Timeout) -> None:
    if life.expired():
        return
    try:
        life.reschedule(0)
    except RuntimeError:
        # It has not begun or is over already.
        return

"""Ties a proxied request to its client's connection and to the server's shutdown."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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


def with_client(request: web.Request, *, grace_seconds: float = 0.0) -> asyncio.Timeout:
    """Return a scope that ends, as if timed out, when the client of a request goes.

    What happens inside has the grace period to end by itself.
    """
    life = asyncio.timeout(0 if request.transport is None else None)
    request[ON_LOST] = lambda: _end(life, after_seconds=grace_seconds)
    return life


def _end(life: asyncio.Timeout, *, after_seconds: float = 0.0) -> None:
    # It may not have begun yet, or be over already.
    with suppress(RuntimeError):
        life.reschedule(asyncio.get_running_loop().time() + after_seconds)

"""Ties a proxied request to its client's connection and to the server's shutdown."""

import asyncio
from contextlib import AbstractContextManager, suppress

from aiohttp import web

from agentsvc.http.keys import ON_LOST
from agentsvc.http.streaming import LIVE


def until_stop(request: web.Request, life: asyncio.Timeout) -> AbstractContextManager[None]:
    """Let what happens inside, which has no end of its own, end when the server stops."""
    return request.app[LIVE].ending(lambda: _end(life))


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

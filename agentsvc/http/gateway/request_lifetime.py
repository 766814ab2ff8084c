"""Ties a proxied request to its client's connection and to the server's shutdown."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager

from aiohttp import web

from agentsvc.http.keys import ON_LOST
from agentsvc.http.streaming import LIVE


class ClientGone(ConnectionResetError):
    """Nobody waits for the answer any more."""


def until_stop(request: web.Request, life: asyncio.Timeout) -> AbstractContextManager[None]:
    """Let what happens inside, which has no end of its own, end when the server stops."""
    return request.app[LIVE].ending(lambda: _end(life))


@contextlib.asynccontextmanager
async def with_client(
    request: web.Request, *, grace_seconds: float = 0.0
) -> AsyncIterator[asyncio.Timeout]:
    """End what happens inside when the client of a request goes; raises ClientGone then.

    It has the grace period to end by itself.
    """
    life = asyncio.timeout(0 if request.transport is None else None)
    request[ON_LOST] = lambda: _end(life, after_seconds=grace_seconds)
    try:
        async with life:
            yield life
    except TimeoutError as exc:
        if not life.expired():
            raise
        raise ClientGone("the client has gone, or the server stops") from exc


def _end(life: asyncio.Timeout, *, after_seconds: float = 0.0) -> None:
    # It may not have begun yet, or be over already.
    with contextlib.suppress(RuntimeError):
        life.reschedule(asyncio.get_running_loop().time() + after_seconds)

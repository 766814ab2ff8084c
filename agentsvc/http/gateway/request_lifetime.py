"""Ties a proxied request to its client's connection and to the server's shutdown."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager

from aiohttp import web

from agentsvc.http.keys import ON_LOST
from agentsvc.http.streaming import LIVE


class ClientGone(ConnectionResetError):
    """The client has disconnected, or the server is stopping."""


def until_stop(request: web.Request, scope: asyncio.Timeout) -> AbstractContextManager[None]:
    """End the context of an endless response when the server stops."""
    return request.app[LIVE].ending(lambda: _end(scope))


@contextlib.asynccontextmanager
async def with_client(
    request: web.Request, *, grace_seconds: float = 0.0
) -> AsyncIterator[asyncio.Timeout]:
    """Cancel the context a grace period after the client disconnects; raises ClientGone."""
    scope = asyncio.timeout(0 if request.transport is None else None)
    request[ON_LOST] = lambda: _end(scope, after_seconds=grace_seconds)
    try:
        async with scope:
            yield scope
    except TimeoutError as exc:
        if not scope.expired():
            raise
        raise ClientGone("the client has disconnected, or the server stops") from exc


def _end(scope: asyncio.Timeout, *, after_seconds: float = 0.0) -> None:
    # The timeout may not have been entered yet, or be over already.
    with contextlib.suppress(RuntimeError):
        scope.reschedule(asyncio.get_running_loop().time() + after_seconds)

"""Loads the Socket.IO server when the first client connects, and parses the clients' queries.

The server imports about a hundred modules, which would be wasted without such a client.
"""

import asyncio
import importlib
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from aiohttp import hdrs, web

from agentsvc.base import MAX_INT, BadRequest, SentSecret

SOCKET_PATHS: Final = ("/socket.io/", "/socket.io")
NOTHING_SEEN: Final = -1

FOLLOWERS: Final[web.AppKey[Counter[str]]] = web.AppKey("followers", Counter)
"""Number of event socket connections by conversation id."""

_NAME_MAX: Final = 100


class SocketQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query of a connection, for the OpenAPI description only; `read_subscription` parses it."""

    conversation_id: Annotated[str, msgspec.Meta(min_length=1, max_length=_NAME_MAX)]
    """Id of the conversation to follow, or its name from the start request"""
    latest_event_id: Annotated[int, msgspec.Meta(ge=NOTHING_SEEN, le=MAX_INT)] = NOTHING_SEEN
    """Number of the last event that the client has; the events after it are sent first. -1, or a
    value that is not a number: the client has no events"""
    session_api_key: SentSecret | None = None
    """API key of the user, for clients that cannot send headers; null or omitted if a header has
    it"""


def read_subscription(request: web.Request) -> tuple[str, int]:
    """Return the conversation id or name and the last event number of a query; raises BadRequest.

    Clients without events send different values; any value that is not a number means -1.
    """
    name = request.query.get("conversation_id", "")
    if not name:
        raise BadRequest("No conversation_id in query params")
    if len(name) > _NAME_MAX or not name.isprintable():
        raise BadRequest("The conversation_id is not a valid id")
    return name, _to_number(request.query.get("latest_event_id", ""))


def _to_number(text: str) -> int:
    digits = text.strip()
    if not digits.removeprefix("-").isdecimal():
        return NOTHING_SEEN
    # Longer numbers are no event ids; converting them would be slow.
    number = int(digits) if len(digits) < len(str(MAX_INT)) else MAX_INT + 1
    if not NOTHING_SEEN <= number <= MAX_INT:
        raise BadRequest("The latest_event_id should be the id of an event, or -1")
    return number


if TYPE_CHECKING:
    from agentsvc.http.v0.sockets import Sockets

_MODULE: Final = "agentsvc.http.v0.sockets"


class SocketOpener:
    """Creates the event socket server on first use."""

    def __init__(self) -> None:
        self._opening = asyncio.Lock()
        self._sockets: Sockets | None = None

    async def sockets(self, app: web.Application) -> "Sockets":
        """Return the event socket server; the first call imports it in a thread."""
        async with self._opening:
            if self._sockets is None:
                module = await asyncio.to_thread(importlib.import_module, _MODULE)
                self._sockets = module.Sockets(app)
            return self._sockets

    async def close(self) -> None:
        """Close all connections, if the server was created."""
        if self._sockets is not None:
            await self._sockets.close()


SOCKET_OPENER: Final[web.AppKey[SocketOpener]] = web.AppKey("socket_opener", SocketOpener)


def install(app: web.Application) -> None:
    """Add the event socket to an application."""
    app[SOCKET_OPENER] = SocketOpener()
    for path in SOCKET_PATHS:
        for method in (hdrs.METH_GET, hdrs.METH_POST):
            # Not by `mount`: it authenticates by itself, and OpenAPI does not list it as operation.
            app.router.add_route(method, path, _handle)
    app.on_shutdown.append(_close)


async def _handle(request: web.Request) -> web.StreamResponse:
    sockets = await request.app[SOCKET_OPENER].sockets(request.app)
    return await sockets.handle(request)


async def _close(app: web.Application) -> None:
    await app[SOCKET_OPENER].close()

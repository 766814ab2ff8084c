"""The Socket.IO server and the queries of its clients, loaded when the first one connects.

It brings some hundred modules along, which a server that nobody asks for it has no use for.
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
"""How many connections follow each conversation."""

_NAME_MAX: Final = 100


class SocketQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks for when it connects, for the description; `read_subscription` reads it."""

    conversation_id: Annotated[str, msgspec.Meta(min_length=1, max_length=_NAME_MAX)]
    """Id of the conversation to follow, or the name it was given"""
    latest_event_id: Annotated[int, msgspec.Meta(ge=NOTHING_SEEN, le=MAX_INT)] = NOTHING_SEEN
    """Number of the last event the client has; later ones are told first. -1, and what is no number:
    it has none"""
    session_api_key: SentSecret | None = None
    """API key of the user, for clients that can send no header; left out where a header has it"""


def read_subscription(request: web.Request) -> tuple[str, int]:
    """Return which conversation a client wants to see, and behind which event; raises BadRequest.

    Clients that have seen nothing say so in many ways: what is no number means that.
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
    # Numbers this long are not converted at all, and are no ids either.
    number = int(digits) if len(digits) < len(str(MAX_INT)) else MAX_INT + 1
    if not NOTHING_SEEN <= number <= MAX_INT:
        raise BadRequest("The latest_event_id should be the id of an event, or -1")
    return number


if TYPE_CHECKING:
    from agentsvc.http.v0.sockets import Sockets

_MODULE: Final = "agentsvc.http.v0.sockets"


class SocketOpener:
    """Opens the event socket of a server when it is wanted."""

    def __init__(self) -> None:
        self._opening = asyncio.Lock()
        self._sockets: Sockets | None = None

    async def sockets(self, app: web.Application) -> "Sockets":
        """Return every connection to the event socket; the first call takes a moment."""
        async with self._opening:
            if self._sockets is None:
                module = await asyncio.to_thread(importlib.import_module, _MODULE)
                self._sockets = module.Sockets(app)
            return self._sockets

    async def close(self) -> None:
        """Let go of every connection there is."""
        if self._sockets is not None:
            await self._sockets.close()


SOCKET_OPENER: Final[web.AppKey[SocketOpener]] = web.AppKey("socket_opener", SocketOpener)


def install(app: web.Application) -> None:
    """Add the event socket to an application."""
    app[SOCKET_OPENER] = SocketOpener()
    for path in SOCKET_PATHS:
        for method in (hdrs.METH_GET, hdrs.METH_POST):
            # Past `mount`: it tells for itself who calls, and is no operation to describe.
            app.router.add_route(method, path, _handle)
    app.on_shutdown.append(_close)


async def _handle(request: web.Request) -> web.StreamResponse:
    sockets = await request.app[SOCKET_OPENER].sockets(request.app)
    return await sockets.handle(request)


async def _close(app: web.Application) -> None:
    await app[SOCKET_OPENER].close()

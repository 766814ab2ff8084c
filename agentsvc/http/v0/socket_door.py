"""Loads the Socket.IO server when its first client connects.

It brings some hundred modules along, which a server that nobody asks for it has no use for.
"""

import asyncio
import importlib
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs, web

from agentsvc.http.v0.types_socket import SOCKET_PATHS

if TYPE_CHECKING:
    from agentsvc.http.v0.sockets import Sockets

_MODULE: Final = "agentsvc.http.v0.sockets"


class SocketDoor:
    """Opens the event socket of a server when it is wanted."""

    def __init__(self) -> None:
        self._opening = asyncio.Lock()
        self._sockets: Sockets | None = None

    async def sockets(self, app: web.Application) -> "Sockets":
        """Return every connection to the event socket; the first call takes a moment."""
        async with self._opening:
            if self._sockets is None:
                module = await asyncio.to_thread(importlib.import_module, _MODULE)
                self._sockets = module.make_sockets(app)
            return self._sockets

    async def close(self) -> None:
        """Let go of every connection there is."""
        if self._sockets is not None:
            await self._sockets.close()


SOCKET_DOOR: Final[web.AppKey[SocketDoor]] = web.AppKey("socket_door", SocketDoor)


def install(app: web.Application) -> None:
    """Add the event socket to an application."""
    app[SOCKET_DOOR] = SocketDoor()
    for path in SOCKET_PATHS:
        for method in (hdrs.METH_GET, hdrs.METH_POST):
            # Past `mount`: it tells for itself who calls, and is no operation to describe.
            app.router.add_route(method, path, _handle)
    app.on_shutdown.append(_close)


async def _handle(request: web.Request) -> web.StreamResponse:
    sockets = await request.app[SOCKET_DOOR].sockets(request.app)
    return await sockets.handle(request)


async def _close(app: web.Application) -> None:
    await app[SOCKET_DOOR].close()

"""The agent over a WebSocket: a connection replaces the standard streams of the command.

Like the command, it calls the server's API, with the key that opened the WebSocket, so that scopes, limits,
quotas and the audit log apply.
"""

import asyncio
import contextlib
import importlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from agentsvc.base import BadRequest, NotAllowed, NotAuthenticated, Secret, TooManyRequests, new_id
from agentsvc.extension.accounts import KEYRING, keys_of
from agentsvc.extension.server import Extension, Server
from agentsvc.extension.web import CONFIG, PRINCIPAL, Route, Routes, read_query

from .config import AcpAgentConfig, OrderQuery

PATH: Final = "/acp"
_CONNECTION_ID: Final = "Acp-Connection-Id"
_BEAT_SECONDS: Final = 20.0
_CLOSE_SECONDS: Final = 2.0


class RemoteAgent(Extension[AcpAgentConfig]):
    """The server extension for editors on other machines."""

    Config = AcpAgentConfig

    def routes(self) -> Iterable[Route]:
        """Return the route of the WebSocket."""
        routes = Routes()
        routes.add(
            "GET",
            PATH,
            None,
            query=OrderQuery,
            status=HTTPStatus.SWITCHING_PROTOCOLS,
            errors=(BadRequest, NotAllowed, TooManyRequests),
            example={"repository": "octocat/hello-world"},
            is_stream=True,
        )(self.get_agent)
        return routes

    @asynccontextmanager
    async def run(self, _server: Server) -> AsyncIterator[None]:
        """Create the counters of connections."""
        self._connected: Counter[str] = Counter()
        yield

    async def get_agent(self, request: web.Request) -> web.StreamResponse:
        """Run as an agent of an editor, over a WebSocket (Agent Client Protocol).

        A WebSocket whose text frames are the messages of the protocol, as in its proposal for remote
        agents; there is no streamable HTTP. A session is a conversation, as with `agentsvc
        acp`. If the connection is lost, load or resume the session in the next one: nothing is missed.
        """
        found = read_query(request, OrderQuery)
        socket = web.WebSocketResponse(
            heartbeat=_BEAT_SECONDS,
            compress=False,
            timeout=_CLOSE_SECONDS,
            max_msg_size=request.app[CONFIG].server.max_body_bytes,
        )
        if not socket.can_prepare(request):
            raise BadRequest("This is a WebSocket for editors; see the guide")
        key = await _key_of(request)
        # Imported on demand in a thread: few servers have editors, and the module is slow to import.
        await asyncio.to_thread(importlib.import_module, ".serving", __package__)
        from .serving import serve  # noqa: PLC0415

        with self._admitted(request[PRINCIPAL].user_id):
            socket.headers[_CONNECTION_ID] = new_id()
            await socket.prepare(request)
            await serve(request, socket, found, (_own_url(request), key))
        return socket

    @contextlib.contextmanager
    def _admitted(self, user_id: str) -> Iterator[None]:
        if self._connected[user_id] >= self.config.connections_per_user:
            raise TooManyRequests("The limit of connected editors is reached; close one of them")
        self._connected[user_id] += 1
        try:
            yield
        finally:
            self._connected[user_id] -= 1
            self._connected += Counter()


async def _key_of(request: web.Request) -> Secret:
    """Return the API key of the request; raises NotAllowed for a login of a browser."""
    for key in keys_of(request):
        with contextlib.suppress(NotAuthenticated):
            if (await request.app[KEYRING].identify(key)).key_id == request[PRINCIPAL].key_id:
                return Secret(key)
    raise NotAllowed("Editors need an API key in a header")


def _own_url(request: web.Request) -> str:
    """Return the URL of this server: the local address to which the editor or its proxy connected."""
    address: Any = request.transport.get_extra_info("sockname") if request.transport else None
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

"""The agent over a WebSocket: one connection is what the command is over its standard streams.

It asks the server as the command does, with the key that opened the WebSocket, so that scopes, limits,
quotas and the audit log are those of the API.
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
    """Answers editors elsewhere."""

    Config = AcpAgentConfig

    def routes(self) -> Iterable[Route]:
        """Return the WebSocket."""
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
        """Count who is connected."""
        self._connected: Counter[str] = Counter()
        yield

    async def get_agent(self, request: web.Request) -> web.StreamResponse:
        """Be an agent for an editor, over a WebSocket (Agent Client Protocol).

        A WebSocket whose text frames are the messages of the protocol, as its proposal for remote
        agents has it; there is no streamable HTTP. A session is a conversation, as with `agentsvc
        acp`. What is told meanwhile is not lost with a connection: load or resume the session in the
        next one.
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
        # Few servers have editors, and what answers them takes a while to import.
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
            raise TooManyRequests("So many editors are connected already; close one of them")
        self._connected[user_id] += 1
        try:
            yield
        finally:
            self._connected[user_id] -= 1
            self._connected += Counter()


async def _key_of(request: web.Request) -> Secret:
    """Return the key by which the caller was let in; a login of a browser has none."""
    for key in keys_of(request):
        with contextlib.suppress(NotAuthenticated):
            if (await request.app[KEYRING].identify(key)).key_id == request[PRINCIPAL].key_id:
                return Secret(key)
    raise NotAllowed("Editors show an API key, in a header")


def _own_url(request: web.Request) -> str:
    """Return where this server itself reaches the server: as the editor, or its proxy, just did."""
    address: Any = request.transport.get_extra_info("sockname") if request.transport else None
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

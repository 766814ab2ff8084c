"""Bodies in chunks of one byte: little of them is read before others have their turn."""

import asyncio
import socket
from collections.abc import Callable

import pytest
from aiohttp import web

from agentsvc.config import ServerConfig
from agentsvc.http.gateway.connection_pool import Connection
from agentsvc.http.server.connection_limit import ConnectionLimit
from agentsvc.http.server.connections import ClientConnection, Shared
from agentsvc.http.server.metrics_registry import RequestMetrics
from tests.http.gateway.steps import until

SENT = b"1\r\na\r\n" * 20_000


def _of_client(sizes: list[int]) -> asyncio.Protocol:
    async def answer(_request: web.BaseRequest) -> web.Response:
        return web.Response()

    class Noting(ClientConnection):
        def data_received(self, data: bytes) -> None:
            sizes.append(len(data))

    limit = ConnectionLimit(most=10)
    return Noting(Shared(web.Server(answer), ServerConfig(), limit, RequestMetrics()))


def _of_sandbox(sizes: list[int]) -> asyncio.Protocol:
    class Noting(Connection):
        def data_received(self, data: bytes) -> None:
            sizes.append(len(data))

    return Noting()


@pytest.mark.parametrize("make", [_of_client, _of_sandbox])
async def test_little_is_read_at_once(make: Callable[[list[int]], asyncio.Protocol]) -> None:
    ours, theirs = socket.socketpair()
    sizes: list[int] = []
    with theirs:
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: make(sizes), sock=ours)
        await loop.sock_sendall(theirs, SENT)
        await until(lambda: sum(sizes) == len(SENT))
        transport.abort()
    assert max(sizes) <= 16 * 1024

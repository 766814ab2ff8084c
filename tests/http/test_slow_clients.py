"""Clients that are slow or absent are let go, and the others do not notice them."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
from aiohttp import web

from agentsvc.config.schema import ServerConfig
from agentsvc.http.server.application import Runner
from tests.service import Service
from tests.troubles import eventually

MEGABYTES = 32
PATIENCE = 20.0
HEAD = b"GET / HTTP/1.1\r\nHost: test\r\n"

type Serve = Callable[[ServerConfig], Awaitable[Runner]]
type Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _greet(_request: web.Request) -> web.Response:
    return web.Response(text="hello")


async def _fill(_request: web.Request) -> web.Response:
    return web.Response(body=bytes(MEGABYTES * 2**20))


async def _stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(MEGABYTES):
        await response.write(bytes(2**20))
    return response


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Return a function that serves a small application within limits."""
    runners: list[Runner] = []

    async def start(limits: ServerConfig) -> Runner:
        app = web.Application()
        app.router.add_get("/", _greet)
        app.router.add_get("/full", _fill)
        app.router.add_get("/stream", _stream)
        # Each address of this machine is one caller's, as others are.
        runner = Runner(app, grace_seconds=1, limits=limits, shared=())
        runners.append(runner)
        await runner.setup()
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        await runner.listen(listener)
        return runner

    yield start
    for runner in runners:
        await runner.cleanup()


async def connect(runner: Runner, *, source: str = "127.0.0.1") -> Streams:
    """Connect as a client that has room for little."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    raw.bind((source, 0))
    await asyncio.get_running_loop().sock_connect(raw, runner.addresses[0])
    return await asyncio.open_connection(sock=raw, limit=4096)


async def ask(runner: Runner, *, source: str = "127.0.0.1") -> bytes:
    """Return the answer to a whole request."""
    reader, writer = await connect(runner, source=source)
    writer.write(HEAD + b"Connection: close\r\n\r\n")
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE)
    finally:
        writer.close()


def count(runner: Runner) -> int:
    return runner.connections


async def test_a_connection_without_a_request_is_closed(serve: Serve) -> None:
    runner = await serve(ServerConfig(idle_seconds=0.3))
    reader, writer = await connect(runner)
    assert (await ask(runner)).endswith(b"hello")
    assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    writer.close()


async def test_a_head_that_comes_byte_by_byte_is_not_waited_for(serve: Serve) -> None:
    runner = await serve(ServerConfig(idle_seconds=0.5))
    reader, writer = await connect(runner)
    ended = asyncio.ensure_future(reader.read())  # noqa: TID251  # a client, not the server
    async with asyncio.timeout(PATIENCE):
        for byte in HEAD + b"X-Name: " + b"x" * 8000:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)
            if ended.done():
                break
    assert ended.done()
    assert (await ask(runner)).endswith(b"hello")
    writer.close()


@pytest.mark.parametrize("path", ["/full", "/stream"])
async def test_a_client_that_takes_nothing_of_its_answer_is_let_go(serve: Serve, path: str) -> None:
    runner = await serve(ServerConfig(stall_seconds=0.3, idle_seconds=0.3))
    _, writer = await connect(runner)
    writer.write(HEAD.replace(b"/ ", path.encode() + b" ") + b"\r\n")
    await eventually(lambda: count(runner) == 1)
    assert (await ask(runner)).endswith(b"hello")
    await eventually(lambda: count(runner) == 0)
    writer.close()


@pytest.mark.parametrize("path", ["/full", "/stream"])
async def test_a_slow_client_that_goes_on_reading_gets_all_of_its_answer(
    serve: Serve, path: str
) -> None:
    runner = await serve(ServerConfig(stall_seconds=1))
    reader, writer = await connect(runner)
    head = HEAD.replace(b"/ ", path.encode() + b" ")
    writer.write(head + b"Connection: close\r\n\r\n")
    size = 0
    async with asyncio.timeout(40):
        while part := await reader.read(2**18):
            size += len(part)
            if size % 2**20 < len(part):
                await asyncio.sleep(0.04)
    assert size > MEGABYTES * 2**20
    writer.close()


async def test_the_oldest_without_a_key_makes_room_and_is_told_why(serve: Serve) -> None:
    runner = await serve(ServerConfig(max_connections=8))
    held = [await connect(runner) for _ in range(4)]
    await eventually(lambda: count(runner) == 4)
    assert (await ask(runner)).endswith(b"hello")
    head, _, body = (await asyncio.wait_for(held[0][0].read(), PATIENCE)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 ")
    assert b"Retry-After: 1" in head
    refused = json.loads(body)
    assert refused["code"] == "too_many_requests"
    assert refused["request_id"].encode() in head
    assert not held[1][0].at_eof()
    for _, writer in held:
        writer.close()
    await eventually(lambda: count(runner) == 0)


async def test_one_address_has_so_many_connections_and_leaves_room_to_others(serve: Serve) -> None:
    runner = await serve(ServerConfig(max_connections_per_address=2))
    held = [await connect(runner) for _ in range(2)]
    await eventually(lambda: count(runner) == 2)
    head, _, body = (await ask(runner)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 Too Many Requests")
    assert b"Retry-After: 1" in head
    assert json.loads(body)["code"] == "too_many_requests"
    assert (await ask(runner, source="127.0.0.2")).endswith(b"hello")
    held[0][1].close()
    await eventually(lambda: count(runner) == 1)
    assert (await ask(runner)).endswith(b"hello")
    held[1][1].close()


async def test_connections_that_are_refused_are_told_so_however_many_there_are(
    serve: Serve,
) -> None:
    runner = await serve(ServerConfig(max_connections_per_address=1, max_connections=8))
    _, writer = await connect(runner)
    await eventually(lambda: count(runner) == 1)
    refused = [await connect(runner) for _ in range(12)]
    async with asyncio.timeout(PATIENCE):
        answers = [await reader.readline() for reader, _ in refused]
    assert answers == [b"HTTP/1.1 429 Too Many Requests\r\n"] * 12
    assert count(runner) == 1
    assert (await ask(runner, source="127.0.0.2")).endswith(b"hello")
    for _, other in (*refused, (None, writer)):
        other.close()


@pytest.mark.parametrize(
    "limits",
    [
        ServerConfig(max_connections_per_address=0),
        ServerConfig(max_connections_per_address=1, trusted_proxies=("127.0.0.0/8",)),
    ],
)
async def test_without_a_limit_and_from_proxies_any_number_is_taken(
    serve: Serve, limits: ServerConfig
) -> None:
    runner = await serve(limits)
    held = [await connect(runner) for _ in range(3)]
    assert (await ask(runner)).endswith(b"hello")
    for _, writer in held:
        writer.close()


async def test_a_body_that_does_not_come_is_answered_in_time(service: Service) -> None:
    limits = msgspec.structs.replace(service.config.server, request_seconds=0.5)
    service.config = msgspec.structs.replace(service.config, server=limits)
    await service.restart()
    client = await service.make_client()
    host, _, port = service.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = (
        "POST /api/settings HTTP/1.1",
        "Host: test",
        f"X-Session-API-Key: {client.key}",
        "Content-Type: application/json",
        "Content-Length: 1000",
    )
    writer.write("\r\n".join((*lines, "", "{")).encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    assert head.split()[1] == b"504"
    assert (await client.get("/api/settings")).status == 404
    assert b'"code":"timed_out"' in await asyncio.wait_for(reader.readuntil(b"}"), PATIENCE)
    writer.close()

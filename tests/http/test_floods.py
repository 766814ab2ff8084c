"""Floods of connections that show no key, at the defaults: who has a key is served as ever."""

import asyncio
import contextlib
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import aiohttp
import msgspec
import pytest

from agentsvc.base.values import monotonic
from agentsvc.config.schema import Config
from agentsvc.http.server import connections
from agentsvc.http.server.delayed_refusal import HOLD_SECONDS
from agentsvc.plugin.backend import Network, Phase
from tests.http.gateway.steps import until
from tests.http.test_metrics import read
from tests.plugins.process.rig import core_rig
from tests.service import WAIT_SECONDS, Client, Service
from tests.streams import CHANGES, open_socket

HALF_OPEN = 520
KEYLESS = 1000
MANY = 100
IN_TIME = 5.0
"""Most seconds a user may wait meanwhile; the machine that runs this is busy with other tests."""
NEVER = 3600.0
SANDBOXES = 5
OF_SANDBOXES = 480
"""All that the ways out of so many sandboxes let through at once, but for a few."""
FLOOD = """
import socket, sys, time
held = []
for _ in range(int(sys.argv[2])):
    try:
        held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5))
        held[-1].sendall(b"GET /alive HTTP/1.1\\r\\nHost: localhost\\r\\n")
    except OSError:
        pass
time.sleep(100)
"""
HEAD = b"GET /alive HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
async def service(service: Service) -> Service:
    """Return a server with the limits it has by default."""
    service.config = msgspec.structs.replace(service.config, limits=Config().limits)
    await service.restart()
    return service


def place_of(service: Service) -> tuple[str, int]:
    host, _, port = service.url.removeprefix("http://").partition(":")
    return host, int(port)


def established(port: int) -> int:
    """Return how many connections there are to a port of this machine."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(line[1].endswith(f":{port:04X}") and line[3] == "01" for line in lines)


@asynccontextmanager
async def half_open(service: Service, count: int, begun: bytes) -> AsyncIterator[None]:
    """Hold so many connections that have begun a request, and never end it."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as held:
        for _ in range(count):
            one = held.enter_context(closing(socket.socket()))
            one.setblocking(False)
            await loop.sock_connect(one, place_of(service))
            await loop.sock_sendall(one, begun)
        yield


async def waits(client: Client, service: Service) -> list[float]:
    """Return how long a user waits for an answer, each time by a connection of its own."""
    took = []
    for _ in range(20):
        began = monotonic()
        async with aiohttp.ClientSession() as session:
            headers = {"X-Session-API-Key": str(client.key), "X-Forwarded-For": "198.51.100.8"}
            async with session.get(f"{service.url}/api/settings", headers=headers) as answer:
                assert answer.status == 200
        took.append(monotonic() - began)
    return took


async def test_half_open_connections_keep_no_user_out(client: Client, service: Service) -> None:
    async with half_open(service, HALF_OPEN, HEAD):
        assert max(await waits(client, service)) < IN_TIME
        found = await read(client)
        assert found["agentsvc_refused_total", 'reason="keyless_connections"'] > 0
    assert max(await waits(client, service)) < IN_TIME


@pytest.mark.parametrize("begun", [HEAD + b"X-Forwarded-For: 198.51.100.7\r\n\r\n", HEAD])
async def test_nor_do_they_through_a_proxy(client: Client, service: Service, begun: bytes) -> None:
    server = msgspec.structs.replace(service.config.server, trusted_proxies=("127.0.0.1",))
    service.config = msgspec.structs.replace(service.config, server=server)
    await service.restart()
    async with half_open(service, HALF_OPEN, begun):
        assert max(await waits(client, service)) < IN_TIME


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap")
async def test_nor_do_they_out_of_sandboxes(
    client: Client, service: Service, tmp_path: Path
) -> None:
    async with core_rig(tmp_path, callback=service.url, use_bubblewrap=True) as bench:
        arguments = (str(place_of(service)[1]), str(HALF_OPEN))
        for _ in range(SANDBOXES):
            handle = await bench.create("python3", "-Ic", FLOOD, *arguments, network=Network.NONE)
            await bench.wait(handle, Phase.RUNNING)
        await until(lambda: established(place_of(service)[1]) > OF_SANDBOXES, time_limit=40)
        assert max(await waits(client, service)) < IN_TIME
        await bench.backend.close()


async def test_hundreds_of_users_behind_one_address_are_served_at_once(
    client: Client, service: Service
) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"X-Session-API-Key": str(client.key)}
    async with (
        aiohttp.ClientSession(connector=connector, headers=headers) as session,
        AsyncExitStack() as opened,
    ):
        url = f"{service.url}{CHANGES}"
        streams = [await opened.enter_async_context(session.get(url)) for _ in range(HALF_OPEN)]
        assert {one.status for one in streams} == {200}
        # All of them have shown a key, and a flood without one ends none.
        async with half_open(service, HALF_OPEN, HEAD):
            assert max(await waits(client, service)) < IN_TIME
        assert not any(one.content.at_eof() for one in streams)


async def test_a_key_as_first_message_is_heard_among_a_thousand_without_one(
    client: Client, service: Service
) -> None:
    anyone = service.client_with(None)
    host, port = place_of(service)
    arguments = ("sockets", host, str(port), host, str(KEYLESS), "12", "none")
    flood = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.resilience.flood", *arguments, stdout=asyncio.subprocess.PIPE
    )
    took = []
    try:
        await until(lambda: established(port) > MANY)
        for _ in range(10):
            began = monotonic()
            async with open_socket(anyone, CHANGES) as stream:
                await stream.socket.send_json({"type": "auth", "session_api_key": client.key})
                await stream.until("ready")
            took.append(monotonic() - began)
    finally:
        with contextlib.suppress(ProcessLookupError):
            flood.kill()
        await flood.communicate()
    # Nobody is refused or cut off; who comes with all of the flood at once waits for all of it.
    assert min(took) < IN_TIME / 2, took


async def test_a_connection_too_many_waits_for_its_refusal(
    client: Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = msgspec.structs.replace(service.config.server, max_connections=4)
    service.config = msgspec.structs.replace(service.config, server=server)
    await service.restart()
    host, port = place_of(service)
    other = await service.make_client("other")
    async with aiohttp.ClientSession() as session, AsyncExitStack() as opened:
        for one in (client, client, other, other):
            headers = {"X-Session-API-Key": str(one.key)}
            stream = session.get(f"{service.url}{CHANGES}", headers=headers)
            await opened.enter_async_context(stream)
        began = monotonic()
        answers = await asyncio.gather(*(_answer_of(host, port) for _ in range(4)))
        assert {answer.split()[1] for answer in answers} == {b"503"}
        assert monotonic() - began >= HOLD_SECONDS
        # As many as may be connected may wait, however long; others are refused at once.
        monkeypatch.setattr(connections, "HOLD_SECONDS", NEVER)
        waiting = [asyncio.get_running_loop().create_task(_answer_of(host, port)) for _ in range(4)]
        await asyncio.sleep(0.2)
        async with asyncio.timeout(WAIT_SECONDS):
            assert (await _answer_of(host, port)).split()[1] == b"503"
        assert not any(task.done() for task in waiting)
        await service.stop()
        assert await asyncio.gather(*waiting) == [b""] * 4


async def _answer_of(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(HEAD + b"\r\n")
    with closing(writer), contextlib.suppress(ConnectionError):
        return await reader.readline()
    return b""

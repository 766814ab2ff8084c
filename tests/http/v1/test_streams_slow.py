"""Readers that do not read: they cost little, slow nobody, and can go on where they were."""

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.http.v1.streaming import deltas, events, feeder
from tests.service import Client, Service
from tests.streams import Stream, open_lines, path_of
from tests.troubles import eventually

STALLED: Final = 100
MAX_BYTES: Final = 64 * 2**20
HANDSHAKE: Final = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)

_SENT: Final = {
    False: re.compile(rb"event: event\nid: (\d+)\n"),
    True: re.compile(rb'\{"type":"event","id":(\d+),'),
}
_RESYNC: Final = {
    False: re.compile(rb'event: resync\nid: (\d+)\ndata: \{"last_event_id":\1\}\n\n'),
    True: re.compile(rb"\x88[\x03-\x08]\x0f\xa8(\d+)\Z"),
}
"""What tells of an event and of the last one; 4008 is the code a WebSocket closes with."""


class Stalled:
    """A reader that has room for little and reads when it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def rest(self) -> bytes:
        """Read to the end of the connection."""
        return await asyncio.wait_for(self.reader.read(), 30)


@asynccontextmanager
async def stalled(client: Client, path: str, *, is_socket: bool) -> AsyncIterator[Stalled]:
    """Open a stream and read nothing but the head of its answer."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    host, _, port = client.base_url.removeprefix("http://").partition(":")
    await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=raw, limit=4096)
    lines = (
        f"GET {path} HTTP/1.1",
        "Host: test",
        f"X-Session-API-Key: {client.key}",
        *(HANDSHAKE if is_socket else ()),
    )
    writer.write("\r\n".join((*lines, "", "")).encode())
    await reader.readuntil(b"\r\n\r\n")
    try:
        yield Stalled(reader, writer)
    finally:
        writer.transport.abort()


def memory_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def read_of(stream: Stream, kind: str, count: int) -> None:
    """Read on until so many messages of a kind have come; fails where the stream ends."""
    while count:
        one = await stream.read()
        assert one is not None
        count -= one.type == kind


async def test_a_hundred_stalled_readers_cost_little_and_slow_nobody(
    client: Client, service: Service
) -> None:
    feed = await feeder(client, service)
    path = path_of(feed.conversation_id)
    async with AsyncExitStack() as held, open_lines(client, path) as reading:
        await reading.until("ready")
        # What the server and this test need once for all is there before it is measured.
        await feed.send(events(40, first=1000, text="x" * 20_000))
        await read_of(reading, "event", 40)
        most = before = memory_bytes()
        for i in range(STALLED):
            await held.enter_async_context(stalled(client, path, is_socket=i % 2 == 0))
        await eventually(lambda: service.listeners() > STALLED)
        for first in range(1, 200, 10):
            await feed.send(events(10, first=first, text="x" * 20_000))
            # So few and small that nobody is told to come back whom the system's own buffers
            # let go on for a moment.
            await feed.send(deltas(30, first=first))
            await read_of(reading, "event", 10)
            most = max(most, memory_bytes())
        assert service.listeners() > STALLED
        # More than may wait for any of them, and never for the one that reads.
        for _ in range(20):
            await feed.send(deltas(50, text="x" * 1000))
            await read_of(reading, "delta", 50)
            most = max(most, memory_bytes())
    assert most - before < MAX_BYTES
    await eventually(lambda: service.listeners() == 0)


@pytest.mark.parametrize("is_socket", [False, True])
async def test_a_reader_for_whom_too_much_waited_is_told_where_to_go_on(
    client: Client, service: Service, *, is_socket: bool
) -> None:
    feed = await feeder(client, service)
    path = path_of(feed.conversation_id)
    async with stalled(client, path, is_socket=is_socket) as reader:
        await eventually(lambda: service.listeners() == 1)
        await feed.send(events(200, text="x" * 20_000))
        for first in range(10):
            await feed.send(deltas(200, first=first * 200, text="x" * 100))
        await feed.send(events(5, first=1000))
        rest = await reader.rest()
    sent = _SENT[is_socket].findall(rest)
    [last] = _RESYNC[is_socket].findall(rest)
    assert last == sent[-1]
    async with open_lines(client, path, last_id=last.decode()) as reading:
        again = await reading.until("ready")
    assert len(again) > 5
    told = [int(number) for number in (*sent, *(str(one.id) for one in again[:-1]))]
    assert told == list(range(len(await client.events(feed.conversation_id))))


@pytest.mark.parametrize("is_socket", [False, True])
async def test_a_stalled_reader_does_not_hold_up_the_stop_of_the_server(
    client: Client, service: Service, *, is_socket: bool
) -> None:
    feed = await feeder(client, service)
    path = path_of(feed.conversation_id)
    async with stalled(client, path, is_socket=is_socket) as reader:
        await feed.send(events(200, text="x" * 20_000))
        await service.restart()
        assert len(await reader.rest()) < 200 * 20_000
    assert (await client.get("/alive")).status == 200

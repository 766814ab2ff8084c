"""Bytes that pass inside the kernel: all of them, no more, and nothing is left of the way."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentsvc.http.gateway.splice import FEWEST_BYTES, splice
from tests.http.gateway.steps import until

BODY = hashlib.shake_256(b"a body").digest(9 * 1024 * 1024)
BEHIND = b"the next request"


class Side(asyncio.Protocol):
    """Our end of a connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.read = bytearray()
        self.has_ended = False
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.read += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended, self.transport = True, None
        self._may_write.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    async def flush(self) -> None:
        await self._may_write.wait()


class Far:
    """The other end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer


@asynccontextmanager
async def _connected(socket_path: Path | None) -> AsyncIterator[tuple[Side, Far]]:
    loop = asyncio.get_running_loop()
    side = Side()

    def make() -> Side:
        return side

    if socket_path is None:
        server = await loop.create_server(make, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    else:
        server = await loop.create_unix_server(make, socket_path)
        reader, writer = await asyncio.open_unix_connection(socket_path)
    async with server:
        await until(lambda: side.transport is not None)
        yield side, Far(reader, writer)
        writer.close()
        if side.transport is not None:
            side.transport.abort()
        await until(lambda: side.has_ended)


@pytest.fixture(params=["tcp", "unix"])
async def ends(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Side, Far, Side, Far]]:
    """A source and a sink, each with its other end."""
    is_unix = request.param == "unix"
    source = _connected(tmp_path / "source" if is_unix else None)
    sink = _connected(tmp_path / "sink" if is_unix else None)
    before = _descriptors()
    async with source as (side, far), sink as (sink_side, sink_far):
        yield side, far, sink_side, sink_far
    await until(lambda: _descriptors() <= before)


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _is_about(count: Callable[[], int], least: int) -> Callable[[], bool]:
    return lambda: count() >= least


async def test_all_of_it_arrives_and_nothing_of_what_comes_behind(
    ends: tuple[Side, Far, Side, Far],
) -> None:
    source, sender, sink, receiver = ends
    taken: list[int] = []
    sender.writer.write(BODY + BEHIND)
    async with asyncio.TaskGroup() as group:
        group.create_task(splice(source.transport, sink, len(BODY), taken.append))
        arrived = await receiver.reader.readexactly(len(BODY))
    assert arrived == BODY
    assert sum(taken) == len(BODY)
    await until(lambda: source.read == BEHIND)


async def test_what_was_written_before_is_not_overtaken(ends: tuple[Side, Far, Side, Far]) -> None:
    source, sender, sink, receiver = ends
    assert sink.transport is not None
    sink.transport.write(BODY)
    sender.writer.write(BODY)
    async with asyncio.TaskGroup() as group:
        group.create_task(splice(source.transport, sink, len(BODY), lambda _: None))
        assert await receiver.reader.readexactly(2 * len(BODY)) == 2 * BODY


async def test_a_sink_that_takes_nothing_stops_the_source(
    ends: tuple[Side, Far, Side, Far],
) -> None:
    source, sender, sink, _ = ends
    taken = 0

    def count(number: int) -> None:
        nonlocal taken
        taken += number

    sender.writer.write(BODY * 8)
    assert sink.transport is not None
    waiting = sink.transport.get_write_buffer_size
    async with asyncio.TaskGroup() as group:
        splicing = group.create_task(splice(source.transport, sink, 8 * len(BODY), count))
        await until(_is_about(waiting, 1))
        assert waiting() <= 64 * 1024
        assert not splicing.done()
        assert taken < 8 * len(BODY)
        splicing.cancel()
    # It is read as usual again.
    await until(_is_about(lambda: len(source.read), 1))


async def test_a_source_that_ends_early_is_heard_of_as_usual(
    ends: tuple[Side, Far, Side, Far],
) -> None:
    source, sender, sink, receiver = ends
    taken: list[int] = []
    sender.writer.write(BODY)
    sender.writer.write_eof()
    async with asyncio.TaskGroup() as group:
        group.create_task(splice(source.transport, sink, len(BODY) + 1, taken.append))
        assert await receiver.reader.readexactly(len(BODY)) == BODY
    assert sum(taken) == len(BODY)
    await until(lambda: source.has_ended)


async def test_a_sink_that_is_gone_ends_it(ends: tuple[Side, Far, Side, Far]) -> None:
    source, sender, sink, receiver = ends
    sender.writer.write(BODY * 8)
    async with asyncio.TaskGroup() as group:
        group.create_task(splice(source.transport, sink, 8 * len(BODY), lambda _: None))
        await receiver.reader.readexactly(FEWEST_BYTES)
        receiver.writer.transport.abort()
    await until(lambda: sink.has_ended)


async def test_a_little_is_not_worth_it(ends: tuple[Side, Far, Side, Far]) -> None:
    source, sender, sink, _ = ends
    taken: list[int] = []
    sender.writer.write(BEHIND)
    await splice(source.transport, sink, FEWEST_BYTES - 1, taken.append)
    await until(lambda: source.read == BEHIND)
    assert not taken

"""WebSockets through the gateway with the `websockets` package, which front ends' servers use."""

import asyncio
import contextlib

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus

from tests.http.gateway.steps import LONG_SECONDS, MIB, MOST_HELD, Box, Wire, head
from tests.http.gateway.test_sockets import HANDSHAKE


def _connect(box: Box, tail: str = "/ws", *, key: str | None = None) -> connect:
    url = box.url(tail).replace("http://", "ws://")
    return connect(
        url,
        additional_headers={"X-Session-API-Key": key or box.key},
        open_timeout=LONG_SECONDS,
        max_size=None,
        proxy=None,
    )


async def _next(socket: ClientConnection) -> str | bytes:
    async with asyncio.timeout(LONG_SECONDS):
        return await socket.recv()


async def test_messages_and_pings_pass(box: Box) -> None:
    async with _connect(box) as socket:
        assert await _next(socket) == "hello"
        await socket.send("grüße")
        assert await _next(socket) == "GRÜSSE"
        await socket.send(bytes(range(256)))
        assert await _next(socket) == bytes(range(256))[::-1]
        # In pieces, and packed: the package agrees on compression by itself.
        await socket.send(["some ", "pieces ", "x" * 200_000])
        assert await _next(socket) == "SOME PIECES " + "X" * 200_000
        async with asyncio.timeout(LONG_SECONDS):
            await (await socket.ping(b"from the client"))
        await socket.send("ping me")
        assert await _next(socket) == "ponged from the sandbox"


async def test_either_side_closes_with_its_code(box: Box) -> None:
    async with _connect(box) as socket:
        await _next(socket)
        await socket.send("close 4321 because of this")
        with pytest.raises(ConnectionClosed) as caught:
            await _next(socket)
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4321, "because of this")
    async with asyncio.timeout(LONG_SECONDS):
        await box.upstream.socket_ends.get()
        async with _connect(box) as socket:
            await _next(socket)
            await socket.close(3456, "bye")
        assert await box.upstream.socket_ends.get() == 3456


async def test_a_refusal_and_an_end_without_a_word_are_told(box: Box) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with _connect(box, key="wrong"):
            pass
    assert refused.value.response.status_code == 401
    async with _connect(box) as socket:
        await _next(socket)
        await box.upstream.stop()
        with pytest.raises(ConnectionClosed):
            await _next(socket)
    assert isinstance(socket.protocol.close_exc, ConnectionClosed | ConnectionClosedError)


async def test_a_reader_that_pauses_gets_everything_in_the_end(box: Box) -> None:
    count = 200
    async with _connect(box) as socket:
        await _next(socket)

        async def send_all() -> None:
            for number in range(count):
                await socket.send(number.to_bytes(4) + bytes(64 * 1024))

        async with asyncio.TaskGroup() as group:
            sending = group.create_task(send_all())
            # Nothing is read, so that one after the other everybody on the way has to stop.
            await asyncio.wait([sending], timeout=1)
            for number in range(count):
                assert (await _next(socket))[-4:] == number.to_bytes(4)[::-1]


async def test_a_sandbox_that_does_not_read_stops_the_client(box: Box) -> None:
    wire = await Wire.open(box.service)
    wire.send(head("GET", box.path("/deaf"), f"X-Session-API-Key: {box.key}", *HANDSHAKE))
    assert (await wire.read_head())[0] == 101
    frame = b"\x82\xff" + (MIB).to_bytes(8) + bytes(4) + bytes(MIB)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 2 * MOST_HELD:
            wire.send(frame)
            async with asyncio.timeout(3):
                await wire.writer.drain()
            sent += MIB
    assert sent < MOST_HELD
    wire.writer.transport.abort()

"""Long bodies pass, and what comes behind them is read as ever."""

import hashlib
from collections.abc import AsyncIterator
from functools import partial

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.config.schema import GatewayConfig
from tests.http.gateway.conftest import StartGate
from tests.http.gateway.steps import Box, Wire, head, session, until
from tests.http.gateway.upstream import Upstream

KIB = 1024
SIZE = 3 * 1024 * KIB
CLOSE = "Connection: close"


def _framed(body: bytes, *, in_chunks: bool) -> tuple[str, bytes]:
    """Return the header that says where a body ends, and the body as it is sent."""
    if not in_chunks:
        return f"Content-Length: {len(body)}", body
    parts = [body[at : at + 50_000] for at in range(0, len(body), 50_000)]
    chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
    return "Transfer-Encoding: chunked", b"".join((*chunks, b"0\r\n\r\n"))


def _key(box: Box) -> str:
    return f"X-Session-API-Key: {box.key}"


def _has_come(box: Box, count: int) -> bool:
    return box.upstream.received == count


@pytest.mark.parametrize("in_chunks", [False, True])
async def test_a_long_body_arrives_as_it_is(box: Box, *, in_chunks: bool) -> None:
    body = hashlib.shake_256(b"a body").digest(SIZE)

    async def parts() -> AsyncIterator[bytes]:
        for at in range(0, SIZE, 70_001):
            yield body[at : at + 70_001]

    headers = {} if in_chunks else {"Content-Length": str(SIZE)}
    async with (
        session(box.key) as client,
        client.post(box.url("/duplex"), data=parts(), headers=headers) as response,
    ):
        assert await response.read() == body.upper()


async def test_what_stands_behind_a_long_body_is_the_next_request(box: Box) -> None:
    framing, raw = _framed(b"x" * SIZE, in_chunks=False)
    first = head("POST", box.path("/sink"), _key(box), framing)
    wire = await Wire.open(box.service)
    for _ in range(2):
        wire.send(first)
        wire.send(raw)
    wire.send(head("GET", box.path("/data"), _key(box), CLOSE))
    for _ in range(2):
        status, headers = await wire.read_head()
        assert status == 200
        answer = await wire.read(int(headers["content-length"]))
        assert answer == b'{"received": %d}' % SIZE
    assert (await wire.read_head())[0] == 200
    await wire.close()
    assert [seen.raw_path for seen in box.upstream.seen] == ["/sink", "/sink", "/data"]


async def test_a_connection_goes_on_after_a_body_that_nobody_read(box: Box) -> None:
    framing, raw = _framed(b"x" * 400 * KIB, in_chunks=False)
    wire = await Wire.open(box.service)
    wire.send(head("POST", box.path("/hasty"), _key(box), framing))
    wire.send(raw[: 100 * KIB])
    status, headers = await wire.read_head()
    await wire.read(int(headers["content-length"]))
    wire.send(raw[100 * KIB :])
    wire.send(head("GET", box.path("/data"), _key(box), CLOSE))
    assert (status, (await wire.read_head())[0]) == (409, 200)
    await wire.close()


async def test_a_long_body_that_goes_wrong_is_refused(
    start_gate: StartGate, upstream: Upstream
) -> None:
    # aiohttp tells nobody of it who waits for the body already, so that it is one that does not come.
    gate = await start_gate(GatewayConfig(start_seconds=10, connect_seconds=10), stall_seconds=1.0)
    box = await Box.start(gate, upstream, await gate.make_client("owner", Role.MEMBER))
    chunk = b"%x\r\n%b\r\n" % (100 * KIB, b"x" * 100 * KIB)
    wire = await Wire.open(box.service)
    wire.send(head("POST", box.path("/sink"), _key(box), "Transfer-Encoding: chunked"))
    for sent in range(1, 4):
        wire.send(chunk)
        await until(partial(_has_come, box, sent * 100 * KIB))
    wire.send(b"nothing\r\n" + head("GET", box.path("/data"), _key(box)))
    status, headers = await wire.read_head()
    assert (status, headers["connection"]) == (400, "close")
    assert (await wire.read_all()).startswith(b'{"detail"')
    await wire.close()
    assert [seen.raw_path for seen in box.upstream.seen] == ["/sink"]

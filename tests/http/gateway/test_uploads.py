"""Long bodies pass by aiohttp's queue, and what comes behind them is read as ever."""

import hashlib
from collections.abc import AsyncIterator, Sequence
from functools import partial

import pytest

from agentsvc.http.chunks import BadChunks, ChunkReader
from agentsvc.http.passage import Passage, SizedRest
from tests.http.gateway.steps import Box, Wire, head, session, until

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


@pytest.mark.parametrize("in_chunks", [False, True])
async def test_what_stands_behind_a_long_body_is_the_next_request(
    box: Box, *, in_chunks: bool
) -> None:
    framing, raw = _framed(b"x" * SIZE, in_chunks=in_chunks)
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


@pytest.mark.parametrize("in_chunks", [False, True])
async def test_a_connection_goes_on_after_a_body_that_nobody_read(
    box: Box, *, in_chunks: bool
) -> None:
    framing, raw = _framed(b"x" * 400 * KIB, in_chunks=in_chunks)
    wire = await Wire.open(box.service)
    wire.send(head("POST", box.path("/hasty"), _key(box), framing))
    wire.send(raw[: 100 * KIB])
    status, headers = await wire.read_head()
    await wire.read(int(headers["content-length"]))
    wire.send(raw[100 * KIB :])
    wire.send(head("GET", box.path("/data"), _key(box), CLOSE))
    assert (status, (await wire.read_head())[0]) == (409, 200)
    await wire.close()


async def test_a_long_body_that_goes_wrong_is_refused(box: Box) -> None:
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


class _Noting:
    """Notes what is passed on."""

    def __init__(self) -> None:
        self.taken = b""
        self.ends: list[Exception | None] = []

    def take(self, parts: Sequence[memoryview]) -> None:
        self.taken += b"".join(parts)

    def end(self, failure: Exception | None) -> None:
        self.ends.append(failure)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8, 100])
def test_a_passage_ends_where_its_body_does(step: int) -> None:
    for rest, raw in (
        (SizedRest(5), b"hello"),
        (ChunkReader(), b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
    ):
        taker = _Noting()
        passage = Passage(rest, taker)
        whole = raw + b"GET"
        ends = []
        for at in range(0, len(whole), step):
            end = passage.feed(whole[at : at + step])
            if end is not None:
                ends.append(at + end)
                break
        assert (taker.taken, ends) == (b"hello", [len(raw)])


def test_what_nobody_takes_is_followed_to_its_end() -> None:
    taker = _Noting()
    passage = Passage(ChunkReader(), taker)
    assert passage.feed(b"5\r\nhe") is None
    passage.leave()
    assert passage.feed(b"llo\r\n0\r\n\r\nGET") == 10
    passage.end()
    assert (taker.taken, taker.ends) == (b"he", [])
    with pytest.raises(BadChunks):
        Passage(ChunkReader(), taker).feed(b"x\r\n")

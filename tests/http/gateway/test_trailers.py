"""What stands behind the body of an answer in chunks passes, as far as it may; that of a request does not."""

from collections.abc import AsyncIterator

import pytest

from agentsvc.http.gateway.http_responses import ChunkedBody, InvalidResponse
from agentsvc.testing.backend import FakeWorld
from tests.http.gateway.steps import Box, Wire, head, until
from tests.http.gateway.wire_upstream import WireUpstream, wired

ANSWER = (
    b"HTTP/1.1 200 OK\r\nTrailer: X-Sum, Set-Cookie\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-More: a b\r\nSet-Cookie: a=1\r\nContent-Length: 3\r\n\r\n"
)


@pytest.fixture
async def pair(box: Box, world: FakeWorld) -> AsyncIterator[tuple[Box, WireUpstream]]:
    async with wired(box, world) as made:
        yield made


async def _exchange(box: Box, *parts: bytes) -> bytes:
    """Send the parts one by one and return all that is answered."""
    wire = await Wire.open(box.service)
    for part in parts:
        wire.send(part)
        await wire.writer.drain()
    answer = await wire.read_all()
    await wire.close()
    return answer


def _post(box: Box, *lines: str) -> bytes:
    key = f"X-Session-API-Key: {box.key}"
    return head("POST", box.path("/x"), key, "Transfer-Encoding: chunked", *lines)


CLOSE = "Connection: close"
BODY = b"5;ext=1\r\nhello\r\n3\r\n, y\r\n0\r\n"


async def test_the_trailers_of_a_request_are_left_out(pair: tuple[Box, WireUpstream]) -> None:
    box, upstream = pair
    raw = _post(box, "Trailer: X-Sum", CLOSE)
    whole = raw + BODY + b"X-Sum: 1\r\nX-More:  a b \r\n\r\n"
    # The end of the head, and each line of the body, may come in pieces.
    for step in (1, 2, 3, 4, 7, len(whole)):
        begin = len(raw) - min(step, 4)
        pieces = [whole[at : at + step] for at in range(begin, len(whole), step)]
        answer = await _exchange(box, whole[:begin], *pieces)
        assert answer.startswith(b"HTTP/1.1 200 ")
        seen = upstream.take()
        assert seen.endswith(b"\r\n0\r\n\r\n")
        assert b"X-Sum" not in seen


async def test_a_connection_ends_with_a_body_in_chunks(pair: tuple[Box, WireUpstream]) -> None:
    box, _ = pair
    answer = await _exchange(box, _post(box) + b"1\r\na\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nConnection: close\r\n" in answer


async def test_a_trailer_is_no_header_of_the_next_request(pair: tuple[Box, WireUpstream]) -> None:
    """The next request on a connection may be another user's: proxies share connections."""
    box, upstream = pair
    trailers = f"X-A: 1\r\nX-Session-API-Key: {box.key}\r\n\r\n".encode()
    first = _post(box) + BODY + trailers
    raw = first + head("GET", box.path("/second"), CLOSE)
    cuts = (0, 1, 2, 5, 40, -1, -2, -3, -30)
    for at in (len(first) + cut for cut in cuts):
        answer = await _exchange(box, raw[:at], raw[at:])
        assert answer.count(b"HTTP/1.1 200 ") == 1
        assert b"\r\nConnection: close\r\n" in answer
    assert [line.split()[1] for line in upstream.heads] == [b"/x"] * len(cuts)


@pytest.mark.parametrize("lines", [(), ("TE: trailers", "Connection: TE")])
async def test_the_trailers_of_an_answer_arrive(
    lines: tuple[str, ...], pair: tuple[Box, WireUpstream]
) -> None:
    box, upstream = pair
    upstream.answers = [ANSWER]
    key = f"X-Session-API-Key: {box.key}"
    answer = await _exchange(box, head("GET", box.path("/x"), key, *lines, CLOSE))
    first, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nTrailer: X-Sum\r\n" in first
    assert body == b"5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-More: a b\r\n\r\n"
    [seen] = upstream.received
    assert (b"\r\nTE: trailers\r\n" in seen) is bool(lines)


async def test_the_trailers_of_an_answer_without_a_body_arrive(
    pair: tuple[Box, WireUpstream],
) -> None:
    box, upstream = pair
    upstream.answers = [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 0\r\n\r\n"
    ]
    key = f"X-Session-API-Key: {box.key}"
    answer = await _exchange(box, head("GET", box.path("/x"), key, CLOSE))
    assert answer.partition(b"\r\n\r\n")[2] == b"0\r\nX-Sum: 0\r\n\r\n"


async def test_a_connection_goes_on_after_trailers(pair: tuple[Box, WireUpstream]) -> None:
    box, upstream = pair
    upstream.answers = [ANSWER]
    first = head("GET", box.path("/1"), f"X-Session-API-Key: {box.key}")
    second = head("GET", box.path("/2"), f"X-Session-API-Key: {box.key}", CLOSE)
    answer = await _exchange(box, first + second)
    assert answer.count(b"HTTP/1.1 200 ") == 2
    await until(lambda: len(upstream.heads) == 2)
    # They went over the same connection to the sandbox, too.
    assert len(upstream.received) == 1


async def test_an_older_client_gets_no_chunks(pair: tuple[Box, WireUpstream]) -> None:
    box, upstream = pair
    upstream.answers = [ANSWER]
    lines = f"GET {box.path('/x')} HTTP/1.0\r\nX-Session-API-Key: {box.key}\r\n\r\n"
    answer = await _exchange(box, lines.encode())
    assert answer.partition(b"\r\n\r\n")[2] == b"hello"


@pytest.mark.parametrize(
    "raw",
    [
        b"x\r\n",
        b"5\n",
        b"\r\n",
        b"-1\r\n",
        b"5 5\r\n",
        b"5;a\rb\r\n",
        b"1\r\nab\r\n",
        b"1" * 16 + b"\r\n",
        b"5;" + b"x" * 5000,
        b"0\r\nX: 1\n\r\n",
        b"0\r\nX: 1\r\r\nY: 2\r\n\r\n",
        b"0\r\n" + b"X: 1234567\r\n" * 2000,
    ],
)
def test_what_is_no_body_in_chunks_is_said_so(raw: bytes) -> None:
    with pytest.raises(InvalidResponse):
        ChunkedBody().feed(raw)

"""What could be read in two ways by two servers is not passed on."""

import pytest

from tests.http.gateway.steps import Box, Wire, head

HANDSHAKE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
SECOND = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"

REFUSED: dict[str, tuple[tuple[str, ...], bytes]] = {
    "both lengths": (("Content-Length: 5", "Transfer-Encoding: chunked"), b"0\r\n\r\n" + SECOND),
    "both lengths, the other way": (
        ("Transfer-Encoding: chunked", "Content-Length: 5"),
        b"0\r\n\r\n" + SECOND,
    ),
    "two lengths": (("Content-Length: 5", "Content-Length: 6"), b"hello" + SECOND),
    "the same length twice": (("Content-Length: 5", "Content-Length: 5"), b"hello" + SECOND),
    "a list of lengths": (("Content-Length: 5, 5",), b"hello" + SECOND),
    "a signed length": (("Content-Length: +5",), b"hello" + SECOND),
    "a length in hex": (("Content-Length: 0x5",), b"hello" + SECOND),
    "a length with a blank": (("Content-Length: 5 5",), b"hello" + SECOND),
    "a length with an underscore": (("Content-Length: 1_0",), b"hello" + SECOND),
    "an empty length": (("Content-Length:",), SECOND),
    "chunked in disguise": (("Transfer-Encoding: xchunked",), b"0\r\n\r\n" + SECOND),
    "chunked not last": (("Transfer-Encoding: chunked, identity",), b"0\r\n\r\n" + SECOND),
    "chunked twice": (
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        b"0\r\n\r\n" + SECOND,
    ),
    "a coding before chunked": (("Transfer-Encoding: gzip, chunked",), b"0\r\n\r\n" + SECOND),
    "identity": (("Transfer-Encoding: identity", "Content-Length: 5"), b"hello" + SECOND),
    "chunked with a control character": (
        ("Transfer-Encoding: \x0bchunked",),
        b"0\r\n\r\n" + SECOND,
    ),
    "a blank before the colon": (("Transfer-Encoding : chunked",), b"0\r\n\r\n" + SECOND),
    "a folded header": (("X-Long: a", " b"), SECOND),
    "a folded coding": (("Transfer-Encoding:", " chunked"), b"0\r\n\r\n" + SECOND),
    "a header without a name": ((": value",), SECOND),
    "a bare line feed in a header": (("X-A: 1\nTransfer-Encoding: chunked",), b"0\r\n\r\n"),
    "a bare carriage return in a header": (("X-A: 1\rX-B: 2",), SECOND),
    "a null in a header": (("X-A: 1\x002",), SECOND),
    "a second host": (("Host: other.test",), SECOND),
}

BAD_CHUNKS = {
    "a size that is none": b"zz\r\nhello\r\n0\r\n\r\n",
    "a signed size": b"-5\r\nhello\r\n0\r\n\r\n",
    "a size with a prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "a size that is too large": b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "a chunk without its end": b"5\r\nhelloX0\r\n\r\n",
    "a chunk that ends in a line feed": b"5\r\nhello\n0\r\n\r\n",
    "a size that ends in a line feed": b"5\nhello\r\n0\r\n\r\n",
    "an extension with a line feed": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
}


async def _statuses(box: Box, raw: bytes) -> list[int]:
    """Send bytes and return the status of every answer until the server ends the connection."""
    wire = await Wire.open(box.service)
    wire.send(raw)
    answer = await wire.read_all()
    await wire.close()
    return [int(part.split(b" ", 2)[1]) for part in answer.split(b"HTTP/1.")[1:]]


@pytest.mark.parametrize("what", REFUSED)
async def test_what_has_no_certain_end_is_refused(what: str, box: Box) -> None:
    lines, rest = REFUSED[what]
    key = f"X-Session-API-Key: {box.key}"
    raw = head("POST", box.path("/x"), key, *lines)
    statuses = await _statuses(box, raw + rest)
    assert statuses[:1] == [400]
    # Nothing of what follows is taken for a request of its own.
    assert statuses[1:] in ([], [400])
    assert box.upstream.seen == []


@pytest.mark.parametrize("what", BAD_CHUNKS)
async def test_a_broken_body_does_not_arrive_as_a_whole_one(what: str, box: Box) -> None:
    lines = (f"X-Session-API-Key: {box.key}", "Transfer-Encoding: chunked")
    raw = head("POST", box.path("/x"), *lines) + BAD_CHUNKS[what] + SECOND
    statuses = await _statuses(box, raw)
    assert statuses[:1] in ([400], [502])
    assert all(status >= 400 for status in statuses)
    assert box.upstream.seen == []


async def test_a_body_that_ends_early_does_not_arrive_as_a_whole_one(box: Box) -> None:
    wire = await Wire.open(box.service)
    key = f"X-Session-API-Key: {box.key}"
    wire.send(head("POST", box.path("/x"), key, "Content-Length: 10") + b"short")
    wire.writer.write_eof()
    await wire.read_all()
    await wire.close()
    assert box.upstream.seen == []


async def test_requests_one_after_the_other_are_answered_in_order(box: Box) -> None:
    lines = (f"X-Session-API-Key: {box.key}", "Content-Length: 5")
    first = head("POST", box.path("/first"), *lines) + b"hello"
    second = head("GET", box.path("/second"), lines[0], "Connection: close")
    assert await _statuses(box, first + second) == [200, 200]
    assert [seen.raw_path for seen in box.upstream.seen] == ["/first", "/second"]
    assert box.upstream.seen[0].body == b"hello"


async def test_a_refused_upgrade_does_not_make_what_follows_a_tunnel(box: Box) -> None:
    upgrade = head(
        "GET",
        box.path("/no-ws"),
        f"X-Session-API-Key: {box.key}",
        *HANDSHAKE,
    )
    follower = head("GET", box.path("/second"), "Connection: close")
    statuses = await _statuses(box, upgrade + follower)
    # The second one shows no key, and is asked for it like any other.
    assert statuses in ([403, 401], [403])
    assert [seen.raw_path for seen in box.upstream.seen] == ["/no-ws"]


async def test_another_protocol_is_not_switched_to(box: Box) -> None:
    raw = head(
        "GET",
        box.path("/x"),
        f"X-Session-API-Key: {box.key}",
        "Connection: Upgrade, HTTP2-Settings, close",
        "Upgrade: h2c",
        "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
    )
    assert await _statuses(box, raw) == [200]
    assert box.upstream.seen[-1].one("Upgrade") is None
    assert box.upstream.seen[-1].one("HTTP2-Settings") is None


BAD_ANSWERS = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a bad length": b"HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n\r\nhello",
    "a switch nobody asked for": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("what", BAD_ANSWERS)
async def test_an_answer_that_is_no_http_is_a_bad_gateway(what: str, box: Box) -> None:
    box.upstream.raw_answer = BAD_ANSWERS[what]
    answer = await box.get("/raw")
    assert (answer.status, answer.json()["code"]) == (502, "port_unavailable")


async def test_an_answer_without_a_length_goes_on_to_the_end(box: Box) -> None:
    box.upstream.raw_answer = b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\nto the end"
    answer = await box.get("/raw")
    assert (answer.status, answer.body, answer.headers["X-A"]) == (200, b"to the end", "1")


async def test_an_unknown_expectation_is_refused(box: Box) -> None:
    lines = (f"X-Session-API-Key: {box.key}", "Expect: miracles", "Content-Length: 5")
    statuses = await _statuses(box, head("POST", box.path("/x"), *lines) + b"hello")
    assert statuses == [417]
    assert box.upstream.seen == []


BAD_HANDSHAKES = {
    "no HTTP": BAD_ANSWERS["no HTTP"],
    "nothing": b"",
    "a folded header": b"HTTP/1.1 101 OK\r\nX-A: 1\r\n b\r\n\r\n",
    "a bad name": b"HTTP/1.1 101 OK\r\nX A: 1\r\n\r\n",
    "a null": b"HTTP/1.1 101 OK\r\nX-A: a\0b\r\n\r\n",
    "another version": b"HTTP/2 101 OK\r\n\r\n",
    "no end": b"HTTP/1.1 101 OK\r\nX-A: " + b"x" * 200_000,
}


@pytest.mark.parametrize("what", BAD_HANDSHAKES)
async def test_an_answer_to_a_handshake_that_is_no_http_is_a_bad_gateway(
    what: str, box: Box
) -> None:
    box.upstream.raw_answer = BAD_HANDSHAKES[what]
    wire = await Wire.open(box.service)
    wire.send(head("GET", box.path("/raw"), f"X-Session-API-Key: {box.key}", *HANDSHAKE))
    status, _ = await wire.read_head()
    await wire.close()
    assert status == 502

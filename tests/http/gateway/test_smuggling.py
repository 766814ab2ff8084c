"""Each request is refused, or arrives in the sandbox as exactly one, told by the bytes it got."""

from collections.abc import AsyncIterator

import pytest

from agentsvc.testing.backend import FakeWorld
from tests.http.gateway.steps import Box, Wire, head
from tests.http.gateway.wire_upstream import OK, WireUpstream, wired

SECOND = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = "Transfer-Encoding: chunked"
CLOSE = "Connection: close"

PASSED: dict[str, tuple[tuple[str, ...], bytes, bytes]] = {
    "a coding in capitals": (("Transfer-Encoding: CHUNKED",), b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
    "an extension": ((CHUNKED,), b'5;a="b;c";d\r\nhello\r\n0;e\r\n\r\n', b"hello"),
    "an endless extension": (
        (CHUNKED,),
        b"5;" + b"a" * 20_000 + b"\r\nhello\r\n0\r\n\r\n",
        b"hello",
    ),
    "zeros before a size": ((CHUNKED,), b"0000005\r\nhello\r\n00\r\n\r\n", b"hello"),
    "a size in capitals": ((CHUNKED,), b"A\r\nhellohello\r\n0\r\n\r\n", b"hellohello"),
    "zeros before a length": (("Content-Length: 005",), b"hello", b"hello"),
    "a request in the body": ((f"Content-Length: {len(SECOND)}",), SECOND, SECOND),
    "a request in a chunk": (
        (CHUNKED,),
        b"%x\r\n%b\r\n0\r\n\r\n" % (len(SECOND), SECOND),
        SECOND,
    ),
    "a last chunk in a chunk": ((CHUNKED,), b"7\r\n0\r\n\r\nab\r\n0\r\n\r\n", b"0\r\n\r\nab"),
}
"""Headers, the body as it is sent, and what it means."""

DOUBTFUL: dict[str, bytes] = {
    "a blank in the size": b"5 5\r\nhello\r\n0\r\n\r\n",
    "a tab after the size": b"5\t\r\nhello\r\n0\r\n\r\n",
    "a blank before the size": b" 5\r\nhello\r\n0\r\n\r\n",
    "a plus before the size": b"+5\r\nhello\r\n0\r\n\r\n",
    "an underscore in the size": b"1_0\r\nhello\r\n0\r\n\r\n",
    "a carriage return in an extension": b"5;a\rb\r\nhello\r\n0\r\n\r\n",
    "a null in an extension": b"5;a\0b\r\nhello\r\n0\r\n\r\n",
    "a line feed for an end": b"5\r\nhello\r\n0\n\n" + SECOND,
    "carriage returns for ends": b"5\rhello\r0\r\r" + SECOND,
    "a size that wraps around": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "a chunk shorter than its size": b"6\r\nhello\r\n0\r\n\r\n" + SECOND,
    "a folded trailer": b"5\r\nhello\r\n0\r\nX-A: 1\r\n b\r\n\r\n",
    "a trailer with a null": b"5\r\nhello\r\n0\r\nX-A: 1\x002\r\n\r\n",
    "a trailer without a name": b"5\r\nhello\r\n0\r\n: 1\r\n\r\n",
    "a trailer without a colon": b"5\r\nhello\r\n0\r\nGET /smuggled HTTP/1.1\r\n\r\n",
}
"""Bodies in chunks that others may read in another way."""

BAD_HEADS: dict[str, str] = {
    "no host": "GET {path} HTTP/1.1\r\n{key}\r\n\r\n",
    "two hosts": "GET {path} HTTP/1.1\r\nHost: a\r\nHost: b\r\n{key}\r\n\r\n",
    "the same host twice": "GET {path} HTTP/1.1\r\nHost: a\r\nHost: a\r\n{key}\r\n\r\n",
    "a line feed for ends": "GET {path} HTTP/1.1\nHost: a\n{key}\n\n",
    "a blank before the colon": "GET {path} HTTP/1.1\r\nHost : a\r\n{key}\r\n\r\n",
    "a blank in the target": "GET {path}/a b HTTP/1.1\r\nHost: a\r\n{key}\r\n\r\n",
    "a null in the target": "GET {path}/a\0b HTTP/1.1\r\nHost: a\r\n{key}\r\n\r\n",
    "a line feed in the target": "GET {path}/a\nb HTTP/1.1\r\nHost: a\r\n{key}\r\n\r\n",
    "no version": "GET {path}\r\nHost: a\r\n{key}\r\n\r\n",
    "a version to come": "GET {path} HTTP/2.0\r\nHost: a\r\n{key}\r\n\r\n",
    "another protocol": "GET {path} ICE/1.0\r\nHost: a\r\n{key}\r\n\r\n",
    "a method that is none": "G@T {path} HTTP/1.1\r\nHost: a\r\n{key}\r\n\r\n",
    "a tunnel": "CONNECT example.org:443 HTTP/1.1\r\nHost: a\r\n{key}\r\n\r\n",
    "a tunnel to a path": "CONNECT {path} HTTP/1.1\r\nHost: a\r\n{key}\r\n\r\n",
    "the whole server": "OPTIONS * HTTP/1.1\r\nHost: a\r\n{key}\r\n\r\n",
    "a target without a slash": "GET example.org HTTP/1.1\r\nHost: a\r\n{key}\r\n\r\n",
    "a long header": "GET {path} HTTP/1.1\r\nHost: a\r\nX: {long}\r\n{key}\r\n\r\n",
    "a long name": "GET {path} HTTP/1.1\r\nHost: a\r\n{long}: 1\r\n{key}\r\n\r\n",
    "a long target": "GET {path}/{long} HTTP/1.1\r\nHost: a\r\n{key}\r\n\r\n",
    "many headers": "GET {path} HTTP/1.1\r\nHost: a\r\n{many}{key}\r\n\r\n",
    "a folded header": "GET {path} HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n{key}\r\n\r\n",
    "a folded header at first": "GET {path} HTTP/1.1\r\n Host: a\r\nHost: b\r\n{key}\r\n\r\n",
    "a coding between tabs": (
        "POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \tchunked\t\r\n{key}\r\n\r\n"
        "5\r\nhello\r\n0\r\n\r\n"
    ),
    "a delete character": "GET {path} HTTP/1.1\r\nHost: a\r\nX: 1\x7f2\r\n{key}\r\n\r\n",
}


@pytest.fixture
async def pair(box: Box, world: FakeWorld) -> AsyncIterator[tuple[Box, WireUpstream]]:
    async with wired(box, world) as made:
        yield made


async def _send(box: Box, raw: bytes) -> list[int]:
    """Send bytes and return the status of every answer until the server ends the connection."""
    wire = await Wire.open(box.service)
    wire.send(raw)
    answer = await wire.read_all()
    await wire.close()
    return [int(part.split(b" ", 2)[1]) for part in answer.split(b"HTTP/")[1:]]


def _key(box: Box) -> str:
    return f"X-Session-API-Key: {box.key}"


async def test_what_has_a_certain_end_arrives_as_one(pair: tuple[Box, WireUpstream]) -> None:
    box, upstream = pair
    for what, (lines, body, meaning) in PASSED.items():
        raw = head("POST", box.path("/x"), _key(box), *lines) + body
        last = head("GET", box.path("/last"), _key(box), CLOSE)
        assert await _send(box, raw + last) in ([200, 200], [200]), what
        seen = upstream.take()
        assert seen.count(b"POST /x HTTP/1.1\r\n") == 1
        first = seen.partition(b"GET /last HTTP/1.1\r\n")[0]
        head_lines, _, framed = first.partition(b"\r\n\r\n")
        if b"\r\nTransfer-Encoding: chunked" in head_lines:
            assert framed == b"%x\r\n%b\r\n0\r\n\r\n" % (len(meaning), meaning), what
            assert b"Content-Length" not in head_lines
        else:
            assert framed == meaning, what
            assert head_lines.endswith(b"\r\nContent-Length: %d" % len(meaning))


async def test_chunks_that_others_may_read_in_another_way_arrive_as_no_whole_body(
    pair: tuple[Box, WireUpstream],
) -> None:
    box, upstream = pair
    for what, body in DOUBTFUL.items():
        statuses = await _send(box, head("POST", box.path("/x"), _key(box), CHUNKED, CLOSE) + body)
        assert 200 not in statuses, what
        assert all(400 <= status < 500 for status in statuses), what
        seen = upstream.take()
        assert b"\r\n0\r\n" not in seen, what
        assert b"smuggled" not in seen.partition(b"\r\n\r\n")[0], what


async def test_a_head_that_is_not_well_formed_arrives_nowhere(
    pair: tuple[Box, WireUpstream],
) -> None:
    box, upstream = pair
    parts = {
        "path": box.path("/x"),
        "key": f"{_key(box)}\r\n{CLOSE}",
        "long": "x" * 20_000,
        "many": "".join(f"X-{number}: 1\r\n" for number in range(300)),
    }
    for what, text in BAD_HEADS.items():
        statuses = await _send(box, text.format(**parts).encode())
        assert statuses, what
        assert all(400 <= status < 500 for status in statuses), what
        assert upstream.take() == b"", what


async def test_a_target_with_a_host_is_the_path_of_this_server(
    pair: tuple[Box, WireUpstream],
) -> None:
    box, upstream = pair
    for target in ("http://gateway.test", "http://other.test:99", "HTTP://user:word@other.test"):
        raw = head("GET", f"{target}{box.path('/x?y=1')}", _key(box), CLOSE)
        statuses = await _send(box, raw)
        seen = upstream.take()
        if statuses == [200]:
            assert seen.startswith(b"GET /x?y=1 HTTP/1.1\r\n")
            # The host is that of the header, by which it was told whether it is for this server.
            assert b"\r\nX-Forwarded-Host: gateway.test\r\n" in seen
            assert b"other.test" not in seen
        else:
            assert all(400 <= status < 500 for status in statuses), target
            assert seen == b""


async def test_what_concerns_one_connection_is_not_passed_on(
    pair: tuple[Box, WireUpstream],
) -> None:
    box, upstream = pair
    named = (
        "close, X-Secret, X-Session-API-Key, Authorization, Cookie, Host, X-Forwarded-For,"
        " X-Forwarded-Host, Via, Content-Length, Transfer-Encoding, TE"
    )
    lines = (
        f"Connection: {named}",
        "X-Secret: hop",
        "Cookie: a=1",
        "Authorization: Basic dTpw",
        "Keep-Alive: timeout=9",
        "Proxy-Authorization: Basic cHJveHk=",
        "Proxy-Connection: keep-alive",
        "TE: gzip",
        "Upgrade: h2c",
        "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
        "Content-Length: 5",
    )
    path = box.path("/x", "agent")
    assert await _send(box, head("POST", path, _key(box), *lines) + b"hello") == [200]
    seen = upstream.take()
    for gone in (b"X-Secret", b"Keep-Alive", b"Proxy-", b"TE:", b"Upgrade", b"timeout=9"):
        assert gone not in seen
    # What says who asks, and what the message is, cannot be taken away.
    kept = (b"X-Session-API-Key: " + box.key.encode(), b"Cookie: a=1", b"Authorization: Basic dTpw")
    for line in (*kept, b"X-Forwarded-For: 127.0.0.1", b"Content-Length: 5"):
        assert seen.count(b"\r\n" + line + b"\r\n") == 1
    assert seen.endswith(b"\r\n\r\nhello")


async def test_only_a_websocket_is_switched_to(pair: tuple[Box, WireUpstream]) -> None:
    box, upstream = pair
    upgrades = (
        ("Connection: Upgrade, close", "Upgrade: h2c"),
        ("Connection: Upgrade, close", "Upgrade: TLS/1.0, websocket"),
        ("Connection: close", "Upgrade: websocket"),
    )
    for lines in upgrades:
        upstream.answers = [OK]
        assert await _send(box, head("GET", box.path("/x"), _key(box), *lines)) == [200]
        seen = upstream.take()
        assert seen.count(b" HTTP/1.1\r\n") == 1
        assert b"Upgrade" not in seen


async def test_a_sandbox_that_switches_without_being_asked_is_not_followed(
    pair: tuple[Box, WireUpstream],
) -> None:
    box, upstream = pair
    upstream.answers = [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nbytes"]
    assert await _send(box, head("GET", box.path("/x"), _key(box), CLOSE)) == [502]


async def test_an_answer_before_the_question_is_nobodys(pair: tuple[Box, WireUpstream]) -> None:
    box, upstream = pair
    poison = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
    upstream.answers = [OK + poison]
    answers = [(await box.get(tail)).body for tail in ("/1", "/2", "/3")]
    # One answer too many breaks the connection, and nobody else gets it.
    assert b"poison" not in answers
    assert answers[-1] == b"ok"

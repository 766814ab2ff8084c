"""The connections to sandboxes: where they lead, how they are kept, and what breaks them."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentsvc.base.errors import PortUnavailable
from agentsvc.http.gateway.address import address_of
from agentsvc.http.gateway.http_responses import InvalidResponse, body_of, find_end, read_head
from agentsvc.testing.backend import FakeWorld
from tests.http.gateway.steps import Box, Wire, head, until
from tests.http.gateway.wire_upstream import OK, WireUpstream, wired


@pytest.fixture
async def pair(box: Box, world: FakeWorld) -> AsyncIterator[tuple[Box, WireUpstream]]:
    async with wired(box, world) as made:
        yield made


async def test_a_sandbox_may_listen_on_a_socket_file(box: Box, world: FakeWorld) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with wired(box, world, Path(folder) / "s") as (socketed, upstream):
            answer = await socketed.get("/x")
            assert (answer.status, answer.body) == (200, b"ok")
            assert upstream.take().startswith(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\n")


async def test_a_connection_is_used_again(pair: tuple[Box, WireUpstream]) -> None:
    box, upstream = pair
    for _ in range(3):
        assert (await box.get("/x")).status == 200
        assert (await box.owner.post(box.path("/x"), data=b"body")).status == 200
    assert len(upstream.received) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        OK + b"more",
        b"HTTP/1.1 101 Switching Protocols\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_a_connection_that_cannot_go_on_is_not_used_again(
    answer: bytes, pair: tuple[Box, WireUpstream]
) -> None:
    box, upstream = pair
    upstream.answers = [answer]
    assert (await box.get("/1")).status in (200, 502)
    assert (await box.get("/2")).body == b"ok"
    assert len(upstream.received) == 2


async def test_what_is_safe_is_asked_again_where_a_kept_connection_has_ended(
    pair: tuple[Box, WireUpstream],
) -> None:
    box, upstream = pair
    assert (await box.get("/1")).status == 200
    # It reads the next request and hangs up without a word.
    upstream.answers = [b""]
    upstream.hangs_up = True
    assert (await box.get("/2")).body == b"ok"
    assert len(upstream.received) == 2
    assert await _ends(box, upstream)


async def _ends(box: Box, upstream: WireUpstream) -> bool:
    """Whether a request that changes something is made once only."""
    assert (await box.get("/3")).status == 200
    upstream.take()
    upstream.answers, upstream.hangs_up = [b""], True
    answer = await box.owner.post(box.path("/once"), data=b"body")
    return answer.status == 502 and upstream.take().count(b"POST /once") == 1


async def test_a_kept_connection_ends_with_the_client_of_its_request(
    pair: tuple[Box, WireUpstream],
) -> None:
    box, upstream = pair
    assert (await box.get("/1")).status == 200
    # It reads the next request and says nothing.
    upstream.answers = [b""]
    wire = await Wire.open(box.service)
    wire.send(head("GET", box.path("/2"), f"X-Session-API-Key: {box.key}"))
    await until(lambda: not upstream.answers)
    await wire.close()
    await until(lambda: upstream.connections == 0)


async def test_an_interim_answer_is_not_the_answer(pair: tuple[Box, WireUpstream]) -> None:
    box, upstream = pair
    upstream.answers = [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK]
    answer = await box.get("/x")
    assert (answer.status, answer.body) == (200, b"ok")
    assert "Link" not in answer.headers


async def test_interim_answers_without_end_are_no_answer(pair: tuple[Box, WireUpstream]) -> None:
    box, upstream = pair
    hints = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    upstream.answers = [hints * 1000 + OK, hints * 5000 + OK, hints * 1000 + OK]
    statuses = [(await box.get("/x")).status for _ in range(3)]
    assert statuses == [200, 502, 200]


async def test_an_answer_comes_in_any_pieces(pair: tuple[Box, WireUpstream]) -> None:
    box, upstream = pair
    upstream.step = 1
    upstream.answers = [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n",
        b"HTTP/1.1 200 Fine\nContent-Length: 5\n\nabcde",
    ]
    for _ in range(2):
        async with asyncio.timeout(30):
            assert (await box.get("/x")).body == b"abcde"
    await until(lambda: not upstream.answers)


@pytest.mark.parametrize(
    ("url", "origin", "authority", "base", "socket_path"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "127.0.0.1:8000", "", None),
        ("http://a.test/", "http://a.test:80", "a.test", "", None),
        ("https://a.test/b/c/", "https://a.test:443", "a.test", "/b/c", None),
        ("http://[::1]:9", "http://[::1]:9", "[::1]:9", "", None),
        ("http+unix://%2Frun%2Fs/a", "http://127.0.0.1:7", "127.0.0.1:7", "/a", "/run/s"),
        ("http+unix:///a", "http://127.0.0.1:7", "127.0.0.1:7", "/a", ""),
    ],
)
def test_a_url_says_where_to_connect(
    url: str, origin: str, authority: str, base: str, socket_path: str | None
) -> None:
    found = address_of(url, 7)
    assert (found.origin, found.authority, found.base) == (origin, authority, base)
    assert found.socket_path == socket_path


@pytest.mark.parametrize("url", ["http://a.test:99999", "http://[::1"])
def test_a_url_that_is_none_leads_nowhere(url: str) -> None:
    with pytest.raises(PortUnavailable):
        address_of(url)


async def test_a_host_that_is_none_is_an_answer_of_502(box: Box, world: FakeWorld) -> None:
    note = box.upstream.on_create
    world.on_create = lambda order: {**note(order), "worker_1": f"http://{'a' * 64}.test"}
    other = await Box.start(box.service, box.upstream, box.owner)
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    for headers in ({}, upgrade):
        answer = await other.get("/x", headers=headers)
        assert (answer.status, answer.json()["code"]) == (502, "port_unavailable")


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\n folded",
        b"HTTP/1.1 200 OK\r\nX A: 1",
        b"HTTP/1.1 200 OK\r\nX-A: a\rb",
        b"HTTP/1.1 2000 OK",
        b"HTTP/3 200 OK",
    ],
)
def test_an_answer_without_a_certain_end_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidResponse):
        body_of(read_head(raw), answers_head=False)


def test_a_head_without_an_end_is_refused() -> None:
    assert find_end(b"HTTP/1.1 200 OK\r\n") is None
    with pytest.raises(InvalidResponse):
        find_end(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000)

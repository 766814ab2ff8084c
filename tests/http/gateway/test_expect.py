"""A client that waits to be told to send its body is told when the request was admitted."""

import itertools
from collections.abc import AsyncIterator

import pytest

from agentsvc.testing.backend import FakeWorld
from tests.http.gateway.steps import Box, Wire, head, until
from tests.http.gateway.wire_upstream import WireUpstream, wired

EXPECT = ("Expect: 100-continue", "Content-Length: 5")
KEY = "X-Session-API-Key"
AT_ROOT = ["/api/file/upload?path=/x", "/api/conversations", "/api/bash/start_bash_command"]


@pytest.fixture
async def pair(box: Box, world: FakeWorld) -> AsyncIterator[tuple[Box, WireUpstream]]:
    async with wired(box, world) as made:
        yield made


async def _statuses(box: Box, raw: bytes, body: bytes) -> list[int]:
    """Send a head, the body once that is asked for, and return the status of every answer."""
    wire = await Wire.open(box.service)
    wire.send(raw)
    statuses = [(await wire.read_head())[0]]
    if statuses == [100]:
        wire.send(body)
        statuses.append((await wire.read_head())[0])
    await wire.close()
    return statuses


async def test_a_body_at_the_root_is_asked_for_when_the_sandbox_wants_it(
    pair: tuple[Box, WireUpstream],
) -> None:
    box, upstream = pair
    for path in AT_ROOT:
        raw = head("POST", path, f"{KEY}: {box.key}", *EXPECT)
        assert await _statuses(box, raw, b"hello") == [100, 200]
        seen = upstream.take()
        assert seen.endswith(b"\r\n\r\nhello")
        # What is read before it is passed on needs no asking there.
        assert (b"\r\nExpect: 100-continue\r\n" in seen) is path.startswith("/api/file")


async def test_a_client_is_not_asked_for_what_the_sandbox_does_not_want(
    pair: tuple[Box, WireUpstream],
) -> None:
    box, upstream = pair
    upstream.is_asking = False
    for path in ("/api/file/upload?path=/x", box.path("/x", "agent")):
        wire = await Wire.open(box.service)
        wire.send(head("POST", path, f"{KEY}: {box.key}", *EXPECT))
        await until(lambda: any(b"Expect: 100-continue" in raw for raw in upstream.received))
        # It sends it all the same, and only then is there an answer.
        wire.send(b"hello")
        assert (await wire.read_head())[0] == 200
        assert upstream.take().endswith(b"\r\n\r\nhello")
        await wire.close()


async def test_a_body_is_not_asked_for_without_a_good_key(box: Box) -> None:
    paths = (*AT_ROOT, "/api/v1/secrets", "/nowhere", box.path("/x"))
    for path, lines in itertools.product(paths, ((), (f"{KEY}: wrong",))):
        wire = await Wire.open(box.service)
        wire.send(head("POST", path, *lines, *EXPECT))
        status, headers = await wire.read_head()
        await wire.close()
        assert status in (401, 404), path
        # The body may come all the same, and is no request.
        assert headers["connection"] == "close"
    assert box.upstream.seen == []


async def test_a_paused_sandbox_asks_for_no_body_at_the_root(box: Box) -> None:
    await box.owner.post(f"/api/v1/sandboxes/{box.id}/pause")
    await box.owner.wait_for_sandbox(box.id, "PAUSED")
    raw = head("POST", AT_ROOT[0], f"{KEY}: {box.key}", *EXPECT)
    assert await _statuses(box, raw, b"hello") == [409]


async def test_the_servers_own_operations_ask_for_their_bodies(box: Box) -> None:
    body = b'{"name": "n", "value": "v"}'
    lines = (f"{KEY}: {box.owner.key}", "Expect: 100-continue", f"Content-Length: {len(body)}")
    raw = head("POST", "/api/v1/secrets", *lines, "Content-Type: application/json")
    statuses = await _statuses(box, raw, body)
    assert statuses[0] == 100
    assert statuses[1] < 300


async def test_an_older_client_is_not_asked(box: Box) -> None:
    lines = f"POST {box.path('/x')} HTTP/1.0\r\n{KEY}: {box.key}\r\n" + "\r\n".join(
        (*EXPECT, "", "")
    )
    wire = await Wire.open(box.service)
    wire.send(lines.encode() + b"hello")
    status, _ = await wire.read_head()
    await wire.close()
    assert status == 200
    assert box.upstream.seen[-1].body == b"hello"

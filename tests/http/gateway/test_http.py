"""Requests and answers pass as they are, while they come."""

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator

import aiohttp
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.config.schema import GatewayConfig
from tests.http.gateway.conftest import StartGate
from tests.http.gateway.steps import MIB, MOST_HELD, Box, Wire, head, session, until, until_still
from tests.http.gateway.upstream import DATA, Upstream


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
async def test_every_method_passes_with_its_body(method: str, box: Box) -> None:
    seen = await box.ask(method, "/any/where?a=1&b=%20x", data=b"some bytes")
    assert (seen.method, seen.raw_path) == (method, "/any/where?a=1&b=%20x")
    assert seen.body == b"some bytes"


async def test_a_head_request_gets_the_length_and_no_body(box: Box) -> None:
    answer = await box.owner.request("HEAD", box.path("/data"))
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Content-Length"] == str(len(DATA))


@pytest.mark.parametrize("method", ["TRACE", "CONNECT"])
async def test_methods_that_are_for_proxies_are_refused(method: str, box: Box) -> None:
    wire = await Wire.open(box.service)
    key = f"X-Session-API-Key: {box.key}"
    wire.send(head(method, box.path(), key, "Connection: close"))
    status, _ = await wire.read_head()
    await wire.close()
    assert status in (400, 404, 405)
    assert box.upstream.seen == []


@pytest.mark.parametrize(
    "tail", ["/a%2Fb", "//a", "/a/../b", "/%C3%A9?q=a+b&q=%2B", "/x?", "/x;y=1?z#", "/%zz"]
)
async def test_the_path_is_not_rewritten(tail: str, box: Box) -> None:
    wire = await Wire.open(box.service)
    wire.send(head("GET", box.path(tail), f"X-Session-API-Key: {box.key}", "Connection: close"))
    status, _ = await wire.read_head()
    await wire.close()
    assert status == 200
    assert box.upstream.seen[-1].raw_path == tail.removesuffix("#").removesuffix("?")


async def test_a_range_is_answered_by_the_sandbox(box: Box) -> None:
    answer = await box.get("/data", headers={"Range": "bytes=10-19"})
    assert (answer.status, answer.body) == (206, DATA[10:20])
    assert answer.headers["Content-Range"] == f"bytes 10-19/{len(DATA)}"
    assert answer.headers["Content-Length"] == "10"


async def test_an_answer_passes_part_by_part(box: Box) -> None:
    async with session(box.key) as client, client.get(box.url("/stream")) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        for number in range(5):
            part = f"data: {number}\n\n".encode()
            # The next part is made only when this one has arrived.
            box.upstream.steps.put_nowait(part)
            assert await response.content.readexactly(len(part)) == part
        box.upstream.steps.put_nowait(b"")
        assert await response.content.read() == b""


async def test_a_body_passes_part_by_part_while_it_is_answered(box: Box) -> None:
    parts: asyncio.Queue[bytes] = asyncio.Queue()

    async def body() -> AsyncIterator[bytes]:
        while part := await parts.get():
            yield part

    async with session(box.key) as client:
        parts.put_nowait(b"first")
        async with client.post(box.url("/duplex"), data=body()) as response:
            assert await response.content.readexactly(5) == b"FIRST"
            parts.put_nowait(b"second")
            assert await response.content.readexactly(6) == b"SECOND"
            parts.put_nowait(b"")
            assert await response.content.read() == b""


async def test_a_large_body_has_no_limit(box: Box) -> None:
    size = 64 * MIB

    async def body() -> AsyncIterator[bytes]:
        part = bytes(MIB)
        for _ in range(size // MIB):
            yield part

    async with session(box.key) as client, client.put(box.url("/sink"), data=body()) as response:
        assert await response.json() == {"received": size}


async def test_a_client_that_does_not_read_stops_the_sandbox(box: Box) -> None:
    size = 2 * MOST_HELD
    wire = await Wire.open(box.service)
    key = f"X-Session-API-Key: {box.key}"
    wire.send(head("GET", box.path(f"/big?bytes={size}"), key, "Connection: close"))
    await wire.read_head()
    await until_still(box.upstream)
    rest = 0
    while part := await wire.reader.read(MIB):
        rest += len(part)
    await wire.close()
    assert rest == size


async def test_a_sandbox_that_does_not_read_stops_the_client(box: Box) -> None:
    wire = await Wire.open(box.service)
    key = f"X-Session-API-Key: {box.key}"
    length = f"Content-Length: {2 * MOST_HELD}"
    # The stream's handler never reads its body.
    wire.send(head("GET", box.path("/stream?type=text/plain"), key, length))
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 2 * MOST_HELD:
            wire.send(bytes(MIB))
            async with asyncio.timeout(3):
                await wire.writer.drain()
            sent += MIB
    assert sent < MOST_HELD
    box.upstream.steps.put_nowait(b"")
    wire.writer.transport.abort()


async def test_a_sandbox_may_ask_for_the_body_first(box: Box) -> None:
    wire = await Wire.open(box.service)
    lines = (f"X-Session-API-Key: {box.key}", "Expect: 100-continue", "Content-Length: 5")
    wire.send(head("POST", box.path("/echo"), *lines))
    assert await wire.read_head() == (100, {})
    wire.send(b"hello")
    status, _ = await wire.read_head()
    await wire.close()
    assert status == 200
    assert box.upstream.seen[-1].body == b"hello"


async def test_a_sandbox_may_refuse_before_the_body_is_sent(box: Box) -> None:
    wire = await Wire.open(box.service)
    lines = (f"X-Session-API-Key: {box.key}", "Expect: 100-continue", "Content-Length: 5")
    wire.send(head("POST", box.path("/picky"), *lines))
    status, headers = await wire.read_head()
    assert (status, headers["connection"]) == (413, "close")
    assert await wire.read(int(headers["content-length"])) == b"too much for me"
    await wire.close()


async def test_a_body_is_not_asked_for_without_a_key(box: Box) -> None:
    wire = await Wire.open(box.service)
    wire.send(head("POST", box.path("/echo"), "Expect: 100-continue", "Content-Length: 5"))
    status, _ = await wire.read_head()
    await wire.close()
    assert status == 401


async def test_a_compressed_answer_stays_compressed(box: Box) -> None:
    box.upstream.answer_headers = [("Content-Encoding", "br"), ("Vary", "Accept-Encoding")]
    async with session(box.key) as client, client.get(box.url("/x")) as response:
        assert response.headers["Content-Encoding"] == "br"
        assert await response.read() == b'{"ok": true}'


async def test_an_answer_that_breaks_off_breaks_off(box: Box) -> None:
    wire = await Wire.open(box.service)
    wire.send(head("GET", box.path("/broken"), f"X-Session-API-Key: {box.key}"))
    status, headers = await wire.read_head()
    assert (status, headers["content-length"]) == (200, "1000")
    assert await wire.read_all() in (b"begun", b"")
    await wire.close()


async def test_a_client_that_goes_ends_the_request_in_the_sandbox(box: Box) -> None:
    wire = await Wire.open(box.service)
    wire.send(head("GET", box.path("/stream"), f"X-Session-API-Key: {box.key}"))
    await wire.read_head()
    wire.writer.transport.abort()

    async def is_noticed() -> bool:
        box.upstream.steps.put_nowait(b"x")
        await asyncio.sleep(0)
        return box.upstream.lost.is_set()

    await until(is_noticed)


async def test_the_head_of_a_request_does_not_wait_for_its_body(box: Box) -> None:
    wire = await Wire.open(box.service)
    lines = (f"X-Session-API-Key: {box.key}", "Transfer-Encoding: chunked")
    wire.send(head("POST", box.path("/duplex"), *lines))
    status, _ = await wire.read_head()
    assert status == 200
    wire.send(b"5\r\nhello\r\n0\r\n\r\n")
    assert await wire.read(15) == b"5\r\nHELLO\r\n0\r\n\r\n"
    await wire.close()


@pytest.mark.parametrize(("method", "length"), [("GET", 0), ("POST", 0), ("POST", 10)])
async def test_a_client_that_does_not_wait_for_the_answer_ends_the_request(
    method: str, length: int, box: Box
) -> None:
    wire = await Wire.open(box.service)
    lines = (f"X-Session-API-Key: {box.key}", f"Content-Length: {length}")
    wire.send(head(method, box.path("/hang"), *lines))
    await until(lambda: bool(box.upstream.seen))
    wire.writer.transport.abort()
    await until(box.upstream.lost.is_set)


async def test_a_sandbox_may_answer_before_the_body_has_come(box: Box) -> None:
    wire = await Wire.open(box.service)
    lines = (f"X-Session-API-Key: {box.key}", f"Content-Length: {MIB}")
    wire.send(head("POST", box.path("/hasty"), *lines) + b"some of it")
    status, headers = await wire.read_head()
    assert status == 409
    assert await wire.read(int(headers["content-length"])) == b"enough"
    await wire.close()


async def test_a_body_that_turns_bad_on_its_way_ends_the_request(
    start_gate: StartGate, upstream: Upstream
) -> None:
    # aiohttp tells nobody of it who waits for the body already, so that it is one that does not come.
    gate = await start_gate(GatewayConfig(start_seconds=10, connect_seconds=10), stall_seconds=1.0)
    box = await Box.start(gate, upstream, await gate.make_client("owner", Role.MEMBER))
    wire = await Wire.open(box.service)
    lines = (f"X-Session-API-Key: {box.key}", "Transfer-Encoding: chunked")
    wire.send(head("POST", box.path("/sink"), *lines) + b"5\r\nhello\r\n")
    await until(lambda: box.upstream.received == 5)
    wire.send(b"this is no chunk\r\n")
    status, headers = await wire.read_head()
    assert (status, headers["connection"]) == (400, "close")
    await wire.close()


async def test_a_compressed_body_arrives_as_what_it_means(box: Box) -> None:
    packed = gzip.compress(b"hello" * 1000)
    headers = {"Content-Encoding": "gzip", "X-Session-API-Key": box.key}
    async with session() as client:
        async with client.post(box.url("/x"), data=packed, headers=headers) as response:
            assert response.status == 200
        async with client.post(box.url("/x"), data=b"no gzip", headers=headers) as response:
            assert response.status == 400
    seen = box.upstream.seen[0]
    assert (seen.body, seen.one("Content-Encoding")) == (b"hello" * 1000, None)
    assert len(box.upstream.seen) == 1


async def test_a_port_where_nothing_answers_is_said_so(box: Box) -> None:
    await box.upstream.stop()
    answer = await box.get("/x")
    assert (answer.status, answer.json()["code"]) == (502, "port_unavailable")
    assert answer.headers["Retry-After"]
    answer = await box.owner.post(box.path("/x"), data=b"body")
    assert (answer.status, answer.json()["code"]) == (502, "port_unavailable")


async def test_an_endless_stream_does_not_hold_up_a_stop(box: Box) -> None:
    async with session(box.key) as client, client.get(box.url("/stream")) as response:
        box.upstream.steps.put_nowait(b"data: 1\n\n")
        await response.content.readexactly(9)
        # Were it waited for, this would take the whole grace period for requests.
        stopping = asyncio.gather(box.service.stop())
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()
        await stopping

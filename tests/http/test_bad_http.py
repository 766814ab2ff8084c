"""Requests that are refused below the application are answered and logged without what they said."""

import asyncio
import gzip
import json
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web

from agentsvc.base.values import new_id
from agentsvc.http.server.application import Runner
from tests.service import Service

SECRET = "SECRETVALUE"  # noqa: S105  # what must not be repeated
PATH = "/api/v1/app-conversations"


def _request(*lines: str, first: str = f"GET {PATH} HTTP/1.1", body: str = "") -> bytes:
    return "\r\n".join((first, "Host: localhost", *lines, "", body)).encode()


NOT_HTTP = {
    "a control character in a header": _request(f"X-Session-API-Key: {SECRET}\x01"),
    "a space before the colon": _request(f"X-Session-API-Key : {SECRET}"),
    "a header without a colon": _request(f"X-Session-API-Key {SECRET}"),
    "a header too long": _request(f"X-Session-API-Key: {SECRET}{'x' * 9000}"),
    "too many headers": _request(*(f"X-Number-{n}: {SECRET}" for n in range(200))),
    "an unknown encoding": _request(
        "Content-Encoding: br",
        f"X-Session-API-Key: {SECRET}",
        "Content-Length: 2",
        first="POST /api/settings HTTP/1.1",
        body="{}",
    ),
    "an unknown method": _request(first=f"FOO /{SECRET} HTTP/1.1"),
    "a URL too long": _request(first=f"GET /{SECRET}{'x' * 9000} HTTP/1.1"),
    "two lengths": _request(
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        first=f"POST /{SECRET} HTTP/1.1",
        body="0\r\n\r\n",
    ),
    "a negative length": _request("Content-Length: -1", first=f"POST /{SECRET} HTTP/1.1"),
    "something else": f"\x16\x03\x01 {SECRET}\r\n\r\n".encode(),
}
CHUNKED = ("Transfer-Encoding: chunked", "Content-Type: application/json")


class Heard:
    """A raw answer."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }

    def json(self) -> Any:
        return json.loads(self.body)


async def _send(url: str, raw: bytes, later: bytes = b"") -> Heard:
    """Send bytes, some perhaps a little later, and return the answer when the connection ends."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(raw)
        if later:
            await asyncio.sleep(0.2)
            writer.write(later)
        return Heard(await asyncio.wait_for(reader.read(), 30))
    finally:
        writer.close()


def _check(heard: Heard, status: int, code: str, caplog: pytest.LogCaptureFixture) -> None:
    """Assert that an answer has the one shape, and that neither it nor the log quotes the request."""
    assert heard.status == status
    assert heard.headers["content-type"].startswith("application/json")
    body = heard.json()
    assert set(body) == {"detail", "code", "request_id"}
    assert body["code"] == code
    assert body["request_id"] == heard.headers["x-request-id"] != ""
    assert SECRET.encode() not in heard.raw
    for record in caplog.records:
        assert SECRET not in f"{record.getMessage()} {vars(record)}"
        assert record.levelno < logging.WARNING
        assert record.name != "aiohttp.server"


@pytest.mark.parametrize("what", NOT_HTTP)
async def test_what_is_not_http_is_refused_without_being_repeated(
    what: str, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    heard = await _send(service.url, NOT_HTTP[what])
    _check(heard, 400, "malformed_body", caplog)
    [line] = [record for record in caplog.records if record.getMessage() == "request refused"]
    assert line.exc_info is None


@pytest.mark.parametrize("path", [PATH, "/no/such/path"])
async def test_an_unknown_expectation_is_refused_on_any_path(
    path: str, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    heard = await _send(service.url, _request(f"Expect: {SECRET}", first=f"GET {path} HTTP/1.1"))
    _check(heard, 417, "bad_request", caplog)


async def test_a_bad_chunk_is_refused_without_being_repeated(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    client = await service.make_client()
    caplog.set_level(logging.DEBUG)
    raw = _request(
        *CHUNKED,
        f"X-Session-API-Key: {client.key}",
        first="POST /api/settings HTTP/1.1",
        body=f"{SECRET}\r\n",
    )
    heard = await _send(service.url, raw)
    assert heard.status == 400
    assert heard.json()["code"] == "malformed_body"
    assert SECRET.encode() not in heard.raw


async def test_a_bad_chunk_that_nobody_reads_leaves_no_traceback(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    raw = _request(*CHUNKED, first="POST /no/such/path HTTP/1.1", body=f"{SECRET}\r\n")
    heard = await _send(service.url, raw)
    assert heard.status in (400, 404)
    assert SECRET.encode() not in heard.raw
    for record in caplog.records:
        assert SECRET not in f"{record.getMessage()} {vars(record)}"
        assert record.exc_info is None


@pytest.fixture
async def broken_url() -> AsyncIterator[str]:
    """Return the URL of an application whose handlers fail, with no middleware to catch it."""

    async def fail(_request: web.Request) -> web.Response:
        raise KeyError("a bug")

    async def fail_late(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begun")
        raise KeyError("a late bug")

    app = web.Application()
    app.router.add_get("/", fail)
    app.router.add_get("/late", fail_late)
    runner = Runner(app, grace_seconds=1)
    await runner.setup()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    await runner.listen(listener)
    host, port = runner.addresses[0]
    yield f"http://{host}:{port}"
    await runner.cleanup()


async def test_a_bug_outside_the_middleware_is_an_internal_error_of_the_one_shape(
    broken_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard = await _send(broken_url, _request(first="GET / HTTP/1.1"))
    assert heard.status == 500
    assert heard.json()["code"] == "internal"
    [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert line.exc_info is not None


async def test_a_response_that_fails_late_just_ends(broken_url: str) -> None:
    heard = await _send(broken_url, _request(first="GET /late HTTP/1.1"))
    assert heard.raw.endswith(b"begun\r\n")


async def test_a_broken_body_that_nobody_reads_leaves_no_traceback(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    raw = _request(
        "Content-Encoding: gzip",
        f"Content-Length: {len(SECRET)}",
        first="POST /no/such/path HTTP/1.1",
        body=SECRET,
    )
    heard = await _send(service.url, raw)
    assert heard.status == 404
    assert "remaining request body refused" in caplog.messages
    assert all(record.exc_info is None for record in caplog.records)


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_broken_body_that_nobody_reads_ends_the_connection(
    service: Service, is_late: bool
) -> None:
    client = await service.make_client()
    raw = _request(
        "Content-Encoding: gzip",
        f"Content-Length: {len(SECRET)}",
        f"X-Session-API-Key: {client.key}",
        first=f"POST /api/v1/sandboxes/{new_id()}/resume HTTP/1.1",
        body="" if is_late else SECRET,
    )
    heard = await _send(service.url, raw, later=SECRET.encode() if is_late else b"")
    assert heard.status == 404
    assert heard.headers["connection"] == "close"


async def test_a_packed_body_that_nobody_reads_is_not_unpacked_to_its_end(
    service: Service,
) -> None:
    """A short one may be very long when it is unpacked, and nobody else is served meanwhile."""
    raw = _request(
        "Content-Encoding: gzip",
        "Content-Length: 1000000",
        first="POST /no/such/path HTTP/1.1",
    )
    heard = await _send(service.url, raw + gzip.compress(bytes(100_000)))
    assert heard.status == 404
    assert heard.headers["connection"] == "close"


async def test_a_packed_body_that_nobody_reads_leaves_the_connection_as_it_was(
    service: Service,
) -> None:
    packed = gzip.compress(b"{}")
    first = _request(
        "Content-Encoding: gzip",
        f"Content-Length: {len(packed)}",
        first="POST /no/such/path HTTP/1.1",
    )
    second = _request("Connection: close", first="GET /alive HTTP/1.1")
    heard = await _send(service.url, first + packed + second)
    assert heard.status == 404
    assert b"HTTP/1.1 200" in heard.body


async def test_a_bad_chunk_that_comes_later_ends_the_request(
    service: Service,
) -> None:
    # aiohttp tells nobody of it who waits for the body already, so that it is one that does not come.
    limits = msgspec.structs.replace(service.config.server, stall_seconds=0.3)
    service.config = msgspec.structs.replace(service.config, server=limits)
    await service.restart()
    client = await service.make_client()
    raw = _request(
        *CHUNKED, f"X-Session-API-Key: {client.key}", first="POST /api/settings HTTP/1.1"
    )
    heard = await _send(service.url, raw, later=f"{SECRET}\r\n".encode())
    assert heard.status == 400
    assert heard.json()["code"] == "malformed_body"
    assert SECRET.encode() not in heard.raw

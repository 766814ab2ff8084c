"""Clients that each send their next request when they have the answer to the last one.

They are sockets of one thread, without an HTTP library, so that they cost less than the server.
"""

import select
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from agentsvc.base.values import monotonic
from tests.bench.figures import percentile

_WARM_UP_SECONDS: Final = 0.3
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length:"
_READ_BYTES: Final = 2**20

type MakeRequest = Callable[[], bytes]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The rate, the median and 99th percentile of the waits, and the processor time of a request."""

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


def request_to(
    url: str, path: str, *, key: str = "", method: str = "GET", body: bytes | None = None
) -> bytes:
    """Return a whole request."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {url.removeprefix('http://')}"]
    lines += [f"X-Session-API-Key: {key}"] if key else []
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join((*lines, "", "")).encode() + (body or b"")


def fetch(url: str, request: bytes) -> bytes:
    """Return the body of one answer; raises AssertionError for one that is not a success."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        one = _Client(connection, lambda: request)
        one.send()
        while not one.receive():
            pass
        return one.body


def run_clients(
    url: str,
    requests: list[MakeRequest],
    *,
    seconds: float,
    cpu_seconds: Callable[[], float],
) -> Measured:
    """Keep one connection for each maker of requests busy, and measure behind a short warm-up.

    `cpu_seconds` tells how much time of processors the server has used. Raises AssertionError for an
    answer that is not a success.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    poll = select.epoll()
    clients: dict[int, _Client] = {}
    try:
        for make in requests:
            one = _Client(socket.create_connection((host, int(port))), make)
            clients[one.connection.fileno()] = one
            poll.register(one.connection.fileno(), select.EPOLLIN)
            one.send()
        _run(poll, clients, monotonic() + _WARM_UP_SECONDS)
        began, cpu_began = monotonic(), cpu_seconds()
        took = _run(poll, clients, began + seconds)
        passed, used = monotonic() - began, cpu_seconds() - cpu_began
    finally:
        poll.close()
        for one in clients.values():
            one.connection.close()
    return Measured(
        per_second=len(took) / passed,
        p50_ms=1000 * percentile(took, 0.5),
        p99_ms=1000 * percentile(took, 0.99),
        cpu_ms=1000 * used / len(took),
    )


def _run(poll: select.epoll, clients: dict[int, "_Client"], until: float) -> list[float]:
    took: list[float] = []
    while monotonic() < until:
        for number, _ in poll.poll(1.0):
            one = clients[number]
            if one.receive():
                took.append(monotonic() - one.sent_at)
                one.send()
    return took


class _Client:
    """One connection."""

    def __init__(self, connection: socket.socket, make: MakeRequest) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.sent_at = 0.0
        self.body = b""
        self._make = make
        self._got = b""

    def send(self) -> None:
        request = self._make()
        self._got = b""
        self.sent_at = monotonic()
        self.connection.sendall(request)

    def receive(self) -> bool:
        """Take in what has come, and return whether that is a whole answer."""
        data = self.connection.recv(_READ_BYTES)
        assert data, "the server closed the connection"
        self._got += data
        head, end, self.body = self._got.partition(_HEAD_END)
        if not end:
            return False
        assert head.startswith(b"HTTP/1.1 2"), self._got[:500]
        length = head.lower().partition(_LENGTH)[2].partition(b"\r\n")[0]
        return len(self.body) >= int(length)

"""Pooled HTTP/1.1 connections to sandbox ports: one exchange at a time, then reused.

Back pressure applies in both directions: no side is read faster than the other side accepts.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, cast

from aiohttp import web

from agentsvc.agentserver import Confirm
from agentsvc.http.gateway.address import Address, connect
from agentsvc.http.gateway.http_responses import (
    HEAD_BYTES,
    Body,
    InvalidResponse,
    ResponseHead,
    SizedBody,
    body_of,
    find_end,
    read_head,
)
from agentsvc.http.gateway.splice import splice

_BUFFER_BYTES: Final = 512 * 1024
"""Bytes of a response that may wait for their reader before reading is paused."""
_KEEP_SECONDS: Final = 2.0
"""Seconds that an idle connection is kept: agent servers close theirs after 5 s."""
_FRESH_SECONDS: Final = 1.0
"""Maximum idle seconds of a connection for a request that cannot be repeated."""


class ConnectionBroken(Exception):
    """A connection failed, or its peer sent invalid HTTP."""


class ClientBody:
    """Writes a response body that needs no framing to the client's connection."""

    def __init__(self, request: web.Request) -> None:
        self._protocol = request.protocol
        self._writer = request.writer

    @property
    def transport(self) -> asyncio.Transport | None:
        """The client's transport; None if it has disconnected."""
        return self._protocol.transport

    @property
    def is_full(self) -> bool:
        """Whether the write buffer is full because the client does not read."""
        return self._protocol.writing_paused

    def write(self, data: bytes) -> None:
        """Send bytes without waiting; dropped if the client has disconnected."""
        if self._protocol.transport is not None:
            self._protocol.transport.write(data)

    async def flush(self) -> None:
        """Wait until the write buffer has room again."""
        await self._writer.drain()


class PooledConnection(asyncio.Protocol):
    """A connection to a port."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._failure: Exception | None = None
        self._raw = bytearray()
        self._interim_bytes = 0
        self._answers_head = False
        self._on_continue: Callable[[], None] | None = None
        self._is_in_exchange = False
        self._head: ResponseHead | None = None
        self._body: Body | None = None
        self._chunks: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._is_reading = True
        self._reader: asyncio.Future[None] | None = None
        self._outlet: ClientBody | None = None
        self._is_writable = True
        self._writer: asyncio.Future[None] | None = None
        self.idle_since = 0.0
        self.is_used = False
        """Whether it has finished an earlier exchange."""

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the response; invalid HTTP fails the connection."""
        try:
            self._receive(data)
        except InvalidResponse as exc:
            self.fail(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        """End a body without a length, or fail the exchange in progress."""
        if self._body is not None and not self._body.is_done and exc is None:
            try:
                self._body.feed_end()
            except InvalidResponse as early:
                exc = early
        self.fail(exc or ConnectionResetError("the connection was closed"))

    def pause_writing(self) -> None:
        """Make `send` wait."""
        self._is_writable = False

    def resume_writing(self) -> None:
        """Wake `send`."""
        self._is_writable = True
        _wake(self._writer)

    # Called by an exchange.

    @property
    def is_open(self) -> bool:
        """Whether the connection can be used for an exchange."""
        return self._failure is None and self._transport is not None

    @property
    def has_answered(self) -> bool:
        """Whether any byte of the response has arrived."""
        return self._head is not None or bool(self._raw)

    @property
    def is_done(self) -> bool:
        """Whether the whole response has arrived, even if it is not read yet."""
        return self._body is not None and self._body.is_done

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        """The trailers of the response, once its body has been received."""
        return self._body.trailers if self._body is not None else ()

    def ask(
        self, head: bytes, *, answers_head: bool, on_continue: Callable[[], None] | None = None
    ) -> None:
        """Begin an exchange: send the head of a request, optionally with body bytes.

        `on_continue` is called when the sandbox answers `100 Continue`.
        """
        self._is_in_exchange = True
        self._answers_head = answers_head
        self._on_continue = on_continue
        self._head = self._body = None
        self._interim_bytes = 0
        self.write(head)

    def write(self, data: bytes) -> None:
        """Send bytes without waiting; raises ConnectionBroken."""
        if self._failure is not None or self._transport is None:
            raise ConnectionBroken from self._failure
        self._transport.write(data)

    async def send(self, data: bytes) -> None:
        """Send bytes and wait while the write buffer is full; raises ConnectionBroken."""
        self.write(data)
        while not self._is_writable and self._failure is None:
            self._writer = self._loop.create_future()
            await self._writer

    @property
    def has_more(self) -> bool:
        """Whether `read` would return at once, with data or at the end."""
        return bool(self._chunks) or self.is_done

    async def head(self) -> ResponseHead:
        """Wait for the head of the response; raises ConnectionBroken."""
        while self._head is None:
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """Return the next bytes of the body, empty at its end; raises ConnectionBroken."""
        while not self._chunks:
            if self.is_done:
                return b""
            await self._wait()
        return self.read_now()

    def read_now(self) -> bytes:
        """Return the buffered bytes of the body without waiting; may be empty."""
        parts = self._chunks
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._buffered_bytes = 0
        self._resume_reading()
        return data

    async def pour(self, outlet: ClientBody) -> None:
        """Write the rest of the body to an outlet as it arrives; raises ConnectionBroken.

        The bytes bypass the caller: they are spliced, or written by `data_received`.
        """
        self._outlet = outlet
        if self._chunks:
            outlet.write(self.read_now())
        if isinstance(self._body, SizedBody):
            await splice(self._transport, outlet, self._body.left, self._body.skip)
        while not self.is_done:
            await self._wait()
            await outlet.flush()
            self._resume_reading()

    def fail(self, failure: Exception) -> None:
        """Abort the connection; pending calls raise ConnectionBroken with this cause."""
        if self._failure is None:
            self._failure = failure
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        _wake(self._reader)
        _wake(self._writer)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def finish(self, *, is_sent: bool) -> bool:
        """End an exchange; close the connection and return False unless it can be reused.

        `is_sent`: whether the whole request was sent.
        """
        is_whole = is_sent and self.is_done and not self._chunks
        may_go_on = is_whole and self._head is not None and self._head.may_be_followed
        self._is_in_exchange = False
        self._on_continue = self._outlet = None
        self.is_used = True
        if not is_whole:
            self.fail(ConnectionAbortedError("the exchange was not completed"))
        elif not may_go_on:
            self.close()
        return may_go_on and self.is_open

    async def _wait(self) -> None:
        if self._failure is not None:
            raise ConnectionBroken from self._failure
        self._reader = self._loop.create_future()
        await self._reader

    def _receive(self, data: bytes) -> None:
        if self._body is None:
            data = self._receive_heads(data)
            if self._body is None:
                return
        parts, rest = ([], data) if self._body.is_done else self._body.feed(data)
        self._deliver(parts)
        if rest:
            # No request is pending that these bytes could answer.
            raise InvalidResponse("unexpected data after the response")

    def _deliver(self, parts: list[bytes]) -> None:
        """Pass parts of the body to the reader or outlet; pause reading if its buffer is full."""
        outlet = self._outlet
        if outlet is None:
            self._chunks.extend(parts)
            self._buffered_bytes += sum(map(len, parts))
            is_full = self._buffered_bytes > _BUFFER_BYTES
        else:
            for part in parts:
                outlet.write(part)
            is_full = outlet.is_full
        if is_full and self._is_reading and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()
        if outlet is None or is_full or self.is_done:
            _wake(self._reader)

    def _resume_reading(self) -> None:
        if not self._is_reading and self._transport is not None:
            self._is_reading = True
            self._transport.resume_reading()

    def _receive_heads(self, data: bytes) -> bytes:
        """Parse interim responses and the final head; return the bytes after it."""
        if not self._is_in_exchange:
            raise InvalidResponse("unexpected data without a request")
        self._raw += data
        while (found := find_end(self._raw)) is not None:
            head = read_head(self._raw[: found[0]])
            del self._raw[: found[1]]
            if not head.is_interim:
                rest = bytes(self._raw)
                self._raw.clear()
                self._body = body_of(head, answers_head=self._answers_head)
                self._head = head
                return rest
            # Interim responses such as 103 are not forwarded: browsers only use early hints over
            # HTTP/2, and nginx before 1.29 and Python's http.client take them for the response.
            self._interim_bytes += found[1]
            if self._interim_bytes > HEAD_BYTES:
                raise InvalidResponse("too many interim responses")
            if head.status == HTTPStatus.CONTINUE and self._on_continue is not None:
                self._on_continue()
                self._on_continue = None
        return b""


class Pool:
    """The idle connections to all ports."""

    def __init__(self, *, connect_seconds: float) -> None:
        self.connect_seconds = connect_seconds
        self._idle: dict[Address, deque[PooledConnection]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def connect(self, address: Address, confirm: Confirm | None = None) -> PooledConnection:
        """Open a connection and verify its peer; raises ConnectionBroken."""
        try:
            _, made = await connect(
                address, PooledConnection, confirm=confirm, time_limit=self.connect_seconds
            )
        except (OSError, TimeoutError, ValueError) as exc:
            raise ConnectionBroken from exc
        return made

    def find(self, address: Address, *, is_safe: bool) -> PooledConnection | None:
        """Return an idle connection, or None.

        The sandbox may close it just as it is used. A safe request is repeated then; any other one
        only gets a connection that was used within the last second.
        """
        idle = self._idle.get(address)
        since = asyncio.get_running_loop().time() - (_KEEP_SECONDS if is_safe else _FRESH_SECONDS)
        while idle and idle[-1].idle_since >= since:
            found = idle.pop()
            if found.is_open:
                return found
        return None

    def put(self, address: Address, connection: PooledConnection) -> None:
        """Keep a connection for reuse for a while."""
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(address, deque()).append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(_KEEP_SECONDS, self._close_old)

    def close(self) -> None:
        """Close all idle connections."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()

    def _close_old(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time() - _KEEP_SECONDS
        for idle in self._idle.values():
            while idle and (idle[0].idle_since <= before or not idle[0].is_open):
                idle.popleft().close()
        self._idle = {address: idle for address, idle in self._idle.items() if idle}
        self._sweep = loop.call_later(_KEEP_SECONDS, self._close_old) if self._idle else None


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)

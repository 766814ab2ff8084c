"""Connections to the ports of sandboxes: one exchange at a time on each, kept for the next one.

Neither side is read faster than the other one takes it.
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

_HELD_BYTES: Final = 512 * 1024
"""How much of an answer may wait for its reader before the sandbox is stopped."""
_KEEP_SECONDS: Final = 2.0
"""How long an idle connection is kept: agent servers end theirs after 5 s."""
_FRESH_SECONDS: Final = 1.0
"""How long it may have been idle for a request that changes something."""


class ConnectionBroken(Exception):
    """A connection failed, or what came over it is no HTTP."""


class ClientBody:
    """The way of a body to a client, for what needs no framing."""

    def __init__(self, request: web.Request) -> None:
        self._protocol = request.protocol
        self._writer = request.writer

    @property
    def transport(self) -> asyncio.Transport | None:
        """Its connection, if it still has one."""
        return self._protocol.transport

    @property
    def is_full(self) -> bool:
        """Whether the client does not take what was written."""
        return self._protocol.writing_paused

    def write(self, data: bytes) -> None:
        """Send bytes without waiting; bytes that cannot be sent any more are lost."""
        if self._protocol.transport is not None:
            self._protocol.transport.write(data)

    async def flush(self) -> None:
        """Wait until what was written is on its way."""
        await self._writer.drain()


class PooledConnection(asyncio.Protocol):
    """One connection to a port."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._failure: Exception | None = None
        self._raw = bytearray()
        self._interim_bytes = 0
        self._answers_head = False
        self._on_continue: Callable[[], None] | None = None
        self._is_asked = False
        self._head: ResponseHead | None = None
        self._body: Body | None = None
        self._parts: deque[bytes] = deque()
        self._held = 0
        self._is_reading = True
        self._reader: asyncio.Future[None] | None = None
        self._outlet: ClientBody | None = None
        self._is_writable = True
        self._writer: asyncio.Future[None] | None = None
        self.idle_since = 0.0
        self.is_used = False
        """Whether it has carried an exchange before this one."""

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take note of the way out."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take in what the sandbox says."""
        try:
            self._take(data)
        except InvalidResponse as exc:
            self.fail(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        """Take in that the connection is no more."""
        if self._body is not None and not self._body.is_done and exc is None:
            try:
                self._body.feed_end()
            except InvalidResponse as early:
                exc = early
        self.fail(exc or ConnectionResetError("the connection was closed"))

    def pause_writing(self) -> None:
        """Let the writer wait."""
        self._is_writable = False

    def resume_writing(self) -> None:
        """Let the writer go on."""
        self._is_writable = True
        _wake(self._writer)

    # What an exchange calls.

    @property
    def is_open(self) -> bool:
        """Whether it can be used for an exchange."""
        return self._failure is None and self._transport is not None

    @property
    def has_answered(self) -> bool:
        """Whether anything of an answer has come."""
        return self._head is not None or bool(self._raw)

    @property
    def is_done(self) -> bool:
        """Whether all of the answer has come, though it may not be read yet."""
        return self._body is not None and self._body.is_done

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        """The trailers behind the answer, once it has been read."""
        return self._body.trailers if self._body is not None else ()

    def ask(
        self, head: bytes, *, answers_head: bool, on_continue: Callable[[], None] | None = None
    ) -> None:
        """Begin an exchange with the head of a request, and perhaps some of its body.

        `on_continue` is called when the sandbox asks for the body.
        """
        self._is_asked = True
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
        """Send bytes and wait while the sandbox does not take them; raises ConnectionBroken."""
        self.write(data)
        while not self._is_writable and self._failure is None:
            self._writer = self._loop.create_future()
            await self._writer

    @property
    def has_more(self) -> bool:
        """Whether there is something to read now, be it the end."""
        return bool(self._parts) or self.is_done

    async def head(self) -> ResponseHead:
        """Return the head of the answer; raises ConnectionBroken."""
        while self._head is None:
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """Return what has come of the body, nothing at its end; raises ConnectionBroken."""
        while not self._parts:
            if self.is_done:
                return b""
            await self._wait()
        return self.read_now()

    def read_now(self) -> bytes:
        """Return what has come of the body without waiting, perhaps nothing."""
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._held = 0
        self._go_on_reading()
        return data

    async def pour(self, outlet: ClientBody) -> None:
        """Put what comes of the body through an outlet until its end; raises ConnectionBroken.

        It goes there as it comes, past whoever called this.
        """
        self._outlet = outlet
        if self._parts:
            outlet.write(self.read_now())
        if isinstance(self._body, SizedBody):
            await splice(self._transport, outlet, self._body.left, self._body.skip)
        while not self.is_done:
            await self._wait()
            await outlet.flush()
            self._go_on_reading()

    def fail(self, failure: Exception) -> None:
        """End the connection: whoever waits for something hears why."""
        if self._failure is None:
            self._failure = failure
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        _wake(self._reader)
        _wake(self._writer)

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def finish(self, *, is_sent: bool) -> bool:
        """End an exchange and tell whether there may be another one; if not, it is closed.

        `is_sent` says whether all of the request was sent.
        """
        is_whole = is_sent and self.is_done and not self._parts
        may_go_on = is_whole and self._head is not None and self._head.may_be_followed
        self._is_asked = False
        self._on_continue = self._outlet = None
        self.is_used = True
        if not is_whole:
            self.fail(ConnectionAbortedError("nobody wants the rest"))
        elif not may_go_on:
            self.close()
        return may_go_on and self.is_open

    async def _wait(self) -> None:
        if self._failure is not None:
            raise ConnectionBroken from self._failure
        self._reader = self._loop.create_future()
        await self._reader

    def _take(self, data: bytes) -> None:
        if self._body is None:
            data = self._take_head(data)
            if self._body is None:
                return
        parts, rest = ([], data) if self._body.is_done else self._body.feed(data)
        self._put(parts)
        if rest:
            # Nobody asked for it, so it cannot be told what it is an answer to.
            raise InvalidResponse("there is something behind the answer")

    def _put(self, parts: list[bytes]) -> None:
        """Let a reader have parts of the body, and stop the sandbox if there are too many."""
        outlet = self._outlet
        if outlet is None:
            self._parts.extend(parts)
            self._held += sum(map(len, parts))
            is_full = self._held > _HELD_BYTES
        else:
            for part in parts:
                outlet.write(part)
            is_full = outlet.is_full
        if is_full and self._is_reading and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()
        if outlet is None or is_full or self.is_done:
            _wake(self._reader)

    def _go_on_reading(self) -> None:
        if not self._is_reading and self._transport is not None:
            self._is_reading = True
            self._transport.resume_reading()

    def _take_head(self, data: bytes) -> bytes:
        """Take in heads, and return what comes behind the last one."""
        if not self._is_asked:
            raise InvalidResponse("nobody has asked")
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
            # Early hints (103) end here. Browsers heed them over HTTP/2 only, which this server does
            # not speak; nginx before 1.29 and Python's http.client take them for the answer.
            self._interim_bytes += found[1]
            if self._interim_bytes > HEAD_BYTES:
                raise InvalidResponse("there are too many answers before the answer")
            if head.status == HTTPStatus.CONTINUE and self._on_continue is not None:
                self._on_continue()
                self._on_continue = None
        return b""


class Pool:
    """The connections to all ports that wait for something to do."""

    def __init__(self, *, connect_seconds: float) -> None:
        self.connect_seconds = connect_seconds
        self._idle: dict[Address, deque[PooledConnection]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def connect(self, address: Address, confirm: Confirm | None = None) -> PooledConnection:
        """Return a new connection that is confirmed; raises ConnectionBroken."""
        try:
            _, made = await connect(
                address, PooledConnection, confirm=confirm, time_limit=self.connect_seconds
            )
        except (OSError, TimeoutError, ValueError) as exc:
            raise ConnectionBroken from exc
        return made

    def find(self, address: Address, *, is_safe: bool) -> PooledConnection | None:
        """Return a connection that is idle, if there is one.

        The other side may close it in the moment it is used. That is of no importance where the
        request is safe: it is made again. Any other gets one that was used a moment ago.
        """
        idle = self._idle.get(address)
        since = asyncio.get_running_loop().time() - (_KEEP_SECONDS if is_safe else _FRESH_SECONDS)
        while idle and idle[-1].idle_since >= since:
            found = idle.pop()
            if found.is_open:
                return found
        return None

    def put(self, address: Address, connection: PooledConnection) -> None:
        """Keep a connection for a while, for whoever asks for it next."""
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(address, deque()).append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(_KEEP_SECONDS, self._close_old)

    def close(self) -> None:
        """Close all connections that nobody uses."""
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

"""The proxy of one sandbox: accepts requests, applies the policy, connects, forwards bytes.

A name is resolved once, and the connection uses the address that the policy allowed. Memory
and connections are bounded; a sandbox's input can at most end its own connection.
"""

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .addresses import Address, BadHost
from .http_head import HEAD_MAX, BadHead, RequestHead, parse_head, refusal
from .policy import Policy, order_addresses
from .resolver import Resolver

log = logging.getLogger(__name__)

_CHUNK: Final = 65536
_LOG_LINES_MAX: Final = 300
_LOG_SECONDS: Final = 60.0
_ADDRESSES_MAX: Final = 4
_LOOPBACK: Final = ipaddress.IPv4Network("127.0.0.0/8")
_SERVER: Final[Mapping[str, Any]] = {"limit": HEAD_MAX, "start_serving": False}
_NO_SOURCES: Final[Mapping[int, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """Limits of one sandbox's proxy."""

    connections: int = 128
    """At once, with two open files each; further ones get a 503."""
    lookups: int = 4
    """Concurrent DNS lookups; each counts until its thread ends, even if nobody waits any more."""
    head_seconds: float = 30.0
    """The timeout for receiving a request head."""
    connect_seconds: float = 20.0
    """The timeout for resolving and connecting to the target."""
    linger_seconds: float = 1.0
    """How long the rest of a rejected request is read and discarded."""
    idle_seconds: float = 3600.0
    """The idle timeout of a connection."""


class _Denied(Exception):
    """The policy denies the connection."""


class _Unreachable(Exception):
    """The target is allowed and cannot be reached."""


class Proxy:
    """Serves one sandbox; `policy` may be replaced at any time and applies to new requests.

    Connections to the loopback ports in `sources` are made from the source address given there.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        name: str,
        resolver: Resolver,
        limits: ProxyLimits | None = None,
        sources: Mapping[int, str] = _NO_SOURCES,
    ) -> None:
        self.policy = policy
        self._name = name
        self._resolver = resolver
        self._limits = limits or ProxyLimits()
        self._lookups = asyncio.Semaphore(self._limits.lookups)
        self._sources = sources
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._log_lines = 0
        self._log_since = 0.0

    async def listen_tcp(self, host: str, port: int) -> int:
        """Listen on a port, 0 for a free one; return its number."""
        server = await asyncio.start_server(self._serve, host, port, **_SERVER)
        await self._start(server)
        return int(server.sockets[0].getsockname()[1])

    async def listen_on(self, listener: socket.socket) -> None:
        """Listen on a socket that is already bound."""
        await self._start(await asyncio.start_server(self._serve, sock=listener, **_SERVER))

    async def close(self) -> None:
        """Stop listening and abort every connection. Idempotent; cannot be reopened."""
        self._is_closed = True
        loop = asyncio.get_running_loop()
        for server in self._servers:
            for listener in server.sockets:
                loop.remove_reader(listener)
        # Closing a server does not close connections that asyncio has accepted but not handed over yet.
        await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        for task in tuple(self._connections):
            task.cancel()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    async def _start(self, server: asyncio.Server) -> None:
        # Registered before the first await: if cancelled there, `close` still ends the server.
        self._servers.append(server)
        await server.start_serving()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if self._is_closed:
            # Accepted just before `close`, which cannot abort it any more.
            writer.transport.abort()
            return
        if task is None or len(self._connections) >= self._limits.connections:
            writer.write(refusal("503 Service Unavailable", "too many connections at once"))
            writer.close()
            return
        self._connections.add(task)
        try:
            await self._handle(reader, writer)
        except* OSError:
            pass  # either side disconnected or timed out
        except* asyncio.CancelledError:
            pass  # by `close`; Python 3.12's streams log an error for a cancelled task
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await self._read_head(reader, writer)
        if head is None:
            return
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                far_reader, far_writer = await self._connect(head)
        except _Denied as exc:
            self._log_connection("egress denied", head, str(exc))
            text = f"{head.host}:{head.port} is blocked by this sandbox's network policy: {exc}"
            await self._respond(reader, writer, "403 Forbidden by allow_hosts", text)
        except (_Unreachable, TimeoutError) as exc:
            reason = str(exc) or "it does not answer"
            self._log_connection("egress failed", head, reason)
            text = f"{head.host}:{head.port} cannot be reached: {reason}"
            await self._respond(reader, writer, "502 Bad Gateway", text)
        else:
            # Connections to required hosts, mostly this server, are too frequent to log.
            if not self.policy.is_needed(head.host, head.port):
                self._log_connection("egress allowed", head, "")
            try:
                await self._forward(head, reader, writer, far_reader, far_writer)
            finally:
                far_writer.transport.abort()

    async def _read_head(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> RequestHead | None:
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                return parse_head(await reader.readuntil(b"\r\n\r\n"))
        except (BadHead, BadHost) as exc:
            status, text = "400 Bad Request", f"this request cannot be forwarded: {exc}"
        except asyncio.LimitOverrunError:
            status, text = "431 Request Header Fields Too Large", "its headers are too long"
        except TimeoutError:
            status, text = "408 Request Timeout", "no request came in time"
        except asyncio.IncompleteReadError:
            return None
        await self._respond(reader, writer, status, text)
        return None

    async def _connect(
        self, head: RequestHead
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # Check the list before the DNS lookup: a query is a way to leak data, too.
        if reason := self.policy.refuse_host(head.host, head.port):
            raise _Denied(reason)
        addresses = order_addresses(await self._addresses(head))[:_ADDRESSES_MAX]
        reasons = {at: self.policy.refuse_address(head.host, head.port, at) for at in addresses}
        allowed = [address for address, reason in reasons.items() if not reason]
        if not allowed:
            raise _Denied(next(iter(reasons.values())))
        last: OSError | None = None
        for address in allowed:
            source = self._sources.get(head.port, "") if address in _LOOPBACK else ""
            local = (source, 0) if source else None
            try:
                return await asyncio.open_connection(
                    str(address), head.port, limit=_CHUNK, local_addr=local
                )
            except OSError as exc:
                last = exc
        raise _Unreachable(os.strerror(last.errno) if last and last.errno else "nothing answers")

    async def _addresses(self, head: RequestHead) -> list[Address]:
        if not isinstance(head.host, str):
            return [head.host]
        try:
            found = await self._resolver.resolve(head.host, self._lookups)
        except (OSError, UnicodeError) as exc:
            raise _Unreachable("its name cannot be resolved") from exc
        if not found:
            raise _Unreachable("its name cannot be resolved")
        return found

    async def _forward(
        self,
        head: RequestHead,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        if head.is_tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            far_writer.write(head.forward)
        timer = _Timer(self._limits.idle_seconds)
        async with asyncio.TaskGroup() as both:
            upward = both.create_task(_copy(reader, far_writer, timer))
            await _copy(far_reader, writer, timer)
            upward.cancel()
        writer.close()
        async with asyncio.timeout(self._limits.idle_seconds):
            await writer.wait_closed()

    async def _respond(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: str, text: str
    ) -> None:
        writer.write(refusal(status, text))
        async with asyncio.timeout(self._limits.linger_seconds):
            await writer.drain()
            writer.write_eof()
            # Read and discard the rest: closing a connection with unread bytes resets it, which may lose
            # the response.
            while await reader.read(_CHUNK):
                pass

    def _log_connection(self, message: str, head: RequestHead, reason: str) -> None:
        # The sandbox controls how often this is called.
        now = asyncio.get_running_loop().time()
        if now - self._log_since > _LOG_SECONDS:
            self._log_since, self._log_lines = now, 0
        self._log_lines += 1
        if self._log_lines > _LOG_LINES_MAX:
            return
        facts = {
            "sandbox_id": self._name,
            "method": head.method,
            "host": str(head.host),
            "port": head.port,
        }
        log.info(message, extra=facts | ({"reason": reason} if reason else {}))
        if self._log_lines == _LOG_LINES_MAX:
            log.warning(
                "egress log limit reached, connections are not logged for a minute",
                extra={"sandbox_id": self._name},
            )


class _Timer:
    """The idle timer of a connection, shared by both directions."""

    def __init__(self, idle_seconds: float) -> None:
        self.idle_seconds = idle_seconds
        self.at = asyncio.get_running_loop().time()

    def reset(self) -> None:
        """Reset the timer."""
        self.at = asyncio.get_running_loop().time()

    def remaining(self) -> float:
        """Return the seconds until the connection times out."""
        return self.at + self.idle_seconds - asyncio.get_running_loop().time()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timer: _Timer) -> None:
    """Forward bytes until the reader ends; the other direction may continue."""
    while data := await _read(reader, timer):
        writer.write(data)
        async with asyncio.timeout(timer.idle_seconds):
            await writer.drain()
    if writer.can_write_eof() and not writer.is_closing():
        writer.write_eof()


async def _read(reader: asyncio.StreamReader, timer: _Timer) -> bytes:
    while True:
        try:
            async with asyncio.timeout(max(timer.remaining(), 0.0)):
                data = await reader.read(_CHUNK)
        except TimeoutError:
            if timer.remaining() > 0:
                continue
            raise
        timer.reset()
        return data

"""A proxy with targets beside it, a resolver that answers from a table, and a raw client."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentsvc.plugin.egress import Policy, Proxy, ProxyLimits, Resolver
from agentsvc.plugin.egress.addresses import Address


class TableResolver(Resolver):
    """Knows the names it is given, and remembers which it was asked for."""

    def __init__(self, table: Mapping[str, list[str]]) -> None:
        super().__init__()
        self.table = table
        self.asked: list[str] = []

    async def resolve(self, name: str, slots: asyncio.Semaphore) -> list[Address]:
        self.asked.append(name)
        if name not in self.table:
            raise OSError
        return [ipaddress.ip_address(text) for text in self.table[name]]


@dataclass
class Target:
    """A server on the loopback interface that says what it was sent."""

    port: int
    heads: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def open_target(answer: bytes = b"") -> AsyncIterator[Target]:
    """Serve an echo, or read one head and give a fixed answer."""
    target = Target(port=0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if answer:
                target.heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answer)
            else:
                target.heads.append(b"")
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    target.port = server.sockets[0].getsockname()[1]
    try:
        yield target
    finally:
        server.close()


@asynccontextmanager
async def open_proxy(
    policy: Policy,
    table: Mapping[str, list[str]] | None = None,
    limits: ProxyLimits | None = None,
) -> AsyncIterator[tuple[Proxy, int]]:
    """Run a proxy on a port of the loopback interface."""
    resolver = TableResolver(table or {})
    proxy = Proxy(policy, name="box", resolver=resolver, limits=limits)
    port = await proxy.listen_tcp("127.0.0.1", 0)
    try:
        yield proxy, port
    finally:
        await proxy.close()
        resolver.close()


async def ask(at: int | Path, request: bytes) -> bytes:
    """Send a request to a port or a socket and return all that comes back."""
    if isinstance(at, Path):
        reader, writer = await asyncio.open_unix_connection(at)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", at)
    try:
        writer.write(request)
        async with asyncio.timeout(20):
            return await reader.read(-1)
    finally:
        writer.close()


async def connect(port: int, destination: str) -> bytes:
    """Ask for a tunnel and return what the proxy says."""
    request = f"CONNECT {destination} HTTP/1.1\r\nHost: x\r\n\r\n".encode(
        "utf-8", "surrogateescape"
    )
    return await ask(port, request)

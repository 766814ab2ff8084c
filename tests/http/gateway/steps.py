"""What tests of the gateway do: a sandbox to go to, and bytes sent as they are."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from agentsvc.config.sandboxes import PortConfig, SpecConfig
from agentsvc.config.schema import GatewayConfig
from agentsvc.testing.backend import FakeWorld
from tests.conftest import FAST
from tests.http.gateway.upstream import Seen, Upstream
from tests.plugin_loading import load_plugins
from tests.service import Answer, Client, Service

LONG_SECONDS = 30.0
MIB = 1024 * 1024
MOST_HELD = 128 * MIB
"""More than may be on its way while nobody reads.

The gateway holds little. Of each of the two connections Linux holds up to 32 MiB that are not read
(`tcp_rmem`) and 4 MiB that are not sent (`tcp_wmem`), and how much it is depends on the time.
"""
PORTS = tuple(PortConfig(name=name) for name in ("agent", "vscode", "worker_1"))


def make_gate(data_dir: Path, world: FakeWorld, gateway: GatewayConfig, **server: Any) -> Service:
    """Return a server with a gateway; `server` replaces values of the server section."""

    spec = SpecConfig(id="web", backend="fake", command=("agent",), ports=PORTS)
    section = msgspec.structs.replace(FAST.server, **{"allowed_hosts": ("gateway.test",), **server})
    moved = msgspec.structs.replace(spec, id="moved", working_dir="/srv/work")
    specs = {"web": spec, "moved": moved}
    config = msgspec.structs.replace(FAST, specs=specs, gateway=gateway, server=section)
    return Service(data_dir, config, lambda: load_plugins(fake=world.plugin()))


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A running sandbox, its owner, and where its ports are."""

    service: Service
    owner: Client
    upstream: Upstream
    id: str
    key: str

    @classmethod
    async def start(
        cls, service: Service, upstream: Upstream, owner: Client, *, spec: str = "web"
    ) -> "Box":
        answer = await owner.post(f"/api/v1/sandboxes?sandbox_spec_id={spec}")
        assert answer.status == 200, answer.text
        sandbox_id = answer.json()["id"]
        await owner.wait_for_sandbox(sandbox_id, "RUNNING")
        return cls(
            service=service,
            owner=owner,
            upstream=upstream,
            id=sandbox_id,
            key=upstream.keys[sandbox_id],
        )

    def path(self, tail: str = "/", port: str = "worker_1") -> str:
        return f"/sandboxes/{self.id}/{port}{tail}"

    def url(self, tail: str = "/", port: str = "worker_1") -> str:
        return self.service.url + self.path(tail, port)

    async def get(self, tail: str = "/", port: str = "worker_1", **options: Any) -> Answer:
        return await self.owner.get(self.path(tail, port), **options)

    async def ask(
        self, method: str = "GET", tail: str = "/", port: str = "worker_1", **options: Any
    ) -> Seen:
        """Send a request of the owner's and return what arrived in the sandbox."""
        answer = await self.owner.request(method, self.path(tail, port), **options)
        assert answer.status == 200, answer.text
        return self.upstream.seen[-1]


@asynccontextmanager
async def boxed(data_dir: Path, gateway: GatewayConfig, **server: Any) -> AsyncIterator[Box]:
    """Run a server, and a sandbox of a user that is one small server of the test."""
    upstream, world = Upstream(), FakeWorld()
    await upstream.start()
    world.on_create = upstream.on_create
    service = make_gate(data_dir, world, gateway, **server)
    try:
        await service.start()
        yield await Box.start(service, upstream, await service.make_client())
    finally:
        await service.close()
        world.close()
        await upstream.stop()


async def until_still(upstream: Upstream) -> None:
    """Wait until a sandbox whose client does not read sends no more; fail if it sends too much."""
    before = -1
    async with asyncio.timeout(LONG_SECONDS):
        while before != upstream.received or before == 0:
            before = upstream.received
            assert before < MOST_HELD
            await asyncio.sleep(0.5)


async def until(
    is_so: Callable[[], bool | Awaitable[bool]], *, time_limit: float = LONG_SECONDS
) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(time_limit):
        while True:
            found = is_so()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)


def head(method: str, path: str, *lines: str, host: str = "gateway.test") -> bytes:
    """Return the head of a request."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", f"Host: {host}", *lines, "", "")).encode()


class Wire:
    """A connection on which bytes are written as they are; it ends with the server, whatever a test does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, service: Service) -> "Wire":
        host, _, port = service.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        service.keep(writer.transport)
        return cls(reader, writer)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def read_head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(LONG_SECONDS):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        return int(first.split(" ")[1]), {name.lower(): value for name, _, value in pairs}

    async def read(self, count: int) -> bytes:
        async with asyncio.timeout(LONG_SECONDS):
            return await self.reader.readexactly(count)

    async def read_all(self) -> bytes:
        async with asyncio.timeout(LONG_SECONDS):
            return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


async def send_raw(service: Service, method: str, path: str, *lines: str, body: bytes = b"") -> int:
    """Send a request exactly as it is written and return the status of the answer."""
    wire = await Wire.open(service)
    try:
        length = f"Content-Length: {len(body)}"
        wire.send(head(method, path, *lines, length, "Connection: close") + body)
        return (await wire.read_head())[0]
    finally:
        await wire.close()


def session(key: str | None = None) -> aiohttp.ClientSession:
    """Return a client session, perhaps with a key in its headers."""
    return aiohttp.ClientSession(
        headers={"X-Session-API-Key": key} if key else {},
        timeout=aiohttp.ClientTimeout(total=LONG_SECONDS),
        auto_decompress=False,
    )

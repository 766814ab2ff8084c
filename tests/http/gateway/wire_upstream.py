"""A server below HTTP that stands for what runs in a sandbox: it notes bytes and sends bytes."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

from agentsvc.testing.backend import FakeWorld
from tests.http.gateway.steps import Box

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *([0-9]+)\r\n")
_CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding: *chunked\r\n")
_LAST = re.compile(rb"(?:\A|\r\n)0\r\n(?:[^\r\n]+\r\n)*\r\n\Z")


class WireUpstream:
    """Notes what comes on each connection and answers each request, as it understands them."""

    def __init__(self) -> None:
        self.received: list[bytearray] = []
        """The bytes of each connection."""
        self.answers: list[bytes] = []
        """What is answered next, one for each request; then `OK`."""
        self.hangs_up = False
        """Whether it ends the connection once, after the next answer."""
        self.step = 0
        """How many bytes it sends at once, where that is not all of them."""
        self.is_asking = True
        """Whether it answers 100 to who waits for that."""
        self.url = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def heads(self) -> list[bytes]:
        """The first line of every request that came."""
        return [
            line for raw in self.received for line in re.findall(rb"[^\n]+ HTTP/1\.1(?=\r\n)", raw)
        ]

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._writers)

    def take(self) -> bytes:
        """Return what has come since this was last asked, on whichever connection."""
        found = b"".join(self.received)
        for raw in self.received:
            raw.clear()
        return found

    async def start(self, socket_path: Path | None = None) -> None:
        if socket_path is not None:
            self._server = await asyncio.start_unix_server(self._serve, socket_path)
            self.url = f"http+unix://{quote(str(socket_path), safe='')}"
            return
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        noted = bytearray()
        self.received.append(noted)
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                noted += head
                if b"\r\nExpect: 100-continue\r\n" in head and self.is_asking:
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                await _read_body(reader, head, noted)
                await self._answer(writer)
                if self.hangs_up:
                    self.hangs_up = False
                    return
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            noted += exc.partial if isinstance(exc, asyncio.IncompleteReadError) else b""
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        answer = self.answers.pop(0) if self.answers else OK
        step = self.step or len(answer) or 1
        for at in range(0, len(answer), step):
            writer.write(answer[at : at + step])
            await writer.drain()
            await asyncio.sleep(0)


async def _read_body(reader: asyncio.StreamReader, head: bytes, noted: bytearray) -> None:
    if _CHUNKED.search(head):
        begin = len(noted)
        while not _LAST.search(bytes(noted[begin:])):
            noted += await reader.readuntil(b"\n")
    elif found := _LENGTH.search(head):
        noted += await reader.readexactly(int(found.group(1)))


@asynccontextmanager
async def wired(
    box: Box, world: FakeWorld, socket_path: Path | None = None
) -> AsyncIterator[tuple[Box, WireUpstream]]:
    """Start another sandbox of the same owner, which is a server below HTTP."""
    wire_upstream = WireUpstream()
    await wire_upstream.start(socket_path)
    note = box.upstream.on_create
    world.on_create = lambda order: dict.fromkeys(note(order), wire_upstream.url)
    try:
        yield await Box.start(box.service, box.upstream, box.owner), wire_upstream
    finally:
        await wire_upstream.stop()

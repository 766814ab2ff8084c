"""A way to an API server that can be cut for one client while all others go on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_CHUNK = 65_536
_NOTICE_SECONDS = 5.0
"""How long what a client knew before the cut may stand."""


class Relay:
    """Carries connections to another address; get one from `relay_to`."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self._target = (host, port)
        self._is_cut = False
        self._open: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def cut(self, _who: object = None) -> AsyncIterator[None]:
        """End all connections, and take none for a while."""
        self._is_cut = True
        for writer in list(self._open):
            writer.transport.abort()
        try:
            await asyncio.sleep(_NOTICE_SECONDS)
            yield
        finally:
            self._is_cut = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(*self._target)
        self._open |= {writer, back}
        try:
            await asyncio.gather(_carry(reader, back), _carry(there, writer))
        finally:
            self._open -= {writer, back}
            writer.transport.abort()
            back.transport.abort()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await reader.read(_CHUNK):
            writer.write(part)
            await writer.drain()
        writer.write_eof()


@asynccontextmanager
async def relay_to(host: str, port: int) -> AsyncIterator[Relay]:
    """Give a relay on this machine's loopback."""
    relay = Relay(host, port)
    async with await asyncio.start_server(relay.serve, "127.0.0.1", 0) as server:
        relay.port = server.sockets[0].getsockname()[1]
        yield relay

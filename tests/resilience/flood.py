"""Somebody who floods a server: a program of its own, so that it takes nothing from who measures.

`python -m tests.resilience.flood KIND HOST PORT SOURCE COUNT SECONDS KEY` prints what was answered.
"""

import asyncio
import base64
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from agentsvc.base.values import monotonic

type _Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Flood:
    """What is sent to one server from one address until a moment."""

    def __init__(self, place: tuple[str, int], source: str, seconds: float, key: str) -> None:
        self._place = place
        self._source = source
        self._end = monotonic() + seconds
        self._key = key
        self.seen: Counter[str] = Counter()

    async def log_in(self) -> None:
        """Try keys as fast as it goes."""
        body = b'{"api_key": "asvc_wrong"}'
        await self._repeat(b"POST /api/v1/logins", body, "")

    async def guess(self) -> None:
        """Ask with wrong keys as fast as it goes."""
        await self._repeat(b"GET /api/settings", b"", "asvc_wrong")

    async def ask(self) -> None:
        """Ask with a good key of its own as fast as it goes."""
        await self._repeat(b"GET /api/settings", b"", self._key)

    async def dawdle(self) -> None:
        """Hold a connection, and send a byte of a head now and then."""
        while self._is_on():
            with contextlib.suppress(OSError, TimeoutError):
                reader, writer = await self._connect()
                self.seen["connections"] += 1
                writer.write(b"GET / HTTP/1.1\r\nX-Slow: ")
                await self._hold(reader, writer)
                writer.close()
            await asyncio.sleep(0.2)

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while self._is_on():
            try:
                async with asyncio.timeout(1):
                    self._note(await reader.readline())
            except TimeoutError:
                writer.write(b"a")
            else:
                return

    async def knock(self) -> None:
        """Open WebSockets without a key, and hold them."""
        nonce = base64.b64encode(os.urandom(16)).decode()
        head = (
            "GET /api/v1/events/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {nonce}\r\n\r\n"
        )
        while self._is_on():
            with contextlib.suppress(OSError, TimeoutError):
                reader, writer = await self._connect()
                writer.write(head.encode())
                async with asyncio.timeout(5):
                    self._note(await reader.readline())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(2):
                        await reader.read()
                writer.close()
            await asyncio.sleep(0.02)

    def _is_on(self) -> bool:
        return monotonic() < self._end

    async def _connect(self) -> _Streams:
        async with asyncio.timeout(5):
            return await asyncio.open_connection(*self._place, local_addr=(self._source, 0))

    async def _repeat(self, line: bytes, body: bytes, key: str) -> None:
        head = b"%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % line
        head += b"X-Session-API-Key: %s\r\n" % key.encode() if key else b""
        head += b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        while self._is_on():
            with contextlib.suppress(
                OSError, TimeoutError, asyncio.IncompleteReadError, ValueError
            ):
                reader, writer = await self._connect()
                while self._is_on():
                    writer.write(head)
                    async with asyncio.timeout(10):
                        answer = await reader.readuntil(b"\r\n\r\n")
                        self._note(answer)
                        await reader.readexactly(_length_of(answer))
                writer.close()
            await asyncio.sleep(0.01)

    def _note(self, answer: bytes) -> None:
        words = answer.split(b"\r\n", 1)[0].split()
        self.seen[words[1].decode(errors="replace") if len(words) > 1 else "closed"] += 1
        lowered = answer.lower()
        for name in (b"retry-after", b"ratelimit-policy"):
            if b"\r\n" + name + b":" in lowered:
                self.seen[name.decode()] += 1


def _length_of(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


_KINDS: Final[dict[str, Callable[[Flood], Awaitable[None]]]] = {
    "logins": Flood.log_in,
    "keys": Flood.guess,
    "requests": Flood.ask,
    "slow": Flood.dawdle,
    "sockets": Flood.knock,
}


async def main() -> None:
    kind, host, port, source, count, seconds, key = sys.argv[1:]
    flood = Flood((host, int(port)), source, float(seconds), key)
    await asyncio.gather(*(_KINDS[kind](flood) for _ in range(int(count))))
    sys.stdout.write(msgspec.json.encode(flood.seen).decode())


if __name__ == "__main__":
    asyncio.run(main())

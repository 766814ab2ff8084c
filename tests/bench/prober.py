"""Reads one page again and again in a process of its own, so that nothing but the server delays it.

`python -m tests.bench.prober URL KEY`. It takes a `Look` in each line, and answers with a line of
how long each read took.
"""

import asyncio
import gc
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from agentsvc.base.values import monotonic
from tests.bench.rig import Running
from tests.service import Client

_PAUSE_SECONDS: Final = 0.01
_PATIENCE_SECONDS: Final = 300.0
_STOP_SECONDS: Final = 20.0
_LIMIT: Final = 2**24
_WARM_UP: Final = 5


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What to read, and for how long."""

    path: str
    seconds: float


_look = msgspec.json.Decoder(Look)
_times = msgspec.json.Decoder(list[float])


class Prober:
    """The process, for who runs it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def look(self, path: str, *, seconds: float) -> list[float]:
        """Return how long each read of a page took, in seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = msgspec.json.encode(Look(path=path, seconds=seconds))
        self._process.stdin.write(asked + b"\n")
        return _times.decode(await self._process.stdout.readline())


@asynccontextmanager
async def prober_of(running: Running) -> AsyncIterator[Prober]:
    """Run one that reads from a server."""
    program = (sys.executable, "-m", "tests.bench.prober", running.url, running.key)
    process = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE, limit=_LIMIT)
    assert process.stdin is not None
    try:
        yield Prober(process)
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _serve(url: str, key: str) -> None:
    client = Client(url, key, patience=_PATIENCE_SECONDS)
    gc.freeze()
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            took = await _take(client, _look.decode(line))
            sys.stdout.write(msgspec.json.encode(took).decode() + "\n")
            sys.stdout.flush()
    finally:
        await client.close()


async def _take(client: Client, look: Look) -> list[float]:
    took: list[float] = []
    began = monotonic()
    while monotonic() - began < look.seconds or len(took) <= _WARM_UP:
        asked = monotonic()
        answer = await client.get(look.path)
        took.append(monotonic() - asked)
        assert answer.status == 200, answer.text
        await asyncio.sleep(_PAUSE_SECONDS)
    return took[_WARM_UP:]


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2]))

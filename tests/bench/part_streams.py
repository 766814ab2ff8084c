"""Very many live streams: how late an event arrives at all who listen, and what each stream costs."""

import asyncio
import itertools
import resource
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from agentsvc.base.values import monotonic, new_id
from tests.bench.figures import Figure, Section, Target, percentile
from tests.bench.load import paced
from tests.bench.processes import memory_of, serve_bare
from tests.bench.rig import client_of, feeder_of, run
from tests.bench.sizes import Sizes
from tests.http.gateway.steps import until
from tests.service import Client
from tests.streams import path_of

_LISTENERS_OF_EACH: Final = 20
_KIB: Final = 1024
_LATEST_MS: Final = 100.0
_MAX_KIB: Final = 64.0
_SPARE_FILES: Final = 500
_OPENED_AT_ONCE: Final = 50
_PATIENCE_SECONDS: Final = 60.0
_JSON: Final = {"Content-Type": "application/json"}
_SENT: Final = b'"sent":'

type Tell = Callable[[bytes], Awaitable[object]]


class _Room(msgspec.Struct, frozen=True, kw_only=True):
    """Something to listen to, and how something is said there."""

    path: str
    tell: Tell


class _Listeners:
    """Streams that are open, and how late what was sent has arrived at each."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self.late_seconds: list[float] = []
        self._address = urlsplit(url)
        self._headers = headers

    async def listen(self, path: str, is_ready: asyncio.Event) -> None:
        """Read a stream for as long as this is not cancelled."""
        host, port = self._address.hostname, self._address.port
        reader, writer = await asyncio.open_connection(host, port)
        try:
            lines = [f"GET {path} HTTP/1.1", f"Host: {host}:{port}"]
            lines += [f"{name}: {value}" for name, value in self._headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            while True:
                told = await reader.readuntil(b"\n\n")
                now = monotonic()
                if b"event: ready" in told:
                    is_ready.set()
                for part in told.split(_SENT)[1:]:
                    self.late_seconds.append(now - float(part.partition(b"}")[0]))
        finally:
            writer.close()


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Open streams at the server and at the bare one, and send them as many events."""
    _allow_files(2 * sizes.streams + _SPARE_FILES)
    count = max(1, sizes.streams // _LISTENERS_OF_EACH)
    async with AsyncExitStack() as opened:
        data_dir = str(folder / "streams")
        server = await opened.enter_async_context(run("tests.bench.server", data_dir, ""))
        client = await opened.enter_async_context(client_of(server))
        rooms = []
        for _ in range(count):
            feeder = await opened.enter_async_context(feeder_of(client))
            last = len(await client.events(feeder.conversation_id)) - 1
            path = path_of(feeder.conversation_id, last)
            rooms.append(_Room(path=path, tell=_telling(feeder.sandbox, feeder.path)))
        key = {"X-Session-API-Key": server.key}
        ours = await _listen(sizes, server.pid, _Listeners(server.url, key), rooms)
    async with AsyncExitStack() as opened:
        bare = await opened.enter_async_context(serve_bare())
        teller = Client(bare.url, None)
        opened.push_async_callback(teller.close)
        rooms = [
            _Room(path=f"/stream?room={n}", tell=_telling(teller, f"/tell?room={n}"))
            for n in range(count)
        ]
        floor = await _listen(sizes, bare.pid, _Listeners(bare.url, {}), rooms)
    return Section(
        title="Streams",
        about=f"{sizes.streams:,} streams of server-sent events, {_LISTENERS_OF_EACH} for each of"
        f" {count} conversations, {sizes.events_per_second} events a second in all; from when an"
        " event is sent to the server to when a listener has it. The floor is bare aiohttp passing"
        " on what it is sent, without a key and without storing it.",
        figures=(
            Figure(
                name="99 of 100 events have arrived after",
                unit="ms",
                ours=(1000 * percentile(ours[0], 0.99),),
                floor=(1000 * percentile(floor[0], 0.99),),
                target=Target(most=_LATEST_MS),
            ),
            Figure(
                name="half of the events have arrived after",
                unit="ms",
                ours=(1000 * percentile(ours[0], 0.5),),
                floor=(1000 * percentile(floor[0], 0.5),),
            ),
            Figure(
                name="memory for each stream",
                unit="KiB",
                ours=(ours[1],),
                floor=(floor[1],),
                target=Target(most=_MAX_KIB),
            ),
        ),
    )


async def _listen(
    sizes: Sizes, pid: int, listeners: _Listeners, rooms: list[_Room]
) -> tuple[list[float], float]:
    """Return how late events arrived, and how much memory each stream took."""
    before = memory_of(pid)
    turns = itertools.cycle(rooms)
    told = itertools.cycle(rooms)

    async def say() -> None:
        await next(told).tell(_event())

    async with asyncio.TaskGroup() as group:
        tasks = []
        for some in itertools.batched(range(sizes.streams), _OPENED_AT_ONCE):
            ready = [asyncio.Event() for _ in some]
            tasks += [group.create_task(listeners.listen(next(turns).path, one)) for one in ready]
            async with asyncio.timeout(_PATIENCE_SECONDS):
                for one in ready:
                    await one.wait()
        sent = await paced(say, per_second=sizes.events_per_second, seconds=sizes.seconds)
        awaited = len(sent.took_seconds) * sizes.streams // len(rooms)
        await until(lambda: _has(listeners, awaited), time_limit=_PATIENCE_SECONDS)
        grown = memory_of(pid) - before
        for task in tasks:
            task.cancel()
    return listeners.late_seconds, grown / _KIB / sizes.streams


async def _has(listeners: _Listeners, count: int) -> bool:
    return len(listeners.late_seconds) >= count


def _telling(client: Client, path: str) -> Tell:
    async def tell(event: bytes) -> None:
        answer = await client.post(path, data=b"[" + event + b"]", headers=_JSON)
        assert answer.status == 200, answer.text

    return tell


def _event() -> bytes:
    """Return an event that says when it was sent, behind everything else."""
    return msgspec.json.encode(
        {
            "id": new_id(),
            "timestamp": "2030-01-01T00:00:00.000000",
            "source": "agent",
            "kind": "MessageEvent",
            "text": "x" * 200,
            "sent": monotonic(),
        }
    )


def _allow_files(count: int) -> None:
    """Let this process, and those it starts, have so many files open, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        most = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

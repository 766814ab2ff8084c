"""An hour of many events and many readers leaves nothing behind in the server.

Memory, the write-ahead log and open files are looked at every five seconds, and a plain read is timed
from a process of its own. What is compared is the first third of the time with the last. The full
size is an hour; with `--scale 0.17` it is ten minutes of the same load.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import aiohttp
import msgspec

from agentsvc.base.supervisor import Supervisor
from agentsvc.base.values import monotonic
from tests.bench.prober import Prober, prober_of
from tests.bench.processes import memory_of
from tests.bench.rig import Running
from tests.http.v1.streaming import Feeder, events
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.server import Server, serving
from tests.streams import Lines, Socket, open_lines, open_socket, path_of

SECONDS: Final = 3600.0
EVENTS_A_SECOND: Final = 2000
READERS: Final = 100
_CONVERSATIONS: Final = 20
_BATCH: Final = 40
_WINDOW_SECONDS: Final = 5.0
_WARM_UP: Final = 0.1
_SHOWN: Final = 10
_MIB: Final = 1024 * 1024
_TEXT: Final = "x" * 200
MORE_MIB: Final = 10.0
MORE_FILES: Final = 20
"""Connections to agent servers are kept for a while, of which there are more at some times."""
MORE_TIMES: Final = 1.5
MORE_SECONDS: Final = 0.005

type Work = Callable[[], Coroutine[Any, Any, None]]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a window of time looked like."""

    mib: float
    wal_mib: float
    files: int
    p99_ms: float


class Load(msgspec.Struct, kw_only=True):
    """What was written and read so far, and what went wrong with it."""

    written: int = 0
    read: int = 0
    refused: list[str] = []


async def run(ground: Ground) -> Outcome:
    seconds = max(20.0, SECONDS * ground.scale)
    config = {"limits": {"event_bytes_per_sandbox": 0}, "sandboxes": {"max_running": 100}}
    load = Load()
    supervisor = Supervisor()
    async with serving(ground.place("server"), config=config) as server:
        feeders = [await server.feeder() for _ in range(_CONVERSATIONS)]
        began = monotonic()
        for number in range(READERS):
            feeder = feeders[number % len(feeders)]
            supervisor.spawn(f"reader {number}", _reading(server, feeder, load, number))
        for number, feeder in enumerate(feeders):
            supervisor.spawn(f"writer {number}", _writing(feeder, load, seconds))
        key = server.installation.key.reveal()
        running = Running(url=server.url, key=key, pid=server.installation.pid)
        try:
            async with prober_of(running) as prober:
                seen = await _watch(server, prober, began + seconds)
        finally:
            took = monotonic() - began
            await supervisor.stop(20.0)
    return _outcome(ground, seen, load, took)


def _reading(server: Server, feeder: Feeder, load: Load, number: int) -> Work:
    async def work() -> None:
        path = path_of(feeder.conversation_id)
        while True:
            try:
                if number % 2:
                    async with open_lines(server.client, path) as lines:
                        await _count_lines(lines, load)
                else:
                    async with open_socket(server.client, path) as socket:
                        await _count_messages(socket, load)
            except (aiohttp.ClientError, TimeoutError) as exc:
                load.refused.append(f"reader {number}: {exc!r}")
            await asyncio.sleep(1)

    return work


# What is read is counted and not looked at: 10,000 messages a second are too many for one reader.


async def _count_lines(lines: Lines, load: Load) -> None:
    async for part in lines.response.content.iter_any():
        load.read += part.count(b"\ndata:")


async def _count_messages(socket: Socket, load: Load) -> None:
    async for message in socket.socket:
        load.read += message.type is aiohttp.WSMsgType.TEXT


def _writing(feeder: Feeder, load: Load, seconds: float) -> Work:
    """Report events of one conversation at its share of the rate, as long as that can be kept."""

    async def work() -> None:
        began, sent = monotonic(), 0
        rate = EVENTS_A_SECOND / _CONVERSATIONS
        while monotonic() - began < seconds:
            batch = events(_BATCH, first=sent + 1, text=_TEXT)
            answer = await feeder.sandbox.post(feeder.path, json=batch)
            if answer.status != 200:
                load.refused.append(f"{answer.status} {answer.text[:100]}")
            sent += _BATCH
            load.written += _BATCH
            await asyncio.sleep(max(0.0, began + sent / rate - monotonic()))

    return work


async def _watch(server: Server, prober: Prober, until: float) -> list[Seen]:
    seen: list[Seen] = []
    wal = Path(f"{server.database}-wal")
    while monotonic() < until:
        times = await prober.look(
            "/api/v1/app-conversations/search?limit=20", seconds=_WINDOW_SECONDS
        )
        seen.append(
            Seen(
                mib=memory_of(server.installation.pid) / _MIB,
                wal_mib=_size(wal) / _MIB,
                files=server.installation.open_files(),
                p99_ms=sorted(times)[int(len(times) * 0.99)] * 1000,
            )
        )
    return seen


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _outcome(ground: Ground, seen: Sequence[Seen], load: Load, took: float) -> Outcome:
    rest = seen[int(len(seen) * _WARM_UP) :]
    third = max(1, len(rest) // 3)
    first, last = rest[:third], rest[-third:]

    def grown(name: str) -> float:
        return _median(last, name) - _median(first, name)

    p99 = _median(first, "p99_ms")
    written, read = load.written / took, load.read / took
    return Outcome(
        did=(
            f"{took:.0f} s of {written:,.0f} events a second in {_CONVERSATIONS} conversations with"
            f" {READERS} readers, who were told {read:,.0f} a second; over that time "
            + "; ".join(
                f"{what} {_over_time(seen, name)}"
                for what, name in (
                    ("MiB", "mib"),
                    ("MiB of write-ahead log", "wal_mib"),
                    ("open files", "files"),
                    ("ms p99 of a plain read", "p99_ms"),
                )
            )
        ),
        figures=(
            Figure(
                what="events a second",
                value=round(written),
                at_least=0.95 * EVENTS_A_SECOND,
                is_time=True,
            ),
            zero("reports refused, or readers cut off", load.refused),
            Figure(
                what="MiB more in the last third", value=round(grown("mib"), 2), at_most=MORE_MIB
            ),
            Figure(
                what="MiB more of write-ahead log in the last third",
                value=round(grown("wal_mib"), 2),
                at_most=MORE_MIB,
            ),
            Figure(
                what="open files more in the last third", value=grown("files"), at_most=MORE_FILES
            ),
            Figure(
                what="ms p99 of a plain read in the last third",
                value=round(_median(last, "p99_ms"), 1),
                at_most=round(MORE_TIMES * p99 + MORE_SECONDS * 1000, 1),
                is_time=True,
            ),
        ),
        problems=tuple(load.refused),
    )


def _median(seen: Sequence[Seen], name: str) -> float:
    return float(median(getattr(one, name) for one in seen))


def _over_time(seen: Sequence[Seen], name: str) -> str:
    """Return how a figure went: the median of each part of the time."""
    size = max(1, len(seen) // _SHOWN)
    parts = [seen[at : at + size] for at in range(0, len(seen), size)]
    return " ".join(f"{_median(part, name):.0f}" for part in parts)


ROW: Final = Row(
    name="steady", half=Half.LOST, promise="an hour under load leaves nothing behind", run=run
)

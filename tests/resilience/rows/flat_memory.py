"""Memory stays flat: with much on disk the server is up soon, is small, and does not grow under load.

What is on disk is one conversation that was really had, copied, each with its own events. The slope
is that of a line through all that was measured after the first fifth.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import linear_regression
from typing import Final

import msgspec

from agentsvc.base.values import monotonic, new_id
from tests.bench.processes import memory_of
from tests.http.v1.streaming import Feeder, events
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.server import Server, serving

CONVERSATIONS: Final = 1000
EVENTS: Final = 500
SECONDS: Final = 1800.0
READY_SECONDS: Final = 2.0
MEMORY_MIB: Final = 150.0
SLOPE_MIB: Final = 1.0
_CLIENTS: Final = 6
_PAUSE_SECONDS: Final = 0.05
_LONG_ENOUGH: Final = 600.0
"""A line through less than that says nothing of an hour."""
_MIB: Final = 1024 * 1024
_V1: Final = "/api/v1/app-conversations"
_TEXT: Final = "x" * 400


class Found(msgspec.Struct, kw_only=True):
    """What was measured."""

    at: list[float] = []
    mib: list[float] = []
    requests: int = 0
    refused: list[str] = []


async def run(ground: Ground) -> Outcome:
    conversations = ground.count(CONVERSATIONS, least=50)
    seconds = _seconds(ground)
    found = Found()
    async with serving(ground.place("server")) as server:
        feeder = await server.feeder()
        await server.installation.stop()
        ids = await asyncio.to_thread(_fill, server.database, conversations)
        server.slowest_start_seconds = 0.0
        await server.start()
        ready_seconds = server.slowest_start_seconds
        at_first = memory_of(server.installation.pid) / _MIB
        ground.share()
        await _load(ground, server, feeder, ids, found)
    slope = _slope(found.at, found.mib)
    return Outcome(
        did=(
            f"{conversations} conversations of {EVENTS} events on disk, then {seconds:.0f} s of lists,"
            f" events read and reported, settings and secrets by {_CLIENTS} clients"
        ),
        figures=(
            Figure(what="requests", value=found.requests, at_least=1),
            zero("requests refused", found.refused),
            Figure(
                what="s until ready",
                value=round(ready_seconds, 2),
                at_most=READY_SECONDS,
                is_time=True,
            ),
            Figure(what="MiB when ready", value=round(at_first, 1), at_most=MEMORY_MIB),
            Figure(what="MiB at most", value=round(max(found.mib), 1)),
            Figure(
                what="MiB an hour more",
                value=round(slope, 2),
                at_most=SLOPE_MIB if seconds >= _LONG_ENOUGH else None,
            ),
        ),
        problems=tuple(found.refused),
    )


def _fill(database: Path, count: int) -> list[str]:
    """Copy the one conversation there is, and give each copy its events. The server is stopped."""
    ids = [new_id() for _ in range(count)]
    with contextlib.closing(sqlite3.connect(database)) as db, db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(conversations)")]
        same = ", ".join(one for one in columns if one not in ("id", "alias", "next_seq"))
        [original] = db.execute("SELECT id FROM conversations").fetchone()
        copy = (
            f"INSERT INTO conversations (id, next_seq, {same})"  # noqa: S608  # names of the schema
            f" SELECT ?, ?, {same} FROM conversations WHERE id = ?"
        )
        db.executemany(copy, [(one, EVENTS, original) for one in ids])
        for one in ids:
            db.executemany(
                "INSERT INTO events (conversation_id, seq, id, kind, timestamp, source, body,"
                " received_at) VALUES (?, ?, ?, 'MessageEvent', ?, 'agent', ?, ?)",
                [_row(one, number) for number in range(EVENTS)],
            )
    return ids


def _row(conversation_id: str, number: int) -> tuple[str, int, str, str, bytes, str]:
    at = f"2030-01-01T00:{number // 60:02}:{number % 60:02}.000000"
    event = {**events(1, first=number + 1, text=_TEXT)[0], "timestamp": at}
    body = msgspec.json.encode(event)
    return conversation_id, number, event["id"], at, body, "2030-01-01T00:00:00.000000Z"


def _seconds(ground: Ground) -> float:
    return max(20.0, SECONDS * ground.scale)


async def _load(
    ground: Ground, server: Server, feeder: Feeder, ids: Sequence[str], found: Found
) -> None:
    """Ask for a bit of everything for a while, and measure every second."""
    began, seconds, chance = monotonic(), _seconds(ground), ground.chance

    async def work(number: int) -> None:
        while monotonic() - began < seconds:
            ask = chance.choice(_asks(server, feeder, chance.choice(ids), number, found.requests))
            status = await ask()
            found.requests += 1
            if status >= 300:
                found.refused.append(f"{status}")
            await asyncio.sleep(_PAUSE_SECONDS)

    async def measure() -> None:
        while monotonic() - began < seconds:
            found.at.append(monotonic() - began)
            found.mib.append(memory_of(server.installation.pid) / _MIB)
            await asyncio.sleep(1)

    async with asyncio.TaskGroup() as group:
        group.create_task(measure())
        for number in range(_CLIENTS):
            group.create_task(work(number))


def _asks(
    server: Server, feeder: Feeder, conversation_id: str, client: int, number: int
) -> list[Callable[[], Awaitable[int]]]:
    """Return what may be asked for; each gives a status."""
    get, post = server.client.get, server.client.post
    name = f"NAME_{client}"

    async def read(path: str) -> int:
        return (await get(path)).status

    async def report() -> int:
        body = events(4, first=10_000 + number * 4, text=_TEXT)
        return (await feeder.sandbox.post(feeder.path, json=body)).status

    async def change() -> int:
        return (await post("/api/settings", json={"language": ("de", "en")[number % 2]})).status

    async def keep() -> int:
        made = await post("/api/v1/secrets", json={"name": name, "value": _TEXT})
        gone = await server.client.delete(f"/api/v1/secrets/{name}")
        return max(made.status, gone.status)

    return [
        lambda: read(f"{_V1}/search?limit=20"),
        lambda: read(f"/api/v1/conversation/{conversation_id}/events/search?limit=50"),
        lambda: read(f"/api/conversations/{conversation_id}/events?limit=50"),
        lambda: read(f"{_V1}?ids={conversation_id}"),
        lambda: read("/api/settings"),
        report,
        change,
        keep,
    ]


def _slope(at: Sequence[float], mib: Sequence[float]) -> float:
    """Return how much more an hour takes, after the first fifth."""
    first = len(at) // 5
    return linear_regression(at[first:], mib[first:]).slope * 3600


ROW: Final = Row(
    name="memory", half=Half.LOST, promise="flat memory", run=run, is_alone_at_first=True
)

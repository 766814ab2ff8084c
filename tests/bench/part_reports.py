"""How many events sandboxes can report, how long one waits, and what that does to who reads."""

import asyncio
import itertools
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from agentsvc.base.values import monotonic, new_id
from tests.bench.figures import Figure, Section, Target, percentile
from tests.bench.load import as_many_as_can_be, paced
from tests.bench.part_pages import event_of
from tests.bench.prober import Prober, prober_of
from tests.bench.processes import serve_bare
from tests.bench.rig import client_of, feeder_of, run
from tests.bench.sizes import Sizes
from tests.http.v1.streaming import Feeder
from tests.service import Client

EVENTS_PER_SECOND: Final = 4000
_LONGEST_WAIT_MS: Final = 25.0
_READS_SLOWED: Final = 1.5
_PATIENCE_SECONDS: Final = 300.0
"""A machine that cannot keep up answers late; that is a figure, too."""
_JSON: Final = {"Content-Type": "application/json"}

type Post = Callable[[], Awaitable[object]]


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Report as much as can be, then half of what must be possible while somebody reads."""
    async with AsyncExitStack() as opened:
        data_dir = str(folder / "reports")
        server = await opened.enter_async_context(run("tests.bench.server", data_dir, ""))
        bare = await opened.enter_async_context(serve_bare())
        bare_client = Client(bare.url, None)
        opened.push_async_callback(bare_client.close)
        client = await opened.enter_async_context(client_of(server))
        feeders = []
        for _ in range(sizes.writers):
            fed = await opened.enter_async_context(feeder_of(client))
            patient = Client(server.url, fed.sandbox.key, patience=_PATIENCE_SECONDS)
            opened.push_async_callback(patient.close)
            feeders.append(Feeder(conversation_id=fed.conversation_id, sandbox=patient))
        figures = await store(sizes, feeders, _bare_commits(folder, sizes))
        prober = await opened.enter_async_context(prober_of(server))
        figures += await _waits(sizes, prober, feeders, bare_client)
    return Section(
        title="Reported events",
        about=f"Reports of {sizes.batch} events of {sizes.event_bytes} bytes through"
        " `POST /api/v1/webhooks/events/{id}`, each stored at `synchronous=FULL` before it is"
        " answered. The floor of the rate is bare SQLite in one thread, a commit for each report;"
        " that of the waits is bare aiohttp taking the same bodies. The page is read by a process"
        " of its own, every 10 ms.",
        figures=tuple(figures),
    )


async def store(sizes: Sizes, feeders: list[Feeder], floor: tuple[float, ...] = ()) -> list[Figure]:
    """Return how many events a second are stored from so many sandboxes at once."""
    report = _reporting(feeders, sizes)
    rates = [
        sizes.batch
        * await as_many_as_can_be(report, seconds=sizes.seconds, at_once=2 * len(feeders))
        for _ in range(sizes.rounds)
    ]
    return [
        Figure(
            name=f"events stored by {len(feeders)} sandboxes at once",
            unit="/s",
            ours=tuple(rates),
            floor=floor,
            target=Target(least=EVENTS_PER_SECOND),
        )
    ]


async def _waits(sizes: Sizes, prober: Prober, feeders: list[Feeder], bare: Client) -> list[Figure]:
    report = _reporting(feeders, sizes)
    body = b"[" + b",".join(event_of(n, sizes.event_bytes) for n in range(sizes.batch)) + b"]"
    rate = EVENTS_PER_SECOND / 2 / sizes.batch
    page = f"/api/v1/conversation/{feeders[0].conversation_id}/events/search?limit=20"
    late, bare_late, idle, busy = [], [], [], []
    for _ in range(sizes.rounds):
        idle += await prober.look(page, seconds=sizes.seconds)
        took = await paced(report, per_second=rate, seconds=sizes.seconds)
        late.append(1000 * percentile(took.took_seconds, 0.99))
        took = await paced(
            lambda: bare.post("/sink", data=body), per_second=rate, seconds=sizes.seconds
        )
        bare_late.append(1000 * percentile(took.took_seconds, 0.99))
        load = paced(report, per_second=rate, seconds=sizes.seconds)
        meanwhile, _ = await asyncio.gather(prober.look(page, seconds=sizes.seconds), load)
        busy += meanwhile
    return [
        Figure(
            name=f"99 of 100 reports at {EVENTS_PER_SECOND // 2:,} events/s",
            unit="ms",
            ours=tuple(late),
            floor=tuple(bare_late),
            target=Target(most=_LONGEST_WAIT_MS),
        ),
        Figure(
            name="a page of 20 events meanwhile, its floor while nothing is reported",
            unit="ms",
            ours=tuple(1000 * seconds for seconds in busy),
            floor=tuple(1000 * seconds for seconds in idle),
            target=Target(most=_READS_SLOWED, of_floor=True),
        ),
    ]


def _reporting(feeders: list[Feeder], sizes: Sizes) -> Post:
    """Return what reports new events, each time of another sandbox."""
    turns = itertools.cycle(feeders)
    numbers = itertools.count()

    async def report() -> None:
        feeder = next(turns)
        batch = itertools.islice(numbers, sizes.batch)
        body = b"[" + b",".join(event_of(number, sizes.event_bytes) for number in batch) + b"]"
        answer = await feeder.sandbox.post(feeder.path, data=body, headers=_JSON)
        assert answer.status == 200, answer.text

    return report


def _bare_commits(folder: Path, sizes: Sizes) -> tuple[float, ...]:
    """Return how many events a second SQLite stores durably with a commit for each report."""
    connection = sqlite3.connect(folder / "floor.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE events (id TEXT PRIMARY KEY, seq INTEGER, body BLOB)")
    numbers = itertools.count()
    rates = []
    for _ in range(sizes.rounds):
        stored, began = 0, monotonic()
        while monotonic() - began < sizes.seconds / 4:
            batch = itertools.islice(numbers, sizes.batch)
            rows = [(new_id(), number, event_of(number, sizes.event_bytes)) for number in batch]
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
            connection.execute("COMMIT")
            stored += len(rows)
        rates.append(stored / (monotonic() - began))
    connection.close()
    return tuple(rates)

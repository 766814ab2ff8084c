"""An acknowledged write is never lost, and none is half applied, however the server is killed.

Writers keep a journal of what was acknowledged, outside the server. Each life of a server ends by
SIGKILL: while requests run, while it closes and checkpoints, or beside a backup. Databases of
former versions are killed in their migration.
"""

import asyncio
import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from tests.http.gateway.steps import until
from tests.http.v1.streaming import Feeder, events
from tests.live.client import PATIENCE
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, shares, zero
from tests.resilience.server import Server, serving

KILLS: Final = 1000
WRITES: Final = 100_000
READY_SECONDS: Final = 3.0
DUMPS: Final = Path(__file__).parents[2] / "data" / "db"
BATCH: Final = 4
_WRITERS: Final = 12
_LIVES: Final = 60
_LANES: Final = 3
"""Servers beside each other, so that both cores have work all the time."""


class Journal:
    """What was begun and what was acknowledged, in memory and in a file of its own."""

    def __init__(self, file: Path | None) -> None:
        self.events: dict[int, bool] = {}
        """By the number of their first event, batches: whether they were acknowledged."""
        self.names: dict[str, bool] = {}
        """By its name, each secret: whether it was acknowledged."""
        self.gone: set[str] = set()
        """Secrets whose removal was acknowledged."""
        self.going: set[str] = set()
        """Secrets whose removal was begun."""
        self.titles: list[str] = []
        """Every title that the conversation was to have, in order."""
        self.title_from = 0
        """Which of them was the last to be acknowledged."""
        self.acknowledged = 0
        self._file = file.open("a") if file else None

    def note(self, what: str) -> None:
        """Write down that something was acknowledged."""
        self.acknowledged += 1
        if self._file is not None:
            self._file.write(f"{what}\n")
            self._file.flush()

    def copy(self) -> "Journal":
        """Return what it says now."""
        made = Journal(None)
        made.events, made.names = dict(self.events), dict(self.names)
        made.gone, made.going = set(self.gone), set(self.going)
        made.titles, made.title_from = list(self.titles), self.title_from
        return made

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Writers:
    """Clients that write without a pause until the server is gone."""

    def __init__(self, server: Server, feeder: Feeder, journal: Journal) -> None:
        self._server = server
        self._feeder = feeder
        self._journal = journal
        self._next = 1
        self._tasks: list[asyncio.Task[None]] = []

    async def write(self, count: int) -> None:
        """Begin to write, and return once so many writes were acknowledged, or all have ended."""
        works = (self._events, self._events, self._secrets)
        loop = asyncio.get_running_loop()
        begun = [loop.create_task(works[i % 3]()) for i in range(_WRITERS - 1)]
        self._tasks = [*begun, loop.create_task(self._titles())]
        wanted = self._journal.acknowledged + count
        await until(
            lambda: self._journal.acknowledged >= wanted or all(map(_is_done, self._tasks)),
            time_limit=PATIENCE,
        )

    async def end(self) -> None:
        """Wait until every writer has noticed that the server is gone."""
        for task in self._tasks:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, ConnectionError, Refused):
                await task

    async def cancel(self) -> None:
        """Have them stop; what they have begun may be done or not."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _events(self) -> None:
        while True:
            first, self._next = self._next, self._next + BATCH
            self._journal.events[first] = False
            await self._ask("POST", self._feeder.path, events(BATCH, first=first))
            self._journal.events[first] = True
            self._journal.note(f"events {first}")

    async def _secrets(self) -> None:
        path = "/api/v1/secrets"
        while True:
            self._next += BATCH
            number = self._next
            name = f"KEPT_{number}"
            self._journal.names[name] = False
            await self._ask("POST", path, {"name": name, "value": name})
            self._journal.names[name] = True
            self._journal.note(f"secret {name}")
            if number % 3:
                self._journal.going.add(name)
                await self._ask("DELETE", f"{path}/{name}", None)
                self._journal.gone.add(name)
                self._journal.note(f"removed {name}")

    async def _titles(self) -> None:
        path = f"/api/v1/app-conversations/{self._feeder.conversation_id}"
        while True:
            self._next += BATCH
            title = f"Title {self._next}"
            self._journal.titles.append(title)
            at = len(self._journal.titles) - 1
            await self._ask("PATCH", path, {"title": title})
            self._journal.title_from = at
            self._journal.note(title)

    async def _ask(self, method: str, path: str, body: Any) -> None:
        is_report = path == self._feeder.path
        client = self._feeder.sandbox if is_report else self._server.client
        options = {} if body is None else {"json": body}
        answer = await client.request(method, path, **options)
        if answer.status >= 500:
            raise Refused(answer.text)
        assert answer.status < 300, answer.text


class Refused(Exception):
    """The server said that it could not do it: nothing is acknowledged."""


def _is_done(task: "asyncio.Task[None]") -> bool:
    return task.done()


type Query = Callable[..., list[tuple[Any, ...]]]


def compare(server: Server, conversation_id: str, journal: Journal) -> tuple[list[str], list[str]]:
    """Return what was lost, and what was half applied, by the database itself. Blocks."""
    found = compare_with(server.query, conversation_id, journal, journal)
    # What was open could be either, and does not change any more.
    there = _numbers(server.query, conversation_id)
    kept = _secrets(server.query)
    journal.events = {first: first in there for first in journal.events}
    journal.names = {name: name in kept for name in journal.names}
    journal.gone = journal.names.keys() - kept
    journal.going = set(journal.gone)
    journal.titles, journal.title_from = _titles(server.query, conversation_id), 0
    return found


def _numbers(query: Query, conversation_id: str) -> set[int]:
    sql = "SELECT id FROM events WHERE conversation_id = ? AND id LIKE '00000000-0000-4000-8000-%'"
    return {int(row[0].rpartition("-")[2]) for row in query(sql, conversation_id)}


def _secrets(query: Query) -> set[str]:
    return {str(row[0]) for row in query("SELECT name FROM secrets WHERE name LIKE 'KEPT%'")}


def _titles(query: Query, conversation_id: str) -> list[str]:
    return [
        row[0] for row in query("SELECT title FROM conversations WHERE id = ?", conversation_id)
    ]


def compare_with(
    query: Query, conversation_id: str, before: Journal, after: Journal
) -> tuple[list[str], list[str]]:
    """Compare with what was acknowledged before, and with all that was begun until after. Blocks."""
    there = _numbers(query, conversation_id)
    lost, half = [], []
    for first in after.events:
        found = sum(number in there for number in range(first, first + BATCH))
        if before.events.get(first) and found < BATCH:
            lost.append(f"events {first}: {found} of {BATCH}")
        elif found not in (0, BATCH):
            half.append(f"events {first}: {found} of {BATCH}")
    kept = _secrets(query)
    for name, is_acknowledged in before.names.items():
        if is_acknowledged and name not in kept and name not in after.going:
            lost.append(f"secret {name}")
        if name in before.gone and name in kept:
            lost.append(f"removal of {name}")
    half += [f"secret {name} that nobody made" for name in kept - after.names.keys()]
    allowed = after.titles[before.title_from :]
    titles = _titles(query, conversation_id)
    lost += [f"title {one!r}" for one in titles if allowed and one not in allowed]
    return lost, half


class Found(msgspec.Struct, kw_only=True):
    """What the lives of all servers have shown."""

    lost: list[str] = []
    half: list[str] = []
    faults: list[str] = []
    kills: int = 0
    writes: int = 0
    slowest_seconds: float = 0.0


async def run(ground: Ground) -> Outcome:
    found = Found()
    kills = ground.count(KILLS, least=3)
    migrations = max(1, kills // 20)
    lanes = _LANES if kills >= 100 else 1
    async with asyncio.TaskGroup() as group:
        for lane, share in enumerate(shares(kills - migrations, lanes)):
            group.create_task(_live_often(ground, f"lane{lane}", share, found))
    async with asyncio.TaskGroup() as group:
        for lane, share in enumerate(shares(migrations, lanes)):
            group.create_task(_kill_migrations(ground, lane, share, found))
    return Outcome(
        did=(
            f"{_WRITERS} writers of events, secrets and titles; SIGKILL at a random moment of"
            f" requests, commits and checkpoints, of a stop, beside a backup, and {migrations} times"
            " in a migration; the database compared with a journal after each"
        ),
        figures=(
            Figure(what="kills", value=found.kills, at_least=kills),
            Figure(
                what="acknowledged writes",
                value=found.writes,
                at_least=ground.count(WRITES, least=1) if ground.scale >= 1 else 1,
            ),
            zero("lost", found.lost),
            zero("half applied", found.half),
            zero("faults of `integrity_check`", found.faults),
            Figure(
                what="s until ready at most",
                value=round(found.slowest_seconds, 2),
                at_most=READY_SECONDS,
                is_time=True,
            ),
        ),
        problems=tuple(found.lost + found.half + found.faults),
    )


async def _live_often(ground: Ground, name: str, count: int, found: Found) -> None:
    """End so many lives, each installation a number of times: to compare much takes long."""
    for number, lives in enumerate(shares(count, -(-count // _LIVES))):
        await _lives(ground, f"{name}-{number}", lives, found)
        await asyncio.to_thread(shutil.rmtree, ground.place(f"{name}-{number}"))


async def _lives(ground: Ground, name: str, count: int, found: Found) -> None:
    directory = ground.place(name)
    async with serving(directory) as server:
        feeder = await server.feeder()
        journal = Journal(directory / "journal")
        writers = Writers(server, feeder, journal)
        # The first start makes everything.
        server.slowest_start_seconds = 0.0
        for i in range(count):
            begun = asyncio.get_running_loop().create_task(
                writers.write(ground.chance.randint(10, 230))
            )
            await _end_life(ground, server, begun, kind=i % 10)
            await writers.end()
            await server.start()
            lost, half = await asyncio.to_thread(compare, server, feeder.conversation_id, journal)
            found.lost += lost
            found.half += half
            found.faults += await asyncio.to_thread(server.faults)
            found.kills += 1
        found.writes += journal.acknowledged
        found.slowest_seconds = max(found.slowest_seconds, server.slowest_start_seconds)
        journal.close()


async def _end_life(
    ground: Ground, server: Server, begun: "asyncio.Task[None]", *, kind: int
) -> None:
    """Kill the server: at any moment, while it stops, or while a backup is made."""
    if kind == 1:
        backup = server.installation.directory / "backup.tar.gz"
        data_dir = str(server.installation.data.path)
        arguments = ("backup", str(backup), "--data-dir", data_dir)
        program = (sys.executable, "-m", "agentsvc", *arguments)
        beside = subprocess.Popen(program, stderr=subprocess.DEVNULL)  # noqa: ASYNC220  # killed below
        await begun
        await server.kill()
        beside.kill()
        await asyncio.to_thread(beside.wait, PATIENCE)
        return
    await begun
    if kind == 2:
        server.installation.tell(signal.SIGTERM)
        await asyncio.sleep(ground.chance.uniform(0, 0.2))
    await server.kill()


async def _kill_migrations(ground: Ground, lane: int, count: int, found: Found) -> None:
    for number in range(count):
        await _kill_migration(ground, f"migration{lane}-{number}", found)


async def _kill_migration(ground: Ground, name: str, found: Found) -> None:
    """Kill a server while it brings a database of a former version up to date."""
    dump = ground.chance.choice(sorted(DUMPS.glob("[0-9]*.sql")))
    directory = ground.place(name)
    async with serving(directory, is_started=False) as server:
        data = server.installation.data
        data.path.mkdir(mode=0o700)
        before = await asyncio.to_thread(_lay, dump, data.database)
        shutil.copyfile(DUMPS / "master.key", data.master_key)
        data.master_key.chmod(0o600)
        server.installation.spawn()
        await asyncio.sleep(ground.chance.uniform(0.2, 1.2))
        await server.kill()
        found.kills += 1
        await server.start()
        found.slowest_seconds = max(found.slowest_seconds, server.slowest_start_seconds)
        after = await asyncio.to_thread(_counts, data.database, list(before))
        found.lost += [
            f"{table} of version {dump.stem}: {count} became {after[table]}"
            for table, count in before.items()
            if after[table] < count and table != "sandboxes"
        ]
        found.faults += await asyncio.to_thread(server.faults)
    await asyncio.to_thread(shutil.rmtree, directory)


def _lay(dump: Path, database: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(database)) as db:
        db.executescript(dump.read_text("utf-8"))
        names = [
            row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        ]
    return _counts(database, names)


def _counts(database: Path, names: list[str]) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        count: Any = lambda name: db.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0]  # noqa: E731, S608  # names of the schema
        return {name: count(name) for name in names}


ROW: Final = Row(
    name="kills",
    half=Half.LOST,
    promise="an acknowledged write is never lost",
    run=run,
    is_alone=True,
)

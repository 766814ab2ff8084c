"""A disk that is full, fails or may not be written to refuses writes, loses nothing, and recovers.

Full is a small disk that is filled up; errors of reads, writes and syncs, and a disk that became
read-only, come from `tests.resilience.disk` between the server and its files. The server goes on all the
time. Linux itself does not mount a disk read-only on which a server has files open to write, so that
is tried with a server that starts.
"""

import asyncio
import errno
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from tests.http.v1.streaming import Feeder, events
from tests.live.disks import Disk
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.disk import build
from tests.resilience.rows.kills import BATCH, Journal, compare
from tests.resilience.server import Server, serving

ROUNDS: Final = 200
_DISK_BYTES: Final = 128 * 1024 * 1024
_WRITES: Final = 24
_ATTEMPTS: Final = 10
_REFUSED: Final = (503, 507)
_READS: Final = ("/api/settings", "/api/v1/secrets/search", "/api/v1/app-conversations/search")
_FILLER: Final = "x" * 20_000
_ALL: Final = 7
_OF_READS: Final = "errors of reads"
_FAULTS: Final = {
    "errors of writes": (errno.EIO, 1),
    "errors of syncs": (errno.EIO, 2),
    _OF_READS: (errno.EIO, 8),
    "no room, injected": (errno.ENOSPC, 5),
    "a disk that is read-only": (errno.EROFS, _ALL),
}


class Found(msgspec.Struct, kw_only=True):
    """What all rounds have shown."""

    lost: list[str] = []
    half: list[str] = []
    faults: list[str] = []
    wrong: list[str] = []
    reads: list[str] = []
    stuck: list[str] = []
    refused: dict[str, int] = {}
    acknowledged: int = 0
    unread: int = 0
    mounted: list[str] = []


class Clients:
    """Those who write and read while the disk is bad, and after."""

    def __init__(self, server: Server, feeder: Feeder, journal: Journal, found: Found) -> None:
        self._server = server
        self._feeder = feeder
        self._journal = journal
        self._found = found
        self._next = 1

    async def write_all(self, fault: str) -> None:
        """Write in every way there is; what is refused must be so as is promised."""
        works = (self._events, self._secret)
        refused = 0
        # What is free in files that are there is used up first.
        for _ in range(_ATTEMPTS):
            many = [works[i % 2]() for i in range(_WRITES - 1)]
            statuses = await asyncio.gather(self._title(), *many)
            refused += sum(status in _REFUSED for status in statuses)
            self._found.wrong += [
                f"{fault}: a write was answered with {status}"
                for status in statuses
                if status >= 300 and status not in _REFUSED
            ]
            if refused:
                break
        self._found.refused[fault] = self._found.refused.get(fault, 0) + refused

    async def read_all(self, fault: str) -> None:
        for path in (*_READS, f"/api/v1/conversation/{self._feeder.conversation_id}/events/search"):
            answer = await self._server.client.get(path)
            if fault == _OF_READS and answer.status in _REFUSED:
                self._found.unread += 1
            elif answer.status != 200:
                self._found.reads.append(f"{fault}: {path}: {answer.status} {answer.text[:200]}")

    async def recover(self, fault: str) -> None:
        """Write in every way until all are stored; a disk that is well takes the first ones."""
        for work in (self._events, self._secret, self._title):
            if (status := await work()) >= 300:
                self._found.stuck.append(f"{fault} is over: {status}")

    async def _events(self) -> int:
        first, self._next = self._next, self._next + BATCH
        self._journal.events[first] = False
        body = events(BATCH, first=first, text=_FILLER)
        answer = await self._feeder.sandbox.post(self._feeder.path, json=body)
        self._journal.events[first] = answer.status < 300
        return self._note(answer.status, f"events {first}")

    async def _secret(self) -> int:
        self._next += BATCH
        name = f"KEPT_{self._next}"
        self._journal.names[name] = False
        body = {"name": name, "value": _FILLER[:10_000]}
        answer = await self._server.client.post("/api/v1/secrets", json=body)
        self._journal.names[name] = answer.status < 300
        return self._note(answer.status, f"secret {name}")

    async def _title(self) -> int:
        self._next += BATCH
        title = f"Title {self._next}"
        self._journal.titles.append(title)
        at = len(self._journal.titles) - 1
        path = f"/api/v1/app-conversations/{self._feeder.conversation_id}"
        answer = await self._server.client.patch(path, json={"title": title})
        if answer.status < 300:
            self._journal.title_from = at
        return self._note(answer.status, title)

    def _note(self, status: int, what: str) -> int:
        if status < 300:
            self._journal.note(what)
        return status


async def run(ground: Ground) -> Outcome:
    rounds = ground.count(ROUNDS, least=5)
    kinds = len(_FAULTS) + 1
    found = Found()
    await _on_full_disk(ground, -(-rounds // kinds), found)
    await _on_faulty_disk(ground, rounds - -(-rounds // kinds), found)
    refused = ", ".join(f"{count} for {what}" for what, count in sorted(found.refused.items()))
    return Outcome(
        did=(
            f"a tmpfs filled up, and errors injected below the server; {_WRITES} writes of events,"
            f" secrets and titles and {len(_READS) + 1} reads in each round, then written again"
            f" without a restart, at last killed and compared; refused: {refused}; with errors of reads"
            f" {found.unread} reads were refused, too; a start on a disk mounted read-only"
        ),
        figures=(
            Figure(what="rounds", value=rounds, at_least=rounds),
            Figure(what="acknowledged writes", value=found.acknowledged, at_least=rounds),
            Figure(
                what="kinds of faults refused",
                value=sum(map(bool, found.refused.values())),
                at_least=kinds,
            ),
            zero("refused otherwise than with 503 or 507", found.wrong),
            zero("reads that failed", found.reads),
            zero("writes refused when it was over", found.stuck),
            zero("starts on a read-only disk that were not refused, or changed it", found.mounted),
            zero("lost", found.lost),
            zero("half applied", found.half),
            zero("faults of the database", found.faults),
        ),
        problems=tuple(
            found.wrong
            + found.reads
            + found.stuck
            + found.mounted
            + found.lost
            + found.half
            + found.faults
        ),
    )


type Breaks = Callable[[int], AbstractContextManager[str]]
"""Has the disk be bad for a while in one way or another."""


async def _on_full_disk(ground: Ground, rounds: int, found: Found) -> None:
    directory = ground.place("full")
    data = directory / "data"
    data.mkdir()
    disk = await asyncio.to_thread(Disk, data, _DISK_BYTES)
    assert disk.is_there, disk.remove()
    try:
        async with serving(directory, launcher=disk.launcher) as server:

            @contextmanager
            def full(_: int) -> Iterator[str]:
                disk.fill()
                try:
                    yield "a full disk"
                finally:
                    disk.make_room()

            # SQLite itself does not find the way to where others see it.
            await _try(server, rounds, full, found, copied_from=disk.seen_at)
            found.mounted += await _start_read_only(server, disk)
    finally:
        await asyncio.to_thread(disk.remove)


async def _on_faulty_disk(ground: Ground, rounds: int, found: Found) -> None:
    directory = ground.place("faulty")
    library = await asyncio.to_thread(build, directory)
    fault = directory / "fault"
    _write(fault, 0, 0)
    environment = {
        "LD_PRELOAD": str(library),
        "DISK_DIR": str(directory / "data"),
        "DISK_FAULT": str(fault),
    }
    names = list(_FAULTS)
    async with serving(directory, environment=environment) as server:

        @contextmanager
        def broken(number: int) -> Iterator[str]:
            name = names[number % len(names)]
            _write(fault, *_FAULTS[name])
            try:
                yield name
            finally:
                _write(fault, 0, 0)

        await _try(server, rounds, broken, found)


async def _try(
    server: Server, rounds: int, bad: Breaks, found: Found, *, copied_from: Path | None = None
) -> None:
    feeder = await server.feeder()
    journal = Journal(None)
    clients = Clients(server, feeder, journal, found)
    for number in range(rounds):
        with bad(number) as fault:
            await clients.write_all(fault)
            await clients.read_all(fault)
        await clients.recover(fault)
    await server.kill()
    await server.start()
    await server.installation.stop()
    if copied_from is not None:
        server.seen_at = server.installation.directory / "copy"
        await asyncio.to_thread(shutil.copytree, copied_from, server.seen_at)
    lost, half = await asyncio.to_thread(compare, server, feeder.conversation_id, journal)
    found.lost += lost
    found.half += half
    found.faults += await asyncio.to_thread(server.faults)
    found.acknowledged += journal.acknowledged


async def _start_read_only(server: Server, disk: Disk) -> list[str]:
    """Start the server on its disk mounted read-only; then, with nothing else done, as before."""
    before = await asyncio.to_thread(_contents, disk.seen_at)
    await asyncio.to_thread(disk.mount, "ro")
    try:
        await server.start()
        wrong = ["it starts"]
        await server.installation.stop()
    except AssertionError as exc:
        wrong = [] if "hint:" in str(exc) else [f"it says: {exc}"]
    await asyncio.to_thread(disk.mount, "rw")
    if await asyncio.to_thread(_contents, disk.seen_at) != before:
        wrong.append("the disk was changed")
    await server.start()
    return wrong


def _contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def _write(file: Path, number: int, what: int) -> None:
    """Change what the library has the server's disk do."""
    with file.open("r+b" if file.exists() else "wb") as out:
        out.write(struct.pack("=ii", number, what))


ROW: Final = Row(
    name="disk",
    half=Half.LOST,
    promise="a full, failing or read-only disk loses nothing",
    run=run,
)

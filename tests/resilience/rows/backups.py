"""A backup made under load is one moment of what there was, and is restored elsewhere without a difference.

Writers count: what a backup has must be all that was acknowledged before it was begun, nothing
that was begun after it was done, and no batch in part. What is restored is started every so often.
"""

import asyncio
import contextlib
import shutil
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.resilience.book import Figure, Ground, Half, Outcome, Row, shares, zero
from tests.resilience.rows.kills import Journal, Writers, compare_with
from tests.resilience.server import Server, command, serving

TRIPS: Final = 100
_STARTS: Final = 10
"""One restored installation of so many is started and asked."""
_LANES: Final = 2
_run: Final = partial(command, time_limit=300.0)
"""Beside other rows a copy of half a million writes takes its time."""


class Found(msgspec.Struct, kw_only=True):
    """What the round trips of all servers have shown."""

    differences: list[str] = []
    trips: int = 0
    started: int = 0
    acknowledged: int = 0


async def run(ground: Ground) -> Outcome:
    trips = ground.count(TRIPS, least=1)
    found = Found()
    async with asyncio.TaskGroup() as group:
        for lane, share in enumerate(shares(trips, _LANES)):
            group.create_task(_make_trips(ground, f"lane{lane}", share, found))
    return Outcome(
        did=(
            "`agentsvc backup` while writers write, `agentsvc restore` to another directory,"
            f" compared with the journal; {found.started} of them started and asked; one more of each server at rest,"
            " compared row by row"
        ),
        figures=(
            Figure(what="round trips", value=found.trips, at_least=trips),
            Figure(what="acknowledged writes", value=found.acknowledged),
            zero("differences", found.differences),
        ),
        problems=tuple(found.differences),
    )


async def _make_trips(ground: Ground, name: str, count: int, found: Found) -> None:
    directory = ground.place(name)
    async with serving(directory) as server:
        feeder = await server.feeder()
        journal = Journal(directory / "journal")
        writers = Writers(server, feeder, journal)
        await server.client.post(
            "/api/settings", json={"llm_api_key": "sealed-key", "language": "de"}
        )
        for number in range(count):
            await writers.write(40)
            before = journal.copy()
            file = directory / f"{number}.tar.gz"
            data_dir = str(server.installation.data.path)
            made = await asyncio.to_thread(_run, "backup", str(file), "--data-dir", data_dir)
            await writers.cancel()
            restored = directory / "restored"
            read = await asyncio.to_thread(_run, "restore", str(file), "--data-dir", str(restored))
            found.trips += 1
            if made.returncode or read.returncode:
                found.differences.append(f"{made.stderr} {read.stderr}")
                continue
            found.differences += await asyncio.to_thread(
                _compare, restored / "agentsvc.db", feeder.conversation_id, before, journal
            )
            if number % _STARTS == 0:
                elsewhere = ground.place(f"{name}-elsewhere")
                found.differences += await _start(server, elsewhere, restored)
                found.started += 1
            file.unlink()
            await asyncio.to_thread(shutil.rmtree, restored, ignore_errors=True)
        found.differences += await _round_trip(server, directory)
        found.acknowledged += journal.acknowledged
        journal.close()


def _compare(database: Path, conversation_id: str, before: Journal, after: Journal) -> list[str]:
    """Compare a copy with what had to be in it, and what cannot be; no batch is there in part."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        lost, half = compare_with(
            lambda sql, *values: db.execute(sql, values).fetchall(), conversation_id, before, after
        )
        faults = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
    return lost + half + faults


async def _start(server: Server, directory: Path, restored: Path) -> list[str]:
    """Start a copy as its own server and ask it as the client of the first one does."""
    async with serving(directory, is_started=False) as copy:
        shutil.move(restored, copy.installation.data.path)
        await copy.start()
        client = copy.client_with(server.client.key)
        differences = []
        for path in ("/api/settings", "/api/v1/secrets/git-providers", "/api/keys/current"):
            there, here = await client.get(path), await server.client.get(path)
            if there.status != here.status or _stable(there.json()) != _stable(here.json()):
                differences.append(f"{path}: {there.text} instead of {here.text}")
    shutil.rmtree(directory)
    return differences


def _stable(found: Any) -> Any:
    unstable = ("last_used_at", "request_id")
    return {key: value for key, value in found.items() if key not in unstable}


async def _round_trip(server: Server, directory: Path) -> list[str]:
    """Compare every row of every table of a server at rest with those of its copy."""
    file, restored = directory / "rest.tar.gz", directory / "rest"
    data_dir = str(server.installation.data.path)
    await server.installation.stop()
    await asyncio.to_thread(command, "backup", str(file), "--data-dir", data_dir)
    await asyncio.to_thread(command, "restore", str(file), "--data-dir", str(restored))
    here, there = await asyncio.gather(
        asyncio.to_thread(_dump, server.database),
        asyncio.to_thread(_dump, restored / server.database.name),
    )
    return [f"only {'here' if line in here else 'there'}: {line[:200]}" for line in here ^ there]


def _dump(database: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        return set(db.iterdump())


ROW: Final = Row(name="backup", half=Half.LOST, promise="backup", run=run)

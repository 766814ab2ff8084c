"""What is kept is what is stored: it is read once, and anew after whatever anybody stores."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from agentsvc.base.errors import DatabaseBusy
from agentsvc.storage.database import Database, Transaction
from tests.storage.users import adding

_SQL = "SELECT id FROM users WHERE id >= :least ORDER BY id"


class _Reading:
    """Has ids of users kept, and counts how often they are read."""

    def __init__(self, db: Database, *, weight: int = 1) -> None:
        self._db = db
        self._weight = weight
        self.count = 0

    async def ids(self, least: str = "") -> list[str]:
        async def read() -> list[str]:
            self.count += 1
            return [row["id"] for row in await self._db.all(_SQL, {"least": least})]

        return await self._db.keep((self, least), read, weigh=lambda _: self._weight)


async def test_what_is_kept_is_read_once(db: Database) -> None:
    await db.write(adding("a", "b"))
    reading = _Reading(db)
    await asyncio.sleep(0)

    for _ in range(3):
        assert await reading.ids() == ["a", "b"]
        await asyncio.sleep(0)
    assert reading.count == 1
    assert await reading.ids("b") == ["b"]
    assert reading.count == 2


async def test_a_change_is_seen_at_once(db: Database) -> None:
    reading = _Reading(db)
    for stored in (["a"], ["a", "b"], ["a", "b", "c"]):
        await db.write(adding(stored[-1]))
        assert await reading.ids() == stored
        assert await reading.ids() == stored


async def test_a_change_of_another_process_is_seen_at_once(db: Database, db_path: Path) -> None:
    reading = _Reading(db)
    for stored in (["a"], ["a", "b"]):
        await asyncio.to_thread(_add_elsewhere, db_path, stored[-1])
        assert await reading.ids() == stored


def _add_elsewhere(path: Path, user_id: str) -> None:
    code = (
        "import sqlite3, sys\n"
        "with sqlite3.connect(sys.argv[1]) as db:\n"
        "    db.execute(\"INSERT INTO users (id, name, role, created_at) VALUES (?, ?, 'admin', '')\","
        " (sys.argv[2], sys.argv[2]))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path), user_id], check=True, timeout=10)


async def test_what_is_undone_was_never_there(db: Database) -> None:
    reading = _Reading(db)
    assert await reading.ids() == []

    async def fail(tx: Transaction) -> None:
        await adding("a")(tx)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await db.write(fail)
    assert await reading.ids() == []


async def test_what_is_too_much_is_read_each_time(db: Database) -> None:
    await db.write(adding("a", "b"))
    reading = _Reading(db, weight=1_000_000)

    for _ in range(3):
        assert await reading.ids() == ["a", "b"]
    assert reading.count == 3


async def test_no_more_is_kept_than_may_be(db: Database) -> None:
    await db.write(adding("a"))
    reading = _Reading(db, weight=3_000)
    for least in ("", "0", "", "0"):
        assert await reading.ids(least) == ["a"]
    assert reading.count == 4


async def test_nothing_is_kept_once_the_database_is_closed(db: Database) -> None:
    reading = _Reading(db)
    assert await reading.ids() == []
    await db.close()
    await asyncio.sleep(0)
    with pytest.raises(DatabaseBusy):
        await reading.ids()

"""Reads: of one state, without waiting for writers, the long ones off the event loop."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from agentsvc.storage.database import Database, Reader, Transaction
from tests.storage.users import COUNT, LONG, adding, user_ids


async def test_a_read_sees_one_state_from_beginning_to_end(db: Database) -> None:
    await db.write(adding("a"))
    begun = threading.Semaphore(0)

    async def body(reader: Reader) -> list[int]:
        first = await reader.all("SELECT id FROM users")
        begun.release()
        # It takes longer than a query may on the event loop, so that this goes on in a thread.
        await reader.all(COUNT, LONG)
        second = await reader.all("SELECT id FROM users")
        return [len(first), len(second)]

    reading = asyncio.get_running_loop().create_task(db.read(body))
    # It is begun on the event loop, and once more in the thread.
    for _ in range(2):
        await asyncio.to_thread(begun.acquire)
    await db.write(adding("b"))
    assert await reading == [1, 1]
    assert await user_ids(db) == ["a", "b"]


async def test_a_long_query_does_not_keep_the_event_loop(db: Database) -> None:
    reading = asyncio.get_running_loop().create_task(db.one(COUNT, LONG))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    row = await reading
    assert row is not None
    assert row[0] == LONG["to"]
    assert turns > 10


async def test_a_query_of_few_long_steps_does_not_keep_the_event_loop(db: Database) -> None:
    # Of some thousand steps, each one in twenty looks through a long text.
    sql = COUNT.removesuffix("count(*) FROM n") + "sum(instr(i || :text, :words)) FROM n"
    params = {"to": 150, "text": "a" * 2**16, "words": "a" * 200 + "b"}
    reading = asyncio.get_running_loop().create_task(db.one(sql, params))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10


async def test_a_body_that_waits_for_something_else_than_its_reader_is_refused(
    db: Database,
) -> None:
    async def body(reader: Reader) -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="can wait for nothing but"):
        await db.read(body)


async def test_readers_do_not_wait_for_a_writer(db: Database) -> None:
    await db.write(adding("a"))
    go = asyncio.Event()

    async def slow(tx: Transaction) -> None:
        await adding("b")(tx)
        await go.wait()

    writing = asyncio.get_running_loop().create_task(db.write(slow))
    await asyncio.sleep(0.01)
    seen = await user_ids(db)
    go.set()
    await writing

    assert seen == ["a"]


async def test_a_reader_cannot_write(db: Database) -> None:
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await db.read(lambda reader: reader.all("DELETE FROM users"))


async def test_a_long_read_keeps_no_snapshot_behind_it(db: Database) -> None:
    async def body(reader: Reader) -> None:
        await reader.all("SELECT id FROM users")
        await reader.all(COUNT, LONG)

    await db.read(body)
    await db.write(adding("a"))
    assert _take_in_all(db.path)


async def test_cancelled_long_reads_leave_every_connection_fit_for_use(db: Database) -> None:
    await db.one(COUNT, LONG)
    for number in range(60):
        # The same statement was slow a moment ago, so each of these begins in a thread.
        task = asyncio.get_running_loop().create_task(db.one(COUNT, {"to": 20_000}))
        for _ in range(number % 12):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    await db.write(adding("a"))
    rows = await asyncio.gather(*(db.one(COUNT, {"to": 10}) for _ in range(9)))
    assert [row and row[0] for row in rows] == [10] * 9
    assert _take_in_all(db.path)


def _take_in_all(path: Path) -> bool:
    """Say whether the log of writes could be taken into the file, which a reader of old rows prevents."""
    other = sqlite3.connect(path)
    try:
        blocked, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        other.close()
    return not blocked


async def test_many_reads_at_once_share_the_connections(db: Database) -> None:
    await db.write(adding("a"))
    results = await asyncio.gather(*(user_ids(db) for _ in range(100)))
    assert results == [["a"]] * 100

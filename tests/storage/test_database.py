"""Transactions: whole or not at all, durable before anybody hears of them, never torn."""

import asyncio
import contextlib
import contextvars
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agentsvc.base.errors import DatabaseBusy, DiskFull, NotFound, StorageFailed
from agentsvc.storage.database import Database, Reader, Transaction
from agentsvc.storage.queries import Row
from tests.storage.users import COUNT, INSERT, LONG, adding, user_ids


def names_in(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


async def test_what_is_written_can_be_read(db: Database) -> None:
    await db.write(adding("a"))

    row = await db.one("SELECT id, name FROM users WHERE id = :id", {"id": "a"})
    assert isinstance(row, Row)
    assert dict(row) == {"id": "a", "name": "name of a"}
    assert await db.one("SELECT id FROM users WHERE id = :id", {"id": "b"}) is None


async def test_write_returns_what_the_body_returns(db: Database) -> None:
    async def body(tx: Transaction) -> int:
        await tx.run_many(INSERT, ({"id": f"u{n}", "name": f"n{n}"} for n in range(3)))
        return await tx.run("UPDATE users SET role = 'member'")

    assert await db.write(body) == 3


async def test_a_transaction_sees_its_own_changes(db: Database) -> None:
    async def body(tx: Transaction) -> list[str]:
        await tx.run(INSERT, {"id": "a", "name": "a"})
        return [row["id"] for row in await tx.all("SELECT id FROM users")]

    assert await db.write(body) == ["a"]


async def test_commits_are_on_disk_before_the_caller_goes_on(db: Database, db_path: Path) -> None:
    await db.write(adding("a"))

    with sqlite3.connect(f"{db_path.as_uri()}?mode=ro", uri=True) as other:
        assert other.execute("SELECT id FROM users").fetchall() == [("a",)]
    other.close()


async def test_the_writer_is_durable_and_checks_references(db: Database) -> None:
    async def body(tx: Transaction) -> list[object]:
        names = ("synchronous", "foreign_keys", "journal_mode")
        rows = [await tx.one(f"PRAGMA {name}") for name in names]
        return [row[0] for row in rows if row]

    assert await db.write(body) == [2, 1, "wal"]


async def test_a_failing_body_undoes_only_itself(db: Database) -> None:
    async def failing(tx: Transaction) -> None:
        await adding("bad")(tx)
        raise ValueError("no")

    results = await asyncio.gather(
        db.write(adding("a")),
        db.write(failing),
        db.write(adding("b")),
        return_exceptions=True,
    )

    assert [type(result) for result in results] == [type(None), ValueError, type(None)]
    assert await user_ids(db) == ["a", "b"]


async def test_a_body_that_breaks_a_constraint_hears_it_and_hurts_nobody(db: Database) -> None:
    results = await asyncio.gather(
        db.write(adding("a")),
        db.write(adding("new", "a")),
        db.write(adding("b")),
        return_exceptions=True,
    )

    assert isinstance(results[1], sqlite3.IntegrityError)
    assert await user_ids(db) == ["a", "b"]


async def test_what_belongs_to_nothing_any_more_is_not_found_and_hurts_nobody(db: Database) -> None:
    sql = "INSERT INTO quotas (user_id) VALUES ('gone')"
    for write in (db.write, db.write_apart):
        name = write.__name__
        results = await asyncio.gather(
            write(adding(f"{name} a")),
            write(lambda tx: tx.run(sql)),
            write(adding(f"{name} b")),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [type(None), NotFound, type(None)]
    assert len(await user_ids(db)) == 4


async def test_a_body_may_catch_the_failure_of_a_statement_and_go_on(db: Database) -> None:
    async def body(tx: Transaction) -> None:
        await adding("a")(tx)
        with pytest.raises(sqlite3.IntegrityError):
            await adding("a")(tx)
        await adding("b")(tx)

    await db.write(body)
    assert await user_ids(db) == ["a", "b"]


async def test_a_function_that_is_no_body_fails_like_one(db: Database) -> None:
    def body(tx: Transaction) -> Awaitable[None]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await db.write(body)
    await db.write(adding("a"))


async def test_a_body_that_is_cancelled_from_inside_undoes_only_itself(db: Database) -> None:
    async def body(tx: Transaction) -> None:
        await adding("bad")(tx)
        raise asyncio.CancelledError

    results = await asyncio.gather(db.write(body), db.write(adding("a")), return_exceptions=True)

    assert isinstance(results[0], asyncio.CancelledError)
    assert await user_ids(db) == ["a"]


async def test_bodies_run_in_the_order_of_their_calls(db: Database) -> None:
    order = []

    def noting(number: int) -> Callable[[Transaction], Awaitable[None]]:
        async def body(tx: Transaction) -> None:
            await adding(f"{number}")(tx)
            order.append(number)

        return body

    await asyncio.gather(*(db.write(noting(number)) for number in range(200)))
    assert order == list(range(200))


async def test_bodies_that_wait_together_share_a_commit(db: Database) -> None:
    seen = []

    async def looking(tx: Transaction) -> None:
        seen.append(await user_ids(db))

    await asyncio.gather(db.write(adding("a")), db.write(looking))

    # The second body ran while the first was not yet there for others.
    assert seen == [[]]


async def test_a_body_runs_in_the_context_of_its_caller(db: Database) -> None:
    request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id")

    async def write_as(name: str) -> str:
        async def body(tx: Transaction) -> str:
            return request_id.get()

        request_id.set(name)
        return await db.write(body)

    names = [f"r{number}" for number in range(5)]
    assert await asyncio.gather(*map(write_as, names)) == names


async def test_a_transaction_inside_a_transaction_is_refused(db: Database) -> None:
    async def body(tx: Transaction) -> None:
        await db.write(adding("inner"))

    with pytest.raises(RuntimeError, match="cannot wait for another"):
        await db.write(body)
    await db.write(adding("a"))
    assert await user_ids(db) == ["a"]


async def test_callbacks_run_after_the_commit_and_before_the_caller_goes_on(
    db: Database, db_path: Path
) -> None:
    seen = []

    def look() -> None:
        with sqlite3.connect(db_path) as other:
            seen.append(other.execute("SELECT id FROM users").fetchall())
        other.close()

    async def body(tx: Transaction) -> None:
        tx.after_commit(look)
        await adding("a")(tx)

    await db.write(body)
    assert seen == [[("a",)]]


async def test_callbacks_of_a_failed_body_do_not_run(db: Database) -> None:
    called = []

    async def body(tx: Transaction) -> None:
        tx.after_commit(lambda: called.append(1))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await db.write(body)
    await db.write(adding("a"))
    assert called == []


async def test_callbacks_of_a_lost_commit_do_not_run(db: Database) -> None:
    called = []

    async def body(tx: Transaction) -> None:
        tx.after_commit(lambda: called.append(1))
        await break_commit(tx)

    with pytest.raises(StorageFailed):
        await db.write(body)
    await db.write(adding("a"))
    assert called == []


async def test_a_callback_that_raises_is_reported_and_stops_nothing(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    called = []

    def fail() -> None:
        raise ValueError("callback is broken")

    async def body(tx: Transaction) -> None:
        tx.after_commit(fail)
        tx.after_commit(lambda: called.append(1))

    await db.write(body)
    await db.write(adding("a"))
    assert called == [1]
    assert "callback is broken" in caplog.text


async def test_500_cancellations_at_varied_points_tear_nothing(db: Database) -> None:
    async def pair(number: int) -> None:
        await db.write(adding(f"left {number}", f"right {number}"))

    for number in range(500):
        task = asyncio.get_running_loop().create_task(pair(number))
        for _ in range(number % 100):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    await db.write(adding("afterwards"))
    ids = await user_ids(db)
    left = {name.removeprefix("left ") for name in ids if name.startswith("left ")}
    right = {name.removeprefix("right ") for name in ids if name.startswith("right ")}
    assert left == right
    assert "afterwards" in ids


async def test_a_write_whose_caller_has_left_is_still_done(db: Database) -> None:
    task = asyncio.get_running_loop().create_task(db.write(adding("a")))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])

    await db.write(adding("b"))
    assert await user_ids(db) == ["a", "b"]


async def test_a_failure_whose_caller_has_left_is_logged(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(tx: Transaction) -> None:
        raise ValueError("nobody listens")

    task = asyncio.get_running_loop().create_task(db.write(body))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await db.write(adding("a"))

    [record] = caplog.records
    assert record.message == "write failed after its caller was cancelled"
    assert "nobody listens" in record.__dict__["reason"]


async def set_page_limit(db: Database, pages: int) -> None:
    await db.write(lambda tx: tx.one(f"PRAGMA max_page_count = {pages}"))


async def fill(tx: Transaction) -> None:
    await tx.run(INSERT, {"id": "big", "name": "x" * 1_000_000})


async def test_a_full_disk_reaches_its_caller_and_later_writes_work(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await set_page_limit(db, 1)

    with pytest.raises(DiskFull, match="Free some space") as caught:
        await db.write(fill)
    assert caught.value.detail
    await set_page_limit(db, 1_000_000)
    await db.write(fill)

    assert await user_ids(db) == ["big"]
    [said] = [
        one for one in caplog.records if one.message == "transaction failed, its changes are lost"
    ]
    task = asyncio.current_task()
    assert task is not None
    facts = vars(said)
    assert facts["lost"] == [f"fill for {task.get_name()}"]
    assert (facts["writes"], facts["untold"]) == (1, [])
    assert "full" in facts["reason"]
    assert "Traceback" not in caplog.text


def disk_error() -> sqlite3.OperationalError:
    failure = sqlite3.OperationalError("disk I/O error")
    failure.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
    return failure


async def test_a_disk_that_cannot_be_read_reaches_its_caller_and_later_reads_work(
    db: Database,
) -> None:
    async def fail(reader: Reader) -> None:
        # As SQLite does after some of these faults.
        await reader.all("ROLLBACK")
        raise disk_error()

    for _ in range(10):
        with pytest.raises(StorageFailed, match="cannot read what it has stored: its disk fails"):
            await db.read(fail)
    await db.write(adding("a"))
    assert await user_ids(db) == ["a"]


async def test_a_damaged_database_is_called_that_and_not_a_full_disk(db_path: Path) -> None:
    db = await Database.open(db_path)
    await db.write(adding("a"))
    await db.close()
    with contextlib.closing(sqlite3.connect(db_path)) as raw:
        [[page]] = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'users'")
        [[size]] = raw.execute("PRAGMA page_size")
    with db_path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)

    db = await Database.open(db_path)
    with pytest.raises(StorageFailed, match=r"cannot store .* damaged.*restore a backup") as caught:
        await db.write(adding("b"))
    assert not isinstance(caught.value, DiskFull | DatabaseBusy)
    with pytest.raises(StorageFailed, match=r"cannot read .* damaged.*restore a backup"):
        await db.all("SELECT * FROM users")
    await db.close()


async def test_who_reads_is_not_kept_in_a_transaction_of_before(db: Database) -> None:
    await db.all("BEGIN")
    assert await user_ids(db) == []
    await db.write(adding("a"))
    assert await user_ids(db) == ["a"]


async def test_a_disk_that_cannot_be_read_in_a_transaction_undoes_it(db: Database) -> None:
    async def fail(tx: Transaction) -> None:
        await adding("a")(tx)
        raise disk_error()

    with pytest.raises(StorageFailed, match="its disk fails"):
        await db.write(fail)
    assert await user_ids(db) == []


async def test_a_database_that_is_read_only_fails_the_write_and_not_the_server(
    db: Database,
) -> None:
    async def body(tx: Transaction) -> None:
        # What SQLite answers when the file was made read-only, or replaced.
        await tx.one("PRAGMA query_only = ON")
        try:
            await adding("a")(tx)
        finally:
            await tx.one("PRAGMA query_only = OFF")

    with pytest.raises(StorageFailed, match=r"cannot store .* read-only"):
        await db.write(body)
    await db.write(adding("b"))
    assert await user_ids(db) == ["b"]


async def test_a_query_that_is_wrong_is_no_fault_of_the_disk(db: Database) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await db.all("SELECT id FROM nowhere")


async def test_a_full_disk_is_found_among_the_causes_of_another_error(db: Database) -> None:
    async def body(tx: Transaction) -> None:
        try:
            await fill(tx)
        except sqlite3.Error as exc:
            inner = RuntimeError("the record was not stored")
            inner.__cause__ = exc
            raise RuntimeError("the conversation was not stored") from inner

    await set_page_limit(db, 1)
    with pytest.raises(DiskFull, match="Free some space"):
        await db.write(body)


async def test_a_full_disk_reaches_every_caller_of_the_batch(db: Database) -> None:
    await set_page_limit(db, 1)

    before, full, after = await asyncio.gather(
        db.write(adding("before")),
        db.write(fill),
        db.write(adding("after")),
        return_exceptions=True,
    )

    assert isinstance(before, DiskFull)
    assert isinstance(full, DiskFull)
    assert before is not full
    # It was not tried in that transaction, so it had another one.
    assert after is None
    assert await user_ids(db) == ["after"]


async def test_a_full_disk_that_undoes_one_statement_fails_one_body(db: Database) -> None:
    async def full(tx: Transaction) -> None:
        # SQLite undoes just the statement where it keeps a journal for it.
        await tx.run(
            """
            INSERT INTO users (id, name, role, created_at)
            SELECT value, hex(zeroblob(100000)) || value, 'admin', ''
            FROM json_each('[1, 2, 3]')
            """
        )

    await set_page_limit(db, 1)
    first, second = await asyncio.gather(
        db.write(adding("a")), db.write(full), return_exceptions=True
    )

    assert first is None
    assert isinstance(second, DiskFull)
    assert await user_ids(db) == ["a"]


async def break_commit(tx: Transaction) -> None:
    await tx.run("PRAGMA defer_foreign_keys = ON")
    await tx.run("INSERT INTO settings (user_id, sealed, updated_at) VALUES ('nobody', x'', '')")


async def test_a_failing_commit_reaches_every_caller_and_later_writes_work(db: Database) -> None:
    results = await asyncio.gather(
        db.write(adding("a")), db.write(break_commit), return_exceptions=True
    )

    assert [type(result) for result in results] == [StorageFailed, StorageFailed]
    assert all("refused it" in str(result) for result in results)
    await db.write(adding("b"))
    assert await user_ids(db) == ["b"]


async def test_a_lost_transaction_whose_caller_has_left_is_logged(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    task = asyncio.get_running_loop().create_task(db.write(break_commit))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    with contextlib.suppress(StorageFailed):  # it may share the transaction that is lost
        await db.write(adding("a"))

    [said] = [
        one for one in caplog.records if one.message == "transaction failed, its changes are lost"
    ]
    assert vars(said)["untold"] == [f"break_commit for {task.get_name()}"]


async def test_a_database_locked_by_another_program_is_heard_and_got_over(db_path: Path) -> None:
    db = await Database.open(db_path, busy_seconds=0.01)
    other = sqlite3.connect(db_path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    results = await asyncio.gather(
        db.write(adding("a")), db.write(adding("b")), return_exceptions=True
    )
    other.execute("ROLLBACK")
    other.close()

    assert [type(result) for result in results] == [DatabaseBusy, DatabaseBusy]
    await db.write(adding("c"))
    assert await user_ids(db) == ["c"]
    await db.close()
    assert all("another program has locked" in str(result) for result in results)


async def test_a_body_that_failed_hears_why_though_the_next_one_finds_a_lock(db_path: Path) -> None:
    db = await Database.open(db_path, busy_seconds=0.01)
    other = sqlite3.connect(db_path, isolation_level=None, timeout=0, check_same_thread=False)
    begun = asyncio.get_running_loop().create_future()

    def lock() -> None:
        """Take the lock as soon as the body below has ended."""
        while not other.in_transaction:
            with contextlib.suppress(sqlite3.OperationalError):
                other.execute("BEGIN IMMEDIATE")

    async def fail(tx: Transaction) -> None:
        await tx.run(INSERT, {"id": "a", "name": "a"})
        begun.set_result(asyncio.get_running_loop().run_in_executor(None, lock))
        raise ValueError("its own")

    results = await asyncio.gather(db.write(fail), db.write(adding("b")), return_exceptions=True)
    await (await begun)
    other.close()
    stored = await user_ids(db)
    await db.close()
    assert str(results[0]) == "its own"
    assert stored == ([] if isinstance(results[1], DatabaseBusy) else ["b"])


async def test_more_writers_than_a_batch_holds_are_all_served(db: Database) -> None:
    await asyncio.gather(*(db.write(adding(f"{number:03}")) for number in range(300)))
    assert await user_ids(db) == [f"{number:03}" for number in range(300)]


async def test_integers_beyond_64_bits_fail_their_body_only(db: Database) -> None:
    async def body(tx: Transaction) -> None:
        await tx.run("SELECT :number", {"number": 2**63})

    with pytest.raises(OverflowError):
        await db.write(body)
    await db.write(adding("a"))


async def test_close_finishes_what_is_queued(db_path: Path) -> None:
    db = await Database.open(db_path)
    loop = asyncio.get_running_loop()
    writes = [loop.create_task(db.write(adding(f"{number:03}"))) for number in range(100)]
    await asyncio.sleep(0)
    await db.close()
    await asyncio.gather(*writes)

    db = await Database.open(db_path)
    assert len(await user_ids(db)) == 100
    await db.close()


async def test_close_waits_for_running_reads_and_may_be_called_twice(db_path: Path) -> None:
    db = await Database.open(db_path)
    reading = asyncio.get_running_loop().create_task(db.one(COUNT, LONG))
    await asyncio.sleep(0)
    await db.close()
    await db.close()

    row = await reading
    assert row is not None
    assert row[0] == LONG["to"]


async def test_a_closed_database_answers_that_the_server_stops(db_path: Path) -> None:
    db = await Database.open(db_path)
    await db.close()

    for attempt in (
        db.write(adding("a")),
        db.one("SELECT 1"),
        db.all("SELECT 1"),
        db.read(lambda reader: reader.all("SELECT 1")),
    ):
        with pytest.raises(DatabaseBusy, match="stopping"):
            await attempt


async def test_close_leaves_one_file_that_holds_everything(db_path: Path) -> None:
    db = await Database.open(db_path)
    await db.write(adding("a"))
    await db.close()
    assert names_in(db_path.parent) == [db_path.name]


async def test_values_are_not_logged_even_at_debug_level(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        await db.write(adding("very-secret"))
    assert "very-secret" not in caplog.text

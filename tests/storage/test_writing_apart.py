"""Transactions that run in the thread that writes: the same promises as for all others."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable

import pytest

from agentsvc.base.errors import DiskFull
from agentsvc.storage.database import Database, Transaction
from tests.storage.test_database import fill, set_page_limit
from tests.storage.users import adding, user_ids


async def test_a_body_that_is_apart_runs_elsewhere_and_is_durable(db: Database) -> None:
    async def body(tx: Transaction) -> int:
        await adding("a")(tx)
        assert await tx.one("SELECT id FROM users") is not None
        return threading.get_ident()

    assert await db.write_apart(body) != threading.get_ident()
    assert await user_ids(db) == ["a"]


async def test_both_sorts_of_bodies_run_in_the_order_of_their_calls(db: Database) -> None:
    order: list[int] = []

    def noting(number: int) -> Callable[[Transaction], Awaitable[None]]:
        async def body(tx: Transaction) -> None:
            await adding(f"{number:03}")(tx)
            order.append(number)

        return body

    ways = (db.write, db.write_apart, db.write_apart)
    await asyncio.gather(*(ways[number % 3](noting(number)) for number in range(200)))
    assert order == list(range(200))
    assert len(await user_ids(db)) == 200


async def test_failing_bodies_undo_only_themselves(db: Database) -> None:
    async def cancelled(tx: Transaction) -> None:
        await adding("bad")(tx)
        raise asyncio.CancelledError

    results = await asyncio.gather(
        db.write_apart(adding("a")),
        db.write_apart(adding("new", "a")),
        db.write_apart(cancelled),
        db.write_apart(adding("b")),
        return_exceptions=True,
    )

    kinds = [type(None), sqlite3.IntegrityError, asyncio.CancelledError, type(None)]
    assert [type(result) for result in results] == kinds
    assert await user_ids(db) == ["a", "b"]


async def test_a_body_that_is_apart_can_wait_for_nothing_else(db: Database) -> None:
    async def waiting(tx: Transaction) -> None:
        await adding("bad")(tx)
        await asyncio.sleep(0)

    with pytest.raises(
        RuntimeError, match="can wait for nothing but the queries of its transaction"
    ):
        await db.write_apart(waiting)
    await db.write_apart(adding("a"))
    assert await user_ids(db) == ["a"]


async def test_callbacks_run_on_the_loop_once_it_is_durable(db: Database) -> None:
    seen: list[int] = []

    async def body(tx: Transaction) -> None:
        await adding("a")(tx)
        tx.after_commit(lambda: seen.append(threading.get_ident()))

    await db.write_apart(body)
    assert seen == [threading.get_ident()]


async def test_a_full_disk_reaches_those_that_were_tried(db: Database) -> None:
    await set_page_limit(db, 1)

    before, full, after = await asyncio.gather(
        db.write_apart(adding("before")),
        db.write_apart(fill),
        db.write_apart(adding("after")),
        return_exceptions=True,
    )

    assert isinstance(before, DiskFull)
    assert isinstance(full, DiskFull)
    assert after is None
    assert await user_ids(db) == ["after"]

"""Events that were stored a moment ago: whoever follows a conversation is told what is stored."""

import pytest

from agentsvc.base.bus import EventBus
from agentsvc.conversations.event_log import EventLog
from agentsvc.storage.database import Database, Transaction
from tests.conversations.test_events import ADD_CONVERSATION, ADD_USER, event


@pytest.fixture
async def db(db: Database) -> Database:
    """Return a database with a user and a conversation."""
    await db.write(lambda tx: tx.run(ADD_USER))
    await db.write(lambda tx: tx.run(ADD_CONVERSATION, {"id": "c1"}))
    return db


@pytest.fixture
def events(db: Database) -> EventLog:
    return EventLog(db, EventBus(), store_deltas=False)


async def append(database: Database, log: EventLog, numbers: range, size: int = 0) -> None:
    async def body(tx: Transaction) -> None:
        await log.append(tx, "c1", [_event(number, size) for number in numbers])

    await database.write(body)


def _event(number: int, size: int) -> bytes:
    return event(number, text="x" * size) if size else event(number)


async def stretch(log: EventLog, from_seq: int, to_seq: int | None, limit: int = 100) -> list[int]:
    found = await log.read_stretch(
        "c1", from_seq=from_seq, to_seq=to_seq, limit=limit, max_bytes=1_000_000
    )
    return [one.seq for one in found]


async def test_every_stretch_is_what_is_stored(db: Database, events: EventLog) -> None:
    await append(db, events, range(150))
    await append(db, events, range(150, 160))
    other = EventLog(db, EventBus(), store_deltas=False)
    for from_seq, to_seq, limit in (
        (0, 5, 100),
        (55, 159, 200),
        (60, 159, 200),
        (155, 155, 100),
        (155, 159, 3),
        (158, None, 100),
        (159, 170, 100),
        (160, 170, 100),
        (160, 159, 100),
    ):
        told = await stretch(events, from_seq, to_seq, limit)
        assert told == await stretch(other, from_seq, to_seq, limit), (from_seq, to_seq, limit)


async def test_large_events_are_read_again(db: Database, events: EventLog) -> None:
    await append(db, events, range(3), size=50_000)
    assert await stretch(events, 0, 2) == [0, 1, 2]
    assert await stretch(events, 2, 2) == [2]


async def test_an_undone_transaction_leaves_nothing_behind(db: Database, events: EventLog) -> None:
    async def undone(tx: Transaction) -> None:
        await events.append(tx, "c1", [event(1)])
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await db.write(undone)
    assert await stretch(events, 0, 0) == []


async def test_a_log_that_begins_anew_is_told_anew(db: Database, events: EventLog) -> None:
    await append(db, events, range(5))
    await db.write(lambda tx: tx.run("DELETE FROM events"))
    await db.write(lambda tx: tx.run("UPDATE conversations SET next_seq = 0"))
    await append(db, events, range(10, 12))
    found = await events.read_stretch("c1", from_seq=0, to_seq=1, limit=9, max_bytes=9999)
    assert [one.body for one in found] == [event(10), event(11)]


@pytest.mark.parametrize("how", ["copied", "loaded"])
async def test_a_conversation_under_the_id_of_a_deleted_one_tells_its_own_events(
    db: Database, events: EventLog, how: str
) -> None:
    await append(db, events, range(3))
    await db.write(lambda tx: tx.run("DELETE FROM conversations"))
    await db.write(lambda tx: tx.run(ADD_CONVERSATION, {"id": "c1"}))
    await db.write(lambda tx: tx.run(ADD_CONVERSATION, {"id": "c2"}))

    async def begin(tx: Transaction) -> None:
        await events.load(tx, "c2", [_event(number, 0) for number in range(10, 13)])
        if how == "copied":
            await events.copy(tx, "c2", "c1", None)
        else:
            await events.load(tx, "c1", [_event(number, 0) for number in range(10, 13)])

    await db.write(begin)
    told = await events.read_stretch("c1", from_seq=0, to_seq=2, limit=9, max_bytes=1_000_000)
    assert told == await events.read_range("c1", from_seq=0, limit=9)

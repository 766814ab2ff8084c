"""Events that were kept for long enough are deleted by a server that is told to."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import msgspec

from agentsvc.base.bus import EventBus
from agentsvc.base.values import now
from agentsvc.config.conversations import EventsConfig
from agentsvc.conversations.event_log import EventLog
from agentsvc.conversations.event_table import EventQuery
from agentsvc.conversations.retention import delete_old_events
from agentsvc.storage.database import Database
from tests.conversations.test_events import ADD_CONVERSATION, ADD_USER, append, event, stored
from tests.service import WAIT_SECONDS, Client, Service


async def until_nothing(look: Callable[[], Awaitable[object]]) -> None:
    """Wait until nothing is found any more."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            if not await look():
                return
            await asyncio.sleep(0.05)


async def test_a_server_deletes_old_events_of_conversations_whose_sandbox_is_gone(
    service: Service, client: Client
) -> None:
    kept, old = [await client.start_conversation("please work") for _ in range(2)]
    for conversation_id in (kept, old):
        await client.wait_for_execution(conversation_id, "finished")
    sandbox_id = (await client.conversation(old))["sandbox_id"]
    assert (await client.delete(f"/api/v1/sandboxes/{sandbox_id}")).status == 200

    await until_nothing(lambda: client.sandbox(sandbox_id))
    before = await client.events(kept)
    assert await client.events(old)

    service.config = msgspec.structs.replace(
        service.config, events=EventsConfig(delete_after_seconds=0.001)
    )
    await service.restart()

    await until_nothing(lambda: client.events(old))
    assert await client.events(kept) == before
    assert (await client.conversation(old))["id"] == old
    assert (await client.get(f"/api/v1/conversation/{old}/events/count")).json() == 0


async def test_what_came_while_the_clock_was_ahead_leaves_no_gap(db: Database) -> None:
    await db.write(lambda tx: tx.run(ADD_USER))
    await db.write(lambda tx: tx.run(ADD_CONVERSATION, {"id": "c1"}))
    events = EventLog(db, EventBus(), store_deltas=False)
    await append(db, events, [event(number) for number in range(30)])
    back = "UPDATE events SET received_at = '2020-01-01T00:00:00' WHERE seq NOT BETWEEN 10 AND 19"
    await db.write(lambda tx: tx.run(back))
    assert await delete_old_events(db, now() - timedelta(days=1)) == 10
    assert [one.seq for one in await stored(events)] == list(range(10, 30))
    assert await events.count("c1", EventQuery()) == 20

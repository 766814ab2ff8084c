"""Events that were kept for long enough are deleted by a server that is told to."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from agentsvc.config.conversations import EventsConfig
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

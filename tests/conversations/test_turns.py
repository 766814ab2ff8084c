"""Whoever reads a long history does not hold up the others: they have their turn in between."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agentsvc.base.values import now
from agentsvc.conversations.event_table import EventQuery
from agentsvc.conversations.streams import Mark
from agentsvc.http.keys import DATABASE, EVENTS, KEYRING, STREAMS
from agentsvc.http.v0.transcripts import TRANSCRIPTS
from agentsvc.storage.database import Transaction
from tests.conversations.test_events import event
from tests.service import Client, Service

PAGES = 20

type Read = Callable[[Service, str], Coroutine[Any, Any, int]]


async def read_stream(service: Service, conversation_id: str) -> int:
    """Return how many events a stream tells before it is up to date."""
    user_id = await service.app[KEYRING].find_user("admin")
    assert user_id is not None
    stream = await service.app[STREAMS].of_conversation(user_id, conversation_id, after=-1)
    count = 0
    async for item in stream.read():
        if item is Mark.READY:
            break
        count += 1
    return count


async def read_pages(service: Service, conversation_id: str) -> int:
    pages = service.app[EVENTS].pages(conversation_id, EventQuery(), limit=100)
    return sum([len(page) async for page in pages])


async def read_transcript(service: Service, conversation_id: str) -> int:
    return len(await service.app[TRANSCRIPTS].read(conversation_id, now()))


@pytest.mark.parametrize("read", [read_stream, read_pages, read_transcript])
async def test_others_have_their_turn_while_a_history_is_read(
    service: Service, client: Client, read: Read
) -> None:
    conversation_id = await client.start_conversation("please work")
    await client.wait_for_execution(conversation_id, "finished")

    async def body(tx: Transaction) -> None:
        said = [event(number, llm_message={}) for number in range(PAGES * 100)]
        await service.app[EVENTS].append(tx, conversation_id, said)

    await service.app[DATABASE].write(body)
    turns = 0
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read(service, conversation_id))
        while not reading.done():
            turns += 1
            await asyncio.sleep(0)
    assert reading.result() > PAGES * 100
    assert turns >= PAGES

"""Searches of messages: they leave the database to others."""

import asyncio
from collections.abc import Mapping
from typing import Any

from agentsvc.conversations.message_search import find_messages
from agentsvc.storage import Queryable, Row


class _Slow(Queryable):
    """Reads that take until they are told to end."""

    def __init__(self) -> None:
        self.users: list[str] = []
        self.end = asyncio.Event()

    async def all(self, sql: str, params: Mapping[str, Any] = {}) -> list[Row]:
        self.users.append(params["user_id"])
        await self.end.wait()
        return []


async def test_searches_of_one_user_take_turns_and_keep_no_other_waiting() -> None:
    reader = _Slow()
    async with asyncio.TaskGroup() as group:
        for user_id in ("ann", "ann", "ann", "bob"):
            group.create_task(find_messages(reader, user_id, "words", limit=1))
        for _ in range(10):
            await asyncio.sleep(0)
        assert reader.users == ["ann", "bob"]
        reader.end.set()
    assert reader.users == ["ann", "bob", "ann", "ann"]

"""Calls of models near a limit: one at a time, whoever else comes and goes meanwhile."""

import asyncio

import msgspec

from agentsvc.base import EventBus
from agentsvc.conversations.model import Conversation
from agentsvc.conversations.model_tokens import ModelToken, ModelTokens
from agentsvc.conversations.model_usage import open_calls
from agentsvc.conversations.stores import ConversationStores
from agentsvc.conversations.table import ConversationTable
from agentsvc.http.keys import DATABASE, EVENT_BUS, MODEL_TOKENS
from agentsvc.models.wire import Upstream
from agentsvc.storage import Database, Queryable
from tests.service import Client, Service
from tests.troubles import eventually


class SlowTable(ConversationTable):
    """Conversations that are read when a test lets them."""

    def __init__(self, db: Database, event_bus: EventBus) -> None:
        super().__init__(db, event_bus)
        self.looks = 0
        self.may_look = asyncio.Event()
        self.may_look.set()

    async def find(
        self, conversation_id: str, reader: Queryable | None = None
    ) -> Conversation | None:
        """Return a conversation; in a transaction, at once."""
        if reader is None:
            self.looks += 1
            await self.may_look.wait()
        return await super().find(conversation_id, reader)


class Calls:
    """Calls that last until they are told to end."""

    def __init__(self, tokens: ModelTokens, grant: ModelToken) -> None:
        self._tokens = tokens
        self._grant = grant
        self.running: set[str] = set()
        self.ends: dict[str, asyncio.Event] = {}

    async def make(self, name: str) -> None:
        end = self.ends[name] = asyncio.Event()
        async with self._tokens.calling(self._grant, 1):
            self.running.add(name)
            await end.wait()
            self.running.discard(name)


async def turn() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_that_gives_up_lets_no_two_others_call_at_once(
    client: Client, service: Service
) -> None:
    await client.save_settings(max_budget_per_task=1)
    conversation_id = (await client.start_conversation()).replace("-", "")
    app = service.app
    table = SlowTable(app[DATABASE], app[EVENT_BUS])
    found = await table.find(conversation_id)
    assert found is not None
    assert found.max_budget == 1
    stores = ConversationStores(app[DATABASE], app[MODEL_TOKENS].vault, app[EVENT_BUS])
    stores.conversations = table
    grant = ModelToken(
        conversation_id=conversation_id,
        user_id=found.user_id,
        sandbox_id=found.sandbox_id or "",
        upstream=Upstream(model="m", base_url="http://m", api_key=None),
    )
    calls = Calls(msgspec.structs.replace(app[MODEL_TOKENS], stores=stores), grant)
    async with asyncio.timeout(client.patience), asyncio.TaskGroup() as group:
        group.create_task(calls.make("first"))
        await eventually(lambda: calls.running == {"first"})
        table.may_look.clear()
        looks = table.looks
        second = group.create_task(calls.make("second"))
        await eventually(lambda: table.looks > looks)
        # It waits to be counted as over while the second one looks, and the third behind it.
        calls.ends["first"].set()
        while await open_calls(app[DATABASE]):
            await turn()
        await turn()
        group.create_task(calls.make("third"))
        await turn()
        second.cancel()
        table.may_look.set()
        await eventually(lambda: calls.running == {"third"})
        looks = table.looks
        group.create_task(calls.make("fourth"))
        await eventually(lambda: table.looks > looks)
        await asyncio.sleep(0.2)
        assert calls.running == {"third"}
        calls.ends["third"].set()
        await eventually(lambda: calls.running == {"fourth"})
        calls.ends["fourth"].set()

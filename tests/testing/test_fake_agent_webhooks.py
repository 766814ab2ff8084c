"""What the FakeAgent reports, and what happens when nobody listens."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentsvc.agentserver.client import AgentClient
from agentsvc.base.values import Secret, new_id
from agentsvc.plugin.backend import Order, Port
from tests.agent_checks import SCRIPTS, Rig
from tests.fake_agent import FakeAgent

KEY = Secret("a-session-key")


class Receiver:
    """Takes webhooks; refuses as many as it is told to."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.conversations: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.refusals = 0

    async def take_events(self, request: web.Request) -> web.Response:
        if self.refusals:
            self.refusals -= 1
            return web.Response(status=503)
        self.keys.add(request.headers["X-Session-API-Key"])
        self.events += await request.json()
        return web.Response()

    async def take_conversation(self, request: web.Request) -> web.Response:
        self.conversations.append(await request.json())
        return web.Response()

    def kept(self) -> list[str]:
        """Return the ids of the events that are in the log as well."""
        return [event["id"] for event in self.events if event.get("key") != "full_state"]


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
async def agent(receiver: Receiver) -> AsyncIterator[FakeAgent]:
    async with FakeAgent(scripts=SCRIPTS) as agent:
        yield agent


@pytest.fixture
async def made(receiver: Receiver) -> AsyncIterator[Order]:
    app = web.Application()
    app.router.add_post("/hooks/conversations", receiver.take_conversation)
    app.router.add_post("/hooks/events/{id}", receiver.take_events)
    async with TestServer(app) as server:
        yield Order(
            sandbox_id=new_id(),
            secret_env={"OH_SESSION_API_KEYS_0": KEY},
            env={"OH_WEBHOOKS_0_BASE_URL": str(server.make_url("/hooks"))},
            ports=(Port(name="agent"),),
        )


@pytest.fixture
async def rig(agent: FakeAgent, made: Order) -> AsyncIterator[Rig]:
    client = AgentClient()
    await client.open()
    url = agent.on_create(made)["agent"]
    yield Rig(client.at(url, KEY), model_url="", model_key="", path="/work")
    await client.close()


async def test_all_events_are_reported_in_order(rig: Rig, receiver: Receiver) -> None:
    conversation_id = await rig.start("[script:work] go")
    await rig.wait(conversation_id)
    logged = [event["id"] for event in await rig.events(conversation_id)]

    async def all_told() -> bool:
        return receiver.kept() == logged

    await rig.until(all_told)
    assert receiver.keys == {KEY.reveal()}
    assert [one["execution_status"] for one in receiver.conversations] == ["idle"]
    assert receiver.events[0]["key"] == "full_state"


async def test_a_refused_report_is_repeated(rig: Rig, receiver: Receiver) -> None:
    receiver.refusals = 3
    conversation_id = await rig.start("[script:work] go")
    await rig.wait(conversation_id)
    logged = [event["id"] for event in await rig.events(conversation_id)]

    async def all_told() -> bool:
        return receiver.kept() == logged

    await rig.until(all_told)


async def test_without_webhooks_only_the_log_knows(
    rig: Rig, receiver: Receiver, agent: FakeAgent, made: Order
) -> None:
    agent.sandboxes[made.sandbox_id].has_webhooks = False
    conversation_id = await rig.start("[script:work] go")
    await rig.wait(conversation_id)
    await asyncio.sleep(0.05)
    assert await rig.events(conversation_id)
    assert receiver.events == []


async def test_an_interrupt_and_a_deletion_are_reported(rig: Rig, receiver: Receiver) -> None:
    conversation_id = await rig.start("[script:say] go")
    await rig.wait(conversation_id)
    await rig.server.interrupt(conversation_id)
    await rig.server.delete_conversation(conversation_id)

    async def all_told() -> bool:
        return len(receiver.conversations) == 3

    await rig.until(all_told)
    statuses = [one["execution_status"] for one in receiver.conversations]
    assert statuses == ["idle", "paused", "deleting"]


async def test_an_order_made_twice_keeps_its_conversations(
    rig: Rig, agent: FakeAgent, made: Order
) -> None:
    conversation_id = await rig.start("[script:say] go")
    agent.on_create(made)
    assert await rig.server.find_conversation(conversation_id) is not None
    assert agent.find_conversation(conversation_id) is not None
    assert agent.find_conversation(new_id()) is None

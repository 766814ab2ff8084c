"""Messages to an agent that is busy with a tool."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from tests.fake_agent import FakeAgent
from tests.service import Client

TEXT = "are you there"


async def test_a_message_to_a_busy_agent_counts_as_sent_and_arrives_once(
    client: Client, fake_agent: FakeAgent
) -> None:
    conversation_id = await client.start_conversation()
    seen = await client.wait_for_execution(conversation_id, "finished")
    sandbox = fake_agent.sandboxes[seen["sandbox_id"]]
    sandbox.slow_seconds = 1.5
    answer = await client.post(
        f"/api/v1/app-conversations/{conversation_id}/send-message",
        json={"content": [{"type": "text", "text": TEXT}]},
    )
    assert answer.json()["success"] is True
    assert not _times_said(await client.events(conversation_id))
    await client.wait_for_conversation(conversation_id, lambda _: bool(sandbox.bodies))
    sandbox.slow_seconds = 0.0
    await _eventually(lambda: _said(client, conversation_id))
    assert _times_said(await client.events(conversation_id)) == 1


async def test_a_message_that_is_refused_after_the_answer_stays_in_the_conversation(
    client: Client, fake_agent: FakeAgent
) -> None:
    conversation_id = await client.start_conversation()
    seen = await client.wait_for_execution(conversation_id, "finished")
    sandbox = fake_agent.sandboxes[seen["sandbox_id"]]
    sandbox.slow_seconds = 1.0
    sandbox.fail_next(422, "/events")
    answer = await client.post(
        f"/api/v1/app-conversations/{conversation_id}/send-message",
        json={"content": [{"type": "text", "text": TEXT}]},
    )
    assert answer.json()["success"] is True
    await _eventually(lambda: _undelivered(client, conversation_id))
    [found] = await _undelivered(client, conversation_id)
    assert TEXT in found["detail"]


async def _eventually(look: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(30):
        for pause in itertools.repeat(0.05):
            if await look():
                return
            await asyncio.sleep(pause)


async def _said(client: Client, conversation_id: str) -> int:
    return _times_said(await client.events(conversation_id))


def _times_said(events: list[dict[str, Any]]) -> int:
    return sum(event["kind"] == "MessageEvent" and TEXT in str(event) for event in events)


async def _undelivered(client: Client, conversation_id: str) -> list[dict[str, Any]]:
    events = await client.events(conversation_id)
    return [event for event in events if event.get("code") == "MessageNotDelivered"]

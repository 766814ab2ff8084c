"""A message is told to its agent exactly once, over stops and kills of the server."""

import asyncio

import pytest

from tests.live.events import outputs, said
from tests.live.installation import Installation, eventually, size
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

TOLD = "[script:say] Only once."


async def test_a_message_to_an_agent_in_a_tool_call_is_told_once_over_restarts(
    own: Installation,
) -> None:
    client = own.client()
    begun = own.at_home("begun")
    conversation_id = await client.start_conversation(
        run(f"echo begun >{begun}; sleep 14; echo slow")
    )
    await eventually(lambda: size(begun) > 0, "the command runs")
    answer = await client.post(
        f"/api/v1/app-conversations/{conversation_id}/send-message",
        json={"role": "user", "content": [{"type": "text", "text": TOLD}], "run": True},
        headers={"Idempotency-Key": "once"},
    )
    assert answer.status == 200, answer.text
    for end in (own.kill, own.stop, own.kill):
        # Each server has the time to begin with handing it over.
        await asyncio.sleep(1.5)
        await end()
        await own.start()
    events = await client.until(conversation_id, lambda events: bool(said(events, "agent")))
    await client.wait_for_execution(conversation_id, "finished")
    await asyncio.sleep(2)
    events = await client.events(conversation_id)
    assert outputs(events) == ["slow"]
    assert said(events, "user").count(TOLD) == 1

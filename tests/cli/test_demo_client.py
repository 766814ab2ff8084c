"""What the demo asks of its server, which works on meanwhile."""

import asyncio
from contextlib import aclosing

from agentsvc.base.values import Secret
from agentsvc.cli.client import Api
from agentsvc.cli.demo import ask, follow_events, follow_start, read_file
from agentsvc.cli.show.notes import find_created_file, find_outcome
from agentsvc.cli.talk import CONVERSATIONS
from tests.service import Client


async def test_the_demo_sees_a_conversation_from_its_start_to_its_end(client: Client) -> None:
    api = Api(client.base_url, Secret(client.key or ""))
    message = {"role": "user", "content": [{"type": "text", "text": "Write a file"}]}
    task = await ask(api, "POST", CONVERSATIONS, body={"initial_message": message})
    statuses = [seen["status"] async for seen in follow_start(api, task)]
    assert (statuses[0], statuses[-1]) == ("WORKING", "READY")
    assert len(set(statuses)) == len(statuses)
    [ready] = await ask(api, "GET", f"{CONVERSATIONS}/start-tasks", query={"ids": task["id"]})
    conversation_id = ready["app_conversation_id"]
    events = []
    async with aclosing(follow_events(api, conversation_id)) as told:
        async for event in told:
            events.append(event)
            if find_outcome(events):
                break
    assert find_outcome(events) == "finished"
    path = find_created_file(events)
    assert path is not None
    assert await asyncio.to_thread(read_file, api, conversation_id, path)

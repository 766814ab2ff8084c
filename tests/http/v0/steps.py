"""What tests of the older generation do again and again."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.service import Client

PATH = "/api/conversations"
UNKNOWN_ID = "0" * 32


async def start(client: Client, **fields: Any) -> str:
    answer = await client.post(PATH, json=fields)
    assert answer.status == 200, answer.text
    return str(answer.json()["conversation_id"])


async def start_running(client: Client, **fields: Any) -> str:
    """Start a conversation and return its id once it runs."""
    name = await start(client, **fields)
    await wait_for_status(client, name, "RUNNING")
    return name


async def wait_for_status(client: Client, name: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(client.patience):
        while True:
            found: dict[str, Any] = (await client.get(f"{PATH}/{name}")).json()
            if found["status"] == status:
                return found
            await asyncio.sleep(0.03)


async def history(client: Client, name: str) -> list[dict[str, Any]]:
    answer = await client.get(f"{PATH}/{name}/events?limit=100")
    assert answer.status == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["events"]
    return found


async def wait_for_history(
    client: Client, name: str, is_enough: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(client.patience):
            while True:
                events = await history(client, name)
                if is_enough(events):
                    return events
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"the history stayed like this: {events}") from None


async def wait_for_state(client: Client, name: str, state: str) -> list[dict[str, Any]]:
    """Return the history once this is the last state it tells."""
    return await wait_for_history(client, name, lambda events: states(events)[-1:] == [state])


def states(events: list[dict[str, Any]]) -> list[str]:
    return [
        event["extras"]["agent_state"]
        for event in events
        if event.get("observation") == "agent_state_changed"
    ]

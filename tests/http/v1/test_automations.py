"""Automations through the socket, on a fake backend with a fake agent."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from agentsvc.base.values import now, to_stored
from agentsvc.testing.llm import finish, make_playbook
from tests.core.troubles import TroubledAgent
from tests.service import Client, Service

BASE = "/api/automation/v1"


async def create(client: Client, trigger: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = {"name": "nightly", "prompt": "Do the work.", "trigger": trigger, **more}
    answer = await client.post(BASE, json=body)
    assert answer.status == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def runs(client: Client, automation_id: str) -> list[dict[str, Any]]:
    answer = await client.get(f"{BASE}/{automation_id}/runs")
    assert answer.status == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["runs"]
    return found


async def wait_for_runs(
    client: Client, automation_id: str, is_enough: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(8):
            while True:
                seen = await runs(client, automation_id)
                if is_enough(seen):
                    return seen
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"the runs stayed like this: {seen}") from None


def are(*statuses: str) -> Callable[[list[dict[str, Any]]], bool]:
    return lambda found: [one["status"] for one in found] == list(statuses)


def soon(seconds: float = 0.3) -> dict[str, Any]:
    return {"type": "once", "at": to_stored(now() + timedelta(seconds=seconds))}


async def test_a_run_is_a_conversation_and_tells_how_it_ended(
    client: Client, fake_agent: TroubledAgent
) -> None:
    fake_agent.playbook = make_playbook([finish("All is well.")])
    await client.save_settings()
    made = await create(client, soon(), keep_alive=False)
    [run] = await wait_for_runs(client, made["id"], are("COMPLETED"))
    conversation = await client.conversation(run["conversation_id"])
    assert (conversation["trigger"], conversation["title"]) == ("automation", "nightly")
    assert run["result"] == "All is well."
    assert run["trigger_source"] == "schedule"
    assert run["duration_seconds"] > 0
    assert run["cost"] is not None
    found = (await client.get(f"{BASE}/{made['id']}")).json()
    assert (found["next_run_at"], found["failures"]) == (None, 0)
    assert (await client.conversation(run["conversation_id"]))["sandbox_status"] == "MISSING"


async def test_a_run_that_was_due_while_the_server_was_down_is_made_once(
    client: Client, service: Service
) -> None:
    await client.save_settings()
    made = await create(client, soon(0.5))
    await service.stop()
    await asyncio.sleep(0.6)
    await service.start()
    await wait_for_runs(client, made["id"], are("COMPLETED"))
    await service.restart()
    assert len(await runs(client, made["id"])) == 1

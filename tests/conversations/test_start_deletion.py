"""Conversations deleted while they start, and what failed starts leave."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentsvc.base.errors import NotFound
from agentsvc.conversations.table import ConversationTable
from agentsvc.http.keys import CONVERSATIONS, SANDBOXES
from tests.conversations.starts import PATH, failure
from tests.service import Client, Service
from tests.troubles import TroubledAgent, TroubledWorld, eventually, reconfigure

# Deleting while it starts


@pytest.mark.parametrize("name", ["git init", "openhands/setup.sh", "conversation"])
async def test_a_conversation_deleted_while_it_starts_leaves_nothing(
    client: Client,
    fake_agent: TroubledAgent,
    fake_world: TroubledWorld,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    fake_agent.hold(name, is_command=name != "conversation")
    task = await client.start_task(conversation_id="0f" * 16)
    await fake_agent.waits(name)
    assert (await client.delete(f"{PATH}/{'0f' * 16}")).status == 200
    fake_agent.let_go()
    await eventually(lambda: not fake_world.sandboxes)
    assert await client.task(task["id"]) is None
    assert "conversation did not start" not in caplog.text


async def test_one_that_has_the_id_of_a_deleted_one_in_a_sandbox_begins_anew(
    client: Client, fake_agent: TroubledAgent
) -> None:
    conversation_id = "0f" * 16
    other_id = await client.start_conversation()
    sandbox_id = str((await client.conversation(other_id))["sandbox_id"])

    async def begin(text: str) -> None:
        task = await client.start_task(text, conversation_id=conversation_id, sandbox_id=sandbox_id)
        assert (await client.end_of_start(task["id"]))["status"] == "READY"
        await client.wait_for_execution(conversation_id, "finished")

    await begin("first")
    assert (await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")).status == 200
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    # Its agent server cannot be told now.
    assert (await client.delete(f"{PATH}/{conversation_id}")).status == 200
    await begin("second")
    events = fake_agent.conversation_of(conversation_id).events
    said = [one["llm_message"]["content"][0]["text"] for one in events if one["source"] == "user"]
    assert said == ["second"]


async def test_a_conversation_deleted_before_its_sandbox_is_made_makes_none(
    client: Client, fake_world: TroubledWorld
) -> None:
    fake_world.hold("create")
    await client.start_task(conversation_id="0f" * 16)
    await fake_world.waits("create")
    assert (await client.delete(f"{PATH}/{'0f' * 16}")).status == 200
    fake_world.held.pop("create").set()
    await fake_world.sweeps(2)
    await eventually(lambda: not fake_world.sandboxes)


async def test_a_conversation_deleted_while_its_sandbox_is_resumed_is_not_started(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    first = await client.conversation(await client.start_conversation(None))
    hold = fake_world.hold("resume")
    await client.post(f"/api/v1/sandboxes/{first['sandbox_id']}/pause")
    await client.start_task(conversation_id="0f" * 16, sandbox_id=first["sandbox_id"])
    await fake_world.waits("resume")
    assert (await client.delete(f"{PATH}/{'0f' * 16}")).status == 200
    hold.set()
    await client.wait_for_sandbox(first["sandbox_id"], "RUNNING")
    await eventually(lambda: not starting())
    assert fake_agent.started() == 1
    assert await client.conversation("0f" * 16) is None


def starting() -> list[str]:
    """Return the names of the starts that are under way."""
    names = [one.get_name() for one in asyncio.all_tasks()]
    return [name for name in names if name.startswith("start ")]


async def test_what_is_started_in_a_shared_sandbox_after_its_deletion_is_deleted_there_too(
    client: Client, fake_agent: TroubledAgent
) -> None:
    first = await client.conversation(await client.start_conversation())
    fake_agent.hold("conversation")
    await client.start_task(conversation_id="0f" * 16, sandbox_id=first["sandbox_id"])
    await fake_agent.waits("conversation")
    assert (await client.delete(f"{PATH}/{'0f' * 16}")).status == 200
    sandbox = fake_agent.sandboxes[first["sandbox_id"]]
    wanted = f"DELETE /api/conversations/{'0f' * 16}"
    await eventually(lambda: wanted in sandbox.requests)
    fake_agent.let_go()
    await eventually(lambda: sandbox.requests.count(wanted) > 1)
    await eventually(lambda: list(sandbox.conversations) == [first["id"]])
    assert await client.conversation("0f" * 16) is None


async def test_a_followed_start_ends_when_its_conversation_is_deleted(
    client: Client, fake_agent: TroubledAgent
) -> None:
    fake_agent.hold("openhands/setup.sh", is_command=True)
    streaming = asyncio.ensure_future(  # noqa: TID251  # a test is not the server
        client.post(f"{PATH}/stream-start", json={"conversation_id": "0f" * 16})
    )
    await fake_agent.waits("openhands/setup.sh")
    await client.delete(f"{PATH}/{'0f' * 16}")
    statuses = [task["status"] for task in (await streaming).json()]
    assert statuses[-1] == "RUNNING_SETUP_SCRIPT"


async def test_a_start_that_nobody_knows_cannot_be_followed(service: Service) -> None:
    with pytest.raises(NotFound):
        async for _ in service.app[CONVERSATIONS].starts.follow("nobody", "0" * 32):
            pass


# What failed starts leave


async def test_the_sandbox_of_a_failed_start_goes_after_a_while(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    fake_agent.refusals = [(422, "no")]
    await failure(client)
    await service.app[CONVERSATIONS].deletion.remove_failed()
    assert len(fake_world.sandboxes) == 1
    await reconfigure(service, conversations={"keep_failed_seconds": 0})
    await service.app[CONVERSATIONS].deletion.remove_failed()
    await eventually(lambda: not fake_world.sandboxes)


async def test_a_sandbox_that_was_there_before_a_failed_start_stays(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, conversations={"keep_failed_seconds": 0})
    sandbox_id = (await client.post("/api/v1/sandboxes")).json()["id"]
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    fake_agent.refusals = [(422, "no")]
    await failure(client, sandbox_id=sandbox_id)
    await service.app[CONVERSATIONS].deletion.remove_failed()
    await fake_world.sweeps(2)
    assert list(fake_world.sandboxes) == [sandbox_id]


async def test_a_sandbox_that_others_joined_after_a_failed_start_stays(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, conversations={"keep_failed_seconds": 0})
    fake_agent.refusals = [(422, "no")]
    await failure(client)
    [sandbox_id] = fake_world.sandboxes
    await client.start_conversation(sandbox_id=sandbox_id)
    await service.app[CONVERSATIONS].deletion.remove_failed()
    await fake_world.sweeps(2)
    assert list(fake_world.sandboxes) == [sandbox_id]
    assert await service.app[SANDBOXES].find_any(sandbox_id) is not None


# Joining a sandbox that goes


async def test_a_sandbox_that_is_let_go_before_it_is_joined_is_not_joined(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.post("/api/v1/settings", json={"sandbox_grouping_strategy": "ADD_TO_ANY"})
    first = await client.start_conversation()
    sandbox_id = (await client.conversation(first))["sandbox_id"]
    looks, occupancy = 0, ConversationTable.occupancy

    async def delete_meanwhile(table: ConversationTable, ids: Sequence[str]) -> Any:
        nonlocal looks
        looks += 1
        # The first look finds out which turn it needs.
        if looks == 2:
            assert (await client.delete(f"{PATH}/{first}")).status == 200
        return await occupancy(table, ids)

    monkeypatch.setattr(ConversationTable, "occupancy", delete_meanwhile)
    task = await client.start_task()
    ended = await client.end_of_start(task["id"])
    assert (ended["status"], looks) == ("READY", 2)
    assert ended["sandbox_id"] != sandbox_id

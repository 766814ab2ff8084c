"""Sandboxes whose workspaces are saved: they stay as long as they are needed, and rest again."""

from collections.abc import Awaitable, Callable

import pytest

from agentsvc.http.keys import CONVERSATIONS
from tests.conversations.test_archives import (
    ARCHIVES,
    STARTS,
    PackingAgent,
    archives,
    configure,
    fake_agent,
    files_of,
    save,
    saved,
    start,
)
from tests.service import Answer, Client, Service
from tests.troubles import TroubledWorld, eventually, reconfigure

__all__ = ["fake_agent"]


async def test_the_workspace_of_a_deleted_conversation_is_saved_before_its_sandbox_goes(
    client: Client, service: Service, fake_agent: PackingAgent, fake_world: TroubledWorld
) -> None:
    await configure(service, on_delete=True)
    conversation_id, _ = await start(client)
    fake_agent.let_download.clear()
    await client.delete(f"{STARTS}/{conversation_id}")
    [archive] = await archives(client)
    assert (archive["state"], archive["conversation_id"]) == (
        "saving",
        conversation_id.replace("-", ""),
    )
    assert (await client.delete(f"{ARCHIVES}/{archive['id']}")).status == 409
    assert fake_world.sandboxes
    # A stop in the middle of it is made good.
    await service.stop()
    fake_agent.let_download.set()
    await service.start()
    assert (await saved(client, archive["id"]))["state"] == "ready"
    await eventually(lambda: not fake_world.sandboxes)
    _, second = await start(client, archive_id=archive["id"])
    assert fake_agent.unpacked(second)["plan"] == "go on"


@pytest.mark.parametrize("is_named", [False, True])
async def test_a_sandbox_that_is_saved_stays_for_a_conversation_that_joined_it_meanwhile(
    client: Client,
    service: Service,
    fake_agent: PackingAgent,
    fake_world: TroubledWorld,
    *,
    is_named: bool,
) -> None:
    await configure(service, on_delete=True)
    await client.post("/api/v1/settings", json={"sandbox_grouping_strategy": "ADD_TO_ANY"})
    first, sandbox_id = await start(client)
    fake_agent.let_download.clear()
    await client.delete(f"{STARTS}/{first}")
    [archive] = await archives(client)
    second, joined = await start(client, **({"sandbox_id": sandbox_id} if is_named else {}))
    assert joined == sandbox_id
    await client.wait_for_execution(second, "finished")
    fake_agent.let_download.set()
    assert (await saved(client, archive["id"]))["state"] == "ready"
    assert (await client.conversation(second))["sandbox_status"] == "RUNNING"
    agent = fake_agent.sandboxes[sandbox_id]
    await eventually(lambda: list(agent.conversations) == [second])
    await client.delete(f"{STARTS}/{second}")
    await eventually(lambda: not fake_world.sandboxes)


async def test_a_sandbox_with_two_workspaces_to_save_goes_after_both(
    client: Client, service: Service, fake_agent: PackingAgent, fake_world: TroubledWorld
) -> None:
    await configure(service, on_delete=True)
    first, sandbox_id = await start(client)
    fake_agent.let_download.clear()
    await client.delete(f"{STARTS}/{first}")
    second, _ = await start(client, sandbox_id=sandbox_id)
    fake_agent.hold("tar --exclude", is_command=True)
    await client.delete(f"{STARTS}/{second}")
    newest, oldest = await archives(client)
    await fake_agent.waits("tar --exclude")
    fake_agent.let_download.set()
    assert (await saved(client, oldest["id"]))["state"] == "ready"
    assert fake_world.sandboxes
    fake_agent.let_go()
    assert (await saved(client, newest["id"]))["state"] == "ready"
    await eventually(lambda: not fake_world.sandboxes)


async def test_a_workspace_that_is_saved_outlives_its_conversation(
    client: Client, service: Service, fake_agent: PackingAgent, fake_world: TroubledWorld
) -> None:
    conversation_id, _ = await start(client)
    fake_agent.let_download.clear()
    archive = (await client.post(f"{STARTS}/{conversation_id}/archives")).json()
    await eventually(lambda: fake_agent.downloads > 0)
    assert (await client.delete(f"{STARTS}/{conversation_id}")).status == 200
    await fake_world.sweeps(1)
    assert fake_world.sandboxes
    # A stop in the middle of it is made good.
    await service.stop()
    fake_agent.let_download.set()
    await service.start()
    assert (await saved(client, archive["id"]))["state"] == "ready"
    await eventually(lambda: not fake_world.sandboxes)


async def test_the_sandbox_of_a_failed_start_goes_after_the_workspaces_in_it_are_saved(
    client: Client, service: Service, fake_agent: PackingAgent, fake_world: TroubledWorld
) -> None:
    fake_agent.refusals = [(422, "no")]
    failed = await client.end_of_start((await client.start_task())["id"])
    assert failed["status"] == "ERROR"
    second, _ = await start(client, sandbox_id=failed["sandbox_id"])
    fake_agent.let_download.clear()
    archive = (await client.post(f"{STARTS}/{second}/archives")).json()
    await eventually(lambda: fake_agent.downloads > 0)
    await client.delete(f"{STARTS}/{second}")
    await reconfigure(service, conversations={"keep_failed_seconds": 0})
    await service.app[CONVERSATIONS].deletion.remove_failed()
    await fake_world.sweeps(2)
    assert fake_world.sandboxes
    fake_agent.let_download.set()
    assert (await saved(client, archive["id"]))["state"] == "ready"
    await service.app[CONVERSATIONS].deletion.remove_failed()
    await eventually(lambda: not fake_world.sandboxes)


async def test_a_start_that_fails_takes_no_sandbox_that_is_still_saved(
    client: Client, service: Service, fake_agent: PackingAgent, fake_world: TroubledWorld
) -> None:
    await configure(service, on_delete=True)
    first, sandbox_id = await start(client)
    fake_agent.hold("tar --exclude", is_command=True)
    await client.delete(f"{STARTS}/{first}")
    await fake_agent.waits("tar --exclude")
    [archive] = await archives(client)
    fake_agent.refusals = [(422, "no")]
    task = await client.start_task(sandbox_id=sandbox_id, conversation_id="0f" * 16)
    assert (await client.end_of_start(task["id"]))["status"] == "ERROR"
    assert (await client.delete(f"{STARTS}/{'0f' * 16}")).status == 200
    fake_agent.let_go()
    assert (await saved(client, archive["id"]))["state"] == "ready"
    await eventually(lambda: not fake_world.sandboxes)


async def test_a_deleted_conversation_that_is_reported_while_it_is_saved_stays_deleted(
    client: Client, service: Service, fake_agent: PackingAgent, fake_world: TroubledWorld
) -> None:
    await configure(service, on_delete=True)
    conversation_id, sandbox_id = await start(client)
    reported = fake_agent.conversation_of(conversation_id).info()
    caller = service.client_with(fake_agent.sandboxes[sandbox_id].key)
    fake_agent.let_download.clear()
    await client.delete(f"{STARTS}/{conversation_id}")
    await eventually(lambda: fake_agent.downloads > 0)
    answer = await caller.post("/api/v1/webhooks/conversations", json=reported)
    assert answer.status == 200, answer.text
    assert await client.conversation(conversation_id) is None
    fake_agent.let_download.set()
    await eventually(lambda: not fake_world.sandboxes)


async def test_a_sandbox_goes_also_where_its_workspace_cannot_be_saved(
    client: Client, service: Service, fake_agent: PackingAgent, fake_world: TroubledWorld
) -> None:
    await configure(service, on_delete=True)
    conversation_id, _ = await start(client)
    fake_agent.packed = b"no archive"
    await client.delete(f"{STARTS}/{conversation_id}")
    [archive] = await archives(client)
    failed = await saved(client, archive["id"])
    assert failed["state"] == "failed"
    assert "not a complete archive" in failed["detail"]
    await eventually(lambda: not fake_world.sandboxes)
    assert files_of(service) == []
    answer = await client.post(STARTS, json={"archive_id": archive["id"]})
    assert answer.status == 409
    assert "is not saved" in answer.json()["detail"]


@pytest.mark.parametrize(("verb", "paused_as"), [("pause", "frozen"), ("stop", "stopped")])
async def test_a_sandbox_that_rests_is_resumed_to_be_saved_and_rests_again(
    client: Client, verb: str, paused_as: str
) -> None:
    conversation_id, sandbox_id = await start(client)
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/{verb}")
    assert (await save(client, conversation_id))["state"] == "ready"
    found = await client.wait_for_sandbox(sandbox_id, "PAUSED")
    assert found["paused_as"] == paused_as


async def resume(client: Client, _: str, sandbox_id: str) -> Answer:
    return await client.post(f"/api/v1/sandboxes/{sandbox_id}/resume")


async def start_again(client: Client, conversation_id: str, _: str) -> Answer:
    return await client.post(f"/api/conversations/{conversation_id}/start", json={})


async def send(client: Client, conversation_id: str, _: str) -> Answer:
    body = {"content": [{"type": "text", "text": "go on"}], "run": True}
    return await client.post(f"{STARTS}/{conversation_id}/send-message", json=body)


async def join(client: Client, _: str, sandbox_id: str) -> Answer:
    await client.start_conversation(sandbox_id=sandbox_id)
    return await client.get(STARTS)


@pytest.mark.parametrize("ask", [resume, start_again, send, join])
async def test_a_sandbox_that_is_wanted_while_it_is_saved_does_not_rest_again(
    client: Client,
    fake_agent: PackingAgent,
    ask: Callable[[Client, str, str], Awaitable[Answer]],
) -> None:
    conversation_id, sandbox_id = await start(client)
    await client.wait_for_execution(conversation_id, "finished")
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    fake_agent.let_download.clear()
    archive = (await client.post(f"{STARTS}/{conversation_id}/archives")).json()
    await eventually(lambda: fake_agent.downloads > 0)
    answer = await ask(client, conversation_id, sandbox_id)
    assert answer.status == 200, answer.text
    fake_agent.let_download.set()
    assert (await saved(client, archive["id"]))["state"] == "ready"
    assert (await client.conversation(conversation_id))["sandbox_status"] == "RUNNING"


async def test_a_runtime_that_is_resumed_while_it_is_saved_does_not_rest_again(
    client: Client, fake_agent: PackingAgent
) -> None:
    async def runtime(path: str, **body: str) -> str:
        headers = {"X-API-Key": client.key or ""}
        answer = await client.post(f"/runtime/{path}", json=body, headers=headers)
        assert answer.status == 200, answer.text
        return str(answer.json()["runtime_id"])

    sandbox_id = await runtime("start", image="fake", session_id="one")
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    conversation_id, _ = await start(client, sandbox_id=sandbox_id)
    await client.wait_for_execution(conversation_id, "finished")
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    fake_agent.let_download.clear()
    archive = (await client.post(f"{STARTS}/{conversation_id}/archives")).json()
    await eventually(lambda: fake_agent.downloads > 0)
    assert await runtime("resume", runtime_id=sandbox_id) == sandbox_id
    fake_agent.let_download.set()
    assert (await saved(client, archive["id"]))["state"] == "ready"
    assert (await client.conversation(conversation_id))["sandbox_status"] == "RUNNING"


async def test_a_sandbox_that_was_resumed_to_be_saved_is_paused_again_after_a_stop_in_between(
    client: Client, service: Service, fake_agent: PackingAgent
) -> None:
    conversation_id, sandbox_id = await start(client)
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    fake_agent.let_download.clear()
    archive = (await client.post(f"{STARTS}/{conversation_id}/archives")).json()
    await eventually(lambda: fake_agent.downloads > 0)
    await service.stop()
    fake_agent.let_download.set()
    await service.start()
    assert (await saved(client, archive["id"]))["state"] == "ready"
    await client.wait_for_sandbox(sandbox_id, "PAUSED")


async def test_a_paused_sandbox_whose_workspace_cannot_be_saved_is_paused_again(
    client: Client, fake_agent: PackingAgent
) -> None:
    conversation_id, sandbox_id = await start(client)
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    fake_agent.packed = b"no archive"
    assert (await save(client, conversation_id))["state"] == "failed"
    await client.wait_for_sandbox(sandbox_id, "PAUSED")

"""Checkpoints of the files of conversations, and going back to them."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentsvc.plugin import Capability
from tests.http.gateway.steps import until
from tests.service import Client, Service
from tests.troubles import TroubledAgent, TroubledWorld, eventually, reconfigure

PATH = "/api/v1/app-conversations"


@pytest.fixture
async def keeping(service: Service) -> Service:
    """Return the server, which keeps two checkpoints of each sandbox."""
    sandboxes = msgspec.structs.replace(service.config.sandboxes, checkpoints=2)
    service.config = msgspec.structs.replace(service.config, sandboxes=sandboxes)
    await service.restart()
    return service


async def start(client: Client) -> tuple[str, str]:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    return conversation_id, str((await client.conversation(conversation_id))["sandbox_id"])


async def checkpoints(client: Client, conversation_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        await client.get(f"{PATH}/{conversation_id}/checkpoints")
    ).json()["items"]
    return found


async def roll_back(client: Client, conversation_id: str, checkpoint_id: str) -> int:
    body = {"checkpoint_id": checkpoint_id}
    return (await client.post(f"{PATH}/{conversation_id}/rollback", json=body)).status


@pytest.mark.usefixtures("keeping")
async def test_files_go_back_to_what_they_were_before_a_message(
    client: Client, fake_world: TroubledWorld, tmp_path: Path
) -> None:
    conversation_id, sandbox_id = await start(client)
    [first] = await checkpoints(client, conversation_id)
    sandbox = fake_world.sandboxes[sandbox_id]
    files = sandbox.directory = tmp_path / "files"
    files.mkdir()
    (files / "notes").write_text("good")
    for _ in range(2):
        words = {"role": "user", "content": [{"type": "text", "text": "Go on"}], "run": True}
        answer = await client.post(f"{PATH}/{conversation_id}/send-message", json=words)
        assert answer.status == 200, answer.text
        await client.wait_for_execution(conversation_id, "finished")
        (files / "notes").write_text("spoilt")
    found = await checkpoints(client, conversation_id)
    assert len(found) == 2
    assert first not in found
    assert found[0]["created_at"] > found[1]["created_at"]
    assert await roll_back(client, conversation_id, first["id"]) == 404
    assert await roll_back(client, conversation_id, found[1]["id"]) == 200
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert sandbox.directory is not None
    assert (sandbox.directory / "notes").read_text() == "good"
    assert await checkpoints(client, conversation_id) == found

    async def is_told() -> bool:
        return "were put back" in str(await client.events(conversation_id))

    await until(is_told)


async def test_none_is_kept_where_that_is_configured(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, sandboxes={"checkpoints": 0})
    conversation_id, _ = await start(client)
    assert await checkpoints(client, conversation_id) == []
    assert fake_world.count("checkpoint") == 0


@pytest.mark.usefixtures("keeping")
async def test_nobody_goes_back_while_others_or_the_agent_work(
    client: Client, service: Service
) -> None:
    conversation_id, sandbox_id = await start(client)
    [kept] = await checkpoints(client, conversation_id)
    other = await service.make_client("other")
    assert await roll_back(other, conversation_id, kept["id"]) == 404
    assert (await other.get(f"{PATH}/{conversation_id}/checkpoints")).status == 404
    mate = await client.start_conversation(sandbox_id=sandbox_id)
    assert await roll_back(client, conversation_id, kept["id"]) == 409
    await client.delete(f"{PATH}/{mate}")
    assert await roll_back(client, conversation_id, kept["id"]) == 200


async def test_a_backend_without_checkpoints_keeps_none(
    client: Client, keeping: Service, fake_world: TroubledWorld
) -> None:
    fake_world.capabilities -= {Capability.CHECKPOINTS}
    await keeping.restart()
    conversation_id, _ = await start(client)
    assert await checkpoints(client, conversation_id) == []
    assert await roll_back(client, conversation_id, "0" * 32) == 404


async def test_what_cannot_be_kept_keeps_no_message_back(client: Client, keeping: Service) -> None:
    sandboxes = msgspec.structs.replace(keeping.config.sandboxes, checkpoint_bytes=0)
    keeping.config = msgspec.structs.replace(keeping.config, sandboxes=sandboxes)
    await keeping.restart()
    conversation_id, _ = await start(client)
    assert await checkpoints(client, conversation_id) == []


@pytest.mark.usefixtures("keeping")
@pytest.mark.parametrize("method", ["stop", "roll_back"])
async def test_going_back_goes_on_after_a_restart(
    client: Client, service: Service, fake_world: TroubledWorld, tmp_path: Path, method: str
) -> None:
    conversation_id, sandbox_id = await start(client)
    [kept] = await checkpoints(client, conversation_id)
    files = fake_world.sandboxes[sandbox_id].directory = tmp_path / "files"
    files.mkdir()
    let_go = fake_world.hold(method)
    asked = asyncio.create_task(roll_back(client, conversation_id, kept["id"]))  # noqa: TID251
    await fake_world.waits(method)
    del fake_world.held[method]
    await service.restart()
    let_go.set()
    await asyncio.gather(asked, return_exceptions=True)
    (files / "notes").write_text("spoilt")

    async def is_told() -> bool:
        return "were put back" in str(await client.events(conversation_id))

    await until(is_told)
    assert not (files / "notes").exists()
    assert (await client.conversation(conversation_id))["sandbox_status"] == "RUNNING"


@pytest.mark.usefixtures("keeping")
async def test_what_its_user_had_rest_goes_back_and_rests_on(
    client: Client, fake_world: TroubledWorld
) -> None:
    conversation_id, sandbox_id = await start(client)
    [kept] = await checkpoints(client, conversation_id)
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    assert await roll_back(client, conversation_id, kept["id"]) == 200
    assert fake_world.count("roll_back") == 1
    assert (await client.conversation(conversation_id))["sandbox_status"] == "PAUSED"
    assert await roll_back(client, conversation_id, kept["id"]) == 409


@pytest.mark.usefixtures("keeping")
async def test_a_message_that_is_tried_again_and_again_lets_no_other_checkpoint_go(
    client: Client, fake_agent: TroubledAgent
) -> None:
    conversation_id, sandbox_id = await start(client)
    [first] = await checkpoints(client, conversation_id)
    sandbox, looks = fake_agent.sandboxes[sandbox_id], fake_agent.count("/events/search")
    sandbox.is_down = True
    path = f"/api/v1/conversations/{conversation_id}/pending-messages"
    answer = await client.post(path, json={"content": [{"type": "text", "text": "Go on"}]})
    assert answer.status == 201, answer.text
    await eventually(lambda: fake_agent.count("/events/search") >= looks + 10)
    sandbox.is_down = False

    async def has_another() -> bool:
        return len(await checkpoints(client, conversation_id)) > 1

    await until(has_another)
    assert (await checkpoints(client, conversation_id))[-1] == first

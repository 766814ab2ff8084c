"""Older versions of the published Python SDK with the agent server of today."""

import asyncio
import uuid
from typing import Any

import pytest

from tests.live.client import PATIENCE, LiveClient
from tests.live.clients.published import Client
from tests.live.events import outputs
from tests.live.installation import Installation
from tests.live.scripts import DONE, run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_older_sdks_take_part_in_conversations_and_start_their_own(
    older_sdks: dict[str, Client], client: LiveClient, shared: Installation, sandbox_id: str
) -> None:
    async def use(version: str, sdk: Client) -> None:
        says = version.rpartition(".")[0]
        name = await client.start_conversation(run("echo first"), sandbox_id=sandbox_id)
        begun = await client.wait_for_execution(name, "finished")
        seen = await sdk.run(
            "sdk_older.py",
            host=client.agent(begun).base_url,
            session_key=begun["session_api_key"],
            says=says,
            conversation_id=str(uuid.UUID(name)),
            working_dir="/workspace/project",
            llm={
                "model": "openai/scripted",
                "base_url": client.model.url,
                "api_key": client.model.key.reveal(),
            },
            text=run("echo second"),
            stored=await _events_of(shared, client, says, name),
            # The start of one by 1.51 to 1.53 is that of newer versions.
            shows_itself=version != "1.53.0",
            patience=PATIENCE,
        )
        _check(version, seen)
        # Everybody else gets everything.
        events = await client.until(name, lambda events: outputs(events) == ["first", "second"])
        assert "SecurityAnalysisEvent" in {event["kind"] for event in events}
        assert any("parent_id" in event for event in events)

    async with asyncio.TaskGroup() as group:
        for version, sdk in older_sdks.items():
            group.create_task(use(version, sdk))


async def _events_of(
    shared: Installation, client: LiveClient, says: str, name: str
) -> list[dict[str, Any]]:
    older = LiveClient(shared.url, f"{shared.key.reveal()}~sdk-{says}", client.model)
    try:
        return await older.events(name)
    finally:
        await older.close()


def _check(version: str, seen: dict[str, Any]) -> None:
    assert seen["version"] == version
    assert {"MessageEvent", "ActionEvent", "ObservationEvent"} <= set(seen["stored"])
    assert seen["attached"]["found"] == ["first", DONE, "second", DONE]
    assert seen["own"]["found"] == ["second", DONE]
    for one in (seen["attached"], seen["own"]):
        assert {"ActionEvent", "ObservationEvent", "ConversationStateUpdateEvent"} <= set(
            one["streamed"]
        )
        assert "SecurityAnalysisEvent" not in one["told"]

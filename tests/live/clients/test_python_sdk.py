"""The published Python SDK: its cloud workspace, its remote workspace and conversation."""

import pytest

from tests.live.client import PATIENCE, LiveClient
from tests.live.clients.published import Client
from tests.live.events import finishes, outputs
from tests.live.installation import Installation
from tests.live.scripts import DONE, run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_the_cloud_workspace_makes_uses_and_deletes_a_sandbox(
    python_sdk: Client, client: LiveClient, shared: Installation
) -> None:
    seen = await python_sdk.run(
        "sdk_cloud.py",
        url=shared.url,
        key=shared.key.reveal(),
        text=run("echo hello >a.txt", "echo one"),
        more=run("echo two"),
        patience=PATIENCE,
    )
    assert seen["model"] == "openai/scripted"
    assert seen["mcp"] == []
    assert seen["status"] == seen["after"] == "finished"
    assert "a.txt" in seen["listed"]
    assert {"MessageEvent", "ActionEvent", "ObservationEvent"} <= set(seen["kinds"])
    assert seen["changes"] == [["ADDED", "a.txt"]]
    assert seen["diff"] == {"modified": "hello", "original": ""}
    assert seen["uploaded"]
    assert seen["is_same"]
    assert seen["paused"] == "PAUSED"
    assert await client.sandbox(seen["sandbox_id"]) is None
    # The server has recorded a conversation that it did not start, to its last event.
    events = await client.events(seen["conversation_id"])
    assert outputs(events)[1:] == ["one", "two"]
    assert finishes(events) == [DONE, DONE]
    assert (await client.conversation(seen["conversation_id"]))["sandbox_status"] == "MISSING"


async def test_a_remote_conversation_takes_part_in_one_that_the_server_started(
    python_sdk: Client, client: LiveClient, sandbox_id: str
) -> None:
    name = await client.start_conversation(run("echo first"), sandbox_id=sandbox_id)
    begun = await client.wait_for_execution(name, "finished")
    agent = client.agent(begun)
    info = (await agent.get(f"/api/conversations/{name}")).json()
    seen = await python_sdk.run(
        "sdk_remote.py",
        host=agent.base_url,
        session_key=begun["session_api_key"],
        conversation_id=name,
        working_dir=info["workspace"]["working_dir"],
        llm={
            "model": "openai/scripted",
            "base_url": client.model.url,
            "api_key": client.model.key.reveal(),
        },
        text=run("echo hello >a.txt && echo second"),
        # It is paused in the first of them.
        slow=run("sleep 10; echo third", "echo fourth"),
        patience=PATIENCE,
    )
    assert seen["alive"]
    assert seen["before"] == ["first", DONE]
    assert seen["after"] == ["first", DONE, "second", DONE]
    assert seen["while_paused"] == [*seen["after"], "third"]
    assert seen["at_the_end"] == [*seen["after"], "third", "fourth", DONE]
    assert {"MessageEvent", "ActionEvent", "ObservationEvent", "PauseEvent"} <= set(seen["kinds"])
    assert seen["changes"] == [["ADDED", "a.txt"]]
    assert seen["diff"] == {"modified": "hello", "original": ""}
    assert seen["uploaded"]
    assert seen["is_same"]
    assert seen["listed"] == ["a.txt", "b.bin"]
    assert seen["own"] == ["second", DONE]
    events = await client.until(name, lambda events: len(finishes(events)) == 3)
    assert outputs(events) == ["first", "second", "third", "fourth"]
    assert outputs(await client.events(seen["own_id"])) == ["second"]

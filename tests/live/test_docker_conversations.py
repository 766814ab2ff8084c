"""Whole conversations in containers of our own image, through a real server on a real engine."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from agentsvc.testing.llm import ScriptedModel
from tests.live.client import LiveClient
from tests.live.containers import EVERYWHERE, Engine
from tests.live.events import outputs
from tests.live.installation import Installation, eventually, secret
from tests.live.scripts import SCRIPTS, run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.asyncio(loop_scope="session"),
]

START_SECONDS = 240.0
_LOG_LINES = 60

type Start = Callable[..., Awaitable[Installation]]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def near_model(engine: Engine) -> AsyncIterator[ScriptedModel]:
    """Return a model where containers find this machine."""
    async with ScriptedModel(scripts=SCRIPTS, key=secret("model"), host=engine.address) as model:
        yield model


@pytest_asyncio.fixture(loop_scope="session")
async def start(
    tmp_path_factory: pytest.TempPathFactory, engine: Engine, near_model: ScriptedModel
) -> AsyncIterator[Start]:
    """Return a function that starts a server whose sandboxes are containers."""
    made: list[Installation] = []

    async def make(**environment: str) -> Installation:
        told = {
            "AGENTSVC_BACKENDS__DOCKER__HOST": engine.url,
            # The model is a port of this machine.
            "AGENTSVC_SANDBOXES__MODEL_HOSTS": json.dumps([urlsplit(near_model.url).netloc]),
            "AGENTSVC_BACKENDS__DOCKER__GUARD_HOST": "false",
            "AGENTSVC_SANDBOXES__DEFAULT_BACKEND": "docker",
            "AGENTSVC_SANDBOXES__DEFAULT_SPEC": engine.image,
            "AGENTSVC_SANDBOXES__SWEEP_SECONDS": "1",
            "AGENTSVC_SANDBOXES__START_SECONDS": str(START_SECONDS),
        }
        directory = tmp_path_factory.mktemp("containers")
        installation = Installation(directory, near_model, told | environment)
        made.append(installation)
        await installation.start()
        await installation.client().save_settings()
        return installation

    yield make
    for installation in made:
        lines = [line for line in installation.log.splitlines() if " method=GET " not in line]
        sys.stderr.write("\n".join(["--- the server's log", *lines[-_LOG_LINES:], ""]))
        await installation.close()
        left = await engine.left(installation.instance_id)
        assert left == [], f"the engine still has {left}"


async def sandbox_of(client: LiveClient, conversation: dict[str, Any]) -> dict[str, Any]:
    found = await client.sandbox(conversation["sandbox_id"])
    assert found is not None
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", EVERYWHERE])
async def test_a_conversation_in_a_container_runs_to_its_end(
    start: Start, engine: Engine, host: str
) -> None:
    """From loopback the server asks for what happened; elsewhere it is told by the sandbox."""
    own = await start(AGENTSVC_SERVER__HOST=host)
    client = own.client()
    conversation_id = await client.start_conversation(
        run("echo $((6 * 7)) > answer", "cat answer", "id -u; ls /var/run/docker.sock"),
        time_limit=START_SECONDS,
    )
    seen = await client.wait_for_execution(conversation_id, "finished")
    events = await client.events(conversation_id)
    first, second, third = outputs(events)
    assert (first, second) == ("", "42")
    assert third.startswith("1000\n")
    assert "No such file or directory" in third
    assert len({event["id"] for event in events}) == len(events)
    path = f"/api/v1/app-conversations/{conversation_id}/file"
    assert (await client.get(f"{path}?file_path=/workspace/project/answer")).json() == "42\n"

    sandbox = await sandbox_of(client, seen)
    assert (sandbox["status"], sandbox["isolation"]) == ("RUNNING", "container")
    [container] = [name for name in await engine.left(own.instance_id) if "container" in name]
    described = await asyncio.to_thread(
        engine.ask, f"/containers/{container.removeprefix('container /')}/json"
    )
    assert seen["session_api_key"] not in str(described)


async def test_a_server_that_is_killed_finds_its_container_and_what_went_on_in_it(
    start: Start, engine: Engine
) -> None:
    own = await start(AGENTSVC_SERVER__HOST=EVERYWHERE)
    client = own.client()
    conversation_id = await client.start_conversation(
        run("echo before", "for i in $(seq 100); do sleep 0.2; done; echo during", "echo after"),
        time_limit=START_SECONDS,
    )
    await client.until(conversation_id, lambda events: bool(outputs(events)))
    before = await client.wait_for_execution(conversation_id, "running")
    had = await engine.left(own.instance_id)
    await own.kill()
    await own.start()
    client = own.client()
    ended = await client.wait_for_execution(conversation_id, "finished")
    assert outputs(await client.events(conversation_id)) == ["before", "during", "after"]
    assert ended["session_api_key"] == before["session_api_key"]
    assert await engine.left(own.instance_id) == had


async def test_a_frozen_container_goes_on_where_it_was_and_is_deleted_whole(
    start: Start, engine: Engine
) -> None:
    own = await start(AGENTSVC_SERVER__HOST=EVERYWHERE)
    client = own.client()
    conversation_id = await client.start_conversation(
        run("for i in $(seq 60); do echo x >>count; sleep 0.2; done; wc -l <count"),
        time_limit=START_SECONDS,
    )
    seen = await client.wait_for_execution(conversation_id, "running")
    path = f"/api/v1/sandboxes/{seen['sandbox_id']}"
    for _ in range(2):
        assert (await client.post(f"{path}/pause")).json() == {"success": True}
    paused = await sandbox_of(client, seen)
    assert (paused["status"], paused["paused_as"]) == ("PAUSED", "frozen")
    assert (await client.post(f"{path}/resume")).json() == {"success": True}
    await client.wait_for_execution(conversation_id, "finished")
    assert outputs(await client.events(conversation_id)) == ["60"]

    answer = await client.delete(f"/api/v1/app-conversations/{conversation_id}")
    assert answer.status == 200, answer.text
    await eventually(lambda: not engine.has(own.instance_id), "nothing is left on the engine")


async def test_a_sandbox_that_may_go_nowhere_reaches_its_model_and_nothing_else(
    start: Start, engine: Engine, near_model: ScriptedModel
) -> None:
    own = await start(
        AGENTSVC_SERVER__HOST=EVERYWHERE,
        AGENTSVC_SPECS__SHUT__IMAGE=engine.image,
        AGENTSVC_SPECS__SHUT__NETWORK="none",
        AGENTSVC_SPECS__SHUT__PORTS='[{"name": "agent", "number": 8000}]',
        AGENTSVC_SANDBOXES__DEFAULT_SPEC="shut",
    )
    client = own.client()
    port = urlsplit(near_model.url).port
    attempts = [
        f"python3 -c 'import socket; socket.create_connection((\"{host}\", {port}), 2)' 2>&1"
        f" | tail -n 1 | cut -d : -f 1"
        for host in (engine.address, "192.0.2.1")
    ]
    conversation_id = await client.start_conversation(
        run("echo shut", *attempts), time_limit=START_SECONDS
    )
    seen = await client.wait_for_execution(conversation_id, "finished")
    said, *refused = outputs(await client.events(conversation_id))
    assert said == "shut"
    assert set(refused) <= {"OSError", "TimeoutError"}
    assert (await sandbox_of(client, seen))["status"] == "RUNNING"

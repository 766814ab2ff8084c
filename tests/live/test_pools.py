"""Agent servers that are there before anybody asks, dormant, and told for whom they are."""

import json
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from process.programs.shim import ZYGOTE

from agentsvc.models.hosts import host_of_url
from agentsvc.testing.llm import ScriptedModel
from tests.live.conftest import MakeInstallation
from tests.live.events import outputs
from tests.live.installation import Installation, eventually
from tests.live.scripts import SCRIPTS, run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

_READY = re.compile(r"warm pool sandbox ready .*?sandbox_id=([0-9a-f]{32})")


async def test_a_conversation_gets_an_agent_server_that_waited_for_it(
    make_installation: MakeInstallation, distant: ScriptedModel
) -> None:
    server = await make_installation(
        AGENTSVC_GIT__PRIVATE_HOSTS="[]",
        AGENTSVC_SANDBOXES__MODEL_HOSTS=json.dumps([host_of_url(distant.url)]),
        AGENTSVC_BACKENDS__PROCESS__ZYGOTE_SECONDS="140",
        AGENTSVC_SANDBOXES__CALL_SECONDS="150",
        AGENTSVC_SANDBOXES__DEFAULT_SPEC="ready",
        AGENTSVC_SPECS__READY__BACKEND="process",
        AGENTSVC_SPECS__READY__POOL="1",
    )
    client = server.client()
    await client.save_settings(llm_base_url=distant.url, llm_api_key=distant.key.reveal())
    [spare_id] = await eventually(lambda: ready(server), "a sandbox waits", time_limit=150)
    assert (await client.get("/api/v1/sandboxes/search")).json()["items"] == []

    conversation_id = await client.start_conversation(run("pwd; echo $((40 + 2))"))
    conversation = await client.wait_for_execution(conversation_id, "finished")
    assert conversation["sandbox_id"] == spare_id
    # What it did has come by the webhooks that it was told of.
    told = "\n".join(outputs(await client.events(conversation_id)))
    assert told.split() == ["/workspace/project", "42"]
    sandbox = await client.wait_for_sandbox(spare_id, "RUNNING")
    assert sandbox["facts"]["started by"] == ZYGOTE
    agent = client.agent(conversation)
    assert (await agent.get("/api/conversations/count")).status == 200
    assert (await client.get("/api/v1/sandboxes/search")).json()["items"][0]["id"] == spare_id

    *_, next_id = await eventually(lambda: ready(server)[1:], "another one waits in its place")
    assert server.sandbox_dir(next_id).exists()
    assert (await client.delete(f"/api/v1/sandboxes/{spare_id}")).status == 200
    assert await server.stop() == 0
    assert not server.sandbox_dir(next_id).exists()


@pytest_asyncio.fixture(loop_scope="session")
async def distant() -> AsyncIterator[ScriptedModel]:
    """Return a model that is not where sandboxes of users need a way of their own to it."""
    async with ScriptedModel(scripts=SCRIPTS, host="127.0.0.2") as model:
        yield model


def ready(server: Installation) -> list[str]:
    """Return the sandboxes that have waited, in the order in which they began to."""
    return _READY.findall(server.log)

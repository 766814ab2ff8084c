"""A prepared environment and a fork in pods, by volume snapshots, with a server that is killed between."""

import asyncio
from typing import Any

import pytest

from tests.live import engines
from tests.live.client import LiveClient
from tests.live.events import outputs
from tests.live.kube import manifests
from tests.live.kube.cluster import Cluster
from tests.live.kube.conftest import START_SECONDS, Start
from tests.live.kube.test_conversations import AGENT
from tests.live.kube.world import START_SECONDS as CLUSTER_SECONDS
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.asyncio(loop_scope="session"),
]

ENVIRONMENTS = "/api/v1/environments"
CONVERSATIONS = "/api/v1/app-conversations"
SETUP = "sleep 2; echo built >tools"


async def wait_for(client: LiveClient, made: dict[str, Any], status: str) -> dict[str, Any]:
    async with asyncio.timeout(START_SECONDS):
        while True:
            found: dict[str, Any] = (await client.get(f"{ENVIRONMENTS}/{made['id']}")).json()
            if found["status"] == status:
                return found
            assert found["status"] in ("waiting", "preparing"), found
            await asyncio.sleep(0.2)


async def left(cluster: Cluster, instance_id: str, kind: str) -> list[str]:
    found = await asyncio.to_thread(manifests.left, cluster, instance_id)
    return [one for one in found if one.startswith(f"{kind} ")]


async def test_what_was_prepared_is_begun_with_and_forked(start: Start, cluster: Cluster) -> None:
    own = await start(**AGENT)
    client = own.client()
    answer = await client.post(ENVIRONMENTS, json={"name": "Tools", "setup_script": SETUP})
    assert answer.status == 201, answer.text
    made = answer.json()
    # A preparing that was killed is done anew, and what it has left goes.
    await wait_for(client, made, "preparing")
    await own.kill()
    await own.start()
    client = own.client()
    ready = await wait_for(client, made, "ready")
    assert ready["size_bytes"] == 100 * 2**20
    assert len(await left(cluster, own.instance_id, "volumesnapshots")) == 1

    first_id = await client.start_conversation(
        run("cat tools; echo own >note"), time_limit=START_SECONDS, environment_id=made["id"]
    )
    await client.wait_for_execution(first_id, "finished", time_limit=START_SECONDS)
    assert outputs(await client.events(first_id)) == ["built"]

    message = {"role": "user", "content": [{"type": "text", "text": run("cat tools note")}]}
    path = f"{CONVERSATIONS}/{first_id}/fork"
    task = (await client.post(path, json={"initial_message": message})).json()
    begun = await client.end_of_start(task["id"], time_limit=START_SECONDS)
    assert begun["status"] == "READY", begun["detail"]
    second_id = begun["app_conversation_id"]
    await client.wait_for_execution(second_id, "finished", time_limit=START_SECONDS)
    assert outputs(await client.events(second_id))[-1].split() == ["built", "own"]
    first, second = await client.conversation(first_id), await client.conversation(second_id)
    assert first["sandbox_id"] != second["sandbox_id"]

    for conversation_id in (first_id, second_id):
        answer = await client.delete(f"{CONVERSATIONS}/{conversation_id}")
        assert answer.status == 200, answer.text
    assert (await client.delete(f"{ENVIRONMENTS}/{made['id']}")).status == 200
    await asyncio.to_thread(
        engines.wait,
        lambda: manifests.left(cluster, own.instance_id) == [],
        CLUSTER_SECONDS,
        "nothing is left in the cluster",
    )

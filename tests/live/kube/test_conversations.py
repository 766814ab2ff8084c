"""Whole conversations in pods of our own image, through a real server on a real cluster."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentsvc.cli.sandbox_image import default_name
from tests.live import engines
from tests.live.client import LiveClient
from tests.live.events import outputs, said
from tests.live.installation import Installation
from tests.live.kube import manifests
from tests.live.kube.cluster import Cluster
from tests.live.kube.conftest import START_SECONDS, Start
from tests.live.kube.world import START_SECONDS as CLUSTER_SECONDS
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.asyncio(loop_scope="session"),
]

AGENT = {
    "AGENTSVC_SPECS__AGENT__BACKEND": "kubernetes",
    "AGENTSVC_SPECS__AGENT__IMAGE": default_name(),
    "AGENTSVC_SPECS__AGENT__WORKING_DIR": "project",
    "AGENTSVC_SPECS__AGENT__PORTS": '[{"name": "agent", "number": 8000}]',
    "AGENTSVC_SPECS__AGENT__ENV": (
        '{"OH_CONVERSATIONS_PATH": "/workspace/conversations",'
        ' "OH_BASH_EVENTS_DIR": "/workspace/bash_events"}'
    ),
    "AGENTSVC_SANDBOXES__DEFAULT_SPEC": "agent",
}


async def converse(own: Installation, client: LiveClient, cluster: Cluster) -> str:
    """Have a whole conversation in a pod of its own, and return its id."""
    conversation_id = await client.start_conversation(
        run("echo $((6 * 7)) > answer", "cat answer", "id -u; ls /var/run/secrets"),
        time_limit=START_SECONDS,
    )
    seen = await client.wait_for_execution(conversation_id, "finished", time_limit=START_SECONDS)
    events = await client.events(conversation_id)
    first, second, third = outputs(events)
    assert (first, second) == ("", "42")
    assert third.startswith("1000\n")
    assert "No such file or directory" in third
    assert len({event["id"] for event in events}) == len(events)
    [pod] = await asyncio.to_thread(manifests.pods_of, cluster, own.instance_id)
    assert seen["session_api_key"] not in str(pod)
    return conversation_id


async def sandbox_of(client: LiveClient, conversation_id: str) -> dict[str, Any]:
    seen = await client.conversation(conversation_id)
    found = await client.sandbox(seen["sandbox_id"])
    assert found is not None
    return found


async def test_a_conversation_goes_on_after_its_pod_was_away_and_its_server_was_killed(
    start: Start, cluster: Cluster
) -> None:
    own = await start(**AGENT)
    client = own.client()
    conversation_id = await converse(own, client, cluster)
    told = len(outputs(await client.events(conversation_id)))
    sandbox = await sandbox_of(client, conversation_id)
    path = f"/api/v1/sandboxes/{sandbox['id']}"
    assert (await client.post(f"{path}/pause")).json() == {"success": True}
    paused = await client.wait_for_sandbox(sandbox["id"], "PAUSED", time_limit=START_SECONDS)
    assert paused["paused_as"] == "stopped"
    left = await asyncio.to_thread(manifests.left, cluster, own.instance_id)
    assert [one for one in left if one.startswith("pods ")] == []
    assert any(one.startswith("persistentvolumeclaims ") for one in left)

    await own.kill()
    await own.start()
    client = own.client()
    assert (await client.post(f"{path}/resume")).json() == {"success": True}
    await client.wait_for_sandbox(sandbox["id"], "RUNNING", time_limit=START_SECONDS)
    await client.send(conversation_id, run("cat answer; echo again"))
    await client.until(conversation_id, lambda events: len(outputs(events)) > told)
    await client.wait_for_execution(conversation_id, "finished", time_limit=START_SECONDS)
    assert outputs(await client.events(conversation_id))[told:] == ["42\nagain"]

    answer = await client.delete(f"/api/v1/app-conversations/{conversation_id}")
    assert answer.status == 200, answer.text
    await asyncio.to_thread(
        engines.wait,
        lambda: manifests.left(cluster, own.instance_id) == [],
        CLUSTER_SECONDS,
        "nothing is left in the cluster",
    )


async def test_files_of_a_pod_go_back_also_where_the_server_is_killed(
    start: Start, cluster: Cluster
) -> None:
    own = await start(**AGENT, AGENTSVC_SANDBOXES__CHECKPOINTS="3")
    client = own.client()
    conversation_id = await client.start_conversation(
        run("mkdir deep; echo good >notes; echo kept >deep/file"), time_limit=START_SECONDS
    )
    await client.wait_for_execution(conversation_id, "finished", time_limit=START_SECONDS)
    told = len(outputs(await client.events(conversation_id)))
    # Who is inside neither sees checkpoints nor takes away what hides them.
    hidden = "/workspace/.agentsvc"
    attempts = f"rm -rf {hidden}; mv {hidden} /workspace/x; touch {hidden}/x; umount {hidden}"
    spoil = f"({attempts}) 2>/dev/null; ls -A {hidden} | wc -l; echo bad >notes; rm -rf deep; ls /workspace"
    await client.send(conversation_id, run(spoil))
    events = await client.until(conversation_id, lambda events: len(outputs(events)) > told)
    assert outputs(events)[-1].split() == ["0", "bash_events", "conversations", "project"]
    await client.wait_for_execution(conversation_id, "finished", time_limit=START_SECONDS)
    sandbox = await sandbox_of(client, conversation_id)
    path = f"/api/v1/app-conversations/{conversation_id}"
    kept = (await client.get(f"{path}/checkpoints")).json()["items"]
    assert len(kept) == 2

    answer = await client.post(f"{path}/rollback", json={"checkpoint_id": kept[0]["id"]})
    assert answer.status == 200, answer.text
    await own.kill()
    await own.start()
    client = own.client()
    await client.post(f"/api/v1/sandboxes/{sandbox['id']}/resume")
    await client.wait_for_sandbox(sandbox["id"], "RUNNING", time_limit=START_SECONDS)
    await client.send(conversation_id, run("cat notes deep/file"))
    events = await client.until(
        conversation_id, lambda events: "good" in "".join(outputs(events)[-1:])
    )
    assert outputs(events)[-1].split() == ["good", "kept"]
    assert any("put back to what they were" in text for text in said(events, "user"))
    assert (await client.delete(path)).status == 200
    await asyncio.to_thread(
        engines.wait,
        lambda: manifests.left(cluster, own.instance_id) == [],
        CLUSTER_SECONDS,
        "nothing is left in the cluster",
    )


async def test_a_server_that_nothing_can_call_reaches_its_pods_through_the_api(
    start: Start, cluster: Cluster
) -> None:
    own = await start(
        **AGENT,
        AGENTSVC_BACKENDS__KUBERNETES__CALLBACK="",
        AGENTSVC_BACKENDS__KUBERNETES__REACH="port-forward",
        AGENTSVC_SERVER__HOST="127.0.0.1",
    )
    await converse(own, own.client(), cluster)


async def test_a_conversation_gets_a_pod_that_was_there_before_it(
    start: Start, cluster: Cluster
) -> None:
    own = await start(**AGENT, AGENTSVC_SPECS__AGENT__POOL="1")
    client = own.client()

    def spares() -> set[str]:
        return {
            pod["metadata"]["uid"]
            for pod in manifests.pods_of(cluster, own.instance_id)
            if ("Ready", "True")
            in [(one["type"], one["status"]) for one in pod["status"].get("conditions", ())]
        }

    async def wait_for(is_so: Callable[[], bool], what: str) -> None:
        await asyncio.to_thread(engines.wait, is_so, START_SECONDS, what)

    await wait_for(lambda: "warm pool sandbox ready" in own.log, "a pod waits for somebody")
    [waiting] = spares()
    conversation_id = await client.start_conversation(
        run("echo $((6 * 7))"), time_limit=START_SECONDS
    )
    await client.wait_for_execution(conversation_id, "finished", time_limit=START_SECONDS)
    assert outputs(await client.events(conversation_id)) == ["42"]
    sandbox = await sandbox_of(client, conversation_id)
    pods = await asyncio.to_thread(manifests.pods_of, cluster, own.instance_id)
    assert waiting in [
        pod["metadata"]["uid"] for pod in pods if pod["metadata"]["name"].endswith(sandbox["id"])
    ]
    await wait_for(lambda: len(spares() - {waiting}) == 1, "another waits in its place")

    answer = await client.delete(f"/api/v1/app-conversations/{conversation_id}")
    assert answer.status == 200, answer.text
    await wait_for(lambda: waiting not in spares(), "what was somebody's is gone")
    # What waits for nobody goes with the server.
    assert await own.stop() == 0
    assert await asyncio.to_thread(manifests.left, cluster, own.instance_id) == []

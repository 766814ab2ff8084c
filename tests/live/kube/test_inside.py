"""The server as the manifests deploy it, in a pod: it reaches its sandboxes by names of services.

They are asked of the cluster's DNS, lead to an address of a service, and from there to a pod; the
same way back reports come in. Its login is what its pod has been given.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from agentsvc.base.values import new_key
from agentsvc.config.data_directory import DataDirectory
from agentsvc.testing.llm import ScriptedModel
from tests.live import engines
from tests.live.client import LiveClient
from tests.live.events import outputs
from tests.live.kube import manifests
from tests.live.kube.cluster import Cluster
from tests.live.kube.conftest import START_SECONDS
from tests.live.kube.manifests import SERVER
from tests.live.kube.test_conversations import AGENT
from tests.live.kube.world import START_SECONDS as CLUSTER_SECONDS
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.asyncio(loop_scope="session"),
]

PODS = f"/api/v1/namespaces/{SERVER}/pods"

type Json = dict[str, Any]


def own_pod(cluster: Cluster) -> Json | None:
    """Return the server's pod once it answers."""
    for pod in cluster.admin.items(PODS):
        conditions = pod["status"].get("conditions", ())
        if ("Ready", "True") in [(one["type"], one["status"]) for one in conditions]:
            return pod
    return None


def deploy(cluster: Cluster, key: str, more: dict[str, str]) -> None:
    """Apply the manifests as they are, with a first key and what the tests' sandboxes are."""
    things = manifests.read()
    for thing in things:
        if thing["kind"] == "Secret":
            thing["stringData"] = {"bootstrap-key": key}
        if thing["kind"] == "Deployment":
            [container] = thing["spec"]["template"]["spec"]["containers"]
            container["env"] += [{"name": name, "value": text} for name, text in more.items()]
    manifests.apply(cluster.admin, things)


def remove(cluster: Cluster) -> None:
    for thing in reversed(manifests.read("4-server")):
        if cluster.admin.find(manifests.path_of(thing)) is not None:
            cluster.admin.delete(manifests.path_of(thing))
    engines.wait(lambda: cluster.admin.items(PODS) == [], CLUSTER_SECONDS, "the server is gone")


@pytest_asyncio.fixture(loop_scope="session")
async def inside(cluster: Cluster, near_model: ScriptedModel) -> AsyncIterator[LiveClient]:
    """Return a client of a server that runs in the cluster."""
    key = new_key("asvc_").reveal()
    more = {
        **AGENT,
        "AGENTSVC_SANDBOXES__MODEL_HOSTS": json.dumps([urlsplit(near_model.url).netloc]),
        "AGENTSVC_SANDBOXES__SWEEP_SECONDS": "1",
        "AGENTSVC_SANDBOXES__START_SECONDS": str(START_SECONDS),
        "AGENTSVC_BACKENDS__KUBERNETES__STORAGE_SIZE": "100Mi",
    }
    await asyncio.to_thread(deploy, cluster, key, more)
    try:
        await asyncio.to_thread(
            engines.wait, lambda: own_pod(cluster) is not None, START_SECONDS, "the server answers"
        )
        pod = own_pod(cluster)
        assert pod is not None
        client = LiveClient(f"http://{pod['status']['podIP']}:3000", key, near_model)
        try:
            await client.save_settings()
            yield client
        finally:
            await client.close()
    finally:
        await asyncio.to_thread(say_how_it_was, cluster)
        await asyncio.to_thread(remove, cluster)


def say_how_it_was(cluster: Cluster) -> None:
    for pod in cluster.admin.items(PODS):
        print(json.dumps(pod["status"])[:3000])  # noqa: T201  # pytest shows it of a failed test
        log = cluster.admin.text("GET", f"{PODS}/{pod['metadata']['name']}/log?tailLines=80")
        print(log)  # noqa: T201


def installation_of(cluster: Cluster) -> str:
    """Return what the server's sandboxes are labelled with, which is in its claim."""
    path = f"/api/v1/namespaces/{SERVER}/persistentvolumeclaims/data"
    uid = cluster.admin.get(path)["metadata"]["uid"]
    data = DataDirectory(path=cluster.plan.volumes / f"claim-{uid}/agentsvc")
    return data.instance_id.read_text().strip()


async def test_a_server_in_the_cluster_has_conversations_in_its_pods_by_names(
    inside: LiveClient, cluster: Cluster
) -> None:
    conversation_id = await inside.start_conversation(
        run("echo $((6 * 7)) > answer", "cat answer"), time_limit=START_SECONDS
    )
    await inside.wait_for_execution(conversation_id, "finished", time_limit=START_SECONDS)
    assert outputs(await inside.events(conversation_id)) == ["", "42"]
    instance_id = await asyncio.to_thread(installation_of, cluster)
    [pod] = await asyncio.to_thread(manifests.pods_of, cluster, instance_id)
    assert pod["metadata"]["annotations"]["agentsvc/callback"] == "yes"
    told = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert urlsplit(str(told["OH_WEBHOOKS_0_BASE_URL"])).hostname == f"{SERVER}.{SERVER}.svc"

    # Another server in its place goes on with it, on the same claim.
    before = own_pod(cluster)
    assert before is not None
    cluster.admin.delete(f"{PODS}/{before['metadata']['name']}")

    def is_another() -> bool:
        found = own_pod(cluster)
        return found is not None and found["metadata"]["uid"] != before["metadata"]["uid"]

    await asyncio.to_thread(engines.wait, is_another, START_SECONDS, "another server answers")
    after = own_pod(cluster)
    assert after is not None
    client = LiveClient(f"http://{after['status']['podIP']}:3000", inside.key or "", inside.model)
    try:
        await client.send(conversation_id, run("cat answer; echo again"))
        await client.until(conversation_id, lambda events: len(outputs(events)) > 2)
        await client.wait_for_execution(conversation_id, "finished", time_limit=START_SECONDS)
        assert outputs(await client.events(conversation_id))[2:] == ["42\nagain"]
        answer = await client.delete(f"/api/v1/app-conversations/{conversation_id}")
        assert answer.status == 200, answer.text
        await asyncio.to_thread(
            engines.wait,
            lambda: manifests.left(cluster, instance_id) == [],
            CLUSTER_SECONDS,
            "nothing is left in the cluster",
        )
    finally:
        await client.close()

"""What can go wrong in a cluster, and what a server makes of it: nothing is lost, nothing doubled.

Each fault is a real one: the API server ended, its database frozen, a node without its network,
a pod removed by hand, a namespace that is full.
"""

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.live import engines
from tests.live.client import LiveClient
from tests.live.installation import Installation
from tests.live.kube import manifests
from tests.live.kube.cluster import Cluster
from tests.live.kube.conftest import START_SECONDS, Start
from tests.live.kube.manifests import SANDBOXES
from tests.live.kube.world import START_SECONDS as CLUSTER_SECONDS

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.asyncio(loop_scope="session"),
]

PATH = "/api/v1/sandboxes"
QUOTA = f"/api/v1/namespaces/{SANDBOXES}/resourcequotas"
OVER = {"MISSING", "ERROR"}
FAULT_SECONDS = 8.0
"""How long a fault lasts, with a look at all sandboxes each second."""

type Json = dict[str, Any]


async def order(client: LiveClient) -> str:
    answer = await client.post(PATH)
    assert answer.status == 200, answer.text
    return str(answer.json()["id"])


async def run(client: LiveClient) -> str:
    sandbox_id = await order(client)
    await client.wait_for_sandbox(sandbox_id, "RUNNING", time_limit=START_SECONDS)
    return sandbox_id


async def statuses(client: LiveClient, sandbox_id: str) -> AsyncIterator[Json]:
    """Give how a sandbox is, several times a second."""
    while True:
        seen = await client.sandbox(sandbox_id)
        assert seen is not None
        yield seen
        await asyncio.sleep(0.2)


async def watch(client: LiveClient, sandbox_ids: list[str], until: asyncio.Event) -> list[Json]:
    """Return all that was seen of sandboxes until something has happened."""
    found: list[Json] = []
    while not until.is_set():
        for sandbox_id in sandbox_ids:
            seen = await client.sandbox(sandbox_id)
            assert seen is not None
            found.append(seen)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(until.wait(), 0.3)
    return found


async def pods(cluster: Cluster, own: Installation) -> dict[str, str]:
    """Return the ids of the pods of a server, by name."""
    found = await asyncio.to_thread(manifests.pods_of, cluster, own.instance_id)
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


async def comes_true(is_so: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(engines.wait, is_so, CLUSTER_SECONDS, what)


async def come_through(
    own: Installation, cluster: Cluster, fault: AbstractContextManager[None]
) -> None:
    """Have two sandboxes that run, and one ordered meanwhile, come through a fault."""
    client = own.client()
    running = [await run(client) for _ in range(2)]
    before = await pods(cluster, own)
    assert len(before) == 2
    is_over = asyncio.Event()
    watching = asyncio.gather(watch(client, running, is_over))
    with fault:
        late = await order(client)
        await asyncio.sleep(FAULT_SECONDS)
        seen = await client.sandbox(late)
        assert seen is not None
        assert seen["status"] == "STARTING"
    await comes_true(cluster.admin.is_ready, "the API server is back")
    await client.wait_for_sandbox(late, "RUNNING", time_limit=START_SECONDS)
    is_over.set()
    [found] = await watching
    assert not {one["status"] for one in found} & OVER
    after = await pods(cluster, own)
    assert after.items() > before.items()
    assert len(after) == 3
    for sandbox_id in running:
        await client.wait_for_sandbox(sandbox_id, "RUNNING", time_limit=START_SECONDS)


async def test_sandboxes_come_through_the_end_of_the_api_server(
    start: Start, cluster: Cluster
) -> None:
    await come_through(await start(), cluster, cluster.ended("api"))


async def test_sandboxes_come_through_a_database_that_stands_still(
    start: Start, cluster: Cluster
) -> None:
    await come_through(await start(), cluster, cluster.frozen("etcd"))


async def test_a_sandbox_deleted_while_nothing_answers_is_gone_in_the_end(
    start: Start, cluster: Cluster
) -> None:
    own = await start()
    client = own.client()
    sandbox_id = await run(client)
    with cluster.ended("api"):
        assert (await client.delete(f"{PATH}/{sandbox_id}")).status == 200
        await asyncio.sleep(FAULT_SECONDS)
    await comes_true(cluster.admin.is_ready, "the API server is back")
    await comes_true(
        lambda: manifests.left(cluster, own.instance_id) == [], "nothing of it is left"
    )


async def test_a_node_without_its_network_loses_no_sandbox(start: Start, cluster: Cluster) -> None:
    """What is on it is not known, which is not that it is gone; the same pod is back with it."""
    own = await start()
    client = own.client()
    sandbox_id = await run(client)
    before = await pods(cluster, own)
    [pod] = await asyncio.to_thread(manifests.pods_of, cluster, own.instance_id)
    number = int(pod["spec"]["nodeName"].removeprefix("node"))
    node = f"/api/v1/nodes/node{number}"

    def is_lost() -> bool:
        conditions = cluster.admin.get(node)["status"]["conditions"]
        return ("Ready", "Unknown") in [(one["type"], one["status"]) for one in conditions]

    is_over = asyncio.Event()
    watching = asyncio.gather(watch(client, [sandbox_id], is_over))
    with cluster.cut_off(number):
        await comes_true(is_lost, "the cluster takes the node for lost")
        async with asyncio.timeout(START_SECONDS):
            async for seen in statuses(client, sandbox_id):
                if "node does not answer" in (seen["status_detail"] or ""):
                    break
    await comes_true(lambda: not is_lost(), "the node is back")
    await client.wait_for_sandbox(sandbox_id, "RUNNING", time_limit=START_SECONDS)
    is_over.set()
    [found] = await watching
    assert not {one["status"] for one in found} & OVER
    assert await pods(cluster, own) == before


async def test_a_pod_removed_by_hand_is_said_and_made_again_on_its_files(
    start: Start, cluster: Cluster
) -> None:
    own = await start()
    client = own.client()
    sandbox_id = await run(client)
    [pod] = await asyncio.to_thread(manifests.pods_of, cluster, own.instance_id)
    volume = await asyncio.to_thread(volume_of, cluster, pod)
    (volume / "kept").write_text("still here")
    name = pod["metadata"]["name"]
    cluster.admin.delete(f"/api/v1/namespaces/{SANDBOXES}/pods/{name}")
    lost = await client.wait_for_sandbox(sandbox_id, "ERROR", time_limit=START_SECONDS)
    # In which words depends on how far it had come when it was seen.
    assert lost["status_detail"]

    assert (await client.post(f"{PATH}/{sandbox_id}/resume")).status == 200
    await client.wait_for_sandbox(sandbox_id, "RUNNING", time_limit=START_SECONDS)
    after = await pods(cluster, own)
    assert list(after) == [name]
    assert after[name] != pod["metadata"]["uid"]
    [pod] = await asyncio.to_thread(manifests.pods_of, cluster, own.instance_id)
    url = f"http://{pod['status']['podIP']}:8000/kept"
    assert await asyncio.to_thread(fetch, url) == "still here"


def volume_of(cluster: Cluster, pod: Json) -> Any:
    """Return the directory on this machine with the files of a pod."""
    [claim] = [one for one in pod["spec"]["volumes"] if "persistentVolumeClaim" in one]
    name = claim["persistentVolumeClaim"]["claimName"]
    found = cluster.admin.get(f"/api/v1/namespaces/{SANDBOXES}/persistentvolumeclaims/{name}")
    return cluster.plan.volumes / f"claim-{found['metadata']['uid']}"


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


async def test_a_full_namespace_is_waited_for_and_nothing_is_made_twice(
    start: Start, cluster: Cluster
) -> None:
    own = await start()
    client = own.client()
    first = await run(client)
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "full"},
        "spec": {"hard": {"count/pods": "1"}},
    }
    cluster.admin.create(QUOTA, quota)
    try:
        await comes_true(
            lambda: "used" in cluster.admin.get(f"{QUOTA}/full").get("status", {}),
            "the quota counts",
        )
        late = await order(client)
        async with asyncio.timeout(START_SECONDS):
            async for seen in statuses(client, late):
                assert seen["status"] == "STARTING", seen
                if "quota" in (seen["status_detail"] or ""):
                    break
        assert len(await pods(cluster, own)) == 1
    finally:
        cluster.admin.delete(f"{QUOTA}/full")
    for sandbox_id in (first, late):
        await client.wait_for_sandbox(sandbox_id, "RUNNING", time_limit=START_SECONDS)
    assert len(await pods(cluster, own)) == 2

"""The kubernetes backend beyond the contract: what happens in the cluster, and how it is heard of."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from agentsvc.base.errors import BackendUnavailable, CapacityExceeded, Conflict, OrderRejected
from agentsvc.base.values import new_id
from agentsvc.plugin.backend import BackendContext, Cause, Health, Network, PausedAs, Phase
from tests.kube.api import KubeApi
from tests.kube.store import Refused
from tests.plugin_loading import part
from tests.plugins.kubernetes.rigs import config_of, pod_of, rig_on, until

if TYPE_CHECKING:
    from kubernetes import backend
else:
    backend = part("kubernetes.backend")

pytestmark = pytest.mark.timeout(300)

WATCH = "watch=1"


def watches(api: KubeApi) -> list[str]:
    return [query for _, _, query in api.requests if WATCH in query]


def lists(api: KubeApi) -> int:
    return len([1 for method, path, query in api.requests if _is_list(method, path, query)])


def _is_list(method: str, path: str, query: str) -> bool:
    return method == "GET" and path.endswith("/pods") and WATCH not in query


# The watch


async def test_many_sandboxes_are_one_watch_and_no_request_each(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        handles = [(await rig.run())[0] for _ in range(4)]
        before = len(api.requests)
        for _ in range(25):
            for handle in handles:
                assert (await rig.backend.inspect(handle)).phase is Phase.RUNNING
        assert len(api.requests) - before < 100
        assert len(watches(api)) == 1
        assert "allowWatchBookmarks=true" in watches(api)[0]


async def test_what_happens_in_the_cluster_is_heard_of(api: KubeApi, tmp_path: Path) -> None:
    async with rig_on(api, tmp_path) as rig:
        handle, _ = await rig.run()
        pod = pod_of(api, handle.sandbox_id)
        evicted = {"phase": "Failed", "reason": "Evicted", "message": "low on resource: memory"}
        api.tell(lambda here: here.set_status(pod, evicted))
        assert (await rig.wait(handle, Phase.FAILED)).cause is Cause.LOST


async def test_a_watch_goes_on_from_the_last_bookmark(api: KubeApi, tmp_path: Path) -> None:
    async with rig_on(api, tmp_path) as rig:
        handle, _ = await rig.run()
        before = lists(api)
        api.cut(is_cut=True)
        api.cut(is_cut=False)
        await until(lambda: len(watches(api)) == 2)
        assert lists(api) == before
        first, second = (_version(query) for query in watches(api))
        assert second > first
        assert (await rig.backend.inspect(handle)).phase is Phase.RUNNING


def _version(query: str) -> int:
    pairs = [part.partition("=") for part in query.split("&")]
    return int(next(value for name, _, value in pairs if name == "resourceVersion"))


async def test_what_was_missed_and_forgotten_is_listed_anew(api: KubeApi, tmp_path: Path) -> None:
    async with rig_on(api, tmp_path) as rig:
        kept, _ = await rig.run()
        lost, _ = await rig.run()
        before = lists(api)

        def forget(here: KubeApi) -> None:
            here.store.remove("pods", "default", f"oh-agent-server-{lost.sandbox_id}")
            here.store.forget()

        api.tell(forget)
        await until(lambda: lists(api) > before)
        assert (await rig.wait(lost, Phase.FAILED)).cause is Cause.LOST
        assert (await rig.backend.inspect(kept)).phase is Phase.RUNNING
        await until(lambda: len(watches(api)) == 2)


async def test_a_version_that_is_too_old_when_the_watch_begins_is_listed_anew(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        handle, _ = await rig.run()
        before = lists(api)
        api.cut(is_cut=True)
        api.tell(lambda here: here.store.forget())
        api.cut(is_cut=False)
        await until(lambda: lists(api) > before)
        assert (await rig.wait(handle, Phase.RUNNING)).reason == ""


async def test_a_silent_api_server_is_not_reached_and_nothing_is_gone(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path, request_seconds=3.0) as rig:
        handle, _ = await rig.run()
        api.tell(lambda here: here.speaks.clear())
        # What it has just heard it still says for a moment.
        await asyncio.sleep(1)
        try:
            calls = (rig.backend.inspect(handle), rig.backend.scan(), rig.backend.probe())
            seen, listed, health = await asyncio.gather(*calls, return_exceptions=True)
            for answer in (seen, listed):
                assert isinstance(answer, BackendUnavailable)
                assert "no answer within" in answer.message
            assert isinstance(health, Health)
            assert not health.ok
        finally:
            api.tell(lambda here: here.speaks.set())
        await rig.wait(handle, Phase.RUNNING)


# What becomes of pods


async def test_a_pod_deleted_by_hand_is_lost_and_its_sandbox_goes_on_from_its_files(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        order = rig.order()
        handle, report = await rig.run(order)
        await rig.ask(report, "PUT", "/files/note", b"kept")
        pod = pod_of(api, order.sandbox_id)
        api.do(api.node.end(pod, 0))
        lost = await rig.wait(handle, Phase.FAILED)
        assert (lost.cause, "go on from" in lost.reason) == (Cause.LOST, True)
        for call in (rig.backend.resume(handle), rig.backend.pause(handle)):
            with pytest.raises(Conflict):
                await call
        await rig.backend.restart(order, handle, rig.save_to(order.sandbox_id))
        report = await rig.wait(handle, Phase.RUNNING)
        assert await rig.ask(report, "GET", "/files/note") == b"kept"


async def test_an_image_that_is_not_to_be_had_is_told_from_the_events(
    api: KubeApi, tmp_path: Path
) -> None:
    api.runs_pods = False
    async with rig_on(api, tmp_path) as rig:
        handle = await rig.create(rig.order())
        pod = pod_of(api, handle.sandbox_id)
        waits = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
        container = {"name": "sandbox", "image": "agent:1", "state": waits}
        status = {"phase": "Pending", "containerStatuses": [container]}
        event = {
            "metadata": {"namespace": "default", "name": "e1"},
            "type": "Warning",
            "involvedObject": {"uid": pod["metadata"]["uid"]},
            "message": 'Failed to pull image "agent:1": manifest unknown',
        }

        def happen(here: KubeApi) -> None:
            pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
            here.set_status(pod, status)
            here.store.put("events", event)

        api.tell(happen)
        failed = await rig.wait(handle, Phase.FAILED)
        assert failed.cause is Cause.NOT_STARTED
        assert "correct the name, or push it" in failed.reason
        api.refusals["GET", "events"] = Refused(403, "Forbidden", "cannot list resource")
        assert (await rig.backend.inspect(handle)).phase is Phase.STARTING


async def test_what_runs_on_a_lost_node_is_deleted_and_its_pause_waits(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path, end_seconds=2.0) as rig:
        handle, _ = await rig.run()
        pod = pod_of(api, handle.sandbox_id)
        lost = {
            **pod["status"],
            "conditions": [
                {"type": "ContainersReady", "status": "True"},
                {"type": "Ready", "status": "False"},
            ],
        }
        api.tell(lambda here: here.set_status(pod, lost))
        api.tell(lambda here: here.node.cut(is_cut=True))
        assert "node does not answer" in (await rig.wait(handle, Phase.STARTING)).reason
        with pytest.raises(BackendUnavailable, match="does not say that it has ended"):
            await rig.backend.pause(handle)
        # It may still run there, and must not be doubled.
        assert (await rig.backend.inspect(handle)).phase is Phase.STARTING
        await rig.backend.delete(handle)
        assert (await rig.backend.inspect(handle)).phase is Phase.GONE


async def test_a_fenced_sandbox_has_a_gateway_that_comes_and_goes_with_it(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path, enforces_network_policies=True) as rig:
        order = rig.order(network=Network.ALLOWLIST, allow_hosts=("example.org",))
        handle, report = await rig.run(order)
        gateway = ("pods", "default", f"oh-agent-server-{order.sandbox_id}-gateway")
        assert gateway in api.store.objects
        assert await rig.ask(report, "GET", "/env/HTTPS_PROXY") == b"http://10.96.0.10:3128"
        await rig.backend.pause(handle)
        assert gateway not in api.store.objects
        paused = await rig.backend.inspect(handle)
        assert (paused.phase, paused.paused_as) == (Phase.PAUSED, PausedAs.STOPPED)
        await rig.backend.resume(handle)
        await rig.wait(handle, Phase.RUNNING)
        assert gateway in api.store.objects
        await rig.backend.delete(handle)
        assert await rig.backend.leftovers() == []


async def test_a_claim_that_does_not_remember_its_pod_cannot_be_resumed(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        handle, _ = await rig.run()
        await rig.backend.pause(handle)
        name = f"oh-agent-server-{handle.sandbox_id}"

        def forget(here: KubeApi) -> None:
            claim = here.store.get("persistentvolumeclaims", "default", name)
            claim["metadata"]["annotations"]["agentsvc/pod"] = "no JSON"

        api.tell(forget)
        with pytest.raises(Conflict, match="does not say how"):
            await rig.backend.resume(handle)


# What the cluster refuses


async def test_a_full_namespace_takes_the_order_later(api: KubeApi, tmp_path: Path) -> None:
    async with rig_on(api, tmp_path) as rig:
        order = rig.order()
        full = 'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1'
        api.refusals["PATCH", "pods"] = Refused(403, "Forbidden", full)
        with pytest.raises(CapacityExceeded, match="quota is used up"):
            await rig.create(order)
        assert await rig.is_listed(order.sandbox_id)
        health = await rig.backend.probe()
        assert (health.ok, health.reason) == (
            False,
            "it may not do this in the namespace: create pods",
        )
        api.refusals.clear()
        await rig.run(order)
        assert (await rig.backend.probe()).facts["version"] == "v1.20.2"


async def test_an_api_server_that_cannot_apply_is_asked_to_create(
    api: KubeApi, tmp_path: Path
) -> None:
    api.can_apply = False
    async with rig_on(api, tmp_path) as rig:
        order = rig.order()
        handle, report = await rig.run(order)
        assert await rig.create(order) == handle
        assert (await rig.wait(handle, Phase.RUNNING)).endpoints == report.endpoints
        await rig.backend.stop(handle)
        await rig.backend.restart(order, handle, rig.save_to(order.sandbox_id))
        await rig.wait(handle, Phase.RUNNING)


@pytest.mark.parametrize("kind", ["pods", "secrets", "persistentvolumeclaims"])
async def test_what_is_somebody_elses_is_neither_taken_nor_touched(
    api: KubeApi, tmp_path: Path, kind: str
) -> None:
    async with rig_on(api, tmp_path) as rig:
        order = rig.order()
        name = f"oh-agent-server-{order.sandbox_id}"
        foreign = {"metadata": {"namespace": "default", "name": name}}
        api.tell(lambda here: here.store.put(kind, foreign))
        with pytest.raises(OrderRejected, match="not of this server"):
            await rig.create(order)
        handle = rig.saved[order.sandbox_id][-1]
        assert (await rig.backend.inspect(handle)).phase is Phase.GONE
        await rig.backend.delete(handle)
        assert api.store.get(kind, "default", name)["metadata"].get("deletionTimestamp") is None


async def test_another_cluster_under_the_same_address_has_lost_nothing(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        handle, _ = await rig.run()
        api.namespaces["default"] = new_id()
        stranger = msgspec.structs.replace(handle, sandbox_id=new_id())
        with pytest.raises(BackendUnavailable, match="another cluster"):
            await rig.backend.inspect(stranger)
        await rig.backend.delete(stranger)
        api.namespaces["default"] = handle.data["place"]
        assert (await rig.backend.inspect(stranger)).phase is Phase.GONE


async def test_an_answer_from_before_the_api_server_is_no_answer(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        handle, _ = await rig.run()
        config = config_of(api, tmp_path)
        path = tmp_path / "elsewhere"
        path.write_text((tmp_path / "config").read_text().replace(api.url, f"{api.url}/no/such"))
        away = backend.KubernetesBackend(
            msgspec.structs.replace(config, kubeconfig=str(path)),
            BackendContext(instance_id=rig.instance_id, state_dir=tmp_path),
        )
        with pytest.raises(BackendUnavailable):
            await away.open()
        with pytest.raises(BackendUnavailable):
            await away.inspect(handle)

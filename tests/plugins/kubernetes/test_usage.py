"""What pods use, as the kubernetes backend is told."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentsvc.plugin.backend import Handle, Usage
from agentsvc.testing.rig import Rig
from tests.kube.api import KubeApi
from tests.plugin_loading import part
from tests.plugins.kubernetes.rigs import pod_of, rig_on, until

if TYPE_CHECKING:
    from kubernetes import usage
else:
    usage = part("kubernetes.usage")

type Json = dict[str, Any]

pytestmark = pytest.mark.timeout(300)


def asked_for_use(api: KubeApi) -> list[str]:
    return [path for _, path, _ in api.requests if "metrics" in path or "summary" in path]


async def run_on_a_node(rig: Rig, api: KubeApi) -> tuple[Handle, Json]:
    handle, _ = await rig.run()
    pod = pod_of(api, handle.sandbox_id)
    pod["spec"]["nodeName"] = "node1"
    api.tell(lambda here: here.set_status(pod, {**pod["status"], "hostIP": "127.0.0.1"}))
    return handle, pod


async def test_what_pods_use_is_told_by_the_clusters_metrics_in_one_answer(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        handles = [(await rig.run())[0] for _ in range(2)]
        api.metrics = [
            {
                "metadata": {"name": f"oh-agent-server-{handle.sandbox_id}"},
                "containers": [
                    {"name": "beside", "usage": {"cpu": "9m", "memory": "9Gi"}},
                    {"name": "sandbox", "usage": {"cpu": "1234567n", "memory": f"{number}Ki"}},
                ],
            }
            for number, handle in enumerate(handles, 1)
        ]
        found = [await rig.backend.usage(handle) for handle in handles]
        assert found == [Usage(memory_bytes=1024), Usage(memory_bytes=2048)]
        assert len(asked_for_use(api)) == 1
        await rig.backend.pause(handles[0])
        assert await rig.backend.usage(handles[0]) is None


async def test_what_a_pod_uses_is_told_by_its_kubelet_where_there_are_no_metrics(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        handle, pod = await run_on_a_node(rig, api)
        own = {
            "name": "sandbox",
            "cpu": {"usageCoreNanoSeconds": 1_500_000_000},
            "memory": {"workingSetBytes": 4096},
        }
        api.summaries["node1"] = {
            "pods": [
                {"podRef": {"uid": "another"}, "containers": [{**own, "cpu": {}}]},
                {"podRef": {"uid": pod["metadata"]["uid"]}, "containers": [own, {"name": "b"}]},
            ]
        }

        async def is_told() -> bool:
            return await rig.backend.usage(handle) == Usage(cpu_seconds=1.5, memory_bytes=4096)

        await until(is_told)


async def test_where_nobody_tells_what_a_pod_uses_nobody_is_asked_again_at_once(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        handle, _ = await run_on_a_node(rig, api)

        async def is_asked() -> bool:
            assert await rig.backend.usage(handle) is None
            return len(asked_for_use(api)) == 2

        await until(is_asked)
        for _ in range(3):
            assert await rig.backend.usage(handle) is None
        assert len(asked_for_use(api)) == 2


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"items": 1, "pods": "x"},
        {"items": [1, {"metadata": 2, "containers": [{"name": "sandbox", "usage": 3}]}]},
        {"items": [{"metadata": {"name": "p"}, "containers": [{"name": "sandbox"}]}]},
        {
            "items": [
                {
                    "metadata": {"name": "p"},
                    "containers": [{"name": "sandbox", "usage": {"memory": "much"}}],
                }
            ]
        },
        {"pods": [{"podRef": {}, "containers": [{"name": "sandbox", "cpu": []}]}]},
    ],
)
def test_what_tells_nothing_of_use_is_nothing(said: Json) -> None:
    assert usage.of_metrics(said) == {}
    assert usage.of_summary(said) == {}

"""The conformance kit on a real cluster, as the service account that the manifests describe."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentsvc.plugin.backend import Usage
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.testing import WORKLOAD, KitOptions
from agentsvc.testing.checks import CHECKS, Check
from agentsvc.testing.inspection import check_usage
from agentsvc.testing.kit import run_check
from agentsvc.testing.rig import open_rig
from tests.live import engines
from tests.live.containers import EVERYWHERE
from tests.live.kube import manifests
from tests.live.kube.cluster import Cluster
from tests.live.kube.plan import API_PORT
from tests.live.kube.relay import Relay, relay_to

pytestmark = [pytest.mark.live, pytest.mark.timeout(420, func_only=True)]

KIND = PluginHost.load().backend_types()["kubernetes"]

# What another way to the pods could do otherwise.
THROUGH_THE_API = (
    "a_created_sandbox_runs_and_its_ports_answer",
    "after_delete_nothing_answers_and_scan_is_empty",
    "a_stopped_sandbox_keeps_its_files_only",
    "a_new_instance_answers_for_what_an_old_one_made",
)
RIGHTS = "/apis/rbac.authorization.k8s.io/v1"
KUBELETS = "agentsvc-tests-kubelets"
PYTHON_BYTES = 4 * 2**20
"""What any Python takes."""
CHECKS_BY_NAME = {check.name: check for check in CHECKS}


def hold(check: Check, cluster: Cluster, token: str, directory: Path, **changes: Any) -> None:
    async def run() -> None:
        async with relay_to(cluster.plan.control, API_PORT) as relay:
            options = options_of(cluster, relay)
            if reason := check.why_skipped(KIND, options):
                pytest.skip(reason)
            kubeconfig = manifests.kubeconfig(cluster, token, directory, port=relay.port)
            fields = fields_of(cluster, kubeconfig) | changes
            await run_check(check, KIND, KIND.Config(**fields), options)

    asyncio.run(run())


def fields_of(cluster: Cluster, kubeconfig: Path) -> dict[str, Any]:
    return {
        "kubeconfig": str(kubeconfig),
        "namespace": manifests.SANDBOXES,
        "reach": "pod",
        "server_cidrs": (cluster.plan.all_addresses,),
        "service_account": "sandbox",
        "storage_size": "100Mi",
    }


def options_of(cluster: Cluster, relay: Relay | None = None) -> KitOptions:
    async def left(instance_id: str) -> list[str]:
        return await asyncio.to_thread(manifests.left, cluster, instance_id)

    return KitOptions(
        order_overrides={
            "image": engines.BASE,
            "command": ("python3", "-c", WORKLOAD),
            "env": {"KIT_HOST": EVERYWHERE},
        },
        beacon_host=cluster.plan.machine,
        enforced_limits=frozenset({"cpus", "memory_bytes"}),
        leftovers=left,
        quiet_seconds=2.0,
        time_limit=360,
        unreachable=relay.cut if relay else None,
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_pods_keep_the_contract(check: Check, cluster: Cluster, token: str, tmp_path: Path) -> None:
    hold(check, cluster, token, tmp_path)


@pytest.mark.parametrize("name", THROUGH_THE_API)
def test_pods_keep_it_when_they_are_reached_through_the_api(
    name: str, cluster: Cluster, token: str, tmp_path: Path
) -> None:
    hold(CHECKS_BY_NAME[name], cluster, token, tmp_path, reach="port-forward")


@pytest.fixture
def may_ask_kubelets(cluster: Cluster) -> Iterator[None]:
    """Let the server ask kubelets, which the manifests do not."""
    rule = {"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]}
    account = {
        "kind": "ServiceAccount",
        "name": manifests.SERVER,
        "namespace": manifests.SERVER,
    }
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": KUBELETS}
    metadata = {"metadata": {"name": KUBELETS}}
    cluster.admin.create(f"{RIGHTS}/clusterroles", {**metadata, "rules": [rule]})
    cluster.admin.create(
        f"{RIGHTS}/clusterrolebindings", {**metadata, "subjects": [account], "roleRef": role}
    )
    yield
    cluster.admin.delete(f"{RIGHTS}/clusterrolebindings/{KUBELETS}")
    cluster.admin.delete(f"{RIGHTS}/clusterroles/{KUBELETS}")


@pytest.mark.usefixtures("may_ask_kubelets")
async def test_a_kubelet_tells_what_a_pod_uses(cluster: Cluster, kubeconfig: Path) -> None:
    config = KIND.Config(**fields_of(cluster, kubeconfig))
    options = options_of(cluster)
    async with open_rig(KIND, config, options) as rig, asyncio.timeout(options.time_limit):
        handle, report = await rig.run()
        seen: list[Usage] = []

        async def is_known() -> bool:
            found = await rig.backend.usage(handle)
            await asyncio.sleep(1)
            # What was measured before its command was under way says little of it.
            if found is None or not found.cpu_seconds or (found.memory_bytes or 0) < PYTHON_BYTES:
                return False
            seen.append(found)
            return True

        await rig.until(is_known)
        assert (seen[0].memory_bytes or 0) < 100 * PYTHON_BYTES
        await check_usage(rig, handle, report, seen[0])
        await rig.backend.pause(handle)
        assert await rig.backend.usage(handle) is None

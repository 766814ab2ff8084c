"""The conformance kit on a real cluster, as the service account that the manifests describe."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentsvc.plugins import PluginHost
from agentsvc.testing import WORKLOAD, KitOptions
from agentsvc.testing.checks import CHECKS, Check
from agentsvc.testing.kit import run_check
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
CHECKS_BY_NAME = {check.name: check for check in CHECKS}


def hold(check: Check, cluster: Cluster, token: str, directory: Path, **changes: Any) -> None:
    async def run() -> None:
        async with relay_to(cluster.plan.control, API_PORT) as relay:
            options = options_of(cluster, relay)
            if reason := check.why_skipped(KIND, options):
                pytest.skip(reason)
            kubeconfig = manifests.kubeconfig(cluster, token, directory, port=relay.port)
            fields = {
                "kubeconfig": str(kubeconfig),
                "namespace": manifests.SANDBOXES,
                "reach": "pod",
                "server_cidrs": (cluster.plan.all_addresses,),
                "service_account": "sandbox",
                "storage_size": "100Mi",
                **changes,
            }
            await run_check(check, KIND, KIND.Config(**fields), options)

    asyncio.run(run())


def options_of(cluster: Cluster, relay: Relay) -> KitOptions:
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
        unreachable=relay.cut,
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_pods_keep_the_contract(check: Check, cluster: Cluster, token: str, tmp_path: Path) -> None:
    hold(check, cluster, token, tmp_path)


@pytest.mark.parametrize("name", THROUGH_THE_API)
def test_pods_keep_it_when_they_are_reached_through_the_api(
    name: str, cluster: Cluster, token: str, tmp_path: Path
) -> None:
    hold(CHECKS_BY_NAME[name], cluster, token, tmp_path, reach="port-forward")

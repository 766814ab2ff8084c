"""Who reaches whom, where the cluster's network holds pods to their policies.

In the cluster of the tests that is `tests/live/kube/fences.py`, below the default denial of the
manifests.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentsvc.plugin.backend import Handle, Network, Report
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.testing import WORKLOAD, KitOptions
from agentsvc.testing.rig import Rig, open_rig, web_endpoint
from tests.live import engines
from tests.live.containers import EVERYWHERE, own_address
from tests.live.kube import manifests
from tests.live.kube.cluster import Cluster
from tests.live.kube.manifests import SANDBOXES

pytestmark = [pytest.mark.live, pytest.mark.timeout(420, func_only=True)]

KIND = PluginHost.load().backend_types()["kubernetes"]
REACHED = 0
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"
FETCH = "import urllib.request, sys; print(urllib.request.urlopen(sys.argv[1], timeout=30).status)"


@asynccontextmanager
async def rig_on(
    cluster: Cluster, kubeconfig: Path, *, closed: tuple[str, ...] = ()
) -> AsyncIterator[Rig]:
    options = KitOptions(
        order_overrides={
            "image": engines.BASE,
            "command": ("python3", "-c", WORKLOAD),
            "env": {"KIT_HOST": EVERYWHERE},
        },
        beacon_host=cluster.plan.machine,
        time_limit=240,
    )
    config = KIND.Config(
        kubeconfig=str(kubeconfig),
        namespace=SANDBOXES,
        server_cidrs=(f"{cluster.plan.machine}/32",),
        closed_cidrs=closed,
        reach="pod",
        service_account="sandbox",
        storage_size="100Mi",
        enforces_network_policies=True,
    )
    async with open_rig(KIND, config, options) as rig:
        yield rig


@asynccontextmanager
async def page(address: str) -> AsyncIterator[int]:
    """Serve a page at an address of this machine, and give its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Who only looks whether somebody is here says nothing.
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, address, 0)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


async def run(rig: Rig, handle: Handle, program: str, *words: object) -> tuple[int | None, str]:
    argv = ["python3", "-c", program, *map(str, words)]
    found = await rig.backend.execute(handle, argv, env={}, time_limit=60, max_output=10_000)
    return found.exit_code, (found.stdout + found.stderr).decode()


async def comes_true(rig: Rig, look: Callable[[], Any]) -> None:
    """Wait until something is so: the rules of a new pod come a moment after it."""
    async with asyncio.timeout(120):
        await rig.until(look)


def address_of(report: Report) -> tuple[str, int]:
    host, _, port = web_endpoint(report).url.removeprefix("http://").partition(":")
    return host, int(port)


async def test_a_fenced_sandbox_gets_out_by_its_gateway_only(
    cluster: Cluster, kubeconfig: Path
) -> None:
    machine = cluster.plan.machine
    async with (
        rig_on(cluster, kubeconfig) as rig,
        page(machine) as listed,
        page(machine) as other,
    ):
        order = rig.order(network=Network.ALLOWLIST, allow_hosts=(f"{machine}:{listed}",))
        handle, report = await rig.run(order)
        assert await rig.ask(report, "GET", "/name") == order.sandbox_id.encode()

        async def is_held() -> bool:
            return (await run(rig, handle, CONNECT, machine, listed))[0] != REACHED

        async def is_let_out() -> bool:
            return await run(rig, handle, FETCH, f"http://{machine}:{listed}/") == (0, "200\n")

        await comes_true(rig, is_held)
        await comes_true(rig, is_let_out)
        code, said = await run(rig, handle, FETCH, f"http://{machine}:{other}/")
        assert (code, "403" in said) == (1, True), said
        # Nor the API server, nor the cluster's names.
        assert (await run(rig, handle, CONNECT, cluster.plan.control, 6443))[0] != REACHED
        code, said = await run(rig, handle, "import socket; socket.gethostbyname('a.default.svc')")
        assert code != 0, said


async def test_an_open_sandbox_gets_everywhere_but_to_closed_addresses_and_other_sandboxes(
    cluster: Cluster, kubeconfig: Path
) -> None:
    machine, closed = cluster.plan.machine, own_address()
    async with (
        rig_on(cluster, kubeconfig, closed=(f"{closed}/32",)) as rig,
        page(machine) as near,
        page(closed) as hidden,
    ):
        (handle, report), (_, other) = [await rig.run() for _ in range(2)]

        async def is_held() -> bool:
            return (await run(rig, handle, CONNECT, closed, hidden))[0] != REACHED

        await comes_true(rig, is_held)
        assert await run(rig, handle, CONNECT, machine, near) == (REACHED, "")
        code, said = await run(
            rig, handle, "import socket; print(socket.gethostbyname('kubernetes.default.svc'))"
        )
        assert (code, said) == (0, "10.96.0.1\n")

        async def is_alone() -> bool:
            return (await run(rig, handle, CONNECT, *address_of(other)))[0] != REACHED

        await comes_true(rig, is_alone)
        # It is there, for the server.
        for seen in (report, other):
            assert await rig.ask(seen, "GET", "/name")


async def test_nothing_of_a_pod_without_a_policy_gets_in_or_out(
    cluster: Cluster, kubeconfig: Path
) -> None:
    """The namespace's default holds, and it is the sandbox's own policy that opens it."""
    async with rig_on(cluster, kubeconfig) as rig, page(cluster.plan.machine) as near:
        handle, report = await rig.run()
        assert (await run(rig, handle, CONNECT, cluster.plan.machine, near))[0] == REACHED
        [pod] = await asyncio.to_thread(manifests.pods_of, cluster, rig.instance_id)
        name = pod["metadata"]["name"]
        path = f"/apis/networking.k8s.io/v1/namespaces/{SANDBOXES}/networkpolicies/{name}"
        await asyncio.to_thread(cluster.admin.delete, path)

        async def is_held() -> bool:
            return (await run(rig, handle, CONNECT, cluster.plan.machine, near))[0] != REACHED

        async def is_closed() -> bool:
            try:
                async with asyncio.timeout(2):
                    await asyncio.open_connection(*address_of(report))
            except TimeoutError:
                return True
            return False

        await comes_true(rig, is_held)
        await comes_true(rig, is_closed)

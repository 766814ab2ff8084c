"""The kubernetes backend beyond the contract, at an API server of the tests' own."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agentsvc.backend import (
    BackendContext,
    Cause,
    Handle,
    Health,
    Network,
    Order,
    PausedAs,
    Phase,
    Usage,
)
from agentsvc.errors import (
    BackendUnavailable,
    CapacityExceeded,
    Conflict,
    OrderRejected,
)
from agentsvc.testing import WORKLOAD, KitOptions
from agentsvc.testing.rig import Rig, open_rig
from agentsvc.values import Secret, new_id
from tests.kube.api import TOKEN, KubeApi
from tests.kube.store import Refused
from tests.plugins import part

if TYPE_CHECKING:
    from kubernetes import backend, login, settings, tunnels, usage
else:
    backend, login = part("kubernetes.backend"), part("kubernetes.login")
    settings, tunnels = part("kubernetes.settings"), part("kubernetes.tunnels")
    usage = part("kubernetes.usage")

type Json = dict[str, Any]

pytestmark = pytest.mark.timeout(300)

WATCH = "watch=1"

AUTHORITY = """-----BEGIN CERTIFICATE-----
MIIBIzCByqADAgECAgEBMAoGCCqGSM49BAMCMBAxDjAMBgNVBAMMBXRlc3RzMCAX
DTIwMDEwMTAwMDAwMFoYDzIxMjAwMTAxMDAwMDAwWjAQMQ4wDAYDVQQDDAV0ZXN0
czBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABBjsH38o3BCpqKEsKLmmjZZmxLuj
lntXB5LgRoCddiFdyT8U4ADt30B7suLZqbCyceydXVMs0P2Qzcd5cEb2PMajEzAR
MA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgEgMb+EPHEmrOXTX/
fuOram4oxk2znEzU61KlUf9WX+kCIQDZjEZyNKiIozzdXXHKMvqdLud0psrrxplP
e3MEnQNY6w==
-----END CERTIFICATE-----
"""
"""Nobody has its key."""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubeApi]:
    with KubeApi(tmp_path / "volumes") as server:
        yield server


def config_of(api: KubeApi, tmp_path: Path, **changes: Any) -> Any:
    fields = {
        "kubeconfig": str(api.kubeconfig(tmp_path / "config")),
        "reach": "pod",
        "server_cidrs": ("127.0.0.0/8",),
        "stop_seconds": 1,
        "request_seconds": 5.0,
        **changes,
    }
    return settings.KubernetesConfig(**fields)


@asynccontextmanager
async def rig_on(api: KubeApi, tmp_path: Path, **changes: Any) -> AsyncIterator[Rig]:
    options = KitOptions(
        order_overrides={"image": "agent:1", "command": ("python3", "-c", WORKLOAD)},
        beacon_host="",
    )
    config = config_of(api, tmp_path, **changes)
    async with open_rig(backend.KubernetesBackend, config, options) as rig:
        yield rig


def pod_of(api: KubeApi, sandbox_id: str) -> Json:
    return api.store.get("pods", "default", f"oh-agent-server-{sandbox_id}")


def watches(api: KubeApi) -> list[str]:
    return [query for _, _, query in api.requests if WATCH in query]


def lists(api: KubeApi) -> int:
    return len([1 for method, path, query in api.requests if _is_list(method, path, query)])


def _is_list(method: str, path: str, query: str) -> bool:
    return method == "GET" and path.endswith("/pods") and WATCH not in query


async def until(is_so: Callable[[], Awaitable[bool]] | Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            found = is_so()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.02)


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


# The way in


PLUGIN = """
import json, pathlib, sys
count = pathlib.Path(sys.argv[1])
count.write_text(str(int(count.read_text()) + 1))
print(json.dumps({
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {"token": pathlib.Path(sys.argv[2]).read_text(), "expirationTimestamp": sys.argv[3]},
}))
"""


def with_plugin(api: KubeApi, tmp_path: Path, expires_at: str) -> Path:
    (tmp_path / "count").write_text("0")
    (tmp_path / "token").write_text(api.token)
    arguments = [str(tmp_path / "count"), str(tmp_path / "token"), expires_at]
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", PLUGIN, *arguments],
    }
    return api.kubeconfig(tmp_path / "config", exec=plugin)


@pytest.mark.parametrize(("expires_at", "is_asked_again"), [("2999-01-01", 0), ("2020-01-01", 1)])
async def test_a_program_gives_the_token_and_a_new_one_when_it_is_over(
    api: KubeApi, tmp_path: Path, expires_at: str, is_asked_again: int
) -> None:
    path = with_plugin(api, tmp_path, f"{expires_at}T00:00:00Z")
    config = msgspec.structs.replace(config_of(api, tmp_path), kubeconfig=str(path))
    with_plugin(api, tmp_path, f"{expires_at}T00:00:00Z")
    here = backend.KubernetesBackend(
        config, BackendContext(instance_id=new_id(), state_dir=tmp_path)
    )
    await here.open()
    try:
        begun = int((tmp_path / "count").read_text())
        assert await here.scan() == []
        asked = int((tmp_path / "count").read_text())
        assert (asked > begun) == bool(is_asked_again)
        # One that does not work any more is fetched anew, whatever it says of itself.
        api.token = "another"  # noqa: S105  # it opens nothing
        (tmp_path / "token").write_text("another")
        assert await here.scan() == []
        assert int((tmp_path / "count").read_text()) > asked
        (tmp_path / "token").write_text("none")
        api.token = "a third"  # noqa: S105  # it opens nothing
        with pytest.raises(BackendUnavailable, match="credentials"):
            await here.scan()
    finally:
        await here.close()


async def test_a_pod_uses_what_its_service_account_has(api: KubeApi, tmp_path: Path) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("of the pod\n")
    (account / "namespace").write_text("agents\n")
    (account / "ca.crt").write_text(AUTHORITY)
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    config = settings.KubernetesConfig()
    access = await login.log_in(config, environment=environment, account=account)
    assert (access.url, access.namespace) == ("https://10.96.0.1:443", "agents")
    assert access.token.reveal() == "Bearer of the pod"
    assert access.ssl_context is not None
    assert settings.is_in_cluster(config, environment, account)
    # A kubeconfig comes first.
    path = str(api.kubeconfig(tmp_path / "config"))
    access = await login.log_in(
        config, environment={**environment, "KUBECONFIG": path}, account=account
    )
    assert (access.url, access.namespace) == (api.url, "default")
    assert access.token.reveal() == f"Bearer {TOKEN}"


@pytest.mark.parametrize("text", [None, "", "[]", "{}", "a: [", '{"current-context": "x"}'])
async def test_what_is_no_kubeconfig_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    config = settings.KubernetesConfig(kubeconfig=str(path))
    with pytest.raises(BackendUnavailable, match="set `kubeconfig`"):
        await login.log_in(config, environment={})


# The ways to pods


async def test_where_the_server_is_reached_is_a_url_that_pods_can_use(tmp_path: Path) -> None:
    context = BackendContext(
        instance_id="here", state_dir=tmp_path, public_url="https://agents.example/"
    )

    def told(url: str, context: BackendContext = context, **config: Any) -> str:
        here = backend.KubernetesBackend(settings.KubernetesConfig(**config), context)
        return str(here.inside_url(url))

    assert told("http://10.0.0.7:3000") == "http://10.0.0.7:3000"
    assert told("http://127.0.0.1:3000") == "https://agents.example"
    assert told("http://127.0.0.1:3000", callback="http://agentsvc.agents:3000/") == (
        "http://agentsvc.agents:3000"
    )
    nowhere = BackendContext(instance_id="here", state_dir=tmp_path)
    assert told("http://127.0.0.1:3000", nowhere) == "http://127.0.0.1:3000"


async def test_pods_are_reached_by_the_name_of_their_service(api: KubeApi, tmp_path: Path) -> None:
    async with rig_on(api, tmp_path, reach="service") as rig:
        handle, report = await rig.run()
        [endpoint] = report.endpoints
        assert endpoint.url == f"http://oh-agent-server-{handle.sandbox_id}.default.svc:8100"


def test_the_sockets_of_tunnels_are_private_and_short_enough(tmp_path: Path) -> None:
    assert tunnels.directory_for(Path("/var/lib/agentsvc"), "x") == Path("/var/lib/agentsvc/pods")
    long = tunnels.directory_for(tmp_path / ("long" * 30), "x")
    assert len(str(long)) < 60
    assert long != tunnels.directory_for(tmp_path / ("long" * 30), "y")
    tunnels.make_private(tmp_path / "pods")
    assert (tmp_path / "pods").stat().st_mode & 0o777 == 0o700
    (tmp_path / "pods").chmod(0o755)
    with pytest.raises(BackendUnavailable, match="open to others"):
        tunnels.make_private(tmp_path / "pods")


async def test_nobody_answers_through_a_tunnel_to_a_pod_that_is_gone(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path, reach="port-forward") as rig:
        order = two_ports(rig)
        handle = await rig.create(order)

        # The second of its ports is never served.
        async def is_told() -> bool:
            return "`other`" in (await rig.backend.inspect(handle)).reason

        await until(is_told)
        await rig.backend.delete(handle)
        assert (await rig.backend.inspect(handle)).phase is Phase.GONE


async def test_each_awaited_port_must_answer(api: KubeApi, tmp_path: Path) -> None:
    async with rig_on(api, tmp_path, connect_seconds=0.2) as rig:
        handle: Handle = await rig.create(two_ports(rig))

        async def is_told() -> bool:
            return "`other` does not answer" in (await rig.backend.inspect(handle)).reason

        await until(is_told)


def two_ports(rig: Rig) -> Order:
    order = rig.order(secret_env={"KIT_SECRET": Secret("x")})
    [port] = order.ports
    other = msgspec.structs.replace(port, name="other", number=9)
    return msgspec.structs.replace(order, ports=(msgspec.structs.replace(port, number=8100), other))


# What pods use


def asked_for_use(api: KubeApi) -> list[str]:
    return [path for _, path, _ in api.requests if "metrics" in path or "summary" in path]


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
        handle, _ = await rig.run()
        pod = pod_of(api, handle.sandbox_id)
        pod["spec"]["nodeName"] = "node1"
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
        api.tell(lambda here: here.set_status(pod, {**pod["status"], "hostIP": "127.0.0.1"}))

        async def is_told() -> bool:
            return await rig.backend.usage(handle) == Usage(cpu_seconds=1.5, memory_bytes=4096)

        await until(is_told)


async def test_where_nobody_tells_what_a_pod_uses_nobody_is_asked_again_at_once(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        handle, _ = await rig.run()
        pod = pod_of(api, handle.sandbox_id)
        pod["spec"]["nodeName"] = "node1"
        api.tell(lambda here: here.set_status(pod, {**pod["status"], "hostIP": "127.0.0.1"}))

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

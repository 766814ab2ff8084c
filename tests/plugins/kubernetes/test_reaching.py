"""How the kubernetes backend gets in at the API server, and how it reaches pods."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agentsvc.base.errors import BackendUnavailable
from agentsvc.base.values import Secret, new_id
from agentsvc.plugin.backend import BackendContext, Handle, Order, Phase
from agentsvc.testing.rig import Rig
from tests.kube.api import TOKEN, KubeApi
from tests.plugin_loading import part
from tests.plugins.kubernetes.rigs import config_of, rig_on, until

if TYPE_CHECKING:
    from kubernetes import backend, login, settings, tunnels
else:
    backend, login = part("kubernetes.backend"), part("kubernetes.login")
    settings, tunnels = part("kubernetes.settings"), part("kubernetes.tunnels")

pytestmark = pytest.mark.timeout(300)

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

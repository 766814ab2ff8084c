"""The URLs that clients are given lead to where they came from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentsvc.app import build_app
from agentsvc.base.errors import StartFailed
from agentsvc.config.schema import Config, GatewayConfig, ServerConfig
from agentsvc.plugin.egress import source_of
from agentsvc.sandboxes.plugin_loader import PluginHost
from tests.http.gateway.conftest import StartGate
from tests.http.gateway.steps import Box, Wire, head, session
from tests.http.gateway.upstream import Upstream

OURS = GatewayConfig(start_seconds=10)


async def _base(box: Box, headers: Mapping[str, str]) -> str:
    """Return what stands before the path of a sandbox in the URLs of an answer."""
    answer = await box.owner.get(f"/api/v1/sandboxes?id={box.id}", headers=dict(headers))
    urls = {one["name"]: one["url"] for one in answer.json()[0]["exposed_urls"]}
    base = str(urls["AGENT_SERVER"]).removesuffix(f"/sandboxes/{box.id}/agent")
    assert urls["WORKER_1"] == f"{base}/sandboxes/{box.id}/worker_1"
    editor = str(urls["VSCODE"]).removesuffix(f"/?tkn={box.key}&folder=%2Fworkspace%2Fproject")
    if not editor.endswith(f"//vscode-{box.id}.localhost:{base.rpartition(':')[2]}"):
        assert editor == f"{base}/sandboxes/{box.id}/vscode"
    return base


async def test_urls_follow_from_the_host_that_the_client_named(box: Box) -> None:
    assert await _base(box, {}) == box.service.url
    for host in ("agents.example", "10.1.2.3:99", "[::1]:3000", "a-b_c.example:1"):
        assert await _base(box, {"Host": host}) == f"http://{host}"


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1:3000", True),
        ("localhost:3000", True),
        ("[::1]:3000", True),
        ("LOCALHOST.:3000", True),
        ("10.1.2.3:3000", False),
        ("127.0.0.1.example:3000", False),
        ("agents.example:3000", False),
    ],
)
async def test_at_home_the_editor_has_an_origin_of_its_own(
    box: Box, host: str, *, is_local: bool
) -> None:
    answer = await box.owner.get(f"/api/v1/sandboxes?id={box.id}", headers={"Host": host})
    [url] = (one["url"] for one in answer.json()[0]["exposed_urls"] if one["name"] == "VSCODE")
    home = f"http://vscode-{box.id}.localhost:3000"
    assert url.partition("/?")[0] == (
        home if is_local else f"http://{host}/sandboxes/{box.id}/vscode"
    )


@pytest.mark.parametrize(
    "server", [{"trusted_proxies": ("127.0.0.1",)}, {"public_url": "http://localhost:3000"}]
)
async def test_behind_a_proxy_the_editor_is_where_that_leads(
    server: dict[str, Any], start_gate: StartGate, upstream: Upstream
) -> None:
    gate = await start_gate(OURS, **server)
    box = await Box.start(gate, upstream, await gate.make_client())
    answer = await box.owner.get(
        f"/api/v1/sandboxes?id={box.id}", headers={"Host": "localhost:3000"}
    )
    [url] = (one["url"] for one in answer.json()[0]["exposed_urls"] if one["name"] == "VSCODE")
    assert url.startswith(f"http://localhost:3000/sandboxes/{box.id}/vscode/?tkn=")


@pytest.mark.parametrize("host", ["", "evil.test/path", "a b", "a@b", "a:b:c", "x" * 10 + "\\"])
async def test_a_host_that_is_none_is_not_repeated(host: str, box: Box) -> None:
    assert await _base(box, {"Host": host}) == box.service.url


async def test_what_a_stranger_says_of_the_clients_request_does_not_count(box: Box) -> None:
    said = {
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "evil.test",
        "X-Forwarded-Prefix": "/evil",
        "Forwarded": "proto=https;host=evil.test",
    }
    assert await _base(box, said) == box.service.url


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"X-Forwarded-Proto": "https"}, "https://{own}"),
        ({"X-Forwarded-Proto": "HTTPS", "X-Forwarded-Host": "a.example"}, "https://a.example"),
        ({"X-Forwarded-Host": "evil.test, a.example:8443"}, "http://a.example:8443"),
        ({"X-Forwarded-Prefix": "/agents/"}, "http://{own}/agents"),
        ({"X-Forwarded-Prefix": "/a/b", "X-Forwarded-Host": "a.example"}, "http://a.example/a/b"),
        ({"Forwarded": "for=1.2.3.4;proto=https;host=a.example"}, "https://a.example"),
        ({"Forwarded": 'for=1.2.3.4, for="[::1]";host="b.example:1"'}, "http://b.example:1"),
        ({"X-Forwarded-Proto": "ftp", "X-Forwarded-Host": "a b"}, "http://{own}"),
        ({"X-Forwarded-Prefix": "//evil.test"}, "http://{own}"),
        ({"X-Forwarded-Prefix": "/a?b"}, "http://{own}"),
        ({"Forwarded": "nonsense;;;=="}, "http://{own}"),
    ],
)
async def test_what_a_trusted_proxy_says_counts(
    said: dict[str, str], expected: str, start_gate: StartGate, upstream: Upstream
) -> None:
    gate = await start_gate(OURS, trusted_proxies=("10.0.0.0/8", "127.0.0.1"))
    box = await Box.start(gate, upstream, await gate.make_client())
    own = gate.url.removeprefix("http://")
    assert await _base(box, said) == expected.format(own=own)


async def test_a_trusted_proxys_chain_reaches_the_sandbox(
    start_gate: StartGate, upstream: Upstream
) -> None:
    gate = await start_gate(OURS, trusted_proxies=("127.0.0.0/8", "::1/128"))
    box = await Box.start(gate, upstream, await gate.make_client())
    said = {
        "X-Forwarded-For": "1.2.3.4",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "a.example",
        "X-Forwarded-Prefix": "/agents",
    }
    seen = await box.ask("GET", "/x", headers=said)
    assert seen.one("X-Forwarded-For") == "1.2.3.4, 127.0.0.1"
    assert seen.one("X-Forwarded-Proto") == "https"
    assert seen.one("X-Forwarded-Host") == "a.example"
    assert seen.one("X-Forwarded-Prefix") == f"/agents{box.path('')}"


async def test_a_sandbox_is_no_trusted_proxy_whatever_network_is(start_gate: StartGate) -> None:
    gate = await start_gate(OURS, trusted_proxies=("127.0.0.0/8",))
    for source, status in (("127.0.0.1", 401), (source_of("some sandbox"), 421)):
        connector = aiohttp.TCPConnector(local_addr=(source, 0))
        async with aiohttp.ClientSession(connector=connector) as client:
            url, named = f"{gate.url}/api/v1/users/me", {"Host": "pages.example"}
            async with client.get(url, headers=named) as answer:
                assert answer.status == status


async def test_a_configured_url_counts_whoever_asks_and_its_path_may_stay_or_go(
    start_gate: StartGate, upstream: Upstream
) -> None:
    url = "https://example.org:8443/agents/"
    gate = await start_gate(OURS, public_url=url, trusted_proxies=("127.0.0.1",))
    box = await Box.start(gate, upstream, await gate.make_client())
    assert await _base(box, {"X-Forwarded-Host": "evil.test"}) == url.removesuffix("/")

    for prefix in ("", "/agents"):
        assert (await box.owner.get(f"{prefix}/api/v1/sandboxes/search")).status == 200
        upstream.answer_headers = [("Location", "/next"), ("Set-Cookie", "a=1; Path=/")]
        answer = await box.owner.get(f"{prefix}{box.path('/a%2Fb?c=%20')}")
        assert answer.headers["Location"] == f"/agents{box.path('/next')}"
        assert answer.headers["Set-Cookie"] == f"a=1; Path=/agents{box.path('/')}"
        assert upstream.seen[-1].one("X-Forwarded-Prefix") == f"/agents{box.path('')}"
        upstream.answer_headers = [("Location", "/next")]
        answer = await gate.client_with(box.key).get(f"{prefix}/api/git/changes?path=/x")
        assert (answer.status, answer.headers["Location"]) == (200, "/agents/next")
        socket_url = f"{gate.url}{prefix}{box.path('/ws')}"
        async with session(box.key) as client, client.ws_connect(socket_url) as socket:
            assert (await socket.receive(timeout=30)).data == "hello"
    assert (await box.owner.get("/agentsx/alive")).status == 404


async def test_a_path_below_a_configured_one_is_not_rewritten(
    start_gate: StartGate, upstream: Upstream
) -> None:
    gate = await start_gate(OURS, public_url="https://example.org/agents")
    box = await Box.start(gate, upstream, await gate.make_client())
    wire = await Wire.open(gate)
    key = f"X-Session-API-Key: {box.key}"
    wire.send(head("GET", f"/agents{box.path('/a%2Fb//c?d=%20+e&f')}", key, "Connection: close"))
    status, _ = await wire.read_head()
    await wire.close()
    assert status == 200
    assert upstream.seen[-1].raw_path == "/a%2Fb//c?d=%20+e&f"


async def test_the_page_of_a_login_is_below_a_configured_url(
    start_gate: StartGate, upstream: Upstream
) -> None:
    gate = await start_gate(OURS, public_url="https://example.org/agents")
    login = await gate.client_with(None).post("/oauth/device/authorize", data={"client_id": "test"})
    assert login.json()["verification_uri"].startswith("https://example.org/agents/oauth/")


@pytest.mark.parametrize("text", ["300.1.1.1", "1.2.3.4/99", "::::", "10.0.0.0/8/8"])
async def test_a_proxy_that_is_no_address_stops_the_start(text: str, tmp_path: Path) -> None:
    config = Config(server=ServerConfig(trusted_proxies=(text,)))
    with pytest.raises(StartFailed, match="trusted_proxies"):
        await build_app(config, data_dir=tmp_path, plugins=PluginHost.load())

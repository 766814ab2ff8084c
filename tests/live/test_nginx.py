"""The gateway behind a real proxy with TLS, at the root and below a path that it strips or keeps."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import WSMsgType
from aiohttp.abc import AbstractResolver, ResolveResult

from agentsvc.config.schema import GatewayConfig
from agentsvc.testing.backend import FakeWorld
from tests.http.gateway.steps import Box, make_gate
from tests.http.gateway.upstream import DATA, Upstream
from tests.live import caddy, nginx
from tests.live.conftest import unavailable

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="function"),
]

MIB = 1024 * 1024
DOMAIN = "sandboxes.test"


class Front(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox behind a proxy, and a client with the user's key that sees the proxy only."""

    box: Box
    url: str
    client: aiohttp.ClientSession


@pytest_asyncio.fixture(
    loop_scope="function",
    params=[
        *("at the root", "stripping", "keeping", "keeping a deep path"),
        "as the guide says",
        *("Caddy at the root", "Caddy stripping"),
    ],
)
async def front(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Front]:
    is_caddy = request.param.startswith("Caddy ")
    if (caddy if is_caddy else nginx).program() is None:
        unavailable("Caddy is not installed" if is_caddy else "nginx is not installed")
    case = request.param.removeprefix("Caddy ")
    path = {"at the root": "", "keeping a deep path": "/a/b-c"}.get(case, "/agents")
    strips = case in ("stripping", "at the root")
    port = nginx.free_port()
    url = f"https://127.0.0.1:{port}{path}"
    said: dict[str, Any] = {"trusted_proxies": ("127.0.0.1",)} if strips else {"public_url": url}
    if case == "as the guide says":
        said = nginx.section_of_the_guide(url)

    upstream, world = Upstream(), FakeWorld()
    await upstream.start()
    world.on_create = upstream.on_create
    service = make_gate(tmp_path / "data", world, GatewayConfig(), **said)
    try:
        await service.start()
        box = await Box.start(service, upstream, await service.make_client())
        if is_caddy:
            place = caddy.running(tmp_path, port=port, path=path, server_url=service.url)
        elif case == "as the guide says":
            place = nginx.as_the_guide_says(tmp_path, port=port, server_url=service.url)
        else:
            place = nginx.running(
                tmp_path, port=port, path=path, server_url=service.url, strips=strips
            )
        async with place, _client(tmp_path, str(box.owner.key)) as client:
            yield Front(box=box, url=url, client=client)
    finally:
        await service.close()
        world.close()
        await upstream.stop()


class Loopback(AbstractResolver):
    """Finds every name on this machine, as a wildcard record would."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        del family
        return [
            ResolveResult(
                hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0
            )
        ]

    async def close(self) -> None:
        pass


@pytest_asyncio.fixture(loop_scope="function")
async def wild_front(tmp_path: Path) -> AsyncIterator[Front]:
    """Start a server whose work ports have origins of their own behind nginx."""
    if nginx.program() is None:
        unavailable("nginx is not installed")
    port = nginx.free_port()
    upstream, world = Upstream(), FakeWorld()
    await upstream.start()
    world.on_create = upstream.on_create
    config = GatewayConfig(sandbox_domain=f"*.{DOMAIN}")
    service = make_gate(tmp_path / "data", world, config, trusted_proxies=("127.0.0.1",))
    try:
        await service.start()
        box = await Box.start(service, upstream, await service.make_client())
        place = nginx.running(
            tmp_path, port=port, path="", server_url=service.url, strips=True, domain=DOMAIN
        )
        async with place, _client(tmp_path, str(box.owner.key)) as client:
            yield Front(box=box, url=f"https://127.0.0.1:{port}", client=client)
    finally:
        await service.close()
        world.close()
        await upstream.stop()


async def test_a_work_port_has_an_origin_of_its_own_behind_nginx(
    wild_front: Front, tmp_path: Path
) -> None:
    front = wild_front
    urls = await _urls(front)
    worker = urls["WORKER_1"]
    port = urlsplit(front.url).port
    assert worker == f"https://worker-1-{front.box.id}.{DOMAIN}:{port}"
    front.box.upstream.answer_headers = [("Location", "/next"), ("Set-Cookie", "a=1; Path=/")]
    async with front.client.get(f"{worker}/x?y=1", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (200, "/next")
        assert answer.headers["Set-Cookie"] == "a=1; Path=/"
    seen = front.box.upstream.seen[-1]
    assert seen.raw_path == "/x?y=1"
    assert seen.one("X-Forwarded-Proto") == "https"
    assert seen.one("X-Forwarded-Host") == urlsplit(worker).netloc
    assert seen.one("X-Forwarded-Prefix") is None
    await _check_streams(front, worker)
    await _check_bulk(front, worker)
    await _check_visit(front, worker, tmp_path)


async def _check_visit(front: Front, worker: str, folder: Path) -> None:
    """Open the port as a page does: with the key in its URL once, then with a cookie."""
    async with _client(folder, "") as visitor:
        async with visitor.get(f"{worker}/x") as answer:
            assert answer.status == 401
        async with visitor.get(f"{worker}/x?session_api_key={front.box.key}") as answer:
            assert answer.status == 200
        async with visitor.get(f"{worker}/x") as answer:
            assert answer.status == 200
        await _check_socket(visitor, f"{worker}/ws")
        async with visitor.get(f"{worker.replace('worker-1', 'worker-2')}/x") as answer:
            # The cookie is of the one host only.
            assert answer.status == 401
    assert not any(front.box.key in value for _, value in front.box.upstream.seen[-1].headers)


def _client(folder: Path, key: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        headers={"X-Session-API-Key": key} if key else {},
        connector=aiohttp.TCPConnector(ssl=nginx.trust(folder), resolver=Loopback()),
        timeout=aiohttp.ClientTimeout(total=90),
    )


async def _urls(front: Front) -> dict[str, str]:
    """Return the URL of each port, as a client is given them through nginx."""
    async with front.client.get(f"{front.url}/api/v1/sandboxes?id={front.box.id}") as answer:
        [sandbox] = await answer.json()
    return {one["name"]: one["url"] for one in sandbox["exposed_urls"]}


async def test_what_a_client_is_given_works_through_a_proxy(front: Front) -> None:
    urls = await _urls(front)
    agent = f"{front.url}/sandboxes/{front.box.id}/agent"
    assert urls["AGENT_SERVER"] == (agent if urlsplit(front.url).path else front.url)
    worker = urls["WORKER_1"]
    await _check_requests(front, worker)
    await _check_streams(front, worker)
    await _check_bulk(front, worker)
    await _check_sockets(front, agent)
    await _check_login(front, worker)
    async with front.client.get(urls["VSCODE"]) as answer:
        assert answer.status == 200


async def _check_login(front: Front, worker: str) -> None:
    """Log a browser in: its cookie is for what is below the server's path, over TLS only."""
    parts = urlsplit(front.url)
    own = {"Origin": f"{parts.scheme}://{parts.netloc}"}
    order = {"api_key": front.box.owner.key}
    url = f"{front.url}/api/v1/logins"
    connector = front.client.connector
    options: dict[str, Any] = {"connector": connector, "connector_owner": False}
    async with aiohttp.ClientSession(**options) as browser:
        async with browser.post(url, json=order, headers=own) as answer:
            assert answer.status == 201, await answer.text()
            cookie = answer.headers["Set-Cookie"]
            page_token = (await answer.json())["page_token"]
        kept = {**own, "Cookie": cookie.partition(";")[0], "X-Agentsvc-Login": page_token}
        for path, status in ((url, 200), (f"{worker}/data", 200)):
            async with browser.get(path, headers=kept) as answer:
                assert answer.status == status
        async with browser.ws_connect(f"{front.url}/api/v1/events/stream", headers=kept) as socket:
            assert "ready" in (await socket.receive(timeout=60)).data
        foreign = {**kept, "Origin": f"https://{parts.hostname}"}
        async with browser.post(f"{front.url}/api/keys", json={}, headers=foreign) as answer:
            assert answer.status == 401
    name, *attributes = cookie.split("; ")
    prefix = "__Secure-" if parts.path else "__Host-"
    assert name.startswith(f"{prefix}agentsvc-login-{parts.port}=")
    assert {f"Path={parts.path}/", "Secure", "HttpOnly", "SameSite=Strict"} <= set(attributes)


async def _check_requests(front: Front, worker: str) -> None:
    path = urlsplit(worker).path
    front.box.upstream.answer_headers = [("Location", "/next"), ("Set-Cookie", "a=1; Path=/")]
    async with front.client.get(f"{worker}/x?y=1") as answer:
        assert answer.headers["Location"] == f"{path}/next"
        assert answer.headers["Set-Cookie"] == f"a=1; Path={path}/"
    seen = front.box.upstream.seen[-1]
    assert seen.raw_path == "/x?y=1"
    assert seen.one("X-Forwarded-Proto") == "https"
    assert seen.one("X-Forwarded-Host") == urlsplit(front.url).netloc
    assert seen.one("X-Forwarded-Prefix") == path
    async with front.client.get(f"{worker}/data", headers={"Range": "bytes=5-9"}) as answer:
        assert (answer.status, await answer.read()) == (206, DATA[5:10])


async def _check_streams(front: Front, worker: str) -> None:
    async with front.client.get(f"{worker}/stream") as answer:
        for number in range(3):
            part = f"data: {number}\n\n".encode()
            front.box.upstream.steps.put_nowait(part)
            assert await answer.content.readexactly(len(part)) == part
        front.box.upstream.steps.put_nowait(b"")


async def _check_bulk(front: Front, worker: str) -> None:
    size = 16 * MIB

    async def body() -> AsyncIterator[bytes]:
        for _ in range(size // MIB):
            yield bytes(MIB)

    async with front.client.put(f"{worker}/sink", data=body()) as answer:
        assert await answer.json() == {"received": size}
    async with front.client.get(f"{worker}/big?bytes={size}") as answer:
        assert len(await answer.read()) == size


async def _check_sockets(front: Front, agent: str) -> None:
    root = f"{front.url}/sockets/events/1?session_api_key={front.box.key}"
    for url in (f"{agent}/ws", f"{agent}/sockets/events/1", root):
        await _check_socket(front.client, url)


async def _check_socket(client: aiohttp.ClientSession, url: str) -> None:
    async with client.ws_connect(url, autoclose=False) as opened:
        assert (await opened.receive(timeout=60)).data == "hello"
        await opened.send_bytes(b"abc")
        assert (await opened.receive(timeout=60)).data == b"cba"
        await opened.send_str("close 4321 enough")
        ended: Any = await opened.receive(timeout=60)
        assert (ended.type, ended.data, ended.extra) == (WSMsgType.CLOSE, 4321, "enough")

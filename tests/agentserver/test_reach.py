"""Reaching servers on unix sockets by URL."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web

from agentsvc.agentserver import AgentClient
from agentsvc.agentserver.safe_connector import PEER, SandboxConnector, split_socket
from agentsvc.base import Secret


async def greet(request: web.Request) -> web.Response:
    return web.Response(text=f"{request.path_qs} at {request.host}")


@pytest.fixture
async def server_url(tmp_path: Path) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{path:.*}", greet)
    runner = web.AppRunner(app)
    await runner.setup()
    path = tmp_path / "a socket"
    await web.UnixSite(runner, str(path)).start()
    yield f"http+unix://{quote(str(path), safe='')}"
    await runner.cleanup()


def test_a_url_of_a_socket_is_told_apart_from_its_socket() -> None:
    url, path = split_socket("http+unix://%2Ftmp%2Fasvc-1%2Fp0/api/x?y=%2F")
    assert url == "http://127.0.0.1/api/x?y=%2F"
    assert path == "/tmp/asvc-1/p0"  # noqa: S108  # a name


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:80/x", "https://example.org", "http://[::1]:1"),
        # What others could make up, such as a server that says where its sandboxes are.
        *("http://%2Frun%2Fdocker.sock/x", "unix:/run/docker.sock"),
    ],
)
def test_other_urls_stay_as_they_are_and_name_no_socket(url: str) -> None:
    assert split_socket(url) == (url, None)


async def test_a_session_reaches_hosts_and_sockets(server_url: str) -> None:
    async with aiohttp.ClientSession(connector=SandboxConnector()) as session:
        for _ in range(2):
            url, path = split_socket(f"{server_url}/a?b=c")
            PEER.set((path, None))
            headers = {"Host": "127.0.0.1:8000"}
            async with session.get(url, headers=headers) as answer:
                assert await answer.text() == "/a?b=c at 127.0.0.1:8000"


async def test_calls_in_one_task_go_each_to_their_own_place(tmp_path: Path) -> None:
    async def title(request: web.Request) -> web.Response:
        return web.json_response({"title": request.host})

    app = web.Application()
    app.router.add_get("/server_info", title)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await web.UnixSite(runner, str(tmp_path / "socket")).start()
    (host, port), _ = runner.addresses
    client = AgentClient()
    await client.open()
    by_host = client.at(f"http://{host}:{port}", Secret("k"))
    by_socket = client.at(f"http+unix://{quote(str(tmp_path / 'socket'), safe='')}", Secret("k"))
    for _ in range(2):
        assert (await by_host.server_info())["title"] == f"{host}:{port}"
        assert (await by_socket.server_info())["title"] == "127.0.0.1"
    await client.close()
    await runner.cleanup()


@pytest.mark.parametrize("name", ["none", ""])
async def test_a_socket_that_is_not_there_is_an_error_of_the_connection(
    tmp_path: Path, name: str
) -> None:
    place = str(tmp_path / name) if name else ""
    url, path = split_socket(f"http+unix://{quote(place, safe='')}")
    PEER.set((path, None))
    async with aiohttp.ClientSession(connector=SandboxConnector()) as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url)

"""Reaching servers on unix sockets by URL."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web

from agentsvc.agentserver.safe_connector import SandboxConnector, as_http, socket_of


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


def test_a_url_of_a_socket_becomes_one_that_leads_there() -> None:
    url = as_http("http+unix://%2Ftmp%2Fasvc-1%2Fp0/api/x?y=%2F")
    assert url.startswith("http://")
    assert url.endswith("/api/x?y=%2F")
    assert socket_of(url.split("/")[2]) == "/tmp/asvc-1/p0"  # noqa: S108  # a name


@pytest.mark.parametrize("url", ["http://127.0.0.1:80/x", "https://example.org", "http://[::1]:1"])
def test_other_urls_stay_as_they_are(url: str) -> None:
    assert as_http(url) == url


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "zz.socket.invalid", "ff.socket.invalid"),
        # What others could make up, such as a server that says where its sandboxes are.
        f"{b'/run/docker.sock'.hex()}.socket.invalid",
        f"{b'/run/docker.sock'.hex()}.{'0' * 32}.socket.invalid",
    ],
)
def test_other_hosts_stand_for_no_socket(host: str) -> None:
    assert socket_of(host) is None


async def test_a_session_reaches_hosts_and_sockets(server_url: str) -> None:
    async with aiohttp.ClientSession(connector=SandboxConnector()) as session:
        for _ in range(2):
            headers = {"Host": "127.0.0.1:8000"}
            async with session.get(as_http(f"{server_url}/a?b=c"), headers=headers) as answer:
                assert await answer.text() == "/a?b=c at 127.0.0.1:8000"


async def test_a_socket_that_is_not_there_is_an_error_of_the_connection(tmp_path: Path) -> None:
    url = as_http(f"http+unix://{quote(str(tmp_path / 'none'), safe='')}")
    async with aiohttp.ClientSession(connector=SandboxConnector()) as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url)

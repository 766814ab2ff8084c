"""What the cookie of a browser's login opens at the gateway, and where it never goes."""

from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from agentsvc.accounts.keys import Role
from agentsvc.accounts.logins import LoginToken
from agentsvc.config.schema import GatewayConfig
from agentsvc.http.keys import LOGINS
from tests.http.gateway.conftest import StartGate
from tests.http.gateway.steps import LONG_SECONDS, Box
from tests.http.gateway.upstream import Upstream
from tests.service import Client


class Browser:
    """A browser of the sandbox's owner that is logged in."""

    def __init__(self, box: Box, token: LoginToken) -> None:
        self.box = box
        self.cookie = token.cookie.reveal()
        self.page_token = token.page.reveal()
        self.port = box.service.url.rpartition(":")[2]
        self.anyone: Client = box.service.client_with(None)

    def headers(self, **more: str) -> dict[str, str]:
        cookie = f"mine=1; agentsvc-login-{self.port}={self.cookie}; __Host-agentsvc-login=x"
        page = {"X-Agentsvc-Login": self.page_token} if self.page_token else {}
        return {"Cookie": f"{cookie}; __Secure-agentsvc-login=y", **page, **more}

    async def status(self, method: str = "GET", path: str = "", **more: str) -> int:
        path = path or self.box.path("/data")
        return (await self.anyone.request(method, path, headers=self.headers(**more))).status


@pytest.fixture
async def browser(box: Box) -> Browser:
    assert box.owner.key
    _, token = await box.service.app[LOGINS].begin(box.owner.key, client="")
    return Browser(box, token)


@pytest.mark.parametrize("port", ["agent", "vscode", "worker_1"])
async def test_a_login_opens_ports_and_its_cookie_stays_here(browser: Browser, port: str) -> None:
    assert await browser.status(path=browser.box.path("/data", port)) == 200
    seen = browser.box.upstream.seen[-1]
    assert seen.all("Cookie") == ["mine=1"]
    for part in (browser.cookie, browser.page_token):
        assert not any(part in value for _, value in seen.headers)


async def test_a_login_changes_something_for_pages_of_the_server_only(browser: Browser) -> None:
    own = browser.box.service.url
    path = browser.box.path("/sink")
    assert await browser.status("POST", path, Origin=own) == 200
    assert await browser.status("POST", path, **{"Sec-Fetch-Site": "same-origin"}) == 200
    before = len(browser.box.upstream.seen)
    refused: list[dict[str, str]] = [
        {},
        {"Origin": "null"},
        {"Origin": "https://elsewhere.example"},
        {"Origin": own, "Sec-Fetch-Site": "same-site"},
    ]
    for more in refused:
        assert await browser.status("POST", path, **more) == 401, more
    assert len(browser.box.upstream.seen) == before


async def test_a_login_opens_a_socket_for_pages_of_the_server_only(browser: Browser) -> None:
    own = browser.box.service.url
    async with aiohttp.ClientSession() as session:
        options: dict[str, Any] = {"headers": browser.headers(Origin=own)}
        async with session.ws_connect(browser.box.url("/ws"), **options) as socket:
            assert (await socket.receive(timeout=LONG_SECONDS)).data == "hello"
        options = {"headers": browser.headers(Origin="https://elsewhere.example")}
        async with session.ws_connect(browser.box.url("/ws"), **options) as socket:
            await socket.send_str("hello?")
            ended = await socket.receive(timeout=LONG_SECONDS)
            assert (ended.type, ended.data) == (WSMsgType.CLOSE, 4001)


async def test_a_login_opens_no_sandbox_of_another_user(browser: Browser) -> None:
    owner = await browser.box.service.make_client("other", Role.MEMBER)
    other = await Box.start(browser.box.service, browser.box.upstream, owner)
    assert await browser.status(path=other.path("/data")) == 404


async def test_a_login_that_is_over_opens_nothing(browser: Browser) -> None:
    browser.cookie = browser.cookie[1:]
    assert await browser.status() == 401


@pytest.mark.parametrize("port", ["agent", "vscode", "worker_1"])
async def test_a_stolen_cookie_opens_no_port(browser: Browser, port: str) -> None:
    browser.page_token = ""
    own = {"Origin": browser.box.service.url, "Sec-Fetch-Site": "same-origin"}
    for method in ("GET", "POST"):
        assert await browser.status(method, browser.box.path("/sink", port), **own) == 401
    assert browser.box.upstream.seen == []


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_socket_opens_with_the_pages_part_as_its_first_message(
    browser: Browser, *, is_whole: bool
) -> None:
    said = browser.page_token if is_whole else browser.cookie
    browser.page_token = ""
    options: dict[str, Any] = {"headers": browser.headers(Origin=browser.box.service.url)}
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(browser.box.url("/ws"), **options) as socket,
    ):
        await socket.send_json({"type": "auth", "session_api_key": said})
        told = await socket.receive(timeout=LONG_SECONDS)
        assert told.data == ("hello" if is_whole else 4001)


async def test_a_login_opens_no_origin_of_a_work_port(browser: Browser) -> None:
    """A browser never sends it there; whoever does is not let in by it."""
    port = browser.box.service.url.rpartition(":")[2]
    host = f"worker-1-{browser.box.id}.localhost:{port}"
    assert await browser.status(path="/data", Host=host) == 401
    key = {"X-Session-API-Key": browser.box.key}
    assert await browser.status(path="/data", Host=host, **key) == 200
    assert browser.box.upstream.seen[-1].all("Cookie") == ["mine=1"]


@pytest.mark.parametrize("name", ["agentsvc-login", "__Host-agentsvc-login", "__Secure-agentsvc-x"])
async def test_a_sandbox_sets_no_cookie_of_ours(browser: Browser, name: str) -> None:
    browser.box.upstream.answer_headers = [("Set-Cookie", f"{name}=stolen; Path=/")]
    answer = await browser.box.get("/data")
    assert answer.status == 200
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("trusts", [False, True])
async def test_pages_of_sandboxes_are_kept_apart_from_those_of_the_server(
    start_gate: StartGate, upstream: Upstream, *, trusts: bool
) -> None:
    gate = await start_gate(GatewayConfig(start_seconds=10, trust_editors=trusts))
    box = await Box.start(gate, upstream, await gate.make_client("owner", Role.MEMBER))
    for port, is_apart in (("worker_1", True), ("agent", True), ("vscode", not trusts)):
        answer = await box.get("/data", port)
        policy = answer.headers.get("Content-Security-Policy", "")
        assert policy.startswith("sandbox ") is is_apart
        assert "allow-same-origin" not in policy
    for label in ("worker-1", "vscode"):
        answer = await gate.client_with(box.key).get(
            "/data", headers={"Host": f"{label}-{box.id}.localhost"}
        )
        assert (answer.status, "Content-Security-Policy" in answer.headers) == (200, False)

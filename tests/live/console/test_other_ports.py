"""What another port of the server's host can do to a browser that is logged in: send it away, no more.

A real browser sends its cookies to every port of a host, and takes them from every port.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from playwright.async_api import Browser, Page, expect

from agentsvc.accounts.keys import KeyRing
from agentsvc.accounts.logins import Logins
from agentsvc.storage.database import Database
from tests.live.browser import Console
from tests.live.client import LiveClient
from tests.live.console.users import new_user
from tests.live.installation import Installation

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(480),
    pytest.mark.asyncio(loop_scope="session"),
]

CHANGES = "/api/v1/events/stream"
SOCKET_IO = "/socket.io/?EIO=4"
LOOK = """async (server) => {
  const seen = {origin: self.origin};
  try { seen.storage = Object.values(localStorage).join(); } catch { seen.storage = 'none'; }
  try { seen.cookie = document.cookie; } catch { seen.cookie = 'none'; }
  for (const [name, path] of [['me', '/api/keys/current'], ['keys', '/api/keys']]) {
    const options = name === 'me' ? {} : {method: 'POST', body: '{}'};
    try { seen[name] = (await fetch(server + path, {credentials: 'include', ...options})).status; }
    catch { seen[name] = 0; }
  }
  return JSON.stringify(seen);
}"""


class OtherPort:
    """A server at another port of the same host: keeps what it is sent, and sets what it is told."""

    def __init__(self) -> None:
        self.cookies: list[str] = []
        self.sets: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.cookies.append(request.headers.get("Cookie", ""))
        response = web.Response(text="<title>other</title>", content_type="text/html")
        for cookie in self.sets:
            response.headers.add("Set-Cookie", cookie)
        return response


@pytest_asyncio.fixture(loop_scope="session")
async def other() -> AsyncIterator[OtherPort]:
    port, app = OtherPort(), web.Application()
    app.router.add_route("*", "/{path:.*}", port.answer)
    async with TestServer(app, host="127.0.0.1") as server:
        port.url = str(server.make_url("/"))
        yield port


async def test_the_cookie_that_another_port_is_sent_opens_nothing(
    console: Console, other: OtherPort
) -> None:
    page = await console.page("settings/keys")
    await expect(page.get_by_role("heading", name="API keys")).to_be_visible()
    before = await _keys(console.client)
    await page.goto(other.url)
    cookie = other.cookies[0]
    server = console.client.base_url
    assert f"agentsvc-login-{urlsplit(server).port}=" in cookie
    sandbox_id = (await console.client.get("/api/v1/sandboxes/search")).json()["items"][0]["id"]
    forged = {"Cookie": cookie, "Origin": server, "Sec-Fetch-Site": "same-origin"}
    opened = await _open_all(server, forged, f"/sandboxes/{sandbox_id}")
    assert opened == []
    assert await _keys(console.client) == before
    # The browser itself is still logged in.
    await page.goto(f"{server}/#/settings/keys")
    await expect(page.get_by_role("heading", name="API keys")).to_be_visible()


async def _keys(client: LiveClient) -> list[dict[str, Any]]:
    """Return the keys of a user, without when they were used last."""
    found = (await client.get("/api/keys")).json()
    return [{**one, "last_used_at": None} for one in found]


async def _open_all(server: str, headers: dict[str, str], sandbox: str) -> list[str]:
    """Return what a request with these headers opens, over each transport."""
    opened = []
    conversation = "/api/v1/app-conversations/00000000000000000000000000000000/download"
    async with aiohttp.ClientSession(headers=headers) as session:
        for method, path in (
            ("GET", "/api/keys/current"),
            ("POST", "/api/keys"),
            ("POST", "/api/v1/users"),
            ("GET", "/api/v1/logins"),
            ("DELETE", "/api/v1/logins/current"),
            ("POST", "/oauth/device/verify-authenticated"),
            ("POST", "/api/settings"),
            ("GET", conversation),
            ("GET", "/openapi.json"),
            ("GET", CHANGES),
            ("GET", f"{SOCKET_IO}&transport=polling"),
            ("GET", f"{sandbox}/agent/api/conversations/search"),
            ("POST", f"{sandbox}/agent/api/bash/execute_bash_command"),
            ("GET", f"{sandbox}/worker_1/"),
        ):
            body: dict[str, Any] = {} if method == "GET" else {"json": {}}
            async with session.request(method, server + path, **body) as answer:
                if answer.status not in (401, 403):
                    opened.append(f"{method} {path}: {answer.status}")
        for path in (
            CHANGES,
            f"{SOCKET_IO}&transport=websocket",
            f"{sandbox}/agent/sockets/events/1",
        ):
            said = await _knock(session, server + path)
            opened += [f"WebSocket {path}: {said}"] if said else []
    return opened


async def _knock(session: aiohttp.ClientSession, url: str) -> str:
    try:
        async with session.ws_connect(url) as socket:
            await socket.send_str('{"type":"auth","session_api_key":"made up"}')
            said = await socket.receive(timeout=30)
            return "" if said.type is aiohttp.WSMsgType.CLOSE else str(said.data)
    except aiohttp.WSServerHandshakeError as exc:
        return "" if exc.status == 401 else str(exc.status)


@pytest.mark.parametrize("path", ["/", "/api"])
@pytest.mark.parametrize("was_logged_in", [True, False])
async def test_a_cookie_that_another_port_sets_makes_nobody_of_the_browser(
    browser: Browser, shared: Installation, other: OtherPort, *, was_logged_in: bool, path: str
) -> None:
    mallory, victim = await new_user(shared), await new_user(shared)
    begun = await mallory.post("/api/v1/logins", json={"api_key": mallory.key})
    other.sets = [
        f"{name}={begun.headers['Set-Cookie'].partition(';')[0].partition('=')[2]}; Path={path}"
        for name in (f"agentsvc-login-{urlsplit(victim.base_url).port}", "agentsvc-login")
    ]
    async with Console.opened(browser, victim) as console:
        page = await console.page() if was_logged_in else await console.context.new_page()
        await page.goto(other.url)
        await page.goto(f"{victim.base_url}/#/settings/keys")
        if was_logged_in and path != "/":
            # The browser sends both cookies, and the one of the narrower path counts for nothing.
            await expect(page.get_by_title(f"You are {await _name_of(victim)}")).to_be_visible()
            return
        await page.wait_for_url("**/login")
        await expect(page.get_by_label("Your API key")).to_be_visible()
        assert await _name_of(mallory) not in await page.content()
        assert await page.evaluate("fetch('api/keys/current').then(({status}) => status)") == 401


async def test_a_login_link_says_whose_it_is_and_who_is_logged_in(
    browser: Browser, shared: Installation
) -> None:
    mallory, victim = await new_user(shared), await new_user(shared)
    his, hers = await _name_of(mallory), await _name_of(victim)
    link = f"{victim.base_url}/login?token={await _make_link(shared, mallory)}"
    async with Console.opened(browser, victim) as console:
        page = await console.page()
        await page.goto(link)
        await expect(page.get_by_role("note")).to_contain_text(f"logged in as {hers}")
        await expect(page.locator("main")).to_contain_text(f"logs this browser in as {his}")
        assert await _who(page) == hers
        await page.get_by_role("link", name="Stay logged in").click()
        await expect(page.get_by_title(f"You are {hers}")).to_be_visible()
        await page.goto(link)
        await page.get_by_role("button", name=f"Log {hers} out and log in as {his}").click()
        await expect(page.get_by_title(f"You are {his}")).to_be_visible()
        assert [one["client"] for one in (await victim.get("/api/v1/logins")).json()] == []
        await page.goto(link)
        await expect(page.get_by_role("alert")).to_contain_text("was used before")


async def test_a_page_of_a_sandbox_is_nobody_to_the_server(
    browser: Browser, shared: Installation, somebody: LiveClient
) -> None:
    sandboxes = (await somebody.get("/api/v1/sandboxes/search")).json()["items"]
    sandbox = next(one for one in sandboxes if one["status"] == "RUNNING")
    [worker] = [one for one in sandbox["exposed_urls"] if one["name"] == "WORKER_1"]
    base = f"{somebody.base_url}/sandboxes/{sandbox['id']}"
    await _serve_page(somebody, f"{base}/agent/api/bash", worker["port"])
    key = f"session_api_key={quote(sandbox['session_api_key'])}"
    port = urlsplit(somebody.base_url).port
    own = f"http://worker-1-{sandbox['id']}.localhost:{port}"
    async with Console.opened(browser, somebody) as console:
        page = await console.page("new")
        stored = await page.evaluate("Object.values(localStorage).join()")
        assert stored
        for url in dict.fromkeys((worker["url"].rstrip("/"), f"{base}/worker_1", own)):
            seen = await _visit(page, f"{url}/page.html?{key}", somebody.base_url)
            assert stored not in seen.pop("storage"), url
            assert "agentsvc-login" not in seen.pop("cookie"), url
            assert seen.pop("origin") in ("null", own), url
            assert set(seen.values()) <= {0, 401, 403}, url
        # Without the key in its address nobody gets there, logged in or not.
        answer = await page.goto(f"{base}/worker_1/page.html")
        assert answer is not None
        assert answer.status == 401
        console.problems.clear()


async def _visit(page: Page, url: str, server: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            answer = await page.goto(url)
            if answer is not None and answer.status == 200:
                break
            await asyncio.sleep(0.3)
    seen: dict[str, Any] = json.loads(await page.evaluate(LOOK, server))
    return seen


async def _serve_page(client: LiveClient, bash: str, port: int) -> None:
    command = (
        "mkdir -p served && echo '<title>made in the sandbox</title>' >served/page.html &&"
        f" exec python3 -m http.server {port} --directory served"
    )
    path = bash.removeprefix(client.base_url)
    answer = await client.post(f"{path}/start_bash_command", json={"command": command})
    assert answer.status == 200, answer.text


async def _name_of(client: LiveClient) -> str:
    return str((await client.get("/api/keys/current")).json()["user_name"])


async def _who(page: Page) -> str:
    return str(
        await page.evaluate(
            """async () => {
              const key = Object.keys(localStorage).find((one) => one.startsWith('agentsvc-login'));
              const headers = {'X-Agentsvc-Login': localStorage.getItem(key)};
              return (await (await fetch('api/keys/current', {headers})).json()).user_name;
            }"""
        )
    )


async def _make_link(shared: Installation, client: LiveClient) -> str:
    database = await Database.open(shared.data.database)
    try:
        keys = KeyRing(database)
        key_id = (await keys.identify(str(client.key))).key_id
        logins = Logins(database, keys, lifetime=timedelta(hours=1))
        return (await logins.make_link(key_id)).reveal()
    finally:
        await database.close()

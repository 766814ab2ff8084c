"""Pages at other ports of the same host, in a real Chromium: the login of a console is not theirs.

Part of the row `origins`. Cookies know no ports, so the browser sends the server's to whatever else
listens at the host, and takes from there what that sets. A real console is logged in to; a page at
another port of the host collects what the browser sends to it, tries the server from there, sets the
login of somebody else, and what was collected is used by a program that forges every header.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp import web
from playwright.async_api import BrowserContext, Page
from playwright.async_api import Error as BrowserError

from tests.live.browser import chromium
from tests.resilience.book import Ground
from tests.resilience.server import Server, serving
from tests.service import Client

_CANARY: Final = "canary-of-alice"
_PAGE: Final = """<!doctype html><title>elsewhere</title><p id=said></p><script>
const server = %(server)s, planted = %(planted)s;
const tried = {};
async function ask(name, path, options) {
  try {
    const answer = await fetch(server + path, {credentials: 'include', ...options});
    tried[name] = {status: answer.status, text: answer.type === 'opaque' ? '' : await answer.text()};
  } catch (error) { tried[name] = {status: 0, text: ''}; }
}
function socket(name, path) {
  return new Promise((resolve) => {
    const opened = new WebSocket(server.replace('http', 'ws') + path);
    const end = (status) => { tried[name] = {status, text: ''}; resolve(); };
    // Nobody who is not logged in has said who they are by that, and is sent away.
    opened.onopen = () => setTimeout(() => opened.send('{}'), 300);
    opened.onmessage = () => end(200);
    opened.onerror = opened.onclose = () => end(0);
    setTimeout(() => end(opened.readyState === 1 ? 200 : 0), 2500);
  });
}
(async () => {
  const json = {'Content-Type': 'application/json'};
  for (const cookie of planted) document.cookie = cookie;
  await ask('read', '/api/settings');
  await ask('write', '/api/settings', {method: 'POST', headers: json, body: '{"language": "evil"}'});
  await ask('key', '/api/keys', {method: 'POST', headers: json, body: '{"name": "evil"}'});
  await ask('form', '/api/keys', {method: 'POST', mode: 'no-cors', body: 'name=evil',
      headers: {'Content-Type': 'application/x-www-form-urlencoded'}});
  await socket('socket', '/api/v1/events/stream');
  document.querySelector('#said').textContent = JSON.stringify(tried);
})();
</script>"""


class Elsewhere:
    """What listens at another port of the host: notes what it is sent, and serves a page."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.cookies: list[str] = []
        self.planted: list[str] = []
        self.set: list[str] = []
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Elsewhere"]:
        """Listen while this lasts."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _serve(self, request: web.Request) -> web.Response:
        if "Cookie" in request.headers:
            self.cookies.append(request.headers["Cookie"])
        said = {"server": json.dumps(self._server), "planted": json.dumps(self.planted)}
        answer = web.Response(text=_PAGE % said, content_type="text/html")
        for cookie in self.set:
            answer.headers.add("Set-Cookie", cookie)
        return answer


async def _log_in(page: Page, client: Client) -> None:
    """Log in as a person does."""
    await page.goto(f"{client.base_url}/login")
    await page.get_by_label("Your API key").fill(str(client.key))
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(lambda url: not url.endswith("/login"))


async def _visit(context: BrowserContext, url: str) -> dict[str, Any]:
    """Show a page, and return what it says it was let do."""
    page = await context.new_page()
    await page.goto(url)
    await page.wait_for_function("document.querySelector('#said').textContent")
    said = await page.text_content("#said")
    await page.close()
    found: dict[str, Any] = msgspec.json.decode(said or "{}")
    return found


async def _forged(server: Server, cookies: list[str]) -> list[str]:
    """Use what was collected, from a program that says it is a page of the server's."""
    wrong = []
    for cookie in dict.fromkeys(cookies):
        headers = {"Cookie": cookie, "Origin": server.url, "Sec-Fetch-Site": "same-origin"}
        headers["Content-Type"] = "application/json"
        async with aiohttp.ClientSession(headers=headers) as session:
            for method, path, body in (
                ("GET", "/api/settings", None),
                ("POST", "/api/keys", b'{"name": "forged", "scope": "admin"}'),
                ("POST", "/api/v1/users", b'{"name": "forged", "role": "admin"}'),
                ("GET", "/api/v1/logins", None),
                ("POST", "/api/v1/logins", b"{}"),
            ):
                url = server.url + path
                async with session.request(method, url, data=body, allow_redirects=False) as one:
                    if one.status < 400:
                        wrong.append(
                            f"a cookie collected at another port: {method} {path}: {one.status}"
                        )
    return wrong


async def _who(page: Page, server: Server) -> str:
    """Return what the console of a browser shows of whose it is."""
    await page.goto(f"{server.url}/#/me")
    with contextlib.suppress(BrowserError):
        await page.wait_for_load_state("networkidle", timeout=10_000)
    await asyncio.sleep(1)
    return await page.content()


async def _planted(server: Server, elsewhere: Elsewhere, context: BrowserContext) -> list[str]:
    """Set the cookies of the attacker's own login; the browser must not become the attacker."""
    mallory = await server.add_user("mallory")
    login = await mallory.post("/api/v1/logins", json={"api_key": mallory.key})
    given = login.headers["Set-Cookie"].partition(";")[0]
    elsewhere.planted = [f"{given}; path=/", f"{given}; path=/api", f"{given}; path=/console"]
    elsewhere.set = [f"{given}; Path=/; HttpOnly", f"{given}; Path=/api; HttpOnly"]
    await _visit(context, elsewhere.url)
    page = await context.new_page()
    shown = await _who(page, server)
    await page.close()
    return ["a planted cookie makes the browser the attacker's"] if "mallory" in shown else []


async def try_ports(ground: Ground) -> tuple[int, list[str]]:
    """Return how much was tried with a browser, and what got through."""
    wrong: list[str] = []
    async with serving(ground.place("ports")) as server, chromium() as browser:
        alice = await server.add_user("alice", role="admin")
        await alice.save_settings()
        context = await browser.new_context()
        async with Elsewhere(server.url).listening() as elsewhere:
            page = await context.new_page()
            await _log_in(page, alice)
            if "alice" not in await _who(page, server):
                wrong.append("the console does not show who is logged in, so nothing was tried")
            for path in ("/", "/api", "/console/0/x", "/sandboxes/x/worker_1/"):
                tried = await _visit(context, elsewhere.url + path)
                wrong += [
                    f"a page at another port may {name}: {one['status']}"
                    for name, one in tried.items()
                    if 0 < one["status"] < 400
                ]
            collected = list(elsewhere.cookies)
            wrong += await _planted(server, elsewhere, context)
        await context.close()
        wrong += await _forged(server, collected)
        keys = (await alice.get("/api/keys")).text
        kept = (await alice.get("/api/settings")).json()["language"]
        wrong += ["a key was made"] if "evil" in keys or "forged" in keys else []
        wrong += ["a setting was changed"] if kept == "evil" else []
    return 4 * 5 + 5 * max(1, len(set(collected))) + 1, wrong

"""A login in a real browser: it counts for pages of the server, not for those of sandboxes.

The server and the work port's own origin are of the same site, and every origin may read answers:
nothing but the server itself keeps them apart.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentsvc.config.schema import GatewayConfig
from agentsvc.http.keys import LOGINS
from tests.http.gateway.steps import Box, boxed
from tests.live.chromium import showing

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="function"),
]

HOST = "agents.example.test"
RULES = "--host-resolver-rules=MAP *.example.test 127.0.0.1"
PAGE = """<!doctype html><title>page</title><script>
const said = JSON.parse(decodeURIComponent(location.hash.slice(1)));
async function status(path, options) {
  try {
    const page = said.page_token ? {'X-Agentsvc-Login': said.page_token} : {};
    const sent = {credentials: 'include', ...options, headers: {...options?.headers, ...page}};
    return (await fetch(said.server + path, sent)).status;
  } catch (error) { return 'blocked'; }
}
function socket() {
  return new Promise((resolve) => {
    const opened = new WebSocket(said.server.replace('http', 'ws') + '/api/v1/events/stream');
    opened.onopen = () => opened.send(JSON.stringify({type: 'auth', session_api_key: said.page_token}));
    opened.onmessage = () => resolve('told');
    opened.onclose = (event) => resolve(event.code);
  });
}
const json = {'Content-Type': 'application/json'};
async function look() {
  return {
    origin: self.origin,
    read: await status('/api/v1/logins'),
    change: await status('/api/keys', {method: 'POST', headers: json, body: '{}'}),
    plain: await status('/api/keys', {method: 'POST', mode: 'no-cors', body: '{}'}),
    socket: await socket(),
    sees: (() => { try { return document.cookie.includes('agentsvc'); } catch { return 'none'; } })(),
  };
}
function report(name, seen) {
  return fetch(`${said.collector}/${name}`, {method: 'POST', mode: 'no-cors',
                                             body: JSON.stringify(seen)});
}
(async () => {
  if (!said.is_own) return report(said.name, await look());
  const before = await status('/api/v1/logins');
  const body = JSON.stringify({token: said.token});
  const answer = await fetch(said.server + '/api/v1/logins', {method: 'POST', headers: json, body});
  const login = answer.status;
  const alone = await status('/api/v1/logins');
  said.page_token = (await answer.json()).page_token;
  await report(said.name, {before, login, alone, ...await look()});
  for (const [name, url] of Object.entries(said.frames)) {
    const frame = document.createElement('iframe');
    const inner = {...said, name, is_own: false};
    frame.src = `${url}#${encodeURIComponent(JSON.stringify(inner))}`;
    document.documentElement.append(frame);
  }
})();
</script>"""


class Collector:
    """Remembers what pages report."""

    def __init__(self) -> None:
        self.reports: dict[str, Any] = {}
        self._came = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        self.reports[request.path.strip("/")] = json.loads(await request.read())
        self._came.set()
        return web.Response()

    async def until(self, *names: str) -> None:
        async with asyncio.timeout(90):
            while not self.reports.keys() >= set(names):
                self._came.clear()
                await self._came.wait()


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
    config = GatewayConfig(sandbox_domain="*.sandboxes.example.test", trust_editors=True)
    async with boxed(tmp_path / "data", config, cors_origins=("*",), allowed_hosts=(HOST,)) as box:
        box.upstream.raw_answer = f"{head}Content-Length: {len(PAGE)}\r\n\r\n{PAGE}".encode()
        yield box


async def test_a_login_counts_for_pages_of_the_server_only(box: Box) -> None:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/{name}", collector.take)
    port = box.service.url.rpartition(":")[2]
    server = f"http://{HOST}:{port}"
    key = f"session_api_key={box.key}"
    async with TestServer(app) as listening:
        token = (await box.service.app[LOGINS].make_link(1)).reveal()
        below, own = box.path("/raw"), f"worker-1-{box.id}.sandboxes.example.test:{port}"
        editor = f"vscode-{box.id}.sandboxes.example.test:{port}"
        said = {
            "name": "server",
            "is_own": True,
            "server": server,
            "collector": str(listening.make_url("")).rstrip("/"),
            "token": token,
            "frames": {
                "below": f"{server}{below}?{key}",
                "own": f"http://{own}/raw?{key}",
                "editor": f"http://{editor}/raw?tkn={box.key}",
            },
        }
        # An editor that is trusted has the server's origin: it stands for the console.
        url = f"{server}{box.path('/raw', 'vscode')}?tkn={box.key}#{quote(json.dumps(said))}"
        async with showing(url, RULES):
            await collector.until("server", "below", "own", "editor")
    inside = {"read": 200, "change": 200, "plain": 401, "socket": "told", "sees": False}
    begun = {"before": 401, "login": 201, "alone": 401}
    # Even with the page's part, which they were given here, other pages are nobody.
    outside = {"read": 401, "change": 401, "plain": 0, "socket": 4001}
    assert collector.reports["server"] == {"origin": server, **begun, **inside}
    assert collector.reports["below"] == {"origin": "null", "sees": "none", **outside}
    for name, host in (("own", own), ("editor", editor)):
        assert collector.reports[name] == {"origin": f"http://{host}", "sees": False, **outside}

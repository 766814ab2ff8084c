"""The proxy for front ends without a key, as `agentsvc deploy` shows it, in a real nginx and a real browser.

A page of another origin tries what the key opens, with the password in the browser. Each attempt
succeeds through a proxy that does nothing but add the key, as the README once had it.
"""

import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import Browser, BrowserContext, Page

import agentsvc
from agentsvc.config.schema import GatewayConfig
from tests.http.gateway.steps import Box, boxed, until
from tests.live import browser, nginx
from tests.live.conftest import unavailable

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="function"),
]

RECIPE = Path(agentsvc.__file__).parent / "deploy" / "front-end.nginx.conf"
PASSWORD = "correct horse"  # noqa: S105
LOGIN = {"Authorization": aiohttp.encode_basic_auth("ann", PASSWORD)}
BARE = """
map $http_x_session_api_key $agentsvc_key { default $http_x_session_api_key; '' 'KEY'; }
server {
    listen 127.0.0.1:8080;
    root /srv/openhands/frontend/build;
    location / { try_files $uri /index.html; }
    location ~ ^/(api|sandboxes|sockets|socket\\.io)/ {
        proxy_pass http://127.0.0.1:3000;
        proxy_http_version 1.1;
        proxy_set_header Host $http_host;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $http_connection;
        proxy_set_header X-Session-API-Key $agentsvc_key;
        proxy_buffering off;
    }
}
"""
"""What there was before the file: whoever reaches it acts as the key's user."""

_LOGGED = re.compile(r'"([A-Z]+) (\S+) HTTP/[0-9.]+" (\d+)')
STREAM = "/api/v1/events/stream"
LIST = "/api/v1/sandboxes/search"
FORM = """(url) => {
  document.body.innerHTML = `<iframe name="there"></iframe><form method="post" target="there" action="${url}"></form>`;
  document.forms[0].submit();
}"""
SIMPLE_POST = """(url) => fetch(url, {method: "POST", mode: "no-cors", credentials: "include", body: "x"})
  .then(() => 0, () => 0)"""
EVENT_SOURCE = """(url) => new Promise((done) => {
  const source = new EventSource(url, {withCredentials: true});
  source.addEventListener("ready", () => { source.close(); done("ready"); });
  source.onerror = () => { source.close(); done("error"); };
})"""
SOCKET = """(url) => new Promise((done) => {
  const socket = new WebSocket(url.replace("http", "ws"));
  socket.onmessage = ({data}) => { socket.close(); done(JSON.parse(data).type); };
  socket.onerror = () => done("error");
})"""
FRAME = """(url) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.onload = () => done(1);
  frame.src = url;
  document.body.append(frame);
})"""
READ = (
    """(url) => fetch(url, {credentials: "include"}).then((one) => one.text(), () => "refused")"""
)


class Front(msgspec.Struct, frozen=True, kw_only=True):
    """A server behind nginx, and a browser that has the password and sees a page of an attacker, too."""

    box: Box
    url: str
    context: BrowserContext
    elsewhere: str
    log: Path

    async def visit(self, url: str) -> Page:
        page = await self.context.new_page()
        await page.goto(url)
        return page

    def answered(self) -> list[tuple[str, str, int]]:
        """Return the requests that nginx has answered, each with its status."""
        lines = self.log.read_text().splitlines()
        found = [match for line in lines if (match := _LOGGED.search(line))]
        return [(match[1], match[2], int(match[3])) for match in found]

    def has_answered(self, expected: list[tuple[str, str, int]]) -> bool:
        return sorted(self.answered()) == expected

    async def is_paused(self) -> bool:
        answer = await self.box.owner.get(f"/api/v1/sandboxes?id={self.box.id}")
        return bool(answer.json()[0]["status"] == "PAUSED")

    @property
    def pause(self) -> str:
        return f"/api/v1/sandboxes/{self.box.id}/pause"


@pytest_asyncio.fixture(loop_scope="function")
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    if nginx.program() is None:
        unavailable("nginx is not installed")
    async with boxed(tmp_path / "data", GatewayConfig()) as box:
        yield box


@asynccontextmanager
async def fronted(box: Box, text: str) -> AsyncIterator[Front]:
    """Run nginx with a configuration, an attacker's page, and a browser."""
    port = nginx.free_port()
    # Its workers are another user, who cannot look into the directories of tests.
    with TemporaryDirectory(prefix="asvc-", dir="/tmp") as directory:
        folder = Path(directory)
        _lay(folder, str(box.owner.key))
        for was, to in (
            ("/etc/nginx", directory),
            ("/srv/openhands/frontend/build", directory),
            ("127.0.0.1:8080", f"127.0.0.1:{port}"),
            ("http://127.0.0.1:3000", box.service.url),
            ("KEY", str(box.owner.key)),
            ("server {", f"server {{ access_log {directory}/access.log;"),
        ):
            text = text.replace(was, to)
        async with (
            nginx.serving(folder, port, text),
            _attacker() as elsewhere,
            _browsing() as started,
        ):
            context = await started.new_context(
                http_credentials={"username": "ann", "password": PASSWORD}
            )
            url = f"http://127.0.0.1:{port}"
            log = folder / "access.log"
            front = Front(box=box, url=url, context=context, elsewhere=elsewhere, log=log)
            # From here on the browser knows the password, and sends it unasked.
            await (await front.visit(f"{url}/")).close()
            await until(lambda: ("GET", "/", 200) in front.answered())
            _empty(log)
            yield front


def _lay(folder: Path, key: str) -> None:
    folder.chmod(0o755)
    (folder / "front-end.key").write_text(f"default {key};\n")
    (folder / "index.html").write_text(
        "<!doctype html><link rel=icon href=data:,><title>front end</title><body>here"
    )
    made = subprocess.run(
        ["openssl", "passwd", "-6", PASSWORD], capture_output=True, text=True, check=True
    )
    (folder / "front-end.users").write_text(f"ann:{made.stdout}")


def _empty(log: Path) -> None:
    with log.open("r+b") as opened:
        opened.truncate(0)


@asynccontextmanager
async def _attacker() -> AsyncIterator[str]:
    async def page(_request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><body>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", page)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://evil.test:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _browsing() -> AsyncIterator[Browser]:
    rules = "--host-resolver-rules=MAP evil.test 127.0.0.1"
    async with browser.chromium(rules) as started:
        yield started


def both(elsewhere: str) -> list[str]:
    """Return the attacker's page under a name, and at another port of the proxy's own address."""
    return [elsewhere, elsewhere.replace("evil.test", "127.0.0.1")]


async def test_a_proxy_that_only_adds_the_key_is_open_to_pages_elsewhere(box: Box) -> None:
    async with fronted(box, BARE) as front:
        page = await front.visit(front.elsewhere)
        await page.evaluate(EVENT_SOURCE, f"{front.url}{STREAM}")
        await until(lambda: ("GET", STREAM, 200) in front.answered())
        assert await page.evaluate(SOCKET, f"{front.url}{STREAM}") == "ready"
        await page.evaluate(FRAME, f"{front.url}/")
        assert [frame.url for frame in page.frames[1:]] == [f"{front.url}/"]
        bound = front.url.replace("127.0.0.1", "evil.test")
        rebound = await front.context.new_page()
        await rebound.goto(f"{bound}/")
        assert front.box.id in await rebound.evaluate(READ, LIST)
        await page.evaluate(FORM, f"{front.url}{front.pause}")
        await until(front.is_paused)


async def test_the_recipe_hears_no_page_elsewhere(box: Box) -> None:
    async with fronted(box, RECIPE.read_text()) as front:
        for elsewhere in both(front.elsewhere):
            page = await front.visit(elsewhere)
            assert await page.evaluate(EVENT_SOURCE, f"{front.url}{STREAM}") == "error"
            assert await page.evaluate(SOCKET, f"{front.url}{STREAM}") == "error"
            assert await page.evaluate(READ, f"{front.url}{LIST}") == "refused"
            await page.evaluate(SIMPLE_POST, f"{front.url}{front.pause}")
            await page.evaluate(FRAME, f"{front.url}/")
            await page.evaluate(FORM, f"{front.url}{front.pause}")
            tried = (
                [("GET", STREAM)] * 2 + [("GET", LIST), ("GET", "/")] + [("POST", front.pause)] * 2
            )
            expected = sorted((*one, 403) for one in tried)
            await until(partial(front.has_answered, expected))
            assert "front end" not in [await frame.title() for frame in page.frames]
            await page.close()
            _empty(front.log)
        assert not await front.is_paused()
        assert front.box.upstream.seen == []


async def test_the_recipe_hears_no_other_name(box: Box) -> None:
    async with fronted(box, RECIPE.read_text()) as front:
        bound = front.url.replace("127.0.0.1", "evil.test")
        rebound = await front.context.new_page()
        for path in ("/", LIST, front.pause):
            answer = await rebound.goto(f"{bound}{path}")
            assert answer is not None
            assert answer.status == 421
        assert front.box.id not in await rebound.evaluate(READ, LIST)
        assert await rebound.evaluate(SOCKET, f"{bound}{STREAM}") == "error"


async def test_the_front_end_works_after_the_login(box: Box) -> None:
    async with fronted(box, RECIPE.read_text()) as front:
        # By a link elsewhere, too.
        page = await front.visit(front.elsewhere)
        async with page.expect_navigation(url=f"{front.url}/conversations/1"):
            await page.evaluate("(url) => { location = url; }", f"{front.url}/conversations/1")
        assert await page.text_content("body") == "here"
        assert front.box.id in await page.evaluate(READ, LIST)
        assert await page.evaluate(EVENT_SOURCE, STREAM) == "ready"
        assert await page.evaluate(SOCKET, f"{front.url}{STREAM}") == "ready"
        await page.evaluate(FRAME, front.box.path("/page"))
        assert [frame.url for frame in page.frames[1:]] == [front.url + front.box.path("/page")]
        # What a sandbox serves is shown, and is no page of the front end.
        [frame] = page.frames[1:]
        assert await frame.evaluate(READ, front.url + LIST) == "refused"
        assert await frame.evaluate(SOCKET, front.url + STREAM) == "error"
        await page.evaluate(SIMPLE_POST, front.pause)
        await until(front.is_paused)
        # The password and the key are for the proxy and the server; the sandbox sees neither.
        for seen in front.box.upstream.seen:
            told = str(seen.headers)
            assert str(front.box.owner.key) not in told
            assert seen.one("Authorization") is None


async def test_the_recipe_wants_the_password_and_keeps_the_key_to_itself(box: Box) -> None:
    key = str(box.owner.key)
    async with fronted(box, RECIPE.read_text()) as front, aiohttp.ClientSession() as client:
        for path in ("/", LIST, STREAM, box.path("/")):
            async with client.get(f"{front.url}{path}") as answer:
                assert answer.status == 401, path
        # A key that somebody brings along is not passed on, nor one in place of the password.
        for headers in (
            {"X-Session-API-Key": key},
            {"Authorization": f"Bearer {key}"},
            {"X-Access-Token": key},
        ):
            async with client.get(f"{front.url}{LIST}", headers=headers) as answer:
                assert answer.status == 401
        brought = {"X-Session-API-Key": "asvc_of-nobody", "X-Access-Token": "asvc_of-nobody"}
        async with client.get(f"{front.url}{LIST}", headers=LOGIN | brought) as answer:
            assert answer.status == 200
        for path in ("/", LIST, "/api/nothing", box.path("/anything")):
            async with client.get(f"{front.url}{path}", headers=LOGIN) as answer:
                assert key not in str(answer.headers) + await answer.text()
                policies = answer.headers.getall("Content-Security-Policy")
                assert "frame-ancestors 'self'" in policies
                assert answer.headers.getall("X-Content-Type-Options") == ["nosniff"]
                assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        foreign = {"Origin": "null"}
        async with client.get(f"{front.url}{LIST}", headers=LOGIN | foreign) as answer:
            assert answer.status == 403

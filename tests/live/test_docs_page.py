"""The page that shows the description, in a real browser that is let out to nowhere else."""

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from playwright.async_api import HttpCredentials, expect

from tests.live.browser import Console, chromium
from tests.live.chromium import showing
from tests.live.client import LiveClient

# Whichever is the first has the server and the browser started.
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

FLAGS = ("--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom")
BROWSE_SECONDS = 90
POLICY = "default-src 'none'; script-src 'self'"


class Seen(NamedTuple):
    """What a browser made of a page, and what it had to say about it."""

    page: str
    console: list[str]


@pytest.fixture
async def strict_page() -> AsyncIterator[str]:
    """Return the URL of a page that breaks the rule it is under."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(
            text="<script>1</script>",
            content_type="text/html",
            headers={"Content-Security-Policy": POLICY},
        )

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/"))


async def browse(url: str) -> Seen:
    async with showing(url, *FLAGS, output=PIPE) as process:
        async with asyncio.timeout(BROWSE_SECONDS):
            page, log = await process.communicate()
    lines = log.decode(errors="replace").splitlines()
    return Seen(page.decode(), [line for line in lines if ":CONSOLE:" in line])


@pytest.mark.parametrize("is_logged_in", [True, False])
async def test_the_page_shows_an_operation_and_breaks_no_rule(
    client: LiveClient, *, is_logged_in: bool
) -> None:
    """With the login of the console, or with the key as the password that the browser asks for."""
    password = HttpCredentials(username="anybody", password=str(client.key))
    options: dict[str, Any] = {} if is_logged_in else {"http_credentials": password}
    async with chromium() as browser, Console.opened(browser, client, **options) as console:
        page = await (console.page() if is_logged_in else console.context.new_page())
        await page.goto(f"{client.base_url}/docs#v1_post_app_conversations")
        await expect(page.get_by_role("heading", name="Start a conversation")).to_be_visible()
        shown = await page.content()
    for text in ("curl -X POST", "initial_message", "MessageBody | null"):
        assert text in shown
    assert str(client.key) not in shown


async def test_a_broken_rule_would_be_seen(strict_page: str) -> None:
    seen = await browse(strict_page)
    assert "Content Security Policy" in "".join(seen.console)

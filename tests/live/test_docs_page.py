"""The page that shows the description, in a real browser that is let out to nowhere else."""

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.live.chromium import showing
from tests.live.client import LiveClient

FLAGS = ("--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom")
BROWSE_SECONDS = 50
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


async def test_the_page_shows_an_operation_and_breaks_no_rule(client: LiveClient) -> None:
    address = client.base_url.replace("://", f"://anybody:{client.key}@")
    seen = await browse(f"{address}/docs#v1_post_app_conversations")
    assert seen.console == []
    for text in ("Start a conversation", "curl -X POST", "initial_message", "MessageBody | null"):
        assert text in seen.page
    assert client.key is not None
    assert client.key not in seen.page


async def test_a_broken_rule_would_be_seen(strict_page: str) -> None:
    seen = await browse(strict_page)
    assert "Content Security Policy" in "".join(seen.console)

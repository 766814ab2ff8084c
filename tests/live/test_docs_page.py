"""The page that shows the description, in a real browser that is let out to nowhere else."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.live.client import LiveClient
from tests.live.conftest import unavailable

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=10000",
    "--dump-dom",
)
BROWSE_SECONDS = 50
POLICY = "default-src 'none'; script-src 'self'"


class Seen(NamedTuple):
    """What a browser made of a page, and what it had to say about it."""

    page: str
    console: list[str]


@pytest.fixture
def browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    return found or unavailable("there is no chromium")


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


async def browse(browser: str, url: str, profile: Path) -> Seen:
    process = await asyncio.create_subprocess_exec(
        browser,
        *FLAGS,
        f"--user-data-dir={profile}",
        url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(BROWSE_SECONDS):
            page, log = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = log.decode(errors="replace").splitlines()
    return Seen(page.decode(), [line for line in lines if ":CONSOLE:" in line])


async def test_the_page_shows_an_operation_and_breaks_no_rule(
    browser: str, client: LiveClient, tmp_path: Path
) -> None:
    address = client.base_url.replace("://", f"://anybody:{client.key}@")
    seen = await browse(browser, f"{address}/docs#v1_post_app_conversations", tmp_path / "profile")
    assert seen.console == []
    for text in ("Start a conversation", "curl -X POST", "initial_message", "MessageBody | null"):
        assert text in seen.page
    assert client.key is not None
    assert client.key not in seen.page


async def test_a_broken_rule_would_be_seen(browser: str, strict_page: str, tmp_path: Path) -> None:
    seen = await browse(browser, strict_page, tmp_path / "profile")
    assert "Content Security Policy" in "".join(seen.console)

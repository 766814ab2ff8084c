"""A browser that shows the console to a test, and what a test does with it."""

import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.async_api import (
    Browser,
    BrowserContext,
    Locator,
    Page,
    ViewportSize,
    async_playwright,
    expect,
)

from tests.live.chromium import FLAGS, installed
from tests.live.client import PATIENCE, LiveClient
from tests.live.scripts import DONE

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "build" / "console"
AXE = ROOT / "tests" / "data" / "vendor" / "axe.min.js"
DESKTOP = ViewportSize(width=1280, height=820)
PHONE = ViewportSize(width=390, height=844)
_PATIENCE_MS = PATIENCE * 1000
_EXPECTED = re.compile(r"Failed to load resource: the server responded with a status of 4\d\d")
_FIND = """async (rules) => {
  const only = rules.length ? {runOnly: {type: 'rule', values: rules}} : {};
  const found = await axe.run(document, {resultTypes: ['violations'], ...only});
  return found.violations.map(({id, impact, nodes}) =>
    `${impact} ${id}: ${nodes.slice(0, 3).map((node) => node.target).join(' | ')}`);
}"""


@asynccontextmanager
async def chromium(*flags: str) -> AsyncIterator[Browser]:
    """Run Debian's browser, and end it."""
    program = installed()
    # It makes sockets in the temporary directory, whose names may not be long.
    with TemporaryDirectory(prefix="asvc-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=program, args=(*FLAGS, *flags), env={"TMPDIR": directory}
            )
            try:
                yield browser
            finally:
                await browser.close()


class Console:
    """The console in a browser of its own, as one user sees it; remembers what goes wrong in it."""

    def __init__(self, client: LiveClient, context: BrowserContext) -> None:
        self.client = client
        self.context = context
        self.problems: list[str] = []

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, browser: Browser, client: LiveClient, **options: Any
    ) -> AsyncIterator["Console"]:
        """Give a user a browser; fails if any page had an error or broke its policy."""
        context = await browser.new_context(
            viewport=options.pop("viewport", DESKTOP), bypass_csp=False, **options
        )
        context.set_default_timeout(_PATIENCE_MS)
        expect.set_options(timeout=_PATIENCE_MS)
        console = cls(client, context)
        try:
            yield console
        except BaseException:
            places = [page.url for page in context.pages]
            sys.stderr.write(f"--- the console was at {places} and said {console.problems}\n")
            raise
        finally:
            await context.close()
        assert console.problems == [], console.problems

    async def page(self, path: str = "") -> Page:
        """Open a page, logged in."""
        page = await self.context.new_page()
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("console", self._heed)
        if not await self.context.cookies():
            await page.goto(f"{self.client.base_url}/login")
            await page.get_by_label("Your API key").fill(str(self.client.key))
            await page.get_by_role("button", name="Log in").click()
            await page.wait_for_url(lambda url: not url.endswith("/login"))
            # Else the console goes on from there by itself, in between or behind what is asked for.
            await page.goto("about:blank")
        await page.goto(f"{self.client.base_url}/#/{path}")
        return page

    def _heed(self, message: Any) -> None:
        if message.type == "error" and not _EXPECTED.match(message.text):
            self.problems.append(message.text)


async def serious(page: Page, *rules: str) -> list[str]:
    """Return what stands in the way of people who hear a page, or use it with the keyboard.

    Only these rules are looked at, if there are any.
    """
    if not await page.evaluate("'axe' in globalThis"):
        await page.evaluate(AXE.read_text())
    found: list[str] = await page.evaluate(_FIND, list(rules))
    return [one for one in found if one.startswith(("serious", "critical"))]


async def picture(page: Page, name: str) -> None:
    """Keep a picture of a page, for people to look at."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=PICTURES / f"{name}.png")


async def is_too_wide(page: Page) -> bool:
    """Whether a page, or a part of it, has to be moved sideways to be read."""
    wide: bool = await page.evaluate(
        "[document.documentElement, ...document.querySelectorAll('.side, .page, .card, .rows, .chips')]"
        ".some((one) => one.scrollWidth > one.clientWidth)"
    )
    return wide


def state_of(page: Page) -> Locator:
    """Return what says what the conversation on a page does."""
    return page.locator(".head-facts .pill")


def the_end(page: Page) -> Locator:
    """Return what shows that every command ran."""
    return page.locator(".bubble.agent", has_text=DONE)

"""Files for an agent, on a server in the test's own process with a fake agent."""

import asyncio
import re

import pytest
from playwright.async_api import FilePayload, Locator, Page, Route, expect

from tests.live.browser import Console
from tests.live.console.reports import FIELD

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="session"),
]


async def opened(console: Console) -> Page:
    """Open a conversation whose agent has finished."""
    conversation_id = await console.client.start_conversation()
    await console.client.wait_for_execution(conversation_id, "finished")
    page = await console.page(f"c/{conversation_id}")
    await expect(page.locator("article").first).to_be_visible()
    return page


async def choose(page: Page, *names: str) -> None:
    """Choose files as a person does, with their own names as what is in them."""
    files = [FilePayload(name=one, mimeType="text/plain", buffer=one.encode()) for one in names]
    async with page.expect_file_chooser() as asked:
        await page.get_by_role("button", name="Attach files").click()
    await (await asked.value).set_files(files)


async def hold_uploads(page: Page) -> asyncio.Event:
    """Keep files on their way until an event is set."""
    may_go = asyncio.Event()

    async def hold(route: Route) -> None:
        await may_go.wait()
        await route.continue_()

    await page.route(re.compile("/file/upload"), hold)
    return may_go


def attached(page: Page) -> Locator:
    return page.get_by_role("list", name="Attached files").get_by_role("listitem")


async def test_files_that_are_chosen_are_attached(quick_console: Console) -> None:
    page = await opened(quick_console)
    await choose(page, "notes.txt")
    await expect(attached(page)).to_contain_text(["notes.txt"])


async def test_files_are_kept_with_the_message_until_it_is_sent(quick_console: Console) -> None:
    page = await opened(quick_console)
    await choose(page, "notes.txt")
    await expect(attached(page)).to_have_count(1)
    await page.reload()
    await expect(attached(page)).to_contain_text(["notes.txt"])
    await page.get_by_role("link", name="Settings").click()
    await page.go_back()
    await expect(attached(page)).to_contain_text(["notes.txt"])
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(attached(page)).to_have_count(0)
    await page.reload()
    await expect(page.locator(".bubble.user", has_text="notes.txt")).to_be_visible()
    await expect(attached(page)).to_have_count(0)


async def test_a_message_waits_for_files_on_their_way(quick_console: Console) -> None:
    page = await opened(quick_console)
    may_go = await hold_uploads(page)
    await choose(page, "notes.txt")
    field = page.get_by_label(FIELD)
    await field.fill("read them")
    await field.press("Enter")
    waiting = page.get_by_text("The files are put into the workspace")
    await expect(waiting).to_be_visible()
    await expect(field).to_have_value("read them")
    may_go.set()
    await expect(attached(page)).to_have_count(1)
    await expect(waiting).to_have_count(0)
    await field.press("Enter")
    said = page.locator(".bubble.user", has_text="read them")
    await expect(said).to_have_count(1)
    await expect(said).to_contain_text("-notes.txt")


async def test_files_that_arrive_once_the_page_is_left_are_attached(
    quick_console: Console,
) -> None:
    page = await opened(quick_console)
    may_go = await hold_uploads(page)
    await choose(page, "notes.txt")
    await expect(page.get_by_text("The files are put into the workspace")).to_be_visible()
    await page.get_by_role("link", name="Settings").click()
    async with page.expect_response(re.compile("/file/upload")):
        may_go.set()
    await page.wait_for_function(
        "Object.keys(localStorage).some((key) => key.includes('draft files'))"
    )
    await page.go_back()
    await expect(attached(page)).to_contain_text(["notes.txt"])


async def test_files_whose_names_become_the_same_are_several(quick_console: Console) -> None:
    page = await opened(quick_console)
    paths: list[str] = []

    async def note(route: Route) -> None:
        paths.append(route.request.url)
        await route.continue_()

    await page.route(re.compile("/file/upload"), note)
    # They come at the same time, however slow the machine is.
    await page.clock.set_fixed_time("2026-01-01T00:00:00Z")
    await choose(page, "a b.txt", "a-b.txt")
    await expect(attached(page)).to_have_count(2)
    assert len(set(paths)) == 2, paths

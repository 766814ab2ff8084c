"""Files for an agent, on a server in the test's own process with a fake agent."""

import pytest
from playwright.async_api import FilePayload, Locator, Page, expect

from tests.live.browser import Console

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


def attached(page: Page) -> Locator:
    return page.get_by_role("list", name="Attached files").get_by_role("listitem")


async def test_files_that_are_chosen_are_attached(quick_console: Console) -> None:
    page = await opened(quick_console)
    await choose(page, "notes.txt")
    await expect(attached(page)).to_contain_text(["notes.txt"])

"""Attempts in the console: a task for forks of a conversation, their table, and one that goes on."""

import re

import pytest
from playwright.async_api import Browser, expect

from tests.live.browser import Console, picture, serious
from tests.live.client import PATIENCE
from tests.live.console.users import new_user
from tests.live.installation import Installation
from tests.live.scripts import MODEL_NAME, run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(480),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_a_task_is_given_to_two_forks_and_one_is_chosen(
    browser: Browser, shared: Installation
) -> None:
    user = await new_user(shared)
    await user.save_settings()
    first = await user.start_conversation(run("git init -q; echo begun >begun"))
    await user.wait_for_execution(first, "finished")
    async with Console.opened(browser, user) as console:
        page = await console.page(f"c/{first}")
        await page.get_by_role("button", name="Attempts").click()
        await expect(page.get_by_role("heading", name="No attempts")).to_be_visible()
        await expect(page.get_by_text("Each is a fork of")).to_be_visible()
        await page.get_by_label("Task").fill(run(f"echo {MODEL_NAME} >made"))
        await page.get_by_label("Number of attempts").fill("2")
        await page.get_by_label("Models").fill("openai/scripted openai/other")
        await page.get_by_label("Test", exact=True).fill("grep -q other made")
        await page.get_by_label("Budget of all").fill("3.5")
        await page.get_by_role("button", name="Begin").click()
        rows = page.get_by_role("table", name="Attempts").get_by_role("row")
        await expect(rows).to_have_count(3)
        for row, words in ((1, "Failed: 1"), (2, "Passed")):
            await expect(rows.nth(row).get_by_text("Finished", exact=True)).to_be_visible(
                timeout=2 * PATIENCE * 1000
            )
            await expect(rows.nth(row)).to_contain_text("1 files, +1 -0")
            await expect(rows.nth(row).get_by_text(words, exact=True)).to_be_visible()
        await expect(page.get_by_text("of $3.50")).to_be_visible()
        assert await serious(page) == []
        await picture(page, "attempts")
        await page.get_by_role("button", name="Choose attempt 2").click()
        await page.get_by_role("dialog").get_by_role("button", name="Go on with it").click()
        await expect(rows.nth(2).get_by_text("Chosen", exact=True)).to_be_visible()
        await expect(rows.nth(1).get_by_text("Discarded", exact=True)).to_be_visible()
        await rows.nth(2).get_by_role("link", name="Attempt 2").click()
        await page.wait_for_url(re.compile("/c/"))
        await expect(page.get_by_role("heading", level=1)).to_contain_text("[script:run]")

"""Files that are put back in the console, to what they were before a message."""

import pytest
from playwright.async_api import Browser, expect

from tests.live.browser import Console, picture, serious, state_of, the_end
from tests.live.client import LiveClient
from tests.live.conftest import MakeInstallation
from tests.live.installation import eventually
from tests.live.scripts import BUSY, run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(480),
    pytest.mark.asyncio(loop_scope="session"),
]

BUTTON = "Put files back to before this message"


async def say(client: LiveClient, conversation_id: str, text: str) -> None:
    await client.send(conversation_id, text)
    await client.wait_for_execution(conversation_id, "finished")


async def test_files_are_put_back_to_before_a_message(
    browser: Browser, make_installation: MakeInstallation
) -> None:
    own = await make_installation()
    client = own.client()
    conversation_id = await client.start_conversation(run("echo good >notes"))
    seen = await client.wait_for_execution(conversation_id, "finished")
    await say(client, conversation_id, run("echo spoilt >notes; sleep 1000 &"))
    notes = own.sandbox_dir(seen["sandbox_id"]) / "workspace" / "notes"
    assert notes.read_text() == "spoilt\n"

    async with Console.opened(browser, client) as console:
        page = await console.page(f"c/{conversation_id}")
        await expect(the_end(page)).to_have_count(2)
        said = page.locator(".bubble.user", has_text="spoilt")
        await said.hover()
        await picture(page, "put-back-button")
        await said.get_by_role("button", name=BUTTON).click()
        dialog = page.get_by_role("dialog", name="Put the files back?")
        await expect(dialog.get_by_text("before “[script:run]")).to_be_visible()
        assert await serious(page) == []
        await picture(page, "put-back")
        await dialog.get_by_role("button", name="Cancel").click()
        await expect(dialog).to_have_count(0)
        assert notes.read_text() == "spoilt\n"

        # An agent at work keeps its files, and that is said.
        await client.send(conversation_id, run(BUSY))
        await expect(state_of(page)).to_have_text("Working")
        await said.get_by_role("button", name=BUTTON).click()
        await dialog.get_by_role("button", name="Put files back").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("interrupt it first")
        await dialog.get_by_role("button", name="Cancel").click()
        await page.get_by_role("button", name="Interrupt").click()
        await expect(state_of(page)).to_have_text("Paused")

        await said.get_by_role("button", name=BUTTON).click()
        await dialog.get_by_role("button", name="Put files back").click()
        await expect(dialog).to_have_count(0)
        await expect(page.get_by_text("were put back to what they were")).to_be_visible()
        await eventually(lambda: notes.read_text() == "good\n", "the files are as before")
        await picture(page, "put-back-done")


async def test_where_there_are_no_checkpoints_nothing_is_put_back(
    browser: Browser, make_installation: MakeInstallation
) -> None:
    own = await make_installation(AGENTSVC_SANDBOXES__CHECKPOINTS="0")
    client = own.client()
    conversation_id = await client.start_conversation("[script:say]")
    async with Console.opened(browser, client) as console:
        page = await console.page(f"c/{conversation_id}")
        await expect(page.locator(".bubble.agent", has_text="Hello.")).to_be_visible()
        await page.locator(".bubble.user").first.hover()
        await expect(page.get_by_role("button", name="Fork from here").first).to_be_visible()
        await expect(page.get_by_role("button", name=BUTTON)).to_have_count(0)

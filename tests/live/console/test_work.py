"""Working in the console: changes beside the conversation, files, keys, what needs the user."""

import re

import pytest
from playwright.async_api import Browser, Page, expect

from tests.live.browser import Console, picture, serious, the_end
from tests.live.console.users import new_user, usual_settings
from tests.live.installation import Installation
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(480),
    pytest.mark.asyncio(loop_scope="session"),
]

FIELD = "Message to the agent"
MANY_LINES = 6000
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAFklEQVR42mMw9LhGEmIY1TCqYfhqAAB0EE8QAgoN7wAAAABJRU5ErkJggg=="
DROP = """([target, data]) => {
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  const files = new DataTransfer();
  files.items.add(new File([bytes], 'a picture.png', {type: 'image/png'}));
  document.querySelector(target).dispatchEvent(
    new DragEvent('drop', {dataTransfer: files, bubbles: true, cancelable: true}));
}"""


async def opened(console: Console, text: str = "[script:say]") -> Page:
    conversation_id = await console.client.start_conversation(text)
    await console.client.wait_for_execution(conversation_id, "finished")
    return await console.page(f"c/{conversation_id}")


async def test_changes_are_beside_the_conversation_and_are_commented_on(console: Console) -> None:
    page = await opened(
        console,
        run(
            "printf 'one\\ntwo words here\\nthree\\n' >told.txt",
            f"seq {MANY_LINES} >long.txt",
            "head -c 3000 /dev/urandom >raw.bin; git add -A; git status --short",
        ),
    )
    await expect(the_end(page)).to_be_visible()
    await page.get_by_role("link", name="Changes").click()
    await expect(page.get_by_label(FIELD)).to_be_visible()
    await page.get_by_role("button", name="raw.bin").click()
    await expect(page.get_by_text("This file is binary")).to_be_visible()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await page.get_by_role("button", name="long.txt").click()
    await expect(page.get_by_text(f"+{MANY_LINES}")).to_be_visible()
    assert await page.locator(".diff *").count() < 2000
    diff = page.get_by_role("group", name="Changed lines")
    await diff.evaluate("(one) => { one.scrollTop = one.scrollHeight; }")
    await expect(diff.get_by_text(str(MANY_LINES), exact=True).first).to_be_visible()
    await page.get_by_role("button", name="told.txt").click()
    line = page.locator(".diff-line.added", has_text="two words here")
    await line.hover()
    await line.get_by_role("button", name="Comment on line 2").click()
    await expect(page.get_by_label(FIELD)).to_be_focused()
    await expect(page.get_by_label(FIELD)).to_have_value(re.compile(r"`told.txt`, line 2"))
    assert await serious(page) == []
    await picture(page, "split")
    separator = page.get_by_role("separator")
    before = await separator.get_attribute("aria-valuenow")
    await separator.press("ArrowRight")
    await expect(separator).not_to_have_attribute("aria-valuenow", before or "")
    await page.get_by_label(FIELD).fill("")


async def test_steps_in_a_row_are_one_group_and_words_are_found_in_it(console: Console) -> None:
    page = await opened(console, run(*(f"echo part-{i}-$(({i} * 7))" for i in range(5))))
    group = page.locator(".fold-head", has_text="Ran 5 commands")
    await expect(group).to_be_visible()
    await expect(page.locator(".fold-head", has_text="part-3")).to_have_count(0)
    await page.locator("body").press("f")
    find = page.get_by_label("Find in the conversation")
    await find.fill("part-3-21")
    await find.press("Enter")
    await expect(page.locator(".fold-head", has_text="part-3")).to_be_visible()
    await picture(page, "groups")
    await find.press("Escape")
    await expect(find).to_have_count(0)


async def test_what_waits_is_on_top_and_is_answered_by_keys(console: Console) -> None:
    await usual_settings(console.client, confirmation_mode=True, security_analyzer="none")
    conversation_id = await console.client.start_conversation(run("echo asked-$((1 + 1))"))
    page = await console.page("new")
    await expect(page.get_by_role("heading", name="Needs you")).to_be_visible()
    await expect(page).to_have_title(re.compile(r"^\(\d+\) "))
    await expect(page.locator("link[rel=icon]")).to_have_attribute(
        "href", re.compile("icon-attention")
    )
    await page.keyboard.press("Escape")
    await page.goto(f"{console.client.base_url}/#/c/{conversation_id}")
    confirmation = page.get_by_role("region", name="Confirmation")
    await expect(confirmation).to_be_visible()
    await page.locator("body").press("a")
    await expect(confirmation).to_have_count(0)
    await expect(the_end(page)).to_be_visible()
    await expect(page).to_have_title(re.compile(r"^[^(]"))


async def test_every_action_is_found_by_its_name(console: Console) -> None:
    page = await console.page("new")
    # Nothing heeds keys before the page is loaded.
    await expect(page.get_by_label("Message")).to_be_visible()
    await page.keyboard.press("Control+k")
    await page.get_by_role("combobox", name="What to do").fill("secrets")
    assert await serious(page) == []
    await picture(page, "palette")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Secrets")).to_be_visible()
    await page.locator("body").press("?")
    await expect(page.get_by_role("heading", name="Keyboard shortcuts")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("heading", name="Keyboard shortcuts")).to_have_count(0)
    await page.keyboard.press("Control+k")
    await page.get_by_role("combobox", name="What to do").fill("colours dark")
    await page.keyboard.press("Enter")
    await expect(page.locator("html")).to_have_css("color-scheme", "dark")
    await page.reload()
    await expect(page.locator("html")).to_have_css("color-scheme", "dark")
    await picture(page, "dark")


async def test_files_are_attached_and_put_into_the_workspace(
    console: Console, shared: Installation
) -> None:
    # Images are for models that are known to see.
    await usual_settings(console.client, llm_model="openai/gpt-4o")
    page = await opened(console)
    await expect(page.get_by_label(FIELD)).to_be_visible()
    await page.evaluate(DROP, [".composer", PICTURE])
    attached = page.get_by_role("list", name="Attached files")
    await expect(attached).to_contain_text("a-picture.png")
    await picture(page, "attached")
    field = page.get_by_label(FIELD)
    await field.fill("[script:say] look at this")
    await field.press("Enter")
    said = page.locator(".bubble.user:not(.pending)", has_text="look at this")
    await expect(said.locator("img")).to_be_visible()
    await expect(said).to_contain_text("-a-picture.png")
    await expect(page.locator(".bubble.agent", has_text="Hello.")).to_have_count(2)
    assert any(PICTURE in str(one["messages"]) for one in shared.model.requests)
    await page.get_by_role("link", name="Files", exact=True).click()
    await page.get_by_role("button", name="uploads").first.click()
    await expect(page.get_by_role("button", name=re.compile("a-picture.png"))).to_be_visible()


async def test_secrets_are_deleted_when_that_is_confirmed_and_keys_are_shown_in_sight(
    console: Console,
) -> None:
    page = await console.page("settings/secrets")
    await page.get_by_label("Name", exact=True).fill("DEPLOY_TOKEN")
    await page.get_by_label("Value").fill("not to be seen")
    await page.get_by_role("button", name="Store").click()
    await page.get_by_role("button", name="Delete DEPLOY_TOKEN").click()
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("button", name="Delete DEPLOY_TOKEN")).to_be_visible()
    await page.get_by_role("button", name="Delete DEPLOY_TOKEN").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    await expect(page.get_by_role("button", name="Delete DEPLOY_TOKEN")).to_have_count(0)

    await page.goto(f"{console.client.base_url}/#/settings/keys")
    for number in range(12):
        answer = await console.client.post("/api/keys", json={"name": f"key-{number}"})
        assert answer.status in {200, 201}, answer.text
    await page.reload()
    await page.get_by_label("Name of the key").fill("seen")
    await page.get_by_role("button", name="Make a key").click()
    await expect(page.get_by_text("seen: copy it now")).to_be_in_viewport()


async def test_where_the_sandbox_is_gone_its_task_can_be_started_again(
    browser: Browser, shared: Installation
) -> None:
    client = await new_user(shared)
    await usual_settings(client)
    conversation_id = await client.start_conversation("[script:say] the whole task")
    seen = await client.wait_for_execution(conversation_id, "finished")
    answer = await client.delete(f"/api/v1/sandboxes/{seen['sandbox_id']}")
    assert answer.status == 200, answer.text
    async with Console.opened(browser, client) as console:
        page = await console.page(f"c/{conversation_id}")
        await expect(page.get_by_role("alert")).to_contain_text("The sandbox is gone")
        await picture(page, "gone")
        await page.get_by_role("button", name="Start again").click()
        await expect(page.get_by_label("Message")).to_have_value("[script:say] the whole task")


async def test_a_conversation_is_shared_by_a_link_that_needs_no_key_and_no_script(
    console: Console, browser: Browser
) -> None:
    page = await opened(console)
    await page.get_by_role("button", name="Share").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Hide: Paths").check()
    await dialog.get_by_role("button", name="Make a link").click()
    url = await dialog.locator("code").inner_text()
    assert await serious(page) == []
    context = await browser.new_context(java_script_enabled=False)
    try:
        reader = await context.new_page()
        await reader.goto(url)
        await expect(reader.get_by_text("[script:say]")).to_be_visible()
        await expect(reader.locator("h2").filter(has_text="Agent").first).to_be_visible()
        await dialog.get_by_role("button", name="Revoke").click()
        await expect(dialog.locator("code")).to_have_count(0)
        gone = await reader.reload()
        assert gone is not None
        assert gone.status == 404
    finally:
        await context.close()

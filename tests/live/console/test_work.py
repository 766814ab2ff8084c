"""Working in the console: changes beside the conversation, files, keys, what needs the user."""

import re

import pytest
from playwright.async_api import Browser, Page, expect

from agentsvc.base.values import new_id
from tests.git_hosts import GitHosts
from tests.live.browser import Console, picture, serious, the_end
from tests.live.client import PATIENCE, LiveClient
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


PRESS_AT_ONCE = """
new MutationObserver((_, observer) => {
  if (!document.getElementById('first-message') || window.isPressed) return;
  observer.disconnect();
  window.isPressed = true;
  document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'k', ctrlKey: true, bubbles: true}));
}).observe(document, {childList: true, subtree: true});
"""


async def opened(console: Console, text: str = "[script:say]") -> Page:
    conversation_id = await console.client.start_conversation(text)
    await console.client.wait_for_execution(conversation_id, "finished")
    return await console.page(f"c/{conversation_id}")


async def failed_start(client: LiveClient) -> None:
    """Leave a start that has failed."""
    await usual_settings(client, llm_api_key="not-the-key")
    message = {"role": "user", "content": [{"type": "text", "text": "It fails"}]}
    answer = await client.post("/api/v1/app-conversations", json={"initial_message": message})
    ended = await client.end_of_start(answer.json()["id"], time_limit=PATIENCE)
    assert ended["status"] == "ERROR", ended
    await usual_settings(client)


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


async def test_conversations_are_put_in_order_and_found_by_what_was_said(
    console: Console,
) -> None:
    # Another try of this test has left conversations, too.
    await failed_start(console.client)
    some = new_id()[:6]
    title, label, word = f"Breakfast {some}", f"kitchen-{some}", f"marmalade{some}"
    page = await opened(console, f"[script:say] about {word}")
    await expect(page.locator(".bubble.agent", has_text="Hello.")).to_be_visible()
    await page.get_by_role("button", name="Rename").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Title").fill(title)
    await dialog.get_by_label("Labels").fill(label)
    await dialog.get_by_role("button", name="Save").click()
    header = page.locator(".head-side")
    await header.get_by_role("button", name="Pin", exact=True).click()
    side = page.get_by_role("complementary", name="Conversations")
    pinned = side.get_by_role("list", name="Pinned").get_by_role("link", name=title)
    await expect(pinned).to_contain_text(label)
    await side.get_by_role("button", name=label).click()
    await expect(side.locator(".row")).to_have_count(1)
    await picture(page, "labels")
    await side.get_by_role("button", name=label).click()
    await header.get_by_role("button", name="Archive", exact=True).click()
    await expect(pinned).to_have_count(0)
    await side.get_by_label("Search conversations").fill(word)
    found = side.get_by_role("list", name="In messages").get_by_role("link", name=title)
    await expect(found.locator("mark").first).to_have_text(word)
    await page.goto(f"{console.client.base_url}/#/new")
    await picture(page, "found")
    assert await serious(page) == []
    await found.click()
    await expect(page.get_by_label("Find in the conversation")).to_have_value(word)
    await expect(page.locator(".find").get_by_role("status")).to_have_text(re.compile("1 of"))


async def test_a_message_is_sent_again_and_a_conversation_forked(console: Console) -> None:
    page = await opened(console, "[script:say] as it was")
    await expect(page.locator(".bubble.agent", has_text="Hello.")).to_be_visible()
    before = page.url
    said = page.locator(".bubble.user", has_text="as it was")
    await said.hover()
    await picture(page, "acts")
    await said.get_by_role("button", name="Edit and send again").click()
    field = page.get_by_label(FIELD)
    await expect(field).to_be_focused()
    await expect(field).to_have_value("[script:say] as it was")
    await field.fill("")
    await page.get_by_role("button", name="Fork", exact=True).click()
    await page.wait_for_url(lambda url: "/c/" in url and url != before)
    await expect(page.get_by_role("heading", name="(fork)")).to_be_visible()
    await expect(page.locator(".bubble.agent", has_text="Hello.")).to_be_visible()
    before = page.url
    await said.hover()
    await said.get_by_role("button", name="Fork from here").click()
    await page.wait_for_url(lambda url: "/c/" in url and url != before)
    await expect(page.get_by_role("heading", name="(fork) (fork)")).to_be_visible()
    await expect(said).to_be_visible()
    await expect(page.get_by_text("Hello.")).to_have_count(0)


async def test_what_the_agent_runs_with_is_chosen_beside_the_message(console: Console) -> None:
    answer = await console.client.post("/api/v1/settings/profiles/quick", json={})
    assert answer.status in {200, 201}, answer.text
    page = await opened(console)
    await expect(page.locator(".bubble.agent", has_text="Hello.")).to_be_visible()
    await page.get_by_label("Mode", exact=True).select_option("Asks before each step")
    await page.get_by_label("Model", exact=True).select_option("quick")
    assert await serious(page) == []
    field = page.get_by_label(FIELD)
    await field.fill(run("echo asked-first"))
    await field.press("Enter")
    confirmation = page.get_by_role("region", name="Confirmation")
    await expect(confirmation.get_by_text("echo asked-first")).to_be_visible()
    await picture(page, "run-with")
    await confirmation.get_by_role("button", name="Confirm").click()
    await expect(the_end(page)).to_be_visible()


async def test_a_repository_and_a_branch_are_picked(
    own_console: Console, git_hosts: GitHosts
) -> None:
    tokens = {"forgejo": {"token": "good", "host": git_hosts.url}}
    answer = await own_console.client.post(
        "/api/v1/secrets/git-providers", json={"provider_tokens": tokens}
    )
    assert answer.status == 200, answer.text
    page = await own_console.page("new")
    repository = page.get_by_role("combobox", name="Repository")
    await repository.click()
    await expect(page.get_by_role("option", name="earl/garden")).to_be_visible()
    assert await serious(page) == []
    await picture(page, "repositories")
    await repository.press("ArrowDown")
    await repository.press("Enter")
    await expect(repository).to_have_value("earl/garden")
    branch = page.get_by_role("combobox", name="Branch")
    await branch.click()
    await expect(page.get_by_role("option", name="main default")).to_be_visible()
    await branch.fill("roses")
    await page.get_by_role("option", name="fix/roses").click()
    await expect(branch).to_have_value("fix/roses")
    await branch.fill("")
    await repository.fill("")


async def test_what_models_and_sandboxes_have_used_is_drawn_and_listed(console: Console) -> None:
    page = await opened(console)
    await expect(page.locator(".bubble.agent", has_text="Hello.")).to_be_visible()
    await page.goto(f"{console.client.base_url}/#/settings/usage")
    await page.get_by_label("What", exact=True).select_option("Tokens")
    await expect(page.get_by_role("img", name=re.compile("Tokens by day"))).to_be_visible()
    await expect(page.get_by_role("row", name=re.compile("openai.scripted"))).to_be_visible()
    await page.get_by_text("Table", exact=True).click()
    await expect(page.get_by_role("table", name="Tokens by day")).to_be_visible()
    assert await serious(page) == []
    await picture(page, "usage")
    await page.goto(f"{console.client.base_url}/#/sandboxes")
    await page.get_by_role("button", name="Use", exact=True).first.click()
    await expect(page.get_by_role("img", name=re.compile("Memory: .*now"))).to_be_visible()
    await expect(page.get_by_role("img", name=re.compile("Processor: .*now"))).to_be_visible()
    await expect(page.get_by_role("img", name=re.compile("Disk: .*now"))).to_be_visible()
    await page.get_by_text("Table", exact=True).click()
    await expect(page.get_by_role("table", name="What it uses")).to_be_visible()
    assert await serious(page) == []
    await picture(page, "sandbox-use")


async def test_what_waits_is_on_top_and_is_answered_by_keys(
    browser: Browser, shared: Installation
) -> None:
    # A user of its own: what other tests leave waiting would be counted in the title, too.
    client = await new_user(shared)
    await usual_settings(client, confirmation_mode=True, security_analyzer="none")
    conversation_id = await client.start_conversation(run("echo asked-$((1 + 1))"))
    async with Console.opened(browser, client) as console:
        page = await console.page("new")
        await expect(page.get_by_role("heading", name="Needs you")).to_be_visible()
        await expect(page).to_have_title(re.compile(r"^\(1\) "))
        await expect(page.locator("link[rel=icon]")).to_have_attribute(
            "href", re.compile("icon-attention")
        )
        await page.keyboard.press("Escape")
        await page.goto(f"{client.base_url}/#/c/{conversation_id}")
        confirmation = page.get_by_role("region", name="Confirmation")
        await expect(confirmation).to_be_visible()
        await page.locator("body").press("a")
        await expect(confirmation).to_have_count(0)
        await expect(the_end(page)).to_be_visible()
        await expect(page).to_have_title(re.compile(r"^[^(]"))


async def test_every_action_is_found_by_its_name(console: Console) -> None:
    # Keys are heeded from the moment on in which the page is there, on slow machines, too.
    await console.context.add_init_script(PRESS_AT_ONCE)
    page = await console.page("new")
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
    await page.get_by_role("button", name="Create a key").click()
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
    await dialog.get_by_role("button", name="Create a link").click()
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

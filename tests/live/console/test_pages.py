"""The pages of the console around its conversations, in a real browser."""

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import RSAKey
from playwright.async_api import Browser, Page, Route, expect

from agentsvc.accounts.keys import KeyScope, Role
from agentsvc.base.values import new_id
from agentsvc.testing.llm import ScriptedModel
from tests.git_hosts import GitHosts
from tests.live.browser import DESKTOP, PHONE, Console, is_too_wide, picture, serious, the_end
from tests.live.client import LiveClient
from tests.live.console.users import new_user, usual_settings
from tests.live.installation import Installation
from tests.live.scripts import run
from tests.users import ordinary_user

pytestmark = [
    pytest.mark.live,
    # Whichever is the first has the server, its first sandbox and the browser started.
    pytest.mark.timeout(480),
    pytest.mark.asyncio(loop_scope="session"),
]

PAGES = (
    *(
        "new",
        "setup",
        "attempts",
        "automations",
        "environments",
        "sandboxes",
        "settings",
        "settings/agent",
        "settings/git",
    ),
    *("settings/sandboxes", "settings/secrets", "settings/mcp", "settings/keys"),
    *("settings/logins", "settings/webhooks", "settings/usage", "settings/activity"),
    *("settings/browser", "settings/more", "users", "audit"),
)


async def test_on_a_phone_the_list_and_the_conversation_are_pages_of_their_own(
    browser: Browser, somebody: LiveClient
) -> None:
    await usual_settings(somebody)
    text = run("echo 'a very long line, " + "so long that it does not fit, " * 9 + "ends'")
    conversation_id = await somebody.start_conversation(text)
    await somebody.wait_for_execution(conversation_id, "finished")
    async with Console.opened(browser, somebody, viewport=PHONE, has_touch=True) as console:
        page = await console.page()
        row = page.locator(f"a.row[href='#/c/{conversation_id}']")
        await expect(row).to_be_visible()
        await picture(page, "phone-list")
        assert not await is_too_wide(page)
        await row.click()
        await expect(the_end(page)).to_be_visible()
        await expect(page.get_by_label("Message to the agent")).to_be_visible()
        await expect(row).to_be_hidden()
        await page.locator(".fold-head").filter(has_text="long line").click()
        await picture(page, "phone-conversation")
        assert not await is_too_wide(page)
        assert await serious(page) == []
        await page.get_by_role("link", name="Back").click()
        await expect(row).to_be_visible()
        for path in PAGES:
            await page.goto(f"{somebody.base_url}/#/{path}")
            await expect(page.locator("main h1")).to_be_visible()
            assert not await is_too_wide(page), path


async def test_no_page_stands_in_the_way_of_anybody(console: Console) -> None:
    page = await console.page()
    for path in PAGES:
        await page.goto(f"{console.client.base_url}/#/{path}")
        await expect(page.locator("main h1")).to_be_visible()
        await expect(page.locator(".spinner")).to_have_count(0)
        assert await serious(page) == [], path
        assert not await is_too_wide(page), path
        await picture(page, f"light-{path.replace('/', '-')}")
        await page.emulate_media(color_scheme="dark")
        assert await serious(page, "color-contrast") == [], path
        await picture(page, f"dark-{path.replace('/', '-')}")
        await page.emulate_media(color_scheme="light")


TRANSLATED = """async (tag) => {
  const page = document.querySelector('script[type=module]').src;
  const { default: words } = await import(new URL(`words/${tag}.js`, page));
  const shown = [];
  for (const one of document.body.querySelectorAll('*')) {
    // What the schema of the settings says is the server's.
    if (one.closest('details form')) continue;
    for (const node of one.childNodes) if (node.nodeType === 3) shown.push(node.data.trim());
    for (const name of ['aria-label', 'title', 'placeholder']) shown.push(one.getAttribute(name) ?? '');
  }
  return shown.filter((text) => words[text] && words[text] !== text);
}"""


async def test_the_console_is_german_where_the_browser_is(
    browser: Browser, somebody: LiveClient
) -> None:
    client = somebody
    await usual_settings(client)
    conversation_id = await client.start_conversation(run("echo eins", "echo zwei", "echo drei"))
    await client.wait_for_execution(conversation_id, "finished")
    async with Console.opened(browser, client, locale="de-DE") as console:
        page = await console.context.new_page()
        await page.goto(f"{client.base_url}/login")
        await page.get_by_label("Ihr API-Schlüssel").fill(str(client.key))
        await page.get_by_role("button", name="Anmelden").click()
        await page.wait_for_url(lambda url: not url.endswith("/login"))
        page = await console.page(f"c/{conversation_id}")
        await expect(page.locator("html")).to_have_attribute("lang", "de")
        await expect(page.get_by_text("3 Befehle ausgeführt")).to_be_visible()
        assert await page.evaluate(TRANSLATED, "de") == []
        await picture(page, "german")
        await page.keyboard.press("Control+k")
        await page.get_by_role("dialog").get_by_role("combobox").fill("anheften")
        await page.keyboard.press("Enter")
        pin = page.locator(".head-side").get_by_role("button", name="Anheften", exact=True)
        await expect(pin).to_have_attribute("aria-pressed", "true")
        for path in PAGES:
            await page.goto(f"{client.base_url}/#/{path}")
            await expect(page.locator("main h1")).to_be_visible()
            await expect(page.locator(".spinner")).to_have_count(0)
            assert await page.evaluate(TRANSLATED, "de") == [], path
            assert not await is_too_wide(page), path
            await picture(page, f"german-{path.replace('/', '-')}")
        await page.set_viewport_size(PHONE)
        for path in PAGES:
            await page.goto(f"{client.base_url}/#/{path}")
            await expect(page.locator("main h1")).to_be_visible()
            assert not await is_too_wide(page), path
        await page.goto(f"{client.base_url}/#/settings/browser")
        await page.get_by_label("Sprache").select_option("English")
        await expect(page.get_by_role("heading", name="This browser")).to_be_visible()
        await expect(page.locator("html")).to_have_attribute("lang", "en")


async def group(page: Page, name: str) -> None:
    """Open a group of settings, and wait for it: fields of the last one may be called the same."""
    await page.get_by_role("link", name=name).click()
    await expect(page.get_by_role("heading", name=name)).to_be_visible()


async def test_settings_secrets_and_keys_are_changed(own_console: Console) -> None:
    client = own_console.client
    page = await own_console.page("settings/agent")
    await page.get_by_label("Steps", exact=True).fill("77")
    await page.get_by_role("switch", name="Ask before the agent acts").check()
    await page.get_by_role("button", name="Save").first.click()
    await expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    settings = (await client.get("/api/v1/settings")).json()
    assert (settings["max_iterations"], settings["confirmation_mode"]) == (77, True)

    await group(page, "Secrets")
    await page.get_by_label("Name").fill("no name")
    await page.get_by_label("Value").fill("hush")
    await page.get_by_role("button", name="Store").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    await page.get_by_label("Name").fill("CONSOLE_TEST")
    await page.get_by_role("button", name="Store").click()
    await expect(page.locator("code", has_text="CONSOLE_TEST")).to_be_visible()
    await page.get_by_role("button", name="Delete CONSOLE_TEST").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    await expect(page.locator("code", has_text="CONSOLE_TEST")).to_be_hidden()

    await group(page, "MCP servers")
    await page.get_by_label("Name").fill("notes")
    await page.get_by_label("URL").fill("https://notes.example/mcp")
    await page.get_by_role("button", name="Add").click()
    await expect(page.get_by_role("button", name="Remove notes")).to_be_visible()
    await page.get_by_role("button", name="Remove notes").click()
    await expect(page.get_by_role("button", name="Remove notes")).to_be_hidden()

    await group(page, "API keys")
    await page.get_by_label("Name").fill("made here")
    await page.get_by_label("Permissions").select_option("Read only")
    await page.get_by_role("button", name="Create a key").click()
    key = await page.locator(".copyable code").inner_text()
    assert re.fullmatch(r"asvc_\S+", key)
    row = page.locator(".entries li", has_text="made here")
    await expect(row).to_contain_text("Read only")
    await row.get_by_role("button", name="Revoke").click()
    await expect(row).to_be_hidden()


async def test_an_automation_is_made_run_changed_and_deleted(console: Console) -> None:
    await _delete_automations(console)
    page = await console.page()
    await page.get_by_role("link", name="Automations").click()
    await expect(page.get_by_role("heading", name="No automations")).to_be_visible()
    await page.get_by_text("Add one").click()
    await page.get_by_label("Name").fill("Say hello")
    await page.get_by_label("Task").fill("[script:say] hello")
    await page.get_by_label("Starts").select_option("webhook")
    await page.get_by_role("button", name="Add", exact=True).click()
    await expect(page.get_by_role("status").filter(has_text="copy it now")).to_be_visible()
    card = page.locator("li.card", has=page.get_by_role("heading", name="Say hello"))
    await expect(card.get_by_text("/api/automation/v1/events/")).to_be_visible()
    await card.get_by_role("button", name="Run now").click()
    run = card.locator(".entries li")
    look = card.get_by_role("button", name="Look again")
    await expect(look).to_be_visible()
    await card.get_by_text("Change", exact=True).click()
    await card.get_by_label("Starts").select_option("cron")
    await card.get_by_label("Maximum steps").fill("some")
    await card.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("alert")).to_contain_text("Maximum steps is not a number")
    await card.get_by_label("Maximum steps").fill("50")
    await card.get_by_label("Time zone").fill("Nowhere/Land")
    await card.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("alert")).to_contain_text("Unknown time zone")
    await card.get_by_label("Time zone").fill("Europe/Berlin")
    await card.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("alert")).to_be_hidden()
    await expect(card.get_by_text("Next run")).to_be_visible()
    await expect(run).to_have_count(1)
    while not await run.filter(has_text="Finished").count():
        await look.click()
        await page.wait_for_timeout(500)
    await expect(run).to_contain_text("Hello.")
    assert await serious(page) == []
    await picture(page, "automation")
    await card.get_by_label("On", exact=True).uncheck()
    await expect(card.get_by_text("Next run")).to_be_hidden()
    await run.get_by_role("link").click()
    await expect(page.locator(".bubble.agent", has_text="Hello.")).to_be_visible()
    await page.go_back()
    await card.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("heading", name="No automations")).to_be_visible()


async def test_a_switch_shows_what_was_chosen_until_the_list_is_anew(console: Console) -> None:
    await _delete_automations(console)
    body = {"name": "Sometimes", "prompt": "any", "trigger": {"type": "manual"}}
    path = f"/api/automation/v1/{(await console.client.post('/api/automation/v1', json=body)).json()['id']}"
    page = await console.page("automations")
    switch = page.locator("li.card").get_by_label("On", exact=True)
    await expect(switch).to_be_checked()
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def answer_late(route: Route) -> None:
        asked.set()
        await may_answer.wait()
        await route.continue_()

    await page.route("**/api/automation/v1?*", answer_late, times=1)
    await switch.uncheck()
    await asked.wait()
    # Two frames: what the page has been told by now is drawn.
    await page.evaluate(
        "new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
    )
    assert not await switch.is_checked()
    may_answer.set()
    await _automation(page, console, path, enabled=False)
    await page.route("**/api/automation/v1/*", lambda route: route.fulfill(status=409), times=1)
    await switch.click()
    await expect(page.get_by_role("alert")).to_be_visible()
    await expect(switch).not_to_be_checked()


async def test_an_automation_of_a_git_host_is_shown_and_keeps_what_is_not_in_the_form(
    console: Console,
) -> None:
    await _delete_automations(console)
    trigger = {"type": "git", "on": "pull_request", "workflows": True}
    repos = [{"url": "octo/demo", "provider": "github"}]
    body = {"name": "Look", "prompt": "any", "trigger": trigger, "repos": repos}
    made = (await console.client.post("/api/automation/v1", json=body)).json()
    path = f"/api/automation/v1/{made['id']}"
    page = await console.page("automations")
    card = page.locator("li.card", has=page.get_by_role("heading", name="Look"))
    await card.get_by_text("Change", exact=True).click()
    await card.get_by_label("Task").fill("other")
    await card.get_by_role("button", name="Save").click()
    assert (await _automation(page, console, path, prompt="other"))["trigger"] == made["trigger"]
    await expect(card.get_by_label("Label")).to_be_hidden()
    await card.get_by_label("Works on").select_option("An issue that is labelled, or a mention")
    await card.get_by_label("Label").fill("robot")
    await card.get_by_label("Task").fill("third")
    await card.get_by_role("button", name="Save").click()
    found = await _automation(page, console, path, prompt="third")
    assert found["trigger"] == {**made["trigger"], "on": "request", "label": "robot"}
    await card.get_by_label("Starts").select_option("cron")
    await card.get_by_label("Open a draft pull request").check()
    await card.get_by_role("button", name="Save").click()
    assert (await _automation(page, console, path, pull_request=True))["trigger"]["type"] == "cron"
    await console.client.delete(path)


async def _delete_automations(console: Console) -> None:
    """Delete what a test that failed has left, so that its second try fails by itself alone."""
    path = "/api/automation/v1"
    for found in (await console.client.get(path)).json()["automations"]:
        await console.client.delete(f"{path}/{found['id']}")


async def _automation(page: Page, console: Console, path: str, **awaited: object) -> dict[str, Any]:
    """Return an automation as soon as it is stored like this."""
    while True:
        found: dict[str, Any] = (await console.client.get(path)).json()
        if all(found[name] == value for name, value in awaited.items()):
            return found
        await page.wait_for_timeout(100)


async def test_an_automation_runs_a_command(console: Console) -> None:
    await _delete_automations(console)
    page = await console.page("automations")
    await page.get_by_text("Add one").click()
    await page.get_by_label("Name").fill("Count")
    await page.get_by_label("Done by").select_option("A command, without an agent")
    await page.get_by_label("Task").fill("echo $((6 * 7))")
    await page.get_by_label("Starts").select_option("By hand only")
    await page.get_by_role("button", name="Add", exact=True).click()
    card = page.locator("li.card", has=page.get_by_role("heading", name="Count"))
    await expect(card.locator("pre")).to_have_text("echo $((6 * 7))")
    await card.get_by_text("Change", exact=True).click()
    await expect(card.get_by_label("Done by")).to_have_value("command")
    await expect(card.get_by_label("Task")).to_have_value("echo $((6 * 7))")
    await card.get_by_role("button", name="Run now").click()
    run = card.locator(".entries li")
    while not await run.filter(has_text="Finished").count():
        await card.get_by_role("button", name="Look again").click()
        await page.wait_for_timeout(500)
    await expect(run).to_contain_text("42")
    assert await serious(page) == []
    await card.get_by_label("Done by").select_option("An agent")
    await card.get_by_label("Task").fill("Count to 42")
    await card.get_by_role("button", name="Save").click()
    await expect(card.locator("pre")).to_be_hidden()
    await card.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(card).to_be_hidden()


async def test_a_github_app_is_stored_and_forgotten_and_a_refusal_is_no_logout(
    own_console: Console, git_hosts: GitHosts
) -> None:
    page = await own_console.page("settings/git")
    part = page.locator("section", has=page.get_by_role("heading", name="GitHub App"))
    await part.get_by_label("App ID").fill("123456")
    await part.get_by_label("Private key").fill(
        RSAKey.generate_key(2048).as_pem(private=True).decode()
    )
    await part.get_by_label("Secret of its webhook").fill("hush")
    await part.get_by_label("GitHub Enterprise").fill(git_hosts.url)
    git_hosts.status = 401
    try:
        await part.get_by_role("button", name="Store the App").click()
        await expect(part.get_by_role("alert")).to_contain_text("GitHub knows no App `123456`")
    finally:
        git_hosts.status = 200
    await part.get_by_role("button", name="Store the App").click()
    entry = part.locator(".entries li")
    await expect(entry).to_contain_text("robot")
    await expect(entry).to_contain_text("/api/automation/v1/events/")
    assert await serious(page) == []
    await picture(page, "github-app")
    await part.get_by_role("button", name="Forget robot").click()
    await expect(entry).to_be_hidden()
    provider = page.locator("section", has=page.get_by_role("heading", name="Git providers"))
    await provider.get_by_label("Token").fill("bad")
    await provider.get_by_label("Host", exact=True).fill(git_hosts.url)
    await provider.get_by_role("button", name="Store the token").click()
    await expect(provider.get_by_role("alert")).to_contain_text("Invalid token")


async def test_an_environment_is_prepared_and_looked_at(
    browser: Browser, shared: Installation
) -> None:
    user = await new_user(shared)
    await usual_settings(user)
    async with Console.opened(browser, user) as console:
        page = await console.page("environments")
        await expect(page.get_by_role("heading", name="No environments")).to_be_visible()
        await page.get_by_text("Add one", exact=True).click()
        await page.get_by_label("Name").fill("Tools")
        await page.get_by_label("Set-up script").fill("echo tools are made")
        await page.get_by_role("button", name="Add", exact=True).click()
        card = page.locator("li.card", has=page.get_by_role("heading", name="Tools"))
        await expect(card.get_by_text("Ready", exact=True)).to_be_visible(timeout=120_000)
        await card.get_by_role("button", name="Log").click()
        await expect(card.get_by_text("tools are made")).to_be_visible()
        assert await serious(page) == []
        await picture(page, "environment")
        await card.get_by_role("button", name="Delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(page.get_by_role("heading", name="No environments")).to_be_visible()


async def test_an_administrator_allows_the_host_of_a_model_with_one_button(
    browser: Browser, shared: Installation
) -> None:
    boss = await new_user(shared, Role.ADMIN)
    # Another try of this test may have allowed another one.
    for known in (await boss.get("/api/v1/model-hosts")).json()["added"]:
        await boss.delete(f"/api/v1/model-hosts/{known}")
    async with ScriptedModel() as model, Console.opened(browser, boss) as console:
        host = model.url.removeprefix("http://").removesuffix("/v1")
        page = await console.page()
        await page.wait_for_url("**/#/setup")
        await page.get_by_label("Model", exact=True).fill("openai/scripted")
        await page.get_by_label("API key").fill(model.key.reveal())
        await page.get_by_label("Base URL").fill(model.url)
        await page.get_by_role("button", name="Save and test").click()
        allow = page.get_by_role("button", name=f"Allow {host}")
        await expect(allow).to_be_visible()
        assert await serious(page) == []
        await picture(page, "allow-host")
        await allow.click()
        await expect(page.get_by_text("The model answers.")).to_be_visible()
        assert (await boss.delete(f"/api/v1/model-hosts/{host}")).json()["added"] == []


async def test_an_administrator_looks_after_users_and_sees_what_was_done(
    browser: Browser, shared: Installation
) -> None:
    boss = shared.client()
    await boss.save_settings()
    name = f"ann-{new_id()[:8]}"
    async with Console.opened(browser, boss) as console:
        page = await console.page("users")
        added = page.locator("section.card", has_text="Add a user")
        await added.get_by_label("Name").fill(name)
        await added.get_by_label("Role").select_option("Viewer")
        await added.get_by_role("button", name="Add").click()
        card = page.locator("li.card", has_text=name)
        await expect(card).to_contain_text("Viewer, since")
        await card.get_by_text("Name and role", exact=True).click()
        await card.get_by_label("Role").select_option("Member")
        await card.get_by_role("button", name="Save").click()
        await expect(card).to_contain_text("Member, since")
        await card.get_by_text("Limits", exact=True).click()
        await card.get_by_label("Sandboxes that run").fill("3")
        await card.get_by_role("button", name="Save").last.click()
        await expect(card.locator(".usage")).to_contain_text("0 of 3")
        await card.get_by_text("Keys", exact=True).click()
        await card.get_by_role("button", name="Create a key").click()
        key = await card.locator(".copyable code").inner_text()
        await card.get_by_role("button", name="Block").click()
        await expect(card.get_by_text("Blocked", exact=True)).to_be_visible()
        await is_for_everybody(page, "users")
        await card.get_by_role("button", name="Unblock").click()
        await expect(card.get_by_text("Active", exact=True)).to_be_visible()
        user_id = await owner_of(shared, key)
        await card.get_by_role("button", name="Delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(card).to_be_hidden()

        await page.goto(f"{boss.base_url}/#/audit")
        entries = page.get_by_role("list", name="Entries").get_by_role("listitem")
        await page.get_by_label("Text").fill(user_id)
        deletion = entries.filter(has_text="DELETE /api/v1/users/{user_id}")
        await expect(deletion).to_have_count(1)
        await expect(entries.filter(has_text="POST /api/v1/users/{user_id}/keys")).to_have_count(1)
        await is_for_everybody(page, "audit")
        await page.get_by_label("Outcome").select_option("Refused or failed")
        await expect(page.get_by_text("There are no such entries.")).to_be_visible()


async def is_for_everybody(page: Page, name: str) -> None:
    """Fail if a page stands in the way of anybody, in the light, in the dark or on a phone."""
    assert await serious(page) == []
    await picture(page, f"light-{name}-filled")
    await page.emulate_media(color_scheme="dark")
    assert await serious(page, "color-contrast") == []
    await picture(page, f"dark-{name}-filled")
    await page.emulate_media(color_scheme="light")
    await page.set_viewport_size(PHONE)
    assert not await is_too_wide(page)
    await picture(page, f"phone-{name}-filled")
    await page.set_viewport_size(DESKTOP)


async def owner_of(shared: Installation, key: str) -> str:
    holder = LiveClient(shared.url, key, shared.model)
    try:
        found = (await holder.get("/api/keys/current")).json()
    finally:
        await holder.close()
    return str(found["user_id"]).replace("-", "")


@pytest.mark.parametrize(
    ("role", "scope", "reason"),
    [
        (Role.VIEWER, KeyScope.ADMIN, "your role is viewer"),
        (Role.MEMBER, KeyScope.READ, "a read-only key"),
    ],
)
async def test_who_may_only_look_is_told_why_and_can_press_nothing(
    browser: Browser, shared: Installation, role: Role, scope: KeyScope, reason: str
) -> None:
    client = await new_user(shared, role, scope)
    async with Console.opened(browser, client) as console:
        page = await console.page("new")
        await expect(page.get_by_role("note")).to_contain_text(reason)
        start = page.get_by_role("button", name="Start")
        await expect(start).to_be_disabled()
        await expect(start).to_have_attribute("title", re.compile(reason))
        await expect(page.get_by_role("link", name="Users")).to_have_count(0)
        for path in ("settings/agent", "settings/keys", "settings/webhooks", "sandboxes"):
            await page.goto(f"{client.base_url}/#/{path}")
            pressed = page.locator("main button.button:not([data-refused])")
            await expect(page.locator("main button[data-refused]").first).to_be_disabled()
            await expect(pressed).to_have_count(0)
        assert await serious(page) == []
        await picture(page, f"looking-{role}-{scope}")
        await page.goto(f"{client.base_url}/#/users")
        await expect(page.get_by_text("This is for administrators.")).to_be_visible()


async def test_everybody_is_warned_where_sandboxes_are_isolated_less_than_usual(
    browser: Browser, shared: Installation
) -> None:
    usual = await new_user(shared)
    async with Console.opened(browser, usual) as console:
        page = await console.page("new")
        await expect(page.locator("main h1")).to_be_visible()
        await expect(page.get_by_role("alert")).to_have_count(0)
    with tempfile.TemporaryDirectory() as name:
        lesser = Installation(
            Path(name),
            shared.model,
            {"AGENTSVC_SANDBOXES__ISOLATION": "none", "PATH": name},
            launcher=ordinary_user(Path(name)),
        )
        await lesser.start()
        try:
            for client, says_remedy in ((lesser.client(), 1), (await new_user(lesser), 0)):
                async with Console.opened(browser, client) as console:
                    page = await console.page("new")
                    warning = page.get_by_role("alert")
                    await expect(warning).to_contain_text("only, not by bubblewrap")
                    remedy = warning.get_by_text("apt install bubblewrap")
                    await expect(remedy).to_have_count(says_remedy)
                    assert await serious(page) == []
                    await picture(page, f"warned-{says_remedy}")
        finally:
            await lesser.close()


async def test_who_logs_out_sees_nothing_more(console: Console) -> None:
    page = await console.page("new")
    await page.get_by_role("button", name="Log out").click()
    await page.wait_for_url("**/login")
    await page.goto(f"{console.client.base_url}/#/sandboxes")
    await page.wait_for_url("**/login")

"""The console shows what there is, and not what was there before, on a server with a fake agent."""

import asyncio
from typing import Any

import pytest
from playwright.async_api import Locator, Page, Route, expect

from tests.live.browser import Console
from tests.live.console.reports import (
    WAITS,
    command,
    finished,
    forgive_lost_answers,
    report,
)

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="session"),
]

CHANGED: list[dict[str, Any]] = [{"path": "a.txt", "status": "UPDATED"}]


async def test_an_open_difference_is_looked_at_again_with_its_list(quick_console: Console) -> None:
    conversation_id = await finished(quick_console.client)
    page = await quick_console.page(f"c/{conversation_id}")
    texts = {"original": "old\n", "modified": "first\n"}
    await page.route("**/git/changes*", lambda route: route.fulfill(json=CHANGED))
    await page.route("**/git/diff*", lambda route: route.fulfill(json=texts))
    await page.goto(f"{quick_console.client.base_url}/#/c/{conversation_id}/changes")
    await page.locator(".files button", has_text="a.txt").click()
    await expect(page.locator(".diff-line.added")).to_contain_text("first")
    texts["modified"] = "second\n"
    await page.get_by_role("button", name="Look again").click()
    await expect(page.locator(".diff-line.added")).to_contain_text("second")


async def test_nothing_is_said_of_changes_that_are_not_known_yet(quick_console: Console) -> None:
    client = quick_console.client
    conversation_id = await finished(client)
    sandbox_id = (await client.conversation(conversation_id))["sandbox_id"]
    page = await quick_console.page(f"c/{conversation_id}")
    may_answer = asyncio.Event()

    async def answer(route: Route) -> None:
        await may_answer.wait()
        await route.fulfill(json=CHANGED)

    await page.route("**/git/changes*", answer)
    assert (await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")).status == 200
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    await page.goto(f"{client.base_url}/#/c/{conversation_id}/changes")
    await expect(page.get_by_text("The sandbox does not run")).to_be_visible()
    async with page.expect_request("**/git/changes*"):
        await page.get_by_role("button", name="Resume the sandbox").click()
    await expect(page.get_by_text("No changes")).to_have_count(0)
    may_answer.set()
    await expect(page.locator(".files button", has_text="a.txt")).to_be_visible()


async def test_a_conversation_that_is_not_in_the_list_comes_when_the_server_answers(
    quick_console: Console,
) -> None:
    client = quick_console.client
    conversation_id = await finished(client)
    page = await quick_console.page("sandboxes")
    nothing: dict[str, Any] = {"items": [], "next_page_id": None}
    await page.route("**/app-conversations/search*", lambda route: route.fulfill(json=nothing))
    await page.reload()
    await page.route("**/alive", lambda route: route.abort())
    await page.route(
        f"**/app-conversations/{conversation_id}", lambda route: route.abort(), times=1
    )
    await page.goto(f"{client.base_url}/#/c/{conversation_id}")
    await expect(page.get_by_text("The server does not answer")).to_be_visible()
    await page.unroute("**/alive")
    await expect(page.locator("article").first).to_be_visible()
    forgive_lost_answers(quick_console)


async def test_a_task_that_one_tab_has_started_is_not_left_in_another(
    quick_console: Console,
) -> None:
    def field_of(page: Page) -> Locator:
        return page.get_by_label("Message", exact=True)

    first = await quick_console.page("new")
    await field_of(first).fill("only once")
    same, own = [await quick_console.page("new") for _ in range(2)]
    await expect(field_of(same)).to_have_value("only once")
    await field_of(own).fill("mine")
    await field_of(first).fill("only once!")
    await same.reload()
    await expect(field_of(same)).to_have_value("only once!")
    await first.get_by_role("button", name="Start").click()
    await expect(field_of(same)).to_have_value("")
    await expect(field_of(own)).to_have_value("mine")


async def test_a_terminal_that_could_not_be_loaded_is_asked_for_again(
    quick_console: Console,
) -> None:
    client = quick_console.client
    conversation_id = await finished(client)
    await report(client, conversation_id, [command(1, "run-first")])
    page = await quick_console.page(f"c/{conversation_id}")
    await page.route("**/vendor/xterm.js", lambda route: route.abort(), times=1)
    await page.goto(f"{client.base_url}/#/c/{conversation_id}/terminal")
    await expect(page.get_by_role("alert")).to_be_visible()
    await page.goto(f"{client.base_url}/#/c/{conversation_id}/files")
    await expect(page.get_by_role("alert")).to_be_hidden()
    await page.goto(f"{client.base_url}/#/c/{conversation_id}/terminal")
    await expect(page.locator(".terminal-box .xterm")).to_be_visible()
    forgive_lost_answers(quick_console)


async def test_a_model_that_could_not_be_chosen_is_not_shown_as_chosen(
    quick_console: Console,
) -> None:
    page = await quick_console.page("sandboxes")
    profiles = [{"name": name, "model": f"test/{name}"} for name in ("one", "two")]
    found = {"profiles": profiles, "active_profile": "one"}
    await page.route("**/settings/profiles", lambda route: route.fulfill(json=found))
    refusal = {"detail": "Not now"}
    await page.route("**/activate", lambda route: route.fulfill(status=503, json=refusal))
    await page.goto(f"{quick_console.client.base_url}/#/new")
    model = page.get_by_label("Model")
    await expect(model).to_have_value("=one")
    await model.select_option("=two")
    await expect(page.get_by_role("alert").filter(has_text="Not now")).to_be_visible()
    await expect(model).to_have_value("=one")
    forgive_lost_answers(quick_console)


async def test_where_a_browser_makes_no_notifications_the_page_stays(
    quick_console: Console,
) -> None:
    client = quick_console.client
    conversation_id = await finished(client)
    # As browsers on phones do.
    await quick_console.context.add_init_script(
        "Object.defineProperty(document, 'hidden', {get: () => globalThis.isHidden ?? false});"
        " globalThis.Notification = class { static permission = 'granted';"
        " constructor() { globalThis.asked = true; throw new TypeError('Illegal constructor'); } };"
    )
    page = await quick_console.page(f"c/{conversation_id}")
    await expect(page.locator("article").first).to_be_visible()
    await page.evaluate(
        "localStorage.setItem(Object.keys(localStorage).find((one) => one.endsWith(' user'))"
        ".replace(/user$/, 'notify'), 'true'); globalThis.isHidden = true"
    )
    await report(client, conversation_id, [command(1, "rm -r build"), WAITS])
    await page.wait_for_function("() => globalThis.asked")
    await expect(page.get_by_role("button", name="Confirm")).to_be_visible()
    await expect(page.get_by_text("This cannot be shown")).to_have_count(0)


async def test_a_message_of_a_tab_that_was_closed_is_sent_by_another(
    quick_console: Console,
) -> None:
    conversation_id = await finished(quick_console.client)
    first, second = [await quick_console.page(f"c/{conversation_id}") for _ in range(2)]
    await expect(second.locator("article").first).to_be_visible()
    left = {"key": "a key", "text": "of the first", "images": [], "state": "sending", "after": -1}
    # As a tab leaves it that is closed before the server has all of it.
    await first.evaluate(
        "([id, left]) => localStorage.setItem(Object.keys(localStorage).find((one) => one.endsWith(' user'))"
        ".replace(/user$/, `outbox ${id}`), JSON.stringify([{...left, at: new Date().toISOString()}]))",
        [conversation_id, left],
    )
    await first.close()
    await expect(second.locator(".pending", has_text="of the first")).to_be_visible()
    # What the server still does for that tab it does for no other one.
    busy = {"code": "request_in_progress", "detail": "It is being done"}
    await second.route(
        "**/send-message", lambda route: route.fulfill(status=409, json=busy), times=1
    )
    # As whoever closes a tab sees the next one.
    await second.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await expect(second.locator("article", has_text="of the first")).to_have_count(1)
    await expect(second.locator(".pending")).to_have_count(0)

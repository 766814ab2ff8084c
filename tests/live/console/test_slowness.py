"""The console over a slow or breaking network, and with several tabs, on a server with a fake agent."""

import asyncio
import re
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from playwright.async_api import Page, Route, expect

from tests.live.browser import Console
from tests.live.console.reports import (
    FIELD,
    WAITS,
    command,
    finished,
    forgive_lost_answers,
    report,
    said,
    user_of,
)
from tests.service import Service
from tests.troubles import eventually

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="session"),
]


ENTRY: dict[str, Any] = {
    "at": "2026-01-01T00:00:00Z",
    "user_id": None,
    "user_name": None,
    "key_id": None,
    "subject": "",
    "status": 0,
    "address": "",
    "request_id": None,
}


async def held(page: Page, pattern: str, method: str = "POST") -> asyncio.Event:
    """Hold requests up until what this returns is set."""
    may_go = asyncio.Event()

    async def hold(route: Route) -> None:
        if route.request.method == method:
            await may_go.wait()
        await route.continue_()

    await page.route(pattern, hold)
    return may_go


async def test_what_one_user_types_is_never_kept_for_the_next_in_another_tab(
    quick_console: Console, quick: Service
) -> None:
    console = quick_console
    bob = await user_of(quick, "bob")
    page = await console.page("settings/secrets")
    # Nobody tells this tab that its login has ended.
    await page.route_web_socket("**/events/stream", lambda _: None)
    await page.reload()
    await page.get_by_label("Name").fill("OF_ADMIN")
    await page.get_by_label("Value").fill("a value")
    other = await console.context.new_page()
    await other.goto(f"{bob.base_url}/login")
    await other.get_by_label("Your API key").fill(str(bob.key))
    await other.get_by_role("button", name="Log in as somebody else").click()
    await expect(other.get_by_title("You are bob")).to_be_visible()
    await page.get_by_role("button", name="Store").click()
    await page.wait_for_url("**/login")
    assert (await bob.get("/api/v1/secrets/search")).json()["items"] == []
    await expect(other.get_by_title("You are bob")).to_be_visible()
    await other.reload()
    await expect(other.get_by_title("You are bob")).to_be_visible()
    await bob.close()


async def test_words_that_are_said_again_instead_of_tried_again_are_there_once(
    quick_console: Console,
) -> None:
    console = quick_console
    conversation_id = await finished(console.client)
    page = await console.page(f"c/{conversation_id}")
    await expect(page.locator("article").first).to_be_visible()
    await page.route("**/send-message", lambda route: route.abort(), times=1)
    field = page.get_by_label(FIELD)
    for _ in range(2):
        await field.fill("continue")
        await field.press("Enter")
        await expect(page.get_by_text("Sending")).to_have_count(0)
    said = page.locator("article .bubble.user", has_text="continue")
    await expect(said).to_have_count(1)
    # The first one is still not sent, and the second one is not on its way any more.
    await expect(page.locator(".pending")).to_have_count(1)
    await page.locator(".failed").get_by_role("button", name="Try again").click()
    await expect(said).to_have_count(2)
    await expect(page.locator(".pending")).to_have_count(0)
    forgive_lost_answers(console)


async def test_long_lines_that_have_changed_do_not_keep_the_page_busy(
    quick_console: Console,
) -> None:
    conversation_id = await finished(quick_console.client)
    page = await quick_console.page(f"c/{conversation_id}")
    before, after = (
        "\n".join(
            " ".join(f"{line * word * factor % 999983:x}" for word in range(1, 330))
            for line in range(1, 121)
        )
        for factor in (48271, 69621)
    )
    changes = [{"path": "data.csv", "status": "UPDATED"}]
    await page.route("**/git/changes*", lambda route: route.fulfill(json=changes))
    texts = {"original": before, "modified": after}
    await page.route("**/git/diff*", lambda route: route.fulfill(json=texts))
    await page.goto(f"{quick_console.client.base_url}/#/c/{conversation_id}/changes")
    await page.evaluate(
        "window.longest = 0; new PerformanceObserver((list) => { for (const one of list.getEntries())"
        " window.longest = Math.max(window.longest, one.duration); }).observe({type: 'longtask'})"
    )
    await page.locator(".files button", has_text="data.csv").click()
    await expect(page.locator(".diff-line.added").first).to_be_visible()
    await page.evaluate("new Promise((resolve) => setTimeout(resolve, 100))")
    assert await page.evaluate("window.longest") < 5000


async def test_a_reason_is_sent_once_and_when_it_is_written(quick_console: Console) -> None:
    client = quick_console.client
    conversation_id = await finished(client)
    await report(client, conversation_id, [command(1, "rm -r build"), WAITS])
    page = await quick_console.page(f"c/{conversation_id}")
    answered: list[Any] = []
    may_answer = asyncio.Event()

    async def answer(route: Route) -> None:
        answered.append(route.request.post_data_json)
        await may_answer.wait()
        await route.fulfill(json={"success": True})

    await page.route("**/respond_to_confirmation", answer)
    field = page.get_by_label("Reason, if you reject")
    await field.fill("not that")
    # Which ends a word of a language that is written so, and not the sentence.
    await field.evaluate(
        "(field) => field.dispatchEvent(new KeyboardEvent('keydown',"
        " {key: 'Enter', isComposing: true, bubbles: true, cancelable: true}))"
    )
    await expect(page.get_by_role("button", name="Reject")).to_be_enabled()
    assert answered == []
    for _ in range(3):
        await field.press("Enter")
    await eventually(lambda: len(answered) > 0)
    may_answer.set()
    await expect(field).to_have_value("")
    assert answered == [{"accept": False, "reason": "not that"}]


async def test_no_event_is_taken_for_a_button_that_answers(quick_console: Console) -> None:
    client = quick_console.client
    conversation_id = await finished(client)
    marks = [{**said(1, mark), "id": mark} for mark in ("reason", "reject", "confirm")]
    await report(client, conversation_id, [*marks, command(1, "rm -r build"), WAITS])
    page = await quick_console.page(f"c/{conversation_id}")
    answered: list[Any] = []

    async def answer(route: Route) -> None:
        answered.append(route.request.post_data_json)
        await route.fulfill(json={"success": True})

    await page.route("**/respond_to_confirmation", answer)
    await expect(page.locator("article[data-key=reject]")).to_be_visible()
    field = page.get_by_label("Reason, if you reject")
    await expect(field).to_be_visible()
    await page.keyboard.press("r")
    await expect(field).to_be_focused()
    await field.fill("not that")
    await field.press("Enter")
    await expect(field).to_have_value("")
    await field.blur()
    await page.keyboard.press("a")
    await eventually(lambda: len(answered) > 1)
    assert answered == [{"accept": False, "reason": "not that"}, {"accept": True}]


async def test_a_button_keeps_the_focus_while_its_work_is_done(quick_console: Console) -> None:
    page = await quick_console.page("automations")
    await expect(page.get_by_role("heading", name="No automations")).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    may_list = await held(page, "**/api/automation/v1?*", "GET")
    button = page.get_by_role("button", name="Look again")
    await button.focus()
    for _ in range(2):
        await page.keyboard.press("Enter")
        await expect(button).to_be_disabled()
    may_list.set()
    await expect(button).to_be_enabled()
    await expect(button).to_be_focused()
    assert len([one for one in asked if "automation/v1" in one]) == 1


@pytest.mark.parametrize("action", ["Delete", "Fork", "Start"])
async def test_who_has_gone_elsewhere_meanwhile_is_left_there(
    quick_console: Console, action: str
) -> None:
    client = quick_console.client
    first, second = await finished(client), await finished(client)
    page = await quick_console.page("new" if action == "Start" else f"c/{first}")
    may_go = await held(page, "**/app-conversations**", "DELETE" if action == "Delete" else "POST")
    may_fork = await held(page, "**/fork")
    if action == "Start":
        await page.get_by_label("Message", exact=True).fill("a task")
    await page.get_by_role("button", name=action, exact=True).first.click()
    if action == "Delete":
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await page.keyboard.press("Escape")
    await page.goto(f"{client.base_url}/#/c/{second}")
    field = page.get_by_label(FIELD)
    await field.fill("in the middle of a sentence")
    async with page.expect_response(lambda answer: answer.request.method in ("POST", "DELETE")):
        may_go.set()
        may_fork.set()
    await page.evaluate("new Promise((resolve) => setTimeout(resolve, 500))")
    assert page.url.endswith(f"/c/{second}")
    await expect(field).to_have_value("in the middle of a sentence")


async def test_a_task_that_is_written_while_another_starts_is_kept(quick_console: Console) -> None:
    client = quick_console.client
    page = await quick_console.page("new")
    field = page.get_by_label("Message", exact=True)
    may_start = await held(page, "**/api/v1/app-conversations")
    await field.fill("the first task")
    await page.get_by_role("button", name="Start").click()
    await page.goto(f"{client.base_url}/#/sandboxes")
    await page.goto(f"{client.base_url}/#/new")
    await field.fill("the second task")
    async with page.expect_response("**/api/v1/app-conversations"):
        may_start.set()
    await page.evaluate("new Promise((resolve) => setTimeout(resolve, 300))")
    await page.reload()
    await expect(field).to_have_value("the second task")


async def test_what_was_asked_for_and_refused_is_said_when_the_question_is_closed(
    quick_console: Console,
) -> None:
    conversation_id = await finished(quick_console.client)
    page = await quick_console.page(f"c/{conversation_id}")
    may_answer = asyncio.Event()

    async def refuse(route: Route) -> None:
        if route.request.method == "DELETE":
            await may_answer.wait()
            await route.fulfill(status=503, json={"detail": "Not now"})
        else:
            await route.continue_()

    await page.route(f"**/app-conversations/{conversation_id}", refuse)
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await page.keyboard.press("Escape")
    may_answer.set()
    await expect(page.get_by_role("alert").filter(has_text="Not now")).to_be_visible()
    forgive_lost_answers(quick_console)


async def test_a_choice_beside_the_message_stays_while_it_is_made(quick_console: Console) -> None:
    client = quick_console.client
    conversation_id = await finished(client)
    await client.post("/api/v1/settings/profiles/other", json={})
    page = await quick_console.page(f"c/{conversation_id}")
    chosen = {"Mode": "AlwaysConfirm", "Model": "other"}
    held_up = [await held(page, f"**/{path}") for path in ("confirmation_policy", "switch_profile")]
    for name, value in chosen.items():
        await page.get_by_label(name, exact=True).select_option(value)
        # Whatever is drawn meanwhile.
        await page.get_by_label(FIELD).press_sequentially("abc")
        await expect(page.get_by_label(name, exact=True)).to_have_value(value)
    for may_go in held_up:
        may_go.set()
    await page.get_by_label(FIELD).press_sequentially("d")
    for name, value in chosen.items():
        await expect(page.get_by_label(name, exact=True)).to_have_value(value)
    await page.route("**/confirmation_policy", lambda route: route.abort())
    mode = page.get_by_label("Mode", exact=True)
    await mode.select_option("NeverConfirm")
    await expect(mode).to_have_value("AlwaysConfirm")
    # The end of a choice says nothing of the next one, which is still being made.
    may_set = await held(page, "**/confirmation_policy")
    await page.route("**/security_analyzer", lambda route: route.abort())
    await mode.select_option("NeverConfirm")
    async with page.expect_event("requestfailed"):
        await mode.select_option("ConfirmRisky")
    await expect(page.locator(".dock").get_by_role("alert")).to_be_visible()
    await expect(mode).to_have_value("ConfirmRisky")
    may_set.set()
    await expect(mode).to_have_value("NeverConfirm")
    forgive_lost_answers(quick_console)


async def test_files_are_those_of_the_folder_that_is_named(quick_console: Console) -> None:
    client = quick_console.client
    conversation_id = await finished(client)
    page = await quick_console.page(f"c/{conversation_id}")
    may_list = asyncio.Event()

    async def files(route: Route) -> None:
        is_inside = "path=src" in route.request.url
        if is_inside:
            await may_list.wait()
        await route.fulfill(json=["main.py"] if is_inside else ["src/a.py", "README.md"])

    await page.route("**/files?*", files)
    gone = {"status": 404, "json": {"detail": "There is no such file"}}
    await page.route("**/file?*", lambda route: route.fulfill(**gone))
    await page.goto(f"{client.base_url}/#/c/{conversation_id}/files")
    shown = page.locator(".files button")
    await shown.filter(has_text="src").click()
    await expect(shown).to_have_count(0)
    may_list.set()
    await shown.filter(has_text="main.py").click()
    # What is not there any more is not waited for.
    await expect(page.get_by_role("alert")).to_contain_text("There is no such file")
    await expect(page.locator(".spinner")).to_have_count(0)


async def test_how_long_ago_it_was_is_true_while_nothing_happens(quick_console: Console) -> None:
    await finished(quick_console.client)
    page = await quick_console.page()
    await page.clock.install()
    await page.reload()
    at = page.locator(".rows time").first
    # It may be minutes ago already, for a page that is slow to come.
    await expect(at).to_have_text(re.compile("^(now|[0-9]+m ago)$"))
    await page.clock.run_for("02:00:30")
    await expect(at).to_have_text("2h ago")


async def test_a_search_that_nobody_answers_has_not_found_nothing(quick_console: Console) -> None:
    page = await quick_console.page()
    broken = {"status": 503, "json": {"detail": "Not now"}}
    await page.route("**/messages/search*", lambda route: route.fulfill(**broken))
    await page.get_by_label("Search conversations").fill("words")
    await expect(page.locator(".list").get_by_role("alert")).to_contain_text("Not now")
    await expect(page.get_by_text("No conversation contains these words")).to_have_count(0)
    forgive_lost_answers(quick_console)


async def test_a_pin_that_does_not_hold_is_said(quick_console: Console) -> None:
    conversation_id = await finished(quick_console.client)
    page = await quick_console.page()
    broken = {"status": 503, "json": {"detail": "Not now"}}
    await page.route(
        f"**/app-conversations/{conversation_id}", lambda route: route.fulfill(**broken)
    )
    row = page.locator(".row-box").first
    await row.hover()
    await row.get_by_title("Pin").click()
    await expect(page.get_by_role("alert")).to_contain_text("Not now")
    await page.get_by_role("button", name="Close").click()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await row.hover()
    await row.get_by_title("Pin").click()
    await expect(page.get_by_role("alert")).to_contain_text("Not now")
    # Elsewhere it would lie over other buttons.
    await page.goto(f"{quick_console.client.base_url}/#/sandboxes")
    await expect(page.get_by_role("alert")).to_have_count(0)
    forgive_lost_answers(quick_console)


async def test_a_text_is_dropped_into_the_message(quick_console: Console) -> None:
    conversation_id = await finished(quick_console.client)
    page = await quick_console.page(f"c/{conversation_id}")
    is_prevented = await page.get_by_label(FIELD).evaluate(
        "(field) => { const dataTransfer = new DataTransfer();"
        " dataTransfer.setData('text/plain', 'words');"
        " return !field.dispatchEvent(new DragEvent('drop',"
        " {dataTransfer, bubbles: true, cancelable: true})); }"
    )
    assert not is_prevented


async def test_a_server_that_ends_within_its_answer_is_asked_again(
    quick_console: Console,
) -> None:
    page = await quick_console.page()
    await page.add_init_script(
        "const { text } = Response.prototype; let isBroken = false;"
        "Response.prototype.text = function () {"
        " if (isBroken || !this.url.endsWith('/settings')) return text.call(this);"
        " isBroken = true; return Promise.reject(new TypeError('network error')); };"
    )
    await page.reload()
    await expect(page.get_by_label("Search conversations")).to_be_visible()
    # What is saved as a file is asked for in another way.
    conversation_id = await finished(quick_console.client)
    await page.goto(f"{quick_console.client.base_url}/#/c/{conversation_id}")
    await page.route("**/download", lambda route: route.abort())
    await page.get_by_role("button", name="Download").click()
    await expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
    forgive_lost_answers(quick_console)


async def test_a_page_that_a_proxy_answered_while_the_server_began_comes_when_it_does(
    quick_console: Console,
) -> None:
    page = await quick_console.page("settings/usage")
    await expect(page.get_by_role("link", name="Attempts")).to_be_visible()
    bad = {"status": 502, "body": "<h1>Bad Gateway</h1>"}
    for path in ("**/api/v1/attempts", "**/users/me/usage"):
        await page.route(path, lambda route: route.fulfill(**bad), times=1)
    await page.reload()
    await expect(page.get_by_role("link", name="Attempts")).to_be_visible()
    await expect(page.get_by_text("Spent today")).to_be_visible()
    forgive_lost_answers(quick_console)


async def test_that_something_failed_is_not_taken_back_by_an_answer_under_way(
    quick_console: Console,
) -> None:
    conversation_id = await finished(quick_console.client)
    page = await quick_console.page(f"c/{conversation_id}")
    await expect(page.locator("article").first).to_be_visible()
    may_answer = await held(page, "**/messages/search*", "GET")
    await page.route("**/alive", lambda route: route.abort())
    await page.route("**/download", lambda route: route.abort())
    async with page.expect_request("**/messages/search*"):
        await page.get_by_label("Search conversations").fill("words")
    await page.get_by_role("button", name="Download").click()
    alert = page.get_by_role("alert").filter(has_text="The server does not answer")
    await expect(alert).to_be_visible()
    async with page.expect_response("**/messages/search*"):
        may_answer.set()
    await page.evaluate("new Promise((resolve) => setTimeout(resolve, 300))")
    await expect(alert).to_be_visible()
    await page.unroute("**/alive")
    await expect(alert).to_be_hidden()
    forgive_lost_answers(quick_console)


async def test_earlier_entries_that_come_late_are_not_those_of_another_question(
    quick_console: Console,
) -> None:
    may_come, given = asyncio.Event(), 0

    async def answer(route: Route) -> None:
        nonlocal given
        query = parse_qs(urlparse(route.request.url).query)
        is_earlier = "page_id" in query
        if is_earlier:
            await may_come.wait()
        found = {**ENTRY, "number": is_earlier, "action": query.get("text", ["any"])[0]}
        await route.fulfill(json={"items": [found], "next_page_id": "earlier"})
        given += is_earlier

    page = await quick_console.page()
    await page.route("**/audit-log?*", answer)
    await page.goto(f"{quick_console.client.base_url}/#/audit")
    entries = page.get_by_role("list", name="Entries").get_by_role("listitem")
    await expect(entries).to_contain_text(["any"])
    await page.get_by_role("button", name="Show earlier ones").click()
    await page.get_by_label("Text").fill("wanted")
    await expect(entries).to_contain_text(["wanted"])
    may_come.set()
    await eventually(lambda: given == 1)
    await expect(page.locator("[aria-busy]")).to_have_count(0)
    await expect(entries).to_have_count(1)
    await expect(entries).to_contain_text(["wanted"])


async def test_a_list_that_is_not_whole_says_so(quick_console: Console) -> None:
    client = quick_console.client
    known = await client.conversation(await finished(client))
    page = await quick_console.page()
    older = page.get_by_text("Older ones are found by searching.")
    await expect(page.locator(".row")).to_have_count(1)
    await expect(older).to_have_count(0)

    async def answer(route: Route) -> None:
        query = parse_qs(urlparse(route.request.url).query)
        first = int(query.get("page_id", ["0"])[0])
        many = [{**known, "id": f"{first + i:032x}"} for i in range(100)]
        await route.fulfill(json={"items": many, "next_page_id": str(first + 100)})

    await page.route("**/app-conversations/search?*", answer)
    await page.reload()
    await expect(older).to_be_visible()

"""The console when something goes wrong, on a server in the test's own process with a fake agent."""

import asyncio
import re
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

from agentsvc.agentserver.responses import CommandResult
from agentsvc.testing.llm import Playbook, call, finish
from tests.live.browser import Console, state_of
from tests.live.console.reports import (
    FIELD,
    command,
    forgive_lost_answers,
    printed,
    report,
    said,
    user_of,
)
from tests.service import Service
from tests.troubles import TroubledAgent, eventually

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest_asyncio.fixture(loop_scope="session")
async def console(quick_console: Console) -> Console:
    return quick_console


async def test_times_are_those_of_the_agent_wherever_the_browser_is(
    browser: Browser, quick: Service
) -> None:
    client = await user_of(quick)
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    # Agents run on UTC, and their times have no zone.
    times = ["2030-01-01T12:00:00", "2030-01-01T12:30:00"]
    messages = [{**said(i, f"Do {i}", "user"), "timestamp": at} for i, at in enumerate(times)]
    await report(client, conversation_id, messages)
    kept = [
        {"id": f"before-{i}", "created_at": f"2030-01-01T{at}:59Z"}
        for i, at in ((1, "12:29"), (0, "11:59"))
    ]
    async with Console.opened(browser, client, timezone_id="America/New_York") as console:
        page = await console.page()
        await page.route("**/checkpoints", lambda route: route.fulfill(json={"items": kept}))
        await page.goto(f"{client.base_url}/#/c/{conversation_id}")
        first = page.locator("article", has_text="Do 0")
        await expect(first.locator("time")).to_have_text("Jan 1, 2030, 7:00 AM")
        await first.hover()
        await first.get_by_role("button", name="Put files back to before this message").click()
        put_back = page.get_by_role("dialog").get_by_role("button", name="Put files back")
        async with page.expect_request("**/rollback") as asked:
            await put_back.click()
        assert (await asked.value).post_data_json == {"checkpoint_id": "before-0"}
    await client.close()


HOSTILE: tuple[dict[str, Any], ...] = (
    {"kind": "MessageEvent", "llm_message": {"role": "assistant", "content": "no list"}},
    {"kind": "ActionEvent", "action": {"kind": "FileEditorAction", "command": "view", "path": 5}},
    {
        "kind": "ActionEvent",
        "tool_call_id": "plan",
        "action": {"kind": "TaskTrackerAction", "command": "plan", "task_list": {"a": 1}},
    },
    {**said(2, "At an odd time"), "timestamp": "20260101T000500"},
)


async def test_an_event_that_cannot_be_shown_leaves_the_rest_of_the_page_alone(
    console: Console,
) -> None:
    client = console.client
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    hostile = [{"id": f"hostile-{i}", **event} for i, event in enumerate(HOSTILE)]
    await report(client, conversation_id, [said(0, "Before it"), *hostile, said(1, "After it")])
    page = await console.page(f"c/{conversation_id}")
    for text in ("Before it", "At an odd time", "After it"):
        await expect(page.locator("article", has_text=text)).to_be_visible()
    await expect(page.get_by_text("This cannot be shown")).to_have_count(2)
    await page.get_by_role("link", name="Settings").click()
    await expect(page.get_by_role("heading", name="Settings")).to_be_visible()


async def test_texts_and_numbers_of_another_form_hide_neither_conversation_nor_terminal(
    console: Console,
) -> None:
    client = console.client
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    odd = printed(1, "")
    odd["observation"]["text"] = 5
    failed = {"id": "e", "kind": "AgentErrorEvent", "tool_call_id": "call-2", "error": {"a": 1}}
    used = {"prompt_tokens": "many", "completion_tokens": 1000}
    spent = {"accumulated_cost": "0.5", "max_budget_per_task": "5", "accumulated_token_usage": used}
    stats = {
        "id": "stats",
        "timestamp": "2099-01-01T00:00:00",
        "kind": "ConversationStateUpdateEvent",
        "key": "stats",
        "value": {"usage_to_metrics": {"agent": spent}},
    }
    events = [
        command(1, "run-first"),
        odd,
        command(2, "run-second"),
        failed,
        stats,
        said(9, "Over"),
    ]
    await report(client, conversation_id, events)
    page = await console.page(f"c/{conversation_id}/terminal")
    for text in ("run-first", "run-second", '{"a":1}'):
        await expect(page.locator(".xterm-accessibility-tree")).to_contain_text(text)
    await expect(page.locator("article", has_text="Over")).to_be_visible()
    await expect(page.locator(".spent")).to_contain_text("· 1.0k tokens")


async def test_what_a_proxy_answers_for_the_server_is_no_refusal(console: Console) -> None:
    client = console.client
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    page = await console.page(f"c/{conversation_id}")
    await expect(page.locator("article").first).to_be_visible()
    keys: list[str | None] = []

    async def give_up(route: Route) -> None:
        keys.append(route.request.headers.get("idempotency-key"))
        await route.fulfill(status=504, body="<h1>Gateway Timeout</h1>")

    await page.route("**/send-message", give_up)
    await page.get_by_label(FIELD).fill("only once")
    await page.get_by_label(FIELD).press("Enter")
    # The server may have taken it, and is told that it is the same one.
    await page.locator(".bubble.failed").get_by_role("button", name="Try again").click()
    await eventually(lambda: len(keys) == 2)
    assert keys == [keys[0]] * 2
    await expect(page.locator(".bubble.failed")).to_be_visible()
    forgive_lost_answers(console)


async def test_a_message_that_was_not_sent_stays_however_far_one_looks_back(
    console: Console,
) -> None:
    client = console.client
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    steps = [said(i, f"Step {i}") for i in range(1, 560)]
    await report(client, conversation_id, [said(0, "go on", "user"), *steps])
    page = await console.page(f"c/{conversation_id}")
    await expect(page.locator("article", has_text="Step 559")).to_be_visible()
    await page.route("**/send-message", lambda route: route.abort(), times=1)
    field = page.get_by_label(FIELD)
    await field.fill("go on")
    await field.press("Enter")
    failed = page.locator(".bubble.failed", has_text="go on")
    await expect(failed).to_have_count(1)
    # Its words were said before, too, which comes in sight now.
    feed = page.get_by_role("feed")
    await feed.focus()
    while not await page.locator("article", has_text=re.compile(r"Step 1(?!\d)")).is_visible():
        await feed.press("Home")
        await asyncio.sleep(0.1)
    await expect(failed).to_have_count(1)
    await failed.get_by_role("button", name="Try again").click()
    await expect(page.locator(".pending")).to_have_count(0)
    forgive_lost_answers(console)


async def test_a_logout_that_the_server_does_not_hear_is_none(console: Console) -> None:
    page = await console.page("new")
    await page.get_by_label("Message").fill("a task to come")
    await page.route("**/logins/current", lambda route: route.abort(), times=1)
    await page.route("**/alive", lambda route: route.abort())
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
    await page.reload()
    await expect(page.get_by_label("Message")).to_have_value("a task to come")
    forgive_lost_answers(console)


async def log_in(page: Page, key: str | None, button: str = "Log in") -> None:
    await page.get_by_label("Your API key").fill(str(key))
    await page.get_by_role("button", name=button).click()


async def test_a_login_leads_to_where_it_was_missing(console: Console) -> None:
    client = console.client
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    page = await console.context.new_page()
    await page.goto(f"{client.base_url}/#/c/{conversation_id}/files")
    await page.wait_for_url("**/login")
    await log_in(page, client.key)
    await expect(page.get_by_role("link", name="Files")).to_have_attribute("aria-current", "page")
    other = await console.context.new_page()
    await other.goto(page.url)
    await expect(other.get_by_role("link", name="Files")).to_be_visible()
    # Whoever has logged out, here or in another tab, begins anew, and may be somebody else.
    await page.get_by_role("button", name="Log out").click()
    for one in (page, other):
        await one.wait_for_url("**/login")
        await expect(one.get_by_role("button", name="Log in")).to_be_visible()
    for one in (page, other):
        await log_in(one, client.key)
        await one.wait_for_url(f"{client.base_url}/")


async def test_after_a_wrong_key_the_right_one_logs_in(console: Console, quick: Service) -> None:
    other = await quick.make_client("bob")
    page = await console.page()
    await page.goto(f"{console.client.base_url}/login")
    await log_in(page, "wrong", "Log in as somebody else")
    await expect(page.get_by_role("alert")).to_be_visible()
    # That has ended the login that there was.
    await expect(page.get_by_text("This browser is logged in")).to_have_count(0)
    await page.get_by_label("Your API key").fill(str(other.key))
    await page.get_by_label("Your API key").press("Enter")
    await expect(page.get_by_title("You are bob")).to_be_visible()


async def test_what_one_user_has_typed_is_not_shown_to_the_next(
    console: Console, quick: Service
) -> None:
    other = await quick.make_client("bob")
    await other.save_settings()
    page = await console.page("new")
    await page.get_by_label("Message").fill("a secret task")
    for login in (await console.client.get("/api/v1/logins")).json():
        await console.client.delete(f"/api/v1/logins/{login['id']}")
    await page.wait_for_url("**/login")
    await log_in(page, other.key)
    await expect(page.get_by_title("You are bob")).to_be_visible()
    await page.goto(f"{console.client.base_url}/#/new")
    await expect(page.get_by_label("Message")).to_have_value("")
    assert "a secret task" not in await page.evaluate("Object.values(localStorage).join()")


async def test_a_copy_is_one_also_on_an_origin_that_is_not_secure(console: Console) -> None:
    await console.context.grant_permissions(["clipboard-read"])
    await console.context.add_init_script(
        # An empty page, where each page begins, has none.
        "if (navigator.clipboard) {"
        "window.readCopied = navigator.clipboard.readText.bind(navigator.clipboard);"
        "delete Navigator.prototype.clipboard; }"
    )
    page = await console.page("settings/keys")
    await page.get_by_label("Name of the key").fill("mine")
    await page.get_by_role("button", name="Create a key").click()
    shown = page.locator(".success")
    key = await shown.locator("code").inner_text()
    await shown.get_by_role("button", name="Copy").click()
    await expect(shown.get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("readCopied()") == key
    await page.evaluate("document.execCommand = () => false")
    await expect(shown.get_by_role("button", name="Copy")).to_be_visible()
    await shown.get_by_role("button", name="Copy").click()
    await expect(shown.get_by_role("button", name="Not copied")).to_be_visible()


async def test_what_is_chosen_is_the_same_in_each_language(
    browser: Browser, quick: Service
) -> None:
    client = await user_of(quick)
    async with Console.opened(browser, client, locale="de-DE") as console:
        page = await console.context.new_page()
        await page.goto(f"{client.base_url}/login")
        await page.get_by_label("Ihr API-Schlüssel").fill(str(client.key))
        await page.get_by_role("button", name="Anmelden").click()
        await page.wait_for_url(lambda url: not url.endswith("/login"))
        await page.goto(f"{client.base_url}/#/settings/agent")
        asked = page.get_by_label("Nach welchen Aktionen gefragt wird")
        last = asked.get_by_text("ohne Bewertung")
        await asked.select_option(label=await last.inner_text())
        await page.get_by_role("button", name="Speichern").first.click()
        await expect(page.get_by_text("Gespeichert", exact=True)).to_be_visible()
    assert (await client.get("/api/v1/settings")).json()["security_analyzer"] == "none"
    await client.close()


async def test_a_key_that_is_held_down_confirms_one_step(console: Console) -> None:
    client = console.client
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    waits = {
        "id": "waits",
        "timestamp": "2099-01-01T00:00:00",
        "kind": "ConversationStateUpdateEvent",
        "key": "execution_status",
        "value": "waiting_for_confirmation",
    }
    await report(client, conversation_id, [command(1, "rm -r build"), waits])
    page = await console.page(f"c/{conversation_id}")
    button = page.get_by_role("button", name="Confirm")
    answered = []

    async def answer(route: Route) -> None:
        answered.append(route.request.post_data_json)
        await route.fulfill(json={"success": True})

    await page.route("**/respond_to_confirmation", answer)
    await expect(button).to_be_visible()
    await page.keyboard.down("a")
    await eventually(lambda: len(answered) == 1)
    await expect(button).to_be_enabled()
    await page.keyboard.down("a")
    await page.keyboard.up("a")
    await page.keyboard.press("a")
    await eventually(lambda: len(answered) > 1)
    assert answered == [{"accept": True}] * 2


ATTEMPT = {
    "number": 1,
    "status": "running",
    "detail": None,
    "conversation_id": "a" * 32,
    "model": "openai/scripted",
    "files": None,
    "test_exit_code": None,
    "duration_seconds": None,
    "cost": None,
}
TASK = {
    "id": "b" * 32,
    "name": "The task",
    "created_at": "2026-01-01T00:00:00Z",
    "cost": 0,
    "budget": None,
    "is_over_budget": False,
    "chosen": None,
    "attempts": [ATTEMPT],
}


@pytest.mark.parametrize("lost", [range(1, 4), range(8, 9)])
async def test_a_list_that_the_server_did_not_answer_comes_when_it_does(
    console: Console, lost: range
) -> None:
    asked = 0

    async def answer(route: Route) -> None:
        nonlocal asked
        asked += 1
        await (route.abort() if asked in lost else route.fulfill(json={"items": [TASK]}))

    page = await console.page()
    await page.route("**/api/v1/attempts", answer)
    await page.goto(f"{console.client.base_url}/#/attempts")
    await page.reload()
    await eventually(lambda: asked > lost.stop)
    await expect(page.get_by_role("link", name="Attempts")).to_be_visible()
    await expect(page.get_by_role("heading", name="The task")).to_be_visible()
    forgive_lost_answers(console)


async def test_a_list_that_takes_longer_than_the_time_between_two_looks_comes(
    console: Console,
) -> None:
    async def answer(route: Route) -> None:
        if route.request.method == "GET":
            await asyncio.sleep(2.5)
        await route.fulfill(json={"items": [TASK]})

    page = await console.page()
    await page.route("**/api/v1/attempts", answer)
    await page.goto(f"{console.client.base_url}/#/attempts")
    await expect(page.get_by_role("heading", name="The task")).to_be_visible()
    await page.get_by_text("Give a task to several agents").click()
    await page.get_by_label("Task", exact=True).fill("another task")
    begin = page.get_by_role("button", name="Begin")
    async with page.expect_response(lambda answer: answer.request.method == "POST"):
        await begin.click()
    await expect(begin).to_be_disabled()
    await expect(begin).to_be_enabled()
    await page.close()


async def test_the_terminal_shows_what_each_of_several_commands_at_once_has_printed(
    console: Console,
) -> None:
    client = console.client
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    page = await console.page(f"c/{conversation_id}/terminal")
    shown = page.locator(".xterm-accessibility-tree")
    await report(client, conversation_id, [command(1, "run-first"), command(2, "run-second")])
    await expect(shown).to_contain_text("run-second")
    for number, text in ((1, "out-of-first"), (2, "out-of-second")):
        await report(client, conversation_id, [printed(number, text)])
        await expect(shown).to_contain_text(text)
    # Each is below its own command.
    lines = ["run-first", "run-second", "run-first", "out-of-first", "run-second", "out-of-second"]
    text = await shown.inner_text()
    assert [one for one in text.split() if one in lines] == lines


async def test_a_message_that_has_come_is_not_shown_again_by_a_late_answer(
    console: Console, agent: TroubledAgent
) -> None:
    done = CommandResult(exit_code=0, stdout="", stderr="")
    agent.on_command("^slow", done, seconds=60)
    agent.playbook = Playbook([call("terminal", command="slow"), finish("done")])
    client = console.client
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "running")
    page = await console.page(f"c/{conversation_id}")
    await expect(state_of(page)).to_have_text("Working")
    may_come, seen = asyncio.Event(), 0

    async def hold(route: Route) -> None:
        nonlocal seen
        answer = await route.fetch()
        seen += "to come" in await answer.text()
        await may_come.wait()
        await route.fulfill(response=answer)

    await page.route("**/pending-messages", hold)
    path = f"/api/v1/conversations/{conversation_id}/pending-messages"
    body = {"role": "user", "content": [{"type": "text", "text": "to come"}]}
    queued = await client.post(path, json=body)
    assert queued.status in (200, 201), queued.text
    await eventually(lambda: seen > 0)
    await expect(state_of(page)).to_have_text("Queued")
    await page.get_by_role("button", name="Interrupt").click()
    await expect(page.locator(".bubble.user:not(.pending)", has_text="to come")).to_be_visible()
    await expect(state_of(page)).not_to_have_text("Queued")
    async with page.expect_response("**/pending-messages"):
        may_come.set()
    await page.evaluate("new Promise((resolve) => setTimeout(resolve, 200))")
    await expect(page.locator(".pending")).to_have_count(0)


async def test_what_one_tab_has_sent_is_not_left_in_another_to_be_sent_again(
    console: Console,
) -> None:
    conversation_id = await console.client.start_conversation()
    await console.client.wait_for_execution(conversation_id, "finished")
    first = await console.page(f"c/{conversation_id}")
    await first.get_by_label(FIELD).fill("only once")
    same, own = [await console.page(f"c/{conversation_id}") for _ in range(2)]
    await expect(same.get_by_label(FIELD)).to_have_value("only once")
    await own.get_by_label(FIELD).fill("only once, and mine")
    await first.get_by_label(FIELD).fill("only once")
    await first.get_by_label(FIELD).type("!")
    await expect(same.get_by_label(FIELD)).to_have_value("only once")
    await same.reload()
    await expect(same.get_by_label(FIELD)).to_have_value("only once!")
    await first.get_by_label(FIELD).press("Enter")
    await expect(same.get_by_label(FIELD)).to_have_value("")
    await expect(own.get_by_label(FIELD)).to_have_value("only once, and mine")
    await expect(first.locator(".bubble.user", has_text="only once!")).to_have_count(1)
    await first.get_by_label(FIELD).fill("of the first")
    await own.get_by_label(FIELD).fill("typed last")
    await first.get_by_label(FIELD).press("Enter")
    await expect(same.locator(".bubble.user", has_text="of the first")).to_have_count(1)
    await expect(own.get_by_label(FIELD)).to_have_value("typed last")
    await own.reload()
    await expect(own.get_by_label(FIELD)).to_have_value("typed last")

"""Messages in the console, from the composer to the agent: a real browser, real agents, a scripted model."""

import asyncio
import re

import pytest
from playwright.async_api import Browser, Page, Route, WebSocketRoute, expect

from agentsvc.base.values import new_id
from tests.live.browser import Console, picture, serious, state_of
from tests.live.client import LiveClient
from tests.live.console.users import new_user, usual_settings
from tests.live.installation import Installation
from tests.live.scripts import BUSY, WORDS, run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(480),
    pytest.mark.asyncio(loop_scope="session"),
]

FIELD = "Message to the agent"
MANY_TABS = 8


async def opened(console: Console, text: str = "[script:say]") -> tuple[Page, str]:
    """Return a page that shows a new conversation, and the conversation's id."""
    conversation_id = await console.client.start_conversation(text)
    return await console.page(f"c/{conversation_id}"), conversation_id


def forgive_lost_answers(console: Console) -> None:
    """Leave out that answers did not come, where that was the test's doing."""
    console.problems[:] = [one for one in console.problems if "net::ERR_FAILED" not in one]


async def sent(client: LiveClient, conversation_id: str, text: str) -> int:
    """Return how many messages of the user with this text a conversation has."""
    events = await client.events(conversation_id)
    said = [one for one in events if one["kind"] == "MessageEvent" and one["source"] == "user"]
    return sum(text in str(one["llm_message"]) for one in said)


async def test_a_message_is_shown_at_once_and_sent_once_while_the_agent_works(
    console: Console,
) -> None:
    page, conversation_id = await opened(console, run(BUSY))
    await expect(page.locator(".fold-head", has_text=BUSY)).to_be_visible()
    is_shown = asyncio.Event()

    async def send_when_shown(route: Route) -> None:
        await is_shown.wait()
        await route.continue_()

    await page.route("**/send-message", send_when_shown, times=1)
    field = page.get_by_label(FIELD)
    await field.fill("and then this")
    await field.press("Enter")
    await expect(field).to_have_value("")
    pending = page.locator(".bubble.pending", has_text="and then this")
    await expect(pending).to_be_visible()
    is_shown.set()
    await expect(pending.get_by_role("status")).to_have_text(re.compile("Queued|Delivered"))
    # What is behind it waits on the server, and is taken back.
    for text in ("never this", "one more thing"):
        await field.fill(text)
        await field.press("Enter")
    never = page.locator(".bubble.pending", has_text="never this")
    more = page.locator(".bubble.pending", has_text="one more thing")
    await expect(more.get_by_role("button", name="Edit")).to_be_visible()
    await picture(page, "message-queued")
    await never.get_by_role("button", name="Cancel").click()
    await expect(never).to_have_count(0)
    await more.get_by_role("button", name="Edit").click()
    await expect(field).to_have_value("one more thing")
    await expect(more).to_have_count(0)
    await field.fill("typed meanwhile")
    await field.evaluate("(one) => one.setSelectionRange(0, 0)")
    await page.get_by_role("button", name="Interrupt").click()
    await expect(page.locator(".bubble.user", has_text="and then this")).to_have_count(1)
    await expect(pending).to_have_count(0)
    await expect(field).to_have_value("typed meanwhile")
    assert await sent(console.client, conversation_id, "and then this") == 1
    assert await sent(console.client, conversation_id, "never this") == 0


async def test_a_message_that_nobody_answered_is_tried_again_and_is_there_once(
    console: Console, shared: Installation
) -> None:
    # The agent has the message when its tool is done, so the page cannot see before that it arrived.
    go = f"go-{new_id()}"
    page, conversation_id = await opened(
        console, run(f"until [ -e ~/{go} ]; do sleep 1; echo .; done")
    )
    await expect(page.locator(".fold-head", has_text="until")).to_be_visible()

    async def answer_is_lost(route: Route) -> None:
        await route.fetch()
        await route.abort()

    await page.route("**/send-message", answer_is_lost, times=1)
    field = page.get_by_label(FIELD)
    await field.fill("once [script:say]")
    await field.press("Enter")
    failed = page.locator(".bubble.failed", has_text="once")
    await failed.get_by_role("button", name="Try again").click()
    await expect(failed).to_have_count(0)
    sandbox_id = (await console.client.conversation(conversation_id))["sandbox_id"]
    (shared.sandbox_dir(sandbox_id) / "home" / go).touch()
    await expect(page.locator(".bubble.user:not(.pending)", has_text="once")).to_be_visible()
    await expect(page.locator(".bubble.pending")).to_have_count(0)
    await expect(page.locator(".bubble.agent", has_text="Hello.")).to_have_count(1)
    assert await sent(console.client, conversation_id, "once") == 1
    forgive_lost_answers(console)


async def test_a_start_that_is_asked_for_twice_is_one(
    browser: Browser, shared: Installation
) -> None:
    client = await new_user(shared)
    await usual_settings(client)
    async with Console.opened(browser, client) as console:
        page = await console.page("new")
        field = page.get_by_label("Message")
        await field.fill("[script:say]")
        await field.evaluate(
            """(one) => { for (let i = 0; i < 3; i += 1) one.dispatchEvent(
                new KeyboardEvent('keydown', {key: 'Enter', ctrlKey: true, bubbles: true})); }"""
        )
        await expect(page.locator(".bubble.agent", has_text="Hello.")).to_be_visible()
        found = (await client.get("/api/v1/app-conversations/start-tasks/search")).json()
        assert len(found["items"]) == 1


async def test_a_message_wakes_a_paused_sandbox(browser: Browser, shared: Installation) -> None:
    client = await new_user(shared)
    await usual_settings(client)
    async with Console.opened(browser, client) as console:
        page, conversation_id = await opened(console)
        await expect(state_of(page)).to_have_text("Finished")
        seen = (await client.get(f"/api/v1/app-conversations?ids={conversation_id}")).json()[0]
        answer = await client.post(f"/api/v1/sandboxes/{seen['sandbox_id']}/pause")
        assert answer.status == 200, answer.text
        await expect(page.get_by_text("The sandbox is paused.")).to_be_visible()
        field = page.get_by_label(FIELD)
        await field.fill("[script:say] wake up")
        await field.press("Enter")
        await expect(page.locator(".bubble.pending", has_text="wake up")).to_be_visible()
        await expect(page.locator(".bubble.agent", has_text="Hello.").nth(1)).to_be_visible()
        await expect(state_of(page)).to_have_text("Finished")
        assert await sent(client, conversation_id, "wake up") == 1
        await expect(page.locator(".bubble.agent", has_text="Hello.")).to_have_count(2)


async def test_the_words_of_the_model_are_shown_as_they_come(console: Console) -> None:
    page, _ = await opened(console)
    await expect(state_of(page)).to_have_text("Finished")
    field = page.get_by_label(FIELD)
    await field.fill("[script:slowly]")
    await field.press("Enter")
    draft = page.locator(".bubble.draft")
    await expect(draft.get_by_text("word-3", exact=False)).to_be_visible()
    await expect(draft.get_by_text("word-59")).to_have_count(0)
    await picture(page, "streaming")
    await expect(page.locator(".bubble.agent:not(.draft)", has_text=WORDS)).to_be_visible()
    await expect(draft).to_have_count(0)


async def test_numbered_lists_begin_where_they_are_said_to(console: Console) -> None:
    page, _ = await opened(console, "[script:lists]")
    lists = page.locator(".bubble.agent ol")
    await expect(lists).to_have_count(2)
    assert await lists.evaluate_all("(all) => all.map((one) => one.start)") == [1, 7]


async def test_after_a_rejection_the_page_says_what_to_do(console: Console) -> None:
    await usual_settings(console.client, confirmation_mode=True, security_analyzer="none")
    page, _ = await opened(console, run("echo never-$((1 + 1))", "echo then-$((1 + 2))"))
    await page.get_by_role("button", name="Reject").click()
    await expect(page.get_by_text("You rejected this step")).to_be_visible()
    await expect(page.get_by_label(FIELD)).to_be_focused()
    assert await serious(page) == []
    await picture(page, "rejected")
    await page.get_by_role("button", name="Continue without it").click()
    confirmation = page.get_by_role("region", name="Confirmation")
    await expect(confirmation.get_by_text("echo then-")).to_be_visible()


async def test_many_tabs_of_one_browser_all_show_what_happens(console: Console) -> None:
    sockets: list[WebSocketRoute] = []

    def heed(socket: WebSocketRoute) -> None:
        socket.connect_to_server()
        sockets.append(socket)

    await console.context.route_web_socket(re.compile("/events/stream"), heed)
    first, conversation_id = await opened(console)
    others = [await console.page(f"c/{conversation_id}") for _ in range(MANY_TABS - 1)]
    pages = [first, *others]
    for page in pages:
        await expect(page.locator(".bubble.agent", has_text="Hello.")).to_be_visible()
    # The first one has the connection of all, and is asked for it when it sleeps, as tabs do that
    # nobody sees; another takes its place.
    assert len(sockets) == 1, sockets
    await first.evaluate("window.setTimeout = () => 0")
    await sockets[0].close()
    await console.client.send(conversation_id, "[script:say] once more")
    for page in others:
        await expect(page.locator(".bubble.agent", has_text="Hello.")).to_have_count(2)
    assert len(sockets) == 2, sockets
    await first.close()
    await console.client.patch(
        f"/api/v1/app-conversations/{conversation_id}", json={"title": "A title of its own"}
    )
    for page in others:
        await expect(page.get_by_role("heading", name="A title of its own")).to_be_visible()
    assert len(sockets) == 3, sockets


TYPE = """(field, text) => {
  field.value = text;
  field.dispatchEvent(new Event('input', {bubbles: true}));
  return Promise.resolve().then(() => Object.values(localStorage).join());
}"""
"""Types, and returns what the browser keeps before it shows anything, as the page may be gone by then."""


async def test_what_is_typed_is_kept_over_other_pages_and_reloads(console: Console) -> None:
    page, _ = await opened(console)
    assert "not yet sent" in await page.get_by_label(FIELD).evaluate(TYPE, "not yet sent")
    await page.get_by_role("link", name="Files", exact=True).click()
    await page.get_by_role("link", name="Conversation", exact=True).click()
    await expect(page.get_by_label(FIELD)).to_have_value("not yet sent")
    await page.reload()
    await expect(page.get_by_label(FIELD)).to_have_value("not yet sent")
    await page.goto(f"{console.client.base_url}/#/new")
    assert "a task to come" in await page.get_by_label("Message").evaluate(TYPE, "a task to come")
    await page.reload()
    await expect(page.get_by_label("Message")).to_have_value("a task to come")
    await page.get_by_role("button", name="Log out").click()
    await expect(page).to_have_url(re.compile("/login$"))
    await expect(page.get_by_label("Your API key")).to_be_visible()
    left = await page.evaluate("Object.values(localStorage).join()")
    assert "not yet sent" not in left
    assert "a task to come" not in left
    # The next test logs in anew.
    await console.context.clear_cookies()


async def test_that_the_server_does_not_answer_is_shown_until_it_does(console: Console) -> None:
    page, _ = await opened(console, run(BUSY))
    await expect(page.get_by_role("button", name="Pause")).to_be_visible()
    await page.route("**/pause", lambda route: route.abort(), times=1)
    await page.route("**/alive", lambda route: route.abort(), times=1)
    await page.get_by_role("button", name="Pause").click()
    alert = page.get_by_role("alert").filter(has_text="The server does not answer")
    await expect(alert).to_be_visible()
    await expect(alert).to_be_hidden()
    await page.get_by_role("button", name="Interrupt").click()
    await expect(state_of(page)).to_have_text("Paused")
    forgive_lost_answers(console)


async def test_that_the_model_refuses_is_shown_while_it_is_asked_again(
    console: Console, shared: Installation
) -> None:
    page, conversation_id = await opened(console)
    await expect(state_of(page)).to_have_text("Finished")
    # Whoever asks next is refused, which the question for a title would be, too.
    await console.client.wait_for_conversation(
        conversation_id, lambda seen: not seen["title"].startswith("Conversation ")
    )
    shared.model.fail_next(429)
    field = page.get_by_label(FIELD)
    await field.fill("[script:say] again")
    await field.press("Enter")
    refused = "overloaded, or its limit is reached (429). Try 2 of 5 in 8 s."
    await expect(page.get_by_text(refused)).to_be_visible()
    await picture(page, "model-refuses")
    await expect(page.locator(".bubble.agent", has_text="Hello.")).to_have_count(2)

"""Conversations in the console: a real browser, real agents and a scripted model."""

import re
from collections.abc import Callable
from io import BytesIO
from typing import Any

import msgspec
import pytest
from playwright.async_api import Browser, Locator, Page, expect

from agentsvc.base.values import monotonic, new_id
from tests.live.browser import Console, picture, serious, state_of, the_end
from tests.live.client import PATIENCE
from tests.live.console.users import new_user, usual_settings
from tests.live.installation import Installation
from tests.live.scripts import BUSY, run

pytestmark = [
    pytest.mark.live,
    # Whichever is the first has the server, its first sandbox and the browser started.
    pytest.mark.timeout(480),
    pytest.mark.asyncio(loop_scope="session"),
]

MANY = 10_000
MAX_STOPS = 100
IS_MARKED = """(one) => getComputedStyle(one).outlineStyle !== 'none'
  || getComputedStyle(one.closest('.composer') ?? one).boxShadow !== 'none'"""


async def test_from_the_first_run_to_a_finished_conversation(
    browser: Browser, shared: Installation
) -> None:
    client = await new_user(shared)
    async with Console.opened(browser, client) as console:
        page = await console.page()
        await page.wait_for_url("**/#/setup")
        await page.get_by_label("Model", exact=True).fill("bedrock/some")
        await page.get_by_role("button", name="Save and test").click()
        await expect(page.get_by_text("`bedrock` cannot be tested here")).to_be_visible()
        await page.get_by_label("Model", exact=True).fill("openai/scripted")
        await page.get_by_label("API key").fill("not-the-key")
        await page.get_by_label("Base URL").fill(shared.model.url)
        await page.get_by_role("button", name="Save and test").click()
        await expect(page.get_by_text("The provider does not accept the key")).to_be_visible()
        await picture(page, "first-run-failed")
        await page.get_by_label("API key").fill(shared.model.key.reveal())
        await page.get_by_role("button", name="Save and test").click()
        await expect(page.get_by_text("The model answers.")).to_be_visible()
        await picture(page, "first-run")

        await page.get_by_role("link", name="Start a conversation").click()
        await page.get_by_label("Message").fill(run("echo from page $((6 * 7))"))
        await page.get_by_role("button", name="Start").click()
        await expect(page.get_by_text("Start the sandbox").first).to_be_visible()
        # Its sandbox may be the first of all, which takes longest.
        await expect(the_end(page)).to_be_visible(timeout=2 * PATIENCE * 1000)
        await expect(state_of(page)).to_have_text("Finished")
        call = page.locator(".fold-head").filter(has_text="echo from")
        await expect(call).to_have_attribute("aria-expanded", "false")
        await call.press("Enter")
        await expect(page.locator(".output", has_text="from page 42")).to_be_visible()
        assert await serious(page) == []
        await picture(page, "conversation")
        # A test of the model leaves nothing behind.
        found = (await client.get("/api/v1/app-conversations/search")).json()
        assert len(found["items"]) == 1


async def start(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Start").click()


async def test_what_is_asked_can_be_confirmed_and_rejected(console: Console) -> None:
    await usual_settings(console.client, confirmation_mode=True, security_analyzer="none")
    page = await console.page("new")
    await start(page, run("echo yes-$((20 + 1))", "echo no-$((20 + 2))"))
    confirmation = page.get_by_role("region", name="Confirmation")
    await expect(confirmation.get_by_text("echo yes-")).to_be_visible()
    await expect(state_of(page)).to_have_text("Needs you")
    assert await serious(page) == []
    await picture(page, "confirmation")
    await confirmation.get_by_role("button", name="Confirm").click()
    await expect(confirmation.get_by_text("echo no-")).to_be_visible()
    await confirmation.get_by_label("Reason, if you reject").fill("not that one")
    await confirmation.get_by_role("button", name="Reject").click()
    rejected = page.locator(".fold.rejected")
    await expect(rejected).to_contain_text("echo no-")
    await rejected.get_by_role("button").click()
    await expect(page.get_by_text("not that one")).to_be_visible()
    await page.locator(".fold-head").filter(has_text="echo yes-").click()
    await expect(page.locator(".output", has_text="yes-21")).to_be_visible()


async def test_a_start_that_fails_says_why_and_can_be_tried_again(console: Console) -> None:
    await usual_settings(console.client, llm_api_key="not-the-key")
    page = await console.page("new")
    await start(page, run("true"))
    await expect(page.get_by_role("heading", name="The start failed")).to_be_visible()
    await expect(page.get_by_role("alert")).to_contain_text("Check `llm_api_key` in the settings")
    assert await serious(page) == []
    await picture(page, "failed-start")
    await usual_settings(console.client)
    await page.get_by_role("button", name="Try again").click()
    await expect(page.get_by_label("Message")).to_have_value(run("true"))
    await page.get_by_role("button", name="Start").click()
    await expect(the_end(page)).to_be_visible()


async def test_a_conversation_is_interrupted_and_goes_on_and_its_sandbox_sleeps_and_wakes(
    own_console: Console,
) -> None:
    page = await own_console.page("new")
    await start(page, run(BUSY, "echo went-$((8 + 1))"))
    # Its sandbox may be the first of all, which takes longest.
    await expect(page.locator(".fold-head").filter(has_text=BUSY)).to_be_visible(
        timeout=2 * PATIENCE * 1000
    )
    await page.get_by_role("button", name="Interrupt").click()
    await expect(state_of(page)).to_have_text("Paused")
    # So the agent server answers as long as what was interrupted has not ended.
    refuse = {"status": 409, "json": {"detail": "Conversation is already running"}}
    await page.route("**/run", lambda route: route.fulfill(**refuse), times=2)
    await page.get_by_role("button", name="Resume").click()
    await expect(the_end(page)).to_be_visible()
    await expect(page.locator(".fold-head").filter(has_text="echo went-")).to_be_visible()
    address = page.url

    await page.get_by_role("link", name="Sandboxes").click()
    card = page.locator("li.card", has=page.get_by_role("button", name="Delete")).first
    await expect(card.get_by_text("Memory", exact=True)).to_be_visible()
    await expect(card.get_by_text("CPU time", exact=True)).to_be_visible()
    inside = card.get_by_role("list", name="Conversations in it")
    await expect(inside.locator(f"a[href='#{address.partition('#')[2]}']")).to_be_visible()
    await card.get_by_role("button", name="Log", exact=True).click()
    await expect(card.get_by_label("Log", exact=True)).to_contain_text("INFO")
    assert await serious(page) == []
    await picture(page, "sandbox")
    await card.get_by_role("button", name="Pause").click()
    await expect(card.get_by_text("Paused", exact=True)).to_be_visible()
    await page.goto(address)
    await expect(state_of(page)).to_have_text("Asleep")
    await expect(page.locator(".row[aria-current] .pill")).to_have_text("Asleep")
    await picture(page, "asleep")
    await page.get_by_role("button", name="Resume the sandbox").click()
    await expect(page.get_by_text("The sandbox is paused.")).to_be_hidden()
    await page.goto(f"{address}/files")
    await expect(page.get_by_role("heading", name="workspace")).to_be_visible()
    await expect(page.get_by_text("The sandbox does not run")).to_be_hidden()


STATES = """async ([script, states]) => {
    const { Timeline } = await import(script);
    const timeline = new Timeline();
    states.forEach((state, i) => timeline.add({ id: `${i}`, kind: "ConversationStateUpdateEvent", ...state }));
    return [timeline.run, timeline.cost];
}"""


async def test_a_state_that_is_told_late_is_no_news(console: Console) -> None:
    page = await console.page()
    script = await page.locator("script[type=module]").first.evaluate(
        "(one) => new URL('timeline.js', one.src).href"
    )

    def state(time: str, status: str, cost: float) -> dict[str, Any]:
        usage = {"usage_to_metrics": {"agent": {"accumulated_cost": cost}}}
        value = {"execution_status": status, "stats": usage}
        return {"timestamp": f"2026-01-01T00:00:0{time}", "key": "full_state", "value": value}

    running = {"timestamp": "2026-01-01T00:00:02", "key": "execution_status", "value": "running"}
    states = [state("1", "idle", 0.5), running, state("0", "paused", 0.25)]
    assert await page.evaluate(STATES, [script, states]) == ["running", 0.5]
    states.append(state("3", "finished", 0.75))
    assert await page.evaluate(STATES, [script, states]) == ["finished", 0.75]


REFUSALS = """async ([script, llm]) => {
    const { Timeline } = await import(script);
    const timeline = new Timeline();
    const tell = (id, key, value) => timeline.add({ id, timestamp: id, kind: "ConversationStateUpdateEvent", key, value });
    tell("0", "full_state", { agent: { llm } });
    return ["1", "2", "3"].map((id) => {
        tell(id, "model_refusal", { status: 503, message: "" });
        return timeline.items.map((item) => item.text.split(" (503). ")[1]).join();
    });
}"""


async def test_when_the_model_is_asked_again_follows_the_settings(console: Console) -> None:
    page = await console.page()
    script = await page.locator("script[type=module]").first.evaluate(
        "(one) => new URL('timeline.js', one.src).href"
    )
    retries = {"num_retries": 3, "retry_multiplier": 2, "retry_min_wait": 1, "retry_max_wait": 3}
    told = await page.evaluate(REFUSALS, [script, retries])
    assert told == ["Try 2 of 3 in 2 s.", "Try 3 of 3 in 3 s.", "That was the last attempt."]


WORDS = """async ([script, told]) => {
    const { conversationState } = await import(script);
    return told.map(([facts, run]) => conversationState(facts, run)[0]);
}"""

SHOWN = """async ([script, event]) => {
    const { Timeline } = await import(script);
    const timeline = new Timeline();
    timeline.draft = "so far";
    timeline.add(event);
    const [{ title, text }] = timeline.items;
    return [title, text, timeline.draft];
}"""


async def test_a_message_that_waits_is_queued_and_what_the_agent_lacks_is_told(
    console: Console,
) -> None:
    page = await console.page()
    scripts = [
        await page.locator("script[type=module]").first.evaluate(
            f"(one) => new URL('{name}', one.src).href"
        )
        for name in ("format.js", "timeline.js")
    ]
    up = {"sandbox_status": "RUNNING", "queued_messages": 1}
    told = [
        [up, "idle"],
        [{**up, "sandbox_status": "STARTING"}, None],
        [{**up, "queued_messages": 0}, "idle"],
        [{**up, "sandbox_status": "PAUSED"}, "idle"],
        [up, "waiting_for_confirmation"],
    ]
    words = await page.evaluate(WORDS, [scripts[0], told])
    assert words == ["Queued", "Queued", "Idle", "Asleep", "Needs you"]
    event = {
        "id": "1",
        "timestamp": "2026-01-01T00:00:00",
        "kind": "ConversationErrorEvent",
        "code": "ToolServerFailed",
        "detail": "The tool server `x` does not start\nThe last lines of the program:\nno key",
    }
    shown = await page.evaluate(SHOWN, [scripts[1], event])
    assert shown == ["A tool server does not start", event["detail"], "so far"]


async def reach(page: Page, wanted: Locator) -> None:
    """Move on with the tabulator until something has the focus, and is seen to have it."""
    await expect(wanted).to_be_visible()
    for _ in range(MAX_STOPS):
        await page.keyboard.press("Tab")
        if await wanted.evaluate("(one) => one === document.activeElement"):
            assert await wanted.evaluate(IS_MARKED)
            return
    raise AssertionError(f"the keyboard does not come to {wanted}")


async def test_a_conversation_is_had_with_the_keyboard_alone(console: Console) -> None:
    page = await console.page("new")
    await reach(page, page.get_by_label("Message"))
    await page.keyboard.insert_text(run("echo by-hand-$((8 + 1))"))
    await reach(page, page.get_by_role("button", name="Start"))
    await page.keyboard.press("Enter")
    await expect(the_end(page)).to_be_visible()
    await reach(page, page.locator(".fold-head").filter(has_text="by-hand"))
    await page.keyboard.press("Enter")
    await expect(page.locator(".output", has_text="by-hand-9")).to_be_visible()
    await reach(page, page.get_by_label("Message to the agent"))
    await page.keyboard.insert_text("[script:say]")
    await page.keyboard.press("Enter")
    await expect(page.locator(".bubble.agent", has_text="Hello.")).to_be_visible()
    await reach(page, page.get_by_role("link", name="Sandboxes"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Sandboxes", exact=True)).to_be_visible()


async def test_two_tabs_and_a_reload_in_the_middle_see_the_same(console: Console) -> None:
    first = await console.page("new")
    await start(first, run(*(f"sleep 0.4; echo step-{i}-$((i + 1))" for i in range(6))))
    await expect(first.locator(".fold-head").filter(has_text="step-1")).to_be_visible()
    second = await console.page(first.url.partition("#/")[2])
    await first.reload()
    for page in (first, second):
        await expect(the_end(page)).to_have_count(1)
        await page.locator(".fold-head").filter(has_text="Ran 6 commands").click()
        for i in range(6):
            await expect(page.locator(".fold-head").filter(has_text=f"step-{i}-")).to_have_count(1)
        await expect(state_of(page)).to_have_text("Finished")
    await second.get_by_label("Message to the agent").fill("[script:say]")
    await second.get_by_role("button", name="Send", exact=True).click()
    for page in (first, second):
        await expect(page.locator(".bubble.agent", has_text="Hello.")).to_have_count(1)


async def test_files_and_changes_of_the_workspace_are_shown(console: Console) -> None:
    page = await console.page("new")
    await start(page, run("mkdir -p sub && echo first >sub/new.txt && git status --short"))
    await expect(the_end(page)).to_be_visible()
    await page.get_by_role("link", name="Changes").click()
    files = page.locator(".files")
    await files.get_by_role("button", name="new.txt").click()
    await expect(page.locator(".diff-line.added", has_text="first")).to_be_visible()
    assert await serious(page) == []
    await picture(page, "changes")
    await page.get_by_role("link", name="Files", exact=True).click()
    await files.get_by_role("button", name="sub").click()
    await files.get_by_role("button", name="new.txt").click()
    await expect(page.locator(".output", has_text="first")).to_be_visible()
    await page.get_by_role("link", name="Terminal").click()
    agents = page.get_by_role("group", name="The agent's commands").locator(".xterm-rows")
    await expect(agents).to_contain_text("$ mkdir -p sub")
    await expect(agents).to_contain_text("?? sub/")
    assert await serious(page) == []
    await picture(page, "terminal")
    await page.get_by_role("button", name="Your shell").click()
    shell = page.get_by_role("group", name="Your shell")
    await expect(shell.locator(".xterm-rows")).to_contain_text(re.compile(r"[$#]"))
    await page.keyboard.type("test -t 0 && echo on-$((40 + 2)); cat sub/new.txt; tput cols\n")
    await expect(shell.locator(".xterm-rows")).to_contain_text("on-42")
    await expect(shell.locator(".xterm-rows")).to_contain_text("first")
    await page.keyboard.type("printf '\\033[31mred\\033[0m\\n'; top -b -n 1 | head -3\n")
    await expect(shell.locator(".xterm-rows .xterm-fg-1", has_text="red")).to_be_visible()
    await page.keyboard.type("exit\n")
    await expect(page.get_by_text("The shell has ended.")).to_be_visible()
    assert await serious(page) == []
    await picture(page, "shell")
    await page.get_by_role("link", name="Ports").click()
    await expect(page.get_by_role("link", name="Worker 1")).to_be_visible()


HOSTILE = """<img src=x onerror="document.title='harmed'"><script>document.title='harmed'</script>

[first](javascript:document.title='harmed') [second](data:text/html,x) **[third](https://example.org/)**

```html
<b>code</b>
```"""


def made_up(number: int) -> dict[str, Any]:
    """Return one of many events, as an agent server writes them."""
    text = f"Message {number}\n\n" + "A line with `code` in it.\n" * (number % 7)
    text = HOSTILE if number == MANY - 1 else text
    return {
        "kind": "MessageEvent",
        "id": new_id(),
        "timestamp": f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}.000",
        "source": "agent" if number % 2 else "user",
        "llm_message": {"role": "assistant", "content": [{"type": "text", "text": text}]},
    }


async def test_ten_thousand_events_have_few_elements_and_no_text_becomes_markup(
    console: Console, record_property: Callable[[str, object], None]
) -> None:
    client = console.client
    conversation_id = await client.start_conversation("[script:say]")
    seen = await client.wait_for_execution(conversation_id, "finished")
    events = BytesIO(msgspec.json.encode([made_up(i) for i in range(MANY)]))
    answer = await client.post(
        f"/api/v1/webhooks/events/{conversation_id}",
        data=events,
        headers={"X-Session-API-Key": seen["session_api_key"], "Content-Type": "application/json"},
    )
    assert answer.status == 200, answer.text
    page = await console.page(f"c/{conversation_id}")
    await expect(page.locator("article", has_text="onerror")).to_be_visible()
    assert await page.locator("article").count() < 100
    # Only the last ones are loaded, and the others as somebody moves up.
    feed = page.get_by_role("feed")
    assert await feed.evaluate(LOADED) < MANY / 10
    await feed.focus()
    loaded = 0
    while not await page.locator("article", has_text=re.compile(r"Message 0(?!\d)")).is_visible():
        await feed.press("Home")
        await page.wait_for_function(GREW, arg=loaded)
        loaded = await feed.evaluate(LOADED)
        assert await page.locator("article").count() < 100
    await feed.press("Home")
    await expect(page.locator("[aria-posinset='1']")).to_be_visible()
    await feed.evaluate("(feed) => { feed.scrollTop = feed.scrollHeight / 2; }")
    await until_full(feed, MANY // 4, MANY * 3 // 4)
    record_property("slowest frame in ms", await page.evaluate(SCROLL))
    assert await page.locator("article").count() < 100
    await picture(page, "many-events")
    await page.get_by_role("button", name="To the end").click()
    hostile = page.locator("article", has_text="onerror")
    await expect(hostile).to_be_visible()
    assert await hostile.locator("a").evaluate_all("(all) => all.map((one) => one.href)") == [
        "https://example.org/"
    ]
    assert await hostile.locator("img, script, b").count() == 0
    await expect(hostile.locator("pre")).to_have_text("<b>code</b>")


async def until_full(feed: Locator, first: int, last: int) -> None:
    """Wait until what is seen of a list are items between two, each below the one before it.

    Which ones are in the middle depends on how many were measured while they came.
    """
    deadline = monotonic() + PATIENCE
    seen: list[int] = []
    while not (seen and first <= seen[0] and seen[-1] <= last):
        assert monotonic() < deadline, f"this is what is seen: {seen}"
        seen = await feed.evaluate(SEEN)
    assert seen == list(range(seen[0], seen[-1] + 1))


SEEN = """async (feed) => {
  await new Promise(requestAnimationFrame);
  const box = feed.getBoundingClientRect();
  const places = [...feed.querySelectorAll('article')].map((one) => [one, one.getBoundingClientRect()]);
  const seen = places.filter(([, place]) => place.bottom > box.top && place.top < box.bottom);
  if (!seen.length || seen[0][1].top > box.top || seen.at(-1)[1].bottom < box.bottom) return [];
  return seen.map(([one]) => Number(one.ariaPosInSet));
}"""
LOADED = "(feed) => Number(feed.querySelector('article').ariaSetSize)"
GREW = """(before) => {
  const all = [...document.querySelectorAll('article')];
  const isFirst = all.some((one) => /Message 0(?!\\d)/.test(one.textContent));
  return isFirst || Number(all[0]?.ariaSetSize) > before;
}"""
SCROLL = """async () => {
  const feed = document.querySelector('[role=feed]');
  const frame = () => new Promise(requestAnimationFrame);
  let slowest = 0;
  for (let i = 0; i < 40; i += 1) {
    const began = performance.now();
    feed.scrollTop -= 700;
    await frame();
    await frame();
    slowest = Math.max(slowest, (performance.now() - began) / 2);
  }
  return slowest;
}"""

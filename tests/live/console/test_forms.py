"""Forms of the console: what is typed stays, and what is saved is what was changed."""

import asyncio
from typing import Any

import pytest
from playwright.async_api import Route, expect

from tests.live.browser import PHONE, Console, is_too_wide
from tests.live.console.reports import FIELD, forgive_lost_answers
from tests.troubles import TroubledAgent, eventually

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="session"),
]

AUTOMATIONS = "/api/automation/v1"
WEBHOOKS = "/api/v1/webhook-subscriptions"
NAME = "a-name-without-any-space-" * 6


async def test_what_is_typed_while_a_form_is_saved_stays(quick_console: Console) -> None:
    page = await quick_console.page("settings/agent")
    may_go = asyncio.Event()

    async def hold(route: Route) -> None:
        if route.request.method == "POST":
            await may_go.wait()
        await route.continue_()

    await page.route("**/api/v1/settings", hold)
    await page.get_by_label("Steps").fill("77")
    await page.get_by_role("button", name="Save").first.click()
    await page.get_by_label("Budget in US dollars").fill("5")
    may_go.set()
    await expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    await expect(page.get_by_label("Steps")).to_have_value("77")
    await expect(page.get_by_label("Budget in US dollars")).to_have_value("5")
    await page.goto(f"{quick_console.client.base_url}/#/settings/secrets")
    may_go.clear()
    await page.route("**/api/v1/secrets", hold)
    await page.get_by_label("Name").fill("FIRST")
    await page.get_by_label("Value").fill("a")
    await page.get_by_role("button", name="Store").click()
    await page.get_by_label("Name").fill("SECOND")
    may_go.set()
    await expect(page.locator(".entries", has_text="FIRST")).to_be_visible()
    await expect(page.get_by_label("Value")).to_have_value("")
    await expect(page.get_by_label("Name")).to_have_value("SECOND")


async def test_a_token_that_is_typed_while_another_is_stored_stays(
    quick_console: Console,
) -> None:
    page = await quick_console.page("settings/git")
    may_go = asyncio.Event()

    async def store(route: Route) -> None:
        await may_go.wait()
        await route.fulfill(json={})

    await page.route("**/secrets/git-providers", store)
    await page.get_by_label("Token").fill("first")
    await page.get_by_label("Host").fill("git.example.org")
    async with page.expect_request("**/secrets/git-providers"):
        await page.get_by_role("button", name="Store the token").click()
    await page.get_by_label("Token").fill("second")
    may_go.set()
    await expect(page.get_by_label("Host")).to_have_value("")
    await expect(page.get_by_label("Token")).to_have_value("second")


async def test_what_is_typed_outlives_a_server_that_does_not_say_what_it_saved(
    quick_console: Console,
) -> None:
    page = await quick_console.page("settings/git")
    broken: list[str] = ["once"]

    async def break_once(route: Route) -> None:
        if route.request.method == "GET" and broken:
            broken.clear()
            await route.fulfill(status=503, body="busy")
        else:
            await route.continue_()

    await page.get_by_label("Token").fill("typed")
    await page.route("**/api/v1/settings", break_once)
    await page.get_by_label("E-mail address").fill("me@example.org")
    await page.get_by_role("button", name="Save").first.click()
    await expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    assert not broken
    await expect(page.get_by_label("Token")).to_have_value("typed")
    await expect(page.get_by_label("E-mail address")).to_have_value("me@example.org")
    forgive_lost_answers(quick_console)


@pytest.mark.parametrize("status", [500, 429])
async def test_settings_that_are_saved_and_cannot_be_read_are_told_of(
    quick_console: Console, status: int
) -> None:
    page = await quick_console.page("settings/agent")
    is_broken = True

    async def answer(route: Route) -> None:
        if is_broken and route.request.method == "GET":
            await route.fulfill(status=status, json={"detail": "Not now"})
        else:
            await route.continue_()

    await page.get_by_label("Steps").fill("77")
    await page.route("**/api/v1/settings", answer)
    save = page.get_by_role("button", name="Save").first
    await save.click()
    alert = page.get_by_role("alert").filter(has_text="The settings could not be read anew")
    await expect(alert).to_contain_text("Not now")
    await expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    await expect(save).to_be_enabled()
    await expect(page.get_by_label("Steps")).to_have_value("77")
    is_broken = False
    if status == 429:
        await save.click()
    await expect(alert).to_be_hidden()
    await expect(page.get_by_label("Steps")).to_have_value("77")
    forgive_lost_answers(quick_console)


async def test_what_is_saved_stays_where_the_list_does_not_come(quick_console: Console) -> None:
    client = quick_console.client
    order = {"name": "nightly", "prompt": "a task", "trigger": {"type": "manual"}}
    await client.post(AUTOMATIONS, json=order)
    page = await quick_console.page("automations")
    await page.get_by_text("Change", exact=True).click()
    card = page.locator(".cards .card")
    await card.get_by_label("Name").fill("weekly")
    broken = {"status": 500, "json": {"detail": "Not now"}}
    await page.route(f"**{AUTOMATIONS}?*", lambda route: route.fulfill(**broken))
    save = card.get_by_role("button", name="Save")
    await save.click()
    await expect(page.get_by_role("alert")).to_contain_text("Not now")
    await expect(save).to_be_enabled()
    await expect(card.get_by_label("Name")).to_have_value("weekly")
    await page.unroute(f"**{AUTOMATIONS}?*")
    await page.get_by_role("button", name="Look again").click()
    await expect(page.get_by_role("heading", name="weekly")).to_be_visible()
    forgive_lost_answers(quick_console)


async def test_two_tabs_that_add_tool_servers_add_both(quick_console: Console) -> None:
    pages = [await quick_console.page("settings/mcp") for _ in range(2)]
    for page in pages:
        await expect(page.get_by_text("There are none so far")).to_be_visible()
    for page, name in zip(pages, ("first", "second"), strict=True):
        await page.get_by_label("Name").fill(name)
        await page.get_by_label("URL").fill(f"https://example.org/{name}")
        await page.get_by_role("button", name="Add").click()
        await expect(page.locator(".entries strong", has_text=name)).to_be_visible()
    stored = (await quick_console.client.get("/api/v1/settings")).json()["agent_settings"]
    assert list(stored["mcp_config"]) == ["first", "second"]
    page = pages[1]
    # What is half written is not lost with another one.
    await page.get_by_label("Name").fill("third")
    await page.get_by_role("button", name="Remove first").click()
    await expect(page.locator(".entries strong")).to_have_text(["second"])
    await expect(page.get_by_label("Name")).to_have_value("third")


async def test_only_what_was_changed_of_an_automation_is_saved(quick_console: Console) -> None:
    client = quick_console.client
    order = {"name": "nightly", "prompt": "the first task", "trigger": {"type": "manual"}}
    path = f"{AUTOMATIONS}/{(await client.post(AUTOMATIONS, json=order)).json()['id']}"
    page = await quick_console.page("automations")
    await page.get_by_text("Change", exact=True).click()
    await client.patch(path, json={"prompt": "a better task"})
    card = page.locator(".cards .card")
    await card.get_by_label("Name").fill("weekly")
    await card.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", name="weekly")).to_be_visible()
    stored = (await client.get(path)).json()
    assert (stored["name"], stored["prompt"]) == ("weekly", "a better task")
    await expect(card.get_by_label("Task")).to_have_value("a better task")
    await expect(card.get_by_label("Name")).to_have_value("weekly")


async def test_only_what_was_changed_of_a_webhook_is_saved(quick_console: Console) -> None:
    client = quick_console.client
    order = {"url": "https://example.org/old", "changes": ["sandbox"]}
    path = f"{WEBHOOKS}/{(await client.post(WEBHOOKS, json=order)).json()['id']}"
    page = await quick_console.page("settings/webhooks")
    await page.get_by_text("Change", exact=True).click()
    await client.patch(path, json={"url": "https://example.org/new"})
    item = page.locator(".entries > li")
    await item.get_by_label("Description").fill("for the build")
    await item.get_by_role("button", name="Save").click()
    await expect(item.locator("strong")).to_have_text("https://example.org/new")
    await expect(item).to_contain_text("for the build")
    await expect(item.get_by_label("URL")).to_have_value("https://example.org/new")


async def test_only_what_was_changed_of_an_environment_is_saved(quick_console: Console) -> None:
    stored = {
        **dict.fromkeys(("repository", "provider", "image", "detail", "prepared_at")),
        "id": "e" * 32,
        "name": "first",
        "status": "ready",
        "setup_script": "make",
        "devcontainer": "auto",
        "maintenance_script": "",
        "updated_at": "2026-01-01T00:00:00Z",
        "is_prepared": False,
    }
    saved: list[Any] = []

    async def patch(route: Route) -> None:
        saved.append(route.request.post_data_json)
        stored.update(saved[-1])
        await route.fulfill(json=stored)

    page = await quick_console.page()
    await page.route(
        "**/api/v1/environments", lambda route: route.fulfill(json={"items": [stored]})
    )
    await page.route("**/api/v1/environments/*", patch)
    await page.goto(f"{quick_console.client.base_url}/#/environments")
    await page.get_by_text("Change", exact=True).click()
    card = page.locator(".cards .card")
    await card.get_by_label("Name").fill("second")
    await card.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", name="second")).to_be_visible()
    assert saved == [{"name": "second"}]


async def test_a_name_that_was_given_meanwhile_stays(quick_console: Console) -> None:
    client = quick_console.client
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    path = f"/api/v1/app-conversations/{conversation_id}"
    page = await quick_console.page(f"c/{conversation_id}")
    await expect(page.get_by_label(FIELD)).to_be_visible()
    await page.get_by_role("button", name="Rename").click()
    await client.patch(path, json={"title": "What it came to"})
    await expect(page.locator("h1", has_text="What it came to")).to_be_visible()
    await page.get_by_label("Labels").fill("website")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    found = await client.conversation(conversation_id)
    assert (found["title"], found["labels"]) == ("What it came to", ["website"])


async def test_enter_renames_a_conversation(quick_console: Console) -> None:
    conversation_id = await quick_console.client.start_conversation()
    await quick_console.client.wait_for_execution(conversation_id, "finished")
    page = await quick_console.page(f"c/{conversation_id}")
    await page.get_by_role("button", name="Rename").click()
    await page.get_by_label("Title").fill("Named by Enter")
    await page.get_by_label("Title").press("Enter")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(page.get_by_role("heading", name="Named by Enter")).to_be_visible()


async def test_a_start_that_failed_is_tried_again_in_its_mode(
    quick_console: Console, agent: TroubledAgent
) -> None:
    agent.refusals.append((400, "not this one"))
    task = await quick_console.client.start_task("plan it", agent_type="plan")
    ended = await quick_console.client.end_of_start(task["id"])
    assert ended["status"] == "ERROR"
    page = await quick_console.page(f"start/{task['id']}")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.get_by_label("Message")).to_have_value("plan it")
    await expect(page.get_by_label("Mode", exact=True)).to_have_value("plan")


async def test_what_was_being_written_stays_where_a_task_is_tried_again(
    quick_console: Console, agent: TroubledAgent
) -> None:
    client = quick_console.client
    agent.refusals.append((400, "not this one"))
    task = await client.start_task("failed")
    assert (await client.end_of_start(task["id"]))["status"] == "ERROR"
    page = await quick_console.page("new")
    await page.get_by_label("Message").fill("half written")
    for _ in range(2):
        await page.goto(f"{client.base_url}/#/start/{task['id']}")
        await page.get_by_role("button", name="Try again").click()
        await expect(page.get_by_label("Message")).to_have_value("failed\n\nhalf written")


async def test_a_start_that_failed_is_tried_again_with_its_spec(
    quick_console: Console, agent: TroubledAgent
) -> None:
    client = quick_console.client
    made = await client.post("/api/v1/sandboxes?sandbox_spec_id=fake")
    agent.refusals.append((400, "not this one"))
    task = await client.start_task("work", sandbox_id=made.json()["id"])
    assert (await client.end_of_start(task["id"]))["status"] == "ERROR"
    page = await quick_console.page(f"start/{task['id']}")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.get_by_label("Message")).to_have_value("work")
    kept = "Object.values(localStorage).filter((one) => one.includes('work')).join()"
    assert '"spec":"fake"' in await page.evaluate(kept)


async def test_what_was_planned_is_planned_where_it_is_started_again(
    quick_console: Console,
) -> None:
    client = quick_console.client
    conversation_id = await client.start_conversation("plan it", agent_type="plan")
    seen = await client.wait_for_execution(conversation_id, "finished")
    assert (await client.delete(f"/api/v1/sandboxes/{seen['sandbox_id']}")).status == 200
    page = await quick_console.page(f"c/{conversation_id}")
    await page.get_by_role("button", name="Start again").click()
    await expect(page.get_by_label("Message")).to_have_value("plan it")
    await expect(page.get_by_label("Mode", exact=True)).to_have_value("plan")


async def test_all_automations_are_shown_and_what_is_refused_is_in_sight(
    quick_console: Console,
) -> None:
    client = quick_console.client
    order = {"prompt": "a task", "trigger": {"type": "manual"}}
    for number in range(101):
        answer = await client.post(AUTOMATIONS, json={**order, "name": f"number {number}"})
        assert answer.status == 201, answer.text
    page = await quick_console.page("automations")
    await expect(page.locator(".cards .card")).to_have_count(101)
    await page.get_by_text("Add one", exact=True).click()
    add = page.get_by_role("button", name="Add", exact=True)
    await add.scroll_into_view_if_needed()
    await add.click()
    await expect(page.get_by_role("alert")).to_be_in_viewport()


async def test_a_year_of_more_digits_than_years_have_is_not_taken(quick_console: Console) -> None:
    page = await quick_console.page("audit")
    field = page.get_by_label("From")
    await field.focus()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.keyboard.type("010120251010AM")
    await expect(field).to_have_value("2025-01-01T10:10")
    await eventually(lambda: any("at__gte" in one for one in asked))
    await expect(page.locator(".audit li").first).to_be_visible()


@pytest.mark.parametrize("size", ["desktop", "phone"])
async def test_long_names_and_labels_do_not_leave_their_place(
    quick_console: Console, size: str
) -> None:
    client = quick_console.client
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    changes = {"title": NAME, "labels": ["a-label-of-many-letters-" * 2]}
    await client.patch(f"/api/v1/app-conversations/{conversation_id}", json=changes)
    order = {"name": NAME, "prompt": "a task", "trigger": {"type": "manual"}}
    await client.post(AUTOMATIONS, json=order)
    page = await quick_console.page()
    if size == "phone":
        await page.set_viewport_size(PHONE)
    row = page.locator(".row").first
    at, time = await row.bounding_box(), await row.locator("time").bounding_box()
    assert at
    assert time
    assert time["x"] + time["width"] <= at["x"] + at["width"]
    assert not await is_too_wide(page)
    for path in ("automations", "sandboxes"):
        await page.goto(f"{client.base_url}/#/{path}")
        await expect(page.locator(".cards .card h3").first).to_contain_text("a-name")
        assert not await is_too_wide(page), path


async def test_the_address_of_a_webhook_fills_its_card_and_not_more(
    quick_console: Console,
) -> None:
    order = {"name": "hook", "prompt": "work", "trigger": {"type": "webhook"}}
    made = await quick_console.client.post(AUTOMATIONS, json=order)
    assert made.status == 201, made.text
    page = await quick_console.page("automations")
    place = page.locator(".facts .copyable")
    await expect(place).to_be_visible()
    address = await place.locator("code").bounding_box()
    assert address is not None
    assert address["width"] > 200
    await page.set_viewport_size({"width": 320, "height": 700})
    assert not await is_too_wide(page)


@pytest.mark.parametrize("name", ["", ".."])
async def test_a_model_is_saved_under_no_name_that_browsers_take_for_a_way(
    quick_console: Console, name: str
) -> None:
    page = await quick_console.page("settings/model")
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if one.method == "POST" else None)
    await page.get_by_label("Name", exact=True).fill(name)
    await page.get_by_role("button", name="Save the current model").click()
    await expect(page.get_by_role("alert")).to_contain_text("A name has 1 to 64 letters")
    await expect(page.get_by_label("Name", exact=True)).to_have_value(name)
    assert asked == []

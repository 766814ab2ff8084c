"""The history of a conversation in the older form, through the socket."""

import asyncio
from typing import Any

import pytest

from agentsvc.base.errors import OrderRejected
from agentsvc.testing.backend import FakeWorld
from tests.fake_agent import FakeAgent
from tests.service import Client, Service
from tests.troubles import TroubledWorld

PATH = "/api/conversations"
UNKNOWN_ID = "0" * 32
ACTION = {"action": "message", "args": {"content": "one more thing"}}


async def start(client: Client, **fields: Any) -> str:
    answer = await client.post(PATH, json=fields)
    assert answer.status == 200, answer.text
    return str(answer.json()["conversation_id"])


async def page(client: Client, name: str, query: str = "limit=100") -> dict[str, Any]:
    answer = await client.get(f"{PATH}/{name}/events?{query}")
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def states(events: list[dict[str, Any]]) -> list[str]:
    return [
        event["extras"]["agent_state"]
        for event in events
        if event.get("observation") == "agent_state_changed"
    ]


async def wait_for_end(client: Client, name: str) -> list[dict[str, Any]]:
    """Return the history once the run has ended and the conversation is no longer starting."""
    async with asyncio.timeout(client.patience):
        while True:
            events: list[dict[str, Any]] = (await page(client, name))["events"]
            status = (await client.get(f"{PATH}/{name}")).json()["status"]
            if "finished" in states(events) and status == "RUNNING":
                return events
            await asyncio.sleep(0.05)


async def test_a_conversation_is_followed_to_its_end(client: Client) -> None:
    name = await start(client, initial_user_msg="please work")
    events = await wait_for_end(client, name)
    assert [event["id"] for event in events] == list(range(len(events)))
    assert states(events)[0] == "loading"
    assert states(events)[-1] == "finished"
    said = [event for event in events if event.get("action") == "message"]
    assert (said[0]["source"], said[0]["args"]["content"]) == ("user", "please work")
    by_id = {event["id"]: event for event in events}
    ran = [event for event in events if event.get("observation") == "run"]
    assert ran
    assert all(by_id[event["cause"]]["action"] == "run" for event in ran)


async def test_a_conversation_without_events_has_an_empty_history(
    client: Client, fake_world: FakeWorld
) -> None:
    fake_world.stays_starting = True
    assert await page(client, await start(client)) == {"events": [], "has_more": False}


async def test_pages_forward_and_backward_have_the_same_events(client: Client) -> None:
    name = await start(client, initial_user_msg="please work")
    whole = await wait_for_end(client, name)
    forward: list[dict[str, Any]] = []
    has_more = True
    while has_more:
        answer = await page(client, name, f"limit=3&start_id={len(forward)}")
        forward += answer["events"]
        has_more = answer["has_more"]
    assert forward == whole
    backward: list[dict[str, Any]] = []
    has_more = True
    while has_more:
        end = f"&end_id={backward[-1]['id'] - 1}" if backward else ""
        answer = await page(client, name, f"limit=3&reverse=true{end}")
        backward += answer["events"]
        has_more = answer["has_more"]
    assert backward == whole[::-1]


async def test_both_ends_of_a_range_belong_to_it(client: Client) -> None:
    name = await start(client, initial_user_msg="please work")
    await wait_for_end(client, name)
    found = await page(client, name, "start_id=2&end_id=4")
    assert [event["id"] for event in found["events"]] == [2, 3, 4]
    assert found["has_more"] is False
    assert await page(client, name, "limit=0") == {"events": [], "has_more": True}


async def test_the_history_is_the_same_after_a_restart_and_without_the_sandbox(
    service: Service, client: Client
) -> None:
    name = await start(client, initial_user_msg="please work")
    await wait_for_end(client, name)
    sandbox_id = (await client.conversation(name))["sandbox_id"]
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    before = await page(client, name)
    await service.restart()
    assert await page(client, name) == before


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=101", 400),
        ("limit=-1", 400),
        ("limit=x", 422),
        ("start_id=x", 422),
        ("end_id=99999999999999999999", 422),
        ("reverse=perhaps", 422),
        ("start_id=-5", 200),
    ],
)
async def test_a_query_that_does_not_fit_is_refused(
    client: Client, fake_world: FakeWorld, query: str, status: int
) -> None:
    fake_world.stays_starting = True
    name = await start(client)
    answer = await client.get(f"{PATH}/{name}/events?{query}")
    assert answer.status == status
    if status == 400:
        assert answer.json()["detail"] == "Invalid limit"


async def test_an_unknown_conversation_has_no_history(client: Client) -> None:
    answer = await client.get(f"{PATH}/nope/events")
    assert (answer.status, answer.json()["detail"]) == (404, "Conversation nope not found")


@pytest.mark.parametrize(
    ("route", "body"), [("message", {"message": "one more thing"}), ("events", ACTION)]
)
async def test_a_message_lets_the_agent_go_on(
    client: Client, route: str, body: dict[str, Any]
) -> None:
    name = await start(client, initial_user_msg="please work")
    await wait_for_end(client, name)
    answer = await client.post(f"{PATH}/{name}/{route}", json=body)
    assert (answer.status, answer.json()) == (200, {"success": True})
    async with asyncio.timeout(client.patience):
        while True:
            events = (await page(client, name))["events"]
            texts = [
                event["args"]["content"] for event in events if event.get("action") == "message"
            ]
            if "one more thing" in texts and states(events).count("running") > 1:
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("route", "body", "status"),
    [
        ("message", {}, 422),
        ("message", {"message": ""}, 422),
        ("message", {"message": 3}, 422),
        ("events", {"nonsense": 1}, 400),
        ("events", {"action": "run", "args": {"command": "ls"}}, 400),
        ("events", {"action": "message", "args": {}}, 400),
        ("events", {"action": "message", "args": {"content": 3}}, 400),
        ("events", [], 422),
    ],
)
async def test_what_is_no_message_is_refused(
    client: Client, route: str, body: Any, status: int
) -> None:
    assert (await client.post(f"{PATH}/{UNKNOWN_ID}/{route}", json=body)).status == status


async def test_a_message_to_an_unknown_conversation_is_not_found(client: Client) -> None:
    for route, body in (("message", {"message": "x"}), ("events", ACTION)):
        assert (await client.post(f"{PATH}/{UNKNOWN_ID}/{route}", json=body)).status == 404


async def test_a_message_to_a_conversation_that_starts_is_a_conflict(
    client: Client, fake_world: FakeWorld
) -> None:
    fake_world.stays_starting = True
    name = await start(client)
    answer = await client.post(f"{PATH}/{name}/message", json={"message": "x"})
    assert (answer.status, answer.json()["code"]) == (409, "conflict")


async def test_a_start_that_failed_tells_why(client: Client, fake_world: TroubledWorld) -> None:
    fake_world.next["create"].append(OrderRejected("no room for it"))
    name = await start(client)
    async with asyncio.timeout(client.patience):
        while True:
            events = (await page(client, name))["events"]
            if "error" in states(events):
                break
            await asyncio.sleep(0.05)
    assert "no room for it" in events[-1]["extras"]["reason"]


async def test_a_question_is_shown_as_waiting_for_the_user(
    client: Client, fake_agent: FakeAgent
) -> None:
    await client.save_settings(confirmation_mode=True)
    name = await start(client, initial_user_msg="please work")
    async with asyncio.timeout(client.patience):
        while True:
            events = (await page(client, name))["events"]
            if "awaiting_user_confirmation" in states(events):
                break
            await asyncio.sleep(0.05)
    waiting = [
        event
        for event in events
        if event.get("args", {}).get("confirmation_state") == "awaiting_confirmation"
    ]
    assert waiting
    assert fake_agent.find_conversation(name)

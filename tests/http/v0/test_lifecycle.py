"""Starting and stopping conversations and their agents in the older form, through the socket."""

from collections.abc import Callable
from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.agentserver.responses import CommandResult
from agentsvc.base.errors import OrderRejected
from agentsvc.testing.backend import FakeWorld
from tests.fake_agent import FakeAgent
from tests.http.v0.steps import (
    PATH,
    UNKNOWN_ID,
    history,
    start,
    start_running,
    states,
    wait_for_history,
    wait_for_state,
    wait_for_status,
)
from tests.service import Answer, Client, Service
from tests.troubles import TroubledWorld, reconfigure

NOTHING = CommandResult(exit_code=0, stdout="", stderr="")


async def wish(client: Client, name: str, state: str) -> Answer:
    body = {"action": "change_agent_state", "args": {"agent_state": state}}
    return await client.post(f"{PATH}/{name}/events", json=body)


def times(state: str, count: int) -> Callable[[list[dict[str, Any]]], bool]:
    return lambda events: states(events).count(state) >= count


def actions(events: list[dict[str, Any]]) -> list[Any]:
    return [event.get("action") for event in events]


async def test_a_stop_tells_the_state_before_and_pauses_the_sandbox(client: Client) -> None:
    name = await start_running(client)
    answer = await client.post(f"{PATH}/{name}/stop")
    assert (answer.status, answer.json()) == (
        200,
        {
            "status": "ok",
            "conversation_id": name,
            "message": "Conversation stopped successfully",
            "conversation_status": "RUNNING",
        },
    )
    await wait_for_status(client, name, "STOPPED")


async def test_a_stop_interrupts_the_agent_before_the_sandbox(
    client: Client, fake_agent: FakeAgent
) -> None:
    fake_agent.on_command("Hello from", NOTHING, seconds=30)
    name = await start(client, initial_user_msg="please work")
    await wait_for_state(client, name, "running")
    await wait_for_status(client, name, "RUNNING")
    await client.post(f"{PATH}/{name}/stop")
    conversation = fake_agent.find_conversation(name)
    assert conversation is not None
    assert conversation.status == "paused"


async def test_the_history_of_a_stopped_conversation_tells_that_its_agent_does_nothing(
    service: Service, client: Client, fake_agent: FakeAgent
) -> None:
    await reconfigure(service, conversations={"sync_seconds": 60.0})
    fake_agent.on_command("Hello from", NOTHING, seconds=30)
    name = await start(client, initial_user_msg="please work")
    await wait_for_history(client, name, lambda events: "run" in actions(events))
    await wait_for_status(client, name, "RUNNING")
    # What it would report comes too late.
    [sandbox] = fake_agent.sandboxes.values()
    sandbox.has_webhooks = False
    answer = await client.post(f"{PATH}/{name}/stop")
    assert answer.json()["message"] == "Conversation stopped successfully"
    events = await history(client, name)
    assert states(events)[-1] == "paused"
    assert "error" in [event.get("observation") for event in events]


@pytest.mark.parametrize("name", ["nope", UNKNOWN_ID])
async def test_stopping_an_unknown_conversation_is_fine(client: Client, name: str) -> None:
    answer = await client.post(f"{PATH}/{name}/stop")
    assert (answer.status, answer.json()) == (
        200,
        {
            "status": "ok",
            "conversation_id": name,
            "message": "Conversation was not running",
            "conversation_status": "STOPPED",
        },
    )


async def test_a_second_stop_finds_nothing_running(client: Client) -> None:
    name = await start_running(client)
    await client.post(f"{PATH}/{name}/stop")
    answer = await client.post(f"{PATH}/{name}/stop")
    assert answer.json()["message"] == "Conversation was not running"


async def test_a_conversation_that_starts_cannot_be_stopped_yet(
    client: Client, fake_world: FakeWorld
) -> None:
    fake_world.stays_starting = True
    name = await start(client)
    answer = await client.post(f"{PATH}/{name}/stop")
    assert (answer.status, answer.json()["code"]) == (409, "conflict")


async def test_a_conversation_is_stopped_although_its_agent_does_not_answer(
    client: Client, fake_agent: FakeAgent
) -> None:
    name = await start_running(client)
    [sandbox] = fake_agent.sandboxes.values()
    sandbox.is_down = True
    answer = await client.post(f"{PATH}/{name}/stop")
    assert answer.json()["message"] == "Conversation stopped successfully"
    await wait_for_status(client, name, "STOPPED")


@pytest.mark.parametrize("body", [{}, {"providers_set": ["github"]}, {"providers_set": None}])
async def test_a_stopped_conversation_runs_again(client: Client, body: dict[str, Any]) -> None:
    name = await start_running(client, conversation_id="kept")
    await client.post(f"{PATH}/{name}/stop")
    answer = await client.post(f"{PATH}/{name}/start", json=body)
    said = answer.json()
    assert answer.status == 200
    assert said.pop("conversation_status") in ("STARTING", "RUNNING")
    assert said == {"status": "ok", "conversation_id": "kept", "message": None}
    await wait_for_status(client, name, "RUNNING")
    sent = await client.post(f"{PATH}/{name}/message", json={"message": "go on"})
    assert sent.status == 200


async def test_starting_what_runs_or_starts_changes_nothing(
    client: Client, fake_world: FakeWorld
) -> None:
    name = await start_running(client)
    answer = await client.post(f"{PATH}/{name}/start", json={})
    assert answer.json()["conversation_status"] == "RUNNING"
    fake_world.stays_starting = True
    name = await start(client)
    answer = await client.post(f"{PATH}/{name}/start", json={})
    assert answer.json()["conversation_status"] == "STARTING"


async def test_an_unknown_conversation_is_not_started(client: Client) -> None:
    answer = await client.post(f"{PATH}/nope/start", json={})
    body = answer.json()
    assert answer.status == 404
    assert (body["status"], body["conversation_id"]) == ("error", "nope")


async def test_a_start_needs_a_body(client: Client) -> None:
    answer = await client.post(f"{PATH}/{UNKNOWN_ID}/start")
    assert (answer.status, answer.json()["detail"][0]["loc"]) == (422, ["body"])
    answer = await client.post(f"{PATH}/{UNKNOWN_ID}/start", json={"providers_set": "x"})
    assert answer.status == 422


async def test_the_description_says_what_starts_and_stops_need_and_answer(client: Client) -> None:
    document = (await client.get("/openapi.json")).json()
    operation = document["paths"][f"{PATH}/{{conversation_id}}/start"]["post"]
    assert operation["requestBody"]["required"]
    assert "needs a body" in operation["description"]
    message = document["components"]["schemas"]["StartAnswer"]["properties"]["message"]
    assert "stop" in message["description"]


async def test_a_conversation_whose_sandbox_is_gone_does_not_start(
    client: Client, fake_world: FakeWorld
) -> None:
    name = await start_running(client)
    sandbox_id = (await client.conversation(name))["sandbox_id"]
    await client.delete(f"/api/v1/sandboxes/{sandbox_id}")
    answer = await client.post(f"{PATH}/{name}/start", json={})
    assert (answer.status, answer.json()["code"]) == (410, "gone")


async def test_a_start_that_failed_is_not_started_again(
    client: Client, fake_world: TroubledWorld
) -> None:
    fake_world.next["create"].append(OrderRejected("no room for it"))
    name = await start(client)
    await wait_for_state(client, name, "error")
    answer = await client.post(f"{PATH}/{name}/start", json={})
    assert (answer.status, answer.json()["code"]) == (409, "conflict")


async def test_a_config_names_the_sandbox_and_the_conversation(client: Client) -> None:
    name = await start_running(client)
    sandbox_id = (await client.conversation(name))["sandbox_id"]
    answer = await client.get(f"{PATH}/{name}/config")
    assert answer.json() == {"runtime_id": sandbox_id, "session_id": name}
    unknown = await client.get(f"{PATH}/nope/config")
    assert (unknown.status, unknown.json()["detail"]) == (404, "Conversation nope not found")


async def test_nobody_starts_stops_or_sees_the_conversation_of_another(
    client: Client, service: Service
) -> None:
    name = await start_running(client)
    other = await service.make_client("other", Role.MEMBER)
    assert (await other.post(f"{PATH}/{name}/start", json={})).status == 404
    stopped = await other.post(f"{PATH}/{name}/stop")
    assert stopped.json()["message"] == "Conversation was not running"
    for route in ("config", "trajectory"):
        assert (await other.get(f"{PATH}/{name}/{route}")).status == 404
    assert (await client.get(f"{PATH}/{name}")).json()["status"] == "RUNNING"


async def test_a_trajectory_is_the_whole_history(client: Client) -> None:
    name = await start(client, initial_user_msg="please work")
    events = await wait_for_state(client, name, "finished")
    answer = await client.get(f"{PATH}/{name}/trajectory")
    assert (answer.status, answer.json()) == (200, {"trajectory": events})


async def test_an_agent_is_stopped_and_goes_on(client: Client, fake_agent: FakeAgent) -> None:
    fake_agent.on_command("Hello from", NOTHING, seconds=30)
    name = await start(client, initial_user_msg="please work")
    await wait_for_state(client, name, "running")
    await wait_for_status(client, name, "RUNNING")
    answer = await wish(client, name, "stopped")
    assert (answer.status, answer.json()) == (200, {"success": True})
    events = await wait_for_history(client, name, times("stopped", 1))
    assert any(event.get("args", {}).get("agent_state") == "stopped" for event in events)
    assert (await wish(client, name, "running")).status == 200
    await wait_for_history(client, name, times("running", 2))


async def test_an_agent_pauses_after_its_step(client: Client, fake_agent: FakeAgent) -> None:
    fake_agent.on_command("Hello from", NOTHING, seconds=0.5)
    name = await start(client, initial_user_msg="please work")
    await wait_for_state(client, name, "running")
    await wait_for_status(client, name, "RUNNING")
    assert (await wish(client, name, "paused")).status == 200
    await wait_for_state(client, name, "paused")


@pytest.mark.parametrize(
    ("answer", "state"), [("user_confirmed", "finished"), ("user_rejected", "awaiting_user_input")]
)
async def test_the_user_answers_a_question(client: Client, answer: str, state: str) -> None:
    await client.save_settings(confirmation_mode=True)
    name = await start_running(client, initial_user_msg="please work")
    for round_number in range(1, 10):
        events = await wait_for_history(
            client,
            name,
            lambda events: states(events)[-1:] in (["awaiting_user_confirmation"], [state]),
        )
        if states(events)[-1] == state and answer in states(events):
            return
        assert (await wish(client, name, answer)).status == 200, round_number
        await wait_for_history(client, name, times(answer, round_number))
    pytest.fail("there was no end of questions")


@pytest.mark.parametrize(
    "args", [{}, {"agent_state": "loading"}, {"agent_state": "no such"}, {"agent_state": 1}]
)
async def test_a_state_nobody_can_wish_for_is_refused(client: Client, args: Any) -> None:
    body = {"action": "change_agent_state", "args": args}
    answer = await client.post(f"{PATH}/{UNKNOWN_ID}/events", json=body)
    assert (answer.status, answer.json()["code"]) == (400, "bad_request")

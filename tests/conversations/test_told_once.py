"""What users tell agents is told once, whatever becomes of the first try."""

import asyncio
import itertools
from typing import Any

import pytest

from agentsvc.agentserver.client import AgentClient
from agentsvc.agentserver.responses import CommandResult
from agentsvc.base.values import Secret, new_id
from agentsvc.conversations.message_delivery import deliver_once
from agentsvc.conversations.message_queue_table import PendingKind, PendingMessage
from agentsvc.domain.orders import Content, ContentKind, Message
from agentsvc.testing.llm import Playbook, call, finish
from tests.fake_sandbox import FakeSandbox
from tests.service import Client, Service
from tests.troubles import TroubledAgent, eventually

V1 = "/api/v1/app-conversations"
V0 = "/api/conversations"
HELLO = {"content": [{"type": "text", "text": "only once"}]}
ANSWERS = "/events/respond_to_confirmation"


async def _begin(_last_event: str) -> bool:
    raise AssertionError("it was tried before")


async def _asking(client: Client, fake_agent: TroubledAgent) -> str:
    """Return a conversation whose agent asks about the first of two actions."""
    steps = [call("terminal", command=name) for name in ("first", "second")]
    fake_agent.playbook = Playbook([*steps, finish("done")])
    await client.save_settings(confirmation_mode=True)
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "waiting_for_confirmation")
    return conversation_id


async def _wish(client: Client, conversation_id: str, state: str, **more: Any) -> int:
    body = {"action": "change_agent_state", "args": {"agent_state": state}}
    return (await client.post(f"{V0}/{conversation_id}/events", json=body, **more)).status


def _kinds(fake_agent: TroubledAgent, conversation_id: str, kind: str) -> list[dict[str, Any]]:
    conversation = fake_agent.find_conversation(conversation_id)
    assert conversation is not None
    return [event for event in conversation.events if event["kind"] == kind]


def _said(fake_agent: TroubledAgent, conversation_id: str) -> int:
    return sum(
        "only once" in str(one) for one in _kinds(fake_agent, conversation_id, "MessageEvent")
    )


def _messages(sandbox: FakeSandbox) -> list[str]:
    return [path for path, _ in sandbox.bodies if path.endswith("/events")]


def _answers(sandbox: FakeSandbox) -> list[str]:
    return [path for path, _ in sandbox.bodies if path.endswith(ANSWERS)]


async def test_a_message_whose_answer_is_lost_counts_as_sent_and_is_told_once(
    client: Client, fake_agent: TroubledAgent
) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    [sandbox] = fake_agent.sandboxes.values()
    sandbox.lose_next_answer("/events")
    answer = await client.post(f"{V1}/{conversation_id}/send-message", json=HELLO)
    assert answer.status == 200, answer.text
    # The next one waits until it is known what became of it.
    answer = await client.post(f"{V1}/{conversation_id}/send-message", json=HELLO)
    assert answer.status == 200
    await eventually(lambda: _said(fake_agent, conversation_id) == 2)
    await client.wait_for_execution(conversation_id, "finished")
    assert len(_messages(sandbox)) == 2


async def test_a_message_that_was_acknowledged_survives_the_death_of_both_servers(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    slow = CommandResult(exit_code=0, stdout="", stderr="")
    fake_agent.on_command("^slow", slow, seconds=60)
    fake_agent.playbook = Playbook([call("terminal", command="slow"), finish("done")])
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "running")
    answer = await client.post(f"{V1}/{conversation_id}/send-message", json=HELLO)
    assert answer.status == 200
    waiting = await client.conversation(conversation_id)
    assert (waiting["execution_status"], waiting["queued_messages"]) == ("running", 1)
    sandbox_id = waiting["sandbox_id"]
    fake_agent.crash(sandbox_id)
    await service.restart()
    fake_agent.restart(sandbox_id)
    await eventually(lambda: _said(fake_agent, conversation_id) == 1)
    await service.restart()
    answer = await client.post(
        f"{V1}/{conversation_id}/send-message",
        json={"content": [{"type": "text", "text": "the next"}]},
    )
    assert answer.status == 200
    assert _said(fake_agent, conversation_id) == 1
    assert (await client.conversation(conversation_id))["queued_messages"] == 0


@pytest.mark.parametrize("state", ["user_confirmed", "user_rejected"])
async def test_an_answer_that_is_lost_on_the_way_back_is_given_to_its_own_question_only(
    client: Client, service: Service, fake_agent: TroubledAgent, state: str
) -> None:
    conversation_id = await _asking(client, fake_agent)
    [sandbox] = fake_agent.sandboxes.values()
    sandbox.lose_next_answer(ANSWERS)
    assert await _wish(client, conversation_id, state) == 200
    await service.restart()
    kind = "ObservationEvent" if state == "user_confirmed" else "UserRejectObservation"
    await eventually(lambda: len(_kinds(fake_agent, conversation_id, kind)) == 1)
    if state == "user_confirmed":
        await client.wait_for_execution(conversation_id, "waiting_for_confirmation")
        assert len(_kinds(fake_agent, conversation_id, "ActionEvent")) == 2
    assert await _wish(client, conversation_id, "running") in (200, 409)
    assert len(_answers(sandbox)) == 1


async def test_a_wish_with_a_key_is_done_once_over_a_restart(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation_id = await _asking(client, fake_agent)
    key = {"Idempotency-Key": "the first"}
    for _ in range(3):
        assert await _wish(client, conversation_id, "user_confirmed", headers=key) == 200
        await eventually(lambda: len(_kinds(fake_agent, conversation_id, "ActionEvent")) == 2)
        await service.restart()
    [sandbox] = fake_agent.sandboxes.values()
    assert len(_answers(sandbox)) == 1
    assert len(_kinds(fake_agent, conversation_id, "ObservationEvent")) == 1
    told = [one.get("key") for one in await client.events(conversation_id)]
    assert told.count("asked_agent_state") == 1


async def test_a_stop_that_waits_shows_nothing_as_queued_or_at_work(
    client: Client, fake_agent: TroubledAgent
) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    fake_agent.hold("interrupt")
    async with asyncio.TaskGroup() as group:
        stop = group.create_task(_wish(client, conversation_id, "stopped"))
        await fake_agent.waits("interrupt")
        seen = await client.conversation(conversation_id)
        fake_agent.held.pop("interrupt").set()
    assert stop.result() == 200
    assert (seen["execution_status"], seen["queued_messages"]) == ("finished", 0)


@pytest.mark.parametrize(("state", "path"), [("paused", "/pause"), ("stopped", "/interrupt")])
async def test_a_stop_whose_answer_is_lost_stops_no_later_run(
    client: Client, service: Service, fake_agent: TroubledAgent, state: str, path: str
) -> None:
    slow = CommandResult(exit_code=0, stdout="", stderr="")
    fake_agent.on_command("^slow", slow, seconds=1.0)
    steps = [call("terminal", command="slow")] * 2
    fake_agent.playbook = Playbook([*steps, finish("done")])
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "running")
    [sandbox] = fake_agent.sandboxes.values()
    sandbox.lose_next_answer(path)
    assert await _wish(client, conversation_id, state) == 200
    await client.wait_for_execution(conversation_id, "paused")
    await service.restart()
    assert await _wish(client, conversation_id, "running") == 200
    await client.wait_for_execution(conversation_id, "finished")
    assert sum(one.endswith(path) for one in sandbox.requests) == 1


@pytest.mark.parametrize("state", ["paused", "stopped"])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_was_said_before_a_stop_does_not_set_the_agent_going_behind_it(
    client: Client, service: Service, fake_agent: TroubledAgent, state: str, *, is_restarted: bool
) -> None:
    slow = CommandResult(exit_code=0, stdout="", stderr="")
    fake_agent.on_command("^slow", slow, seconds=2.0)
    fake_agent.playbook = Playbook([call("terminal", command="slow"), finish("done")])
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "running")
    path = f"{V1}/{conversation_id}/send-message"
    for number in range(3):
        key = {"Idempotency-Key": f"message {number}"}
        assert (await client.post(path, json=HELLO, headers=key)).status == 200
    assert (
        await _wish(client, conversation_id, "running", headers={"Idempotency-Key": "run"}) == 200
    )
    stop = {"Idempotency-Key": "stop"}
    assert await _wish(client, conversation_id, state, headers=stop) == 200
    if is_restarted:
        await service.restart()
    await eventually(lambda: _said(fake_agent, conversation_id) == 3)
    await asyncio.sleep(0.3)
    # Where the tool had ended before the stop came, there was nothing to be paused any more.
    assert fake_agent.conversation_of(conversation_id).status in ("paused", "idle")
    # What is said behind it does.
    key = {"Idempotency-Key": "the last"}
    assert (await client.post(path, json=HELLO, headers=key)).status == 200
    await client.wait_for_execution(conversation_id, "finished")
    assert _said(fake_agent, conversation_id) == 4


async def test_a_message_behind_a_stop_does_not_overtake_it(
    client: Client, fake_agent: TroubledAgent
) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    held = fake_agent.hold("interrupt")
    async with asyncio.TaskGroup() as group:
        stop = group.create_task(_wish(client, conversation_id, "stopped"))
        await fake_agent.waits("interrupt")
        path = f"{V1}/{conversation_id}/send-message"
        said = group.create_task(client.post(path, json=HELLO))
        await asyncio.sleep(0.3)
        assert _said(fake_agent, conversation_id) == 0
        held.set()
    assert (stop.result(), said.result().status) == (200, 200)
    await eventually(lambda: _said(fake_agent, conversation_id) == 1)
    await client.wait_for_execution(conversation_id, "finished")


async def test_a_stop_does_not_overtake_the_answer_before_it(
    client: Client, fake_agent: TroubledAgent
) -> None:
    conversation_id = await _asking(client, fake_agent)
    slow = CommandResult(exit_code=0, stdout="", stderr="")
    fake_agent.on_command("^first", slow, seconds=1.0)
    [sandbox] = fake_agent.sandboxes.values()
    sandbox.fail_next(503, ANSWERS, times=2)
    for state in ("user_confirmed", "paused"):
        key = {"Idempotency-Key": state}
        assert await _wish(client, conversation_id, state, headers=key) == 200
    conversation = fake_agent.conversation_of(conversation_id)
    await eventually(lambda: len(_kinds(fake_agent, conversation_id, "ObservationEvent")) == 1)
    await eventually(lambda: conversation.status == "paused")


async def test_a_message_that_a_paused_agent_has_but_has_not_begun_with_sets_it_going(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    conversation = fake_agent.conversation_of(conversation_id)
    conversation.interrupt()
    last_event = conversation.events[-1]["id"]
    conversation.add_message(HELLO["content"])
    [sandbox] = fake_agent.sandboxes.values()
    pending = PendingMessage(
        id=new_id(),
        conversation_id=conversation_id,
        kind=PendingKind.MESSAGE,
        message=Message(content=(Content(kind=ContentKind.TEXT, text="only once"),)),
        last_event=last_event,
        is_tried=True,
    )
    agents = AgentClient()
    await agents.open()
    url = f"{service.url}/sandboxes/{sandbox.sandbox_id}/agent"
    await deliver_once(agents.at(url, Secret(sandbox.key)), pending, _begin)
    await agents.close()
    await eventually(lambda: conversation.status == "finished")
    assert _said(fake_agent, conversation_id) == 1


async def test_what_nobody_can_know_is_told_to_a_person(
    client: Client, fake_agent: TroubledAgent
) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    [sandbox] = fake_agent.sandboxes.values()
    sandbox.lose_next_answer("/events")
    fake_agent.hold("secrets")
    assert (await client.post(f"{V1}/{conversation_id}/send-message", json=HELLO)).status == 200
    await fake_agent.waits("secrets")
    # The sandbox goes on with an older copy of its files.
    del fake_agent.conversation_of(conversation_id).events[:]
    fake_agent.held.pop("secrets").set()

    async with asyncio.timeout(client.patience):
        for pause in itertools.repeat(0.05):
            if "may or may not have reached" in str(await client.events(conversation_id)):
                break
            await asyncio.sleep(pause)
    assert len(_messages(sandbox)) == 1

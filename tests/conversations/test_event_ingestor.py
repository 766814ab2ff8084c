"""What sandboxes report, and what is fetched where they could not."""

import asyncio
import io
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from agentsvc.base.values import MASK
from agentsvc.conversations.model import Conversation, Metrics
from agentsvc.http.keys import CONVERSATIONS, DATABASE
from agentsvc.storage.database import Transaction
from agentsvc.testing.llm import Playbook, Reply, ToolCall, call, finish, say
from tests.fake_conversation import FakeConversation
from tests.fake_sandbox import FakeSandbox
from tests.service import WAIT_SECONDS, Client, Service
from tests.troubles import TroubledAgent, eventually, reconfigure

HOOKS = "/api/v1/webhooks"
PATH = "/api/v1/app-conversations"


def sandbox_of(agent: TroubledAgent, conversation: FakeConversation) -> FakeSandbox:
    [found] = [one for one in agent.sandboxes.values() if conversation.id in one.conversations]
    return found


@pytest.fixture
async def direct(fake_agent: TroubledAgent) -> AsyncIterator[list[Client]]:
    """Collect clients that talk to the agent server without the server's knowledge."""
    clients: list[Client] = []
    yield clients
    for one in clients:
        await one.close()


async def tell_directly(
    direct: list[Client], agent: TroubledAgent, conversation: FakeConversation, text: str
) -> None:
    """Send a message to the agent server past the service."""
    caller = Client(agent.url, sandbox_of(agent, conversation).key)
    direct.append(caller)
    body = {"role": "user", "content": [{"type": "text", "text": text}], "run": True}
    answer = await caller.post(f"/api/conversations/{conversation.id}/events", json=body)
    assert answer.status == 200, answer.text


async def quiet(
    client: Client, service: Service, agent: TroubledAgent
) -> tuple[FakeConversation, Client]:
    """Return a conversation in which nothing happens, and a client with its sandbox's key."""
    conversation_id = await client.start_conversation(None)
    found = await client.wait_for_execution(conversation_id, "idle")
    return agent.conversation_of(conversation_id), service.client_with(found["session_api_key"])


def status_event(number: int, status: str, at: str) -> dict[str, Any]:
    return {
        "id": f"status-{number}",
        "timestamp": at,
        "source": "environment",
        "kind": "ConversationStateUpdateEvent",
        "key": "execution_status",
        "value": status,
    }


def stats_event(number: int, cost: float, at: str) -> dict[str, Any]:
    metrics = {"model_name": "m", "accumulated_cost": cost}
    return {
        **status_event(number, "", at),
        "id": f"stats-{number}",
        "key": "stats",
        "value": {"usage_to_metrics": {"agent": metrics}},
    }


async def deliver(sandbox: Client, conversation_id: str, *events: dict[str, Any]) -> None:
    answer = await sandbox.post(f"{HOOKS}/events/{conversation_id}", json=list(events))
    assert answer.status == 200, answer.text


async def report(sandbox: Client, conversation: FakeConversation, **changes: Any) -> None:
    answer = await sandbox.post(f"{HOOKS}/conversations", json={**conversation.info(), **changes})
    assert answer.status == 200, answer.text


async def has_all_events(client: Client, conversation: FakeConversation) -> bool:
    stored = {event["id"] for event in await client.events(conversation.id)}
    return stored >= {event["id"] for event in conversation.events}


async def wait_for_all_events(client: Client, conversation: FakeConversation) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not await has_all_events(client, conversation):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.05)
    ids = [event["id"] for event in await client.events(conversation.id)]
    assert len(ids) == len(set(ids))


# Events as they come


async def test_an_older_status_and_older_costs_do_not_overwrite_newer_ones(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, sandbox = await quiet(client, service, fake_agent)
    conversation.status, conversation.cost = "finished", 0.75
    await deliver(
        sandbox,
        conversation.id,
        status_event(3, "finished", "2040-01-01T00:00:03"),
        stats_event(3, 0.75, "2040-01-01T00:00:03"),
        status_event(2, "running", "2040-01-01T00:00:02"),
    )
    await deliver(
        sandbox,
        conversation.id,
        stats_event(2, 0.25, "2040-01-01T00:00:02"),
        status_event(1, "error", "2040-01-01T00:00:01"),
    )
    found = await client.conversation(conversation.id)
    assert found["execution_status"] == "finished"
    assert found["metrics"]["accumulated_cost"] == 0.75
    numbers = [one["id"] for one in await client.events(conversation.id) if "-" in one["id"][5:8]]
    assert [one for one in numbers if one.startswith("status")] == [
        "status-1",
        "status-2",
        "status-3",
    ]


async def test_an_old_report_of_a_conversation_changes_neither_status_nor_costs(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, sandbox = await quiet(client, service, fake_agent)
    conversation.status, conversation.cost = "finished", 0.75
    await deliver(
        sandbox,
        conversation.id,
        status_event(1, "finished", "2040-01-01T00:00:01"),
        stats_event(1, 0.75, "2040-01-01T00:00:01"),
    )
    await report(sandbox, conversation, execution_status="running", stats={"usage_to_metrics": {}})
    found = await client.conversation(conversation.id)
    assert found["execution_status"] == "finished"
    assert found["metrics"]["accumulated_cost"] == 0.75


@pytest.mark.parametrize(
    "metrics", [{"accumulated_cost": 1e308}, {"accumulated_token_usage": {"prompt_tokens": 2**63}}]
)
async def test_costs_that_nothing_has_are_kept_as_events_and_nothing_more(
    client: Client, service: Service, fake_agent: TroubledAgent, metrics: dict[str, Any]
) -> None:
    conversation, sandbox = await quiet(client, service, fake_agent)
    event = stats_event(1, 0.25, "2040-01-01T00:00:01")
    conversation.cost = 0.25
    await deliver(sandbox, conversation.id, event)
    value = {"usage_to_metrics": {"a": metrics, "b": metrics}}
    lie = {**event, "id": "stats-2", "timestamp": "2040-01-01T00:00:02", "value": value}
    await deliver(sandbox, conversation.id, lie)
    await report(sandbox, conversation, stats=value)
    assert "stats-2" in [one["id"] for one in await client.events(conversation.id)]
    for path in (f"{PATH}/search", "/api/conversations"):
        assert (await client.get(path)).status == 200
    await service.restart()
    found = await client.conversation(conversation.id)
    assert found["metrics"]["accumulated_cost"] == 0.25
    assert (await client.delete(f"{PATH}/{conversation.id}")).status == 200


async def test_a_cost_that_was_stored_as_none_is_read_as_nothing(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, _ = await quiet(client, service, fake_agent)
    table = service.app[CONVERSATIONS].ingestor.stores.conversations

    async def body(tx: Transaction) -> Conversation | None:
        stored = b'{"model_name":"m","accumulated_cost":null}'
        await tx.run("UPDATE conversations SET metrics = :stored", {"stored": stored})
        return await table.find(conversation.id, tx)

    found = await service.app[DATABASE].write(body)
    assert found is not None
    assert found.metrics == Metrics(model_name="m", accumulated_cost=0.0)


async def test_the_single_words_of_an_answer_are_stored_only_if_configured(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, sandbox = await quiet(client, service, fake_agent)
    delta = {**status_event(1, "", "2040-01-01T00:00:01"), "kind": "StreamingDeltaEvent"}
    await deliver(sandbox, conversation.id, delta)
    assert "status-1" not in [event["id"] for event in await client.events(conversation.id)]


async def test_events_of_an_unknown_form_are_kept_and_teach_nothing(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, sandbox = await quiet(client, service, fake_agent)
    await deliver(
        sandbox,
        conversation.id,
        {**status_event(1, "", "2040-01-01T00:00:01"), "value": "dancing"},
        {**status_event(2, "", "2040-01-01T00:00:02"), "value": {"deep": [1]}},
        {**stats_event(1, 1.0, "2040-01-01T00:00:03"), "value": {"usage_to_metrics": 5}},
        {**status_event(3, "", "2040-01-01T00:00:04"), "key": "something_new"},
    )
    found = await client.conversation(conversation.id)
    assert found["execution_status"] == "idle"
    assert (found["metrics"] or {}).get("accumulated_cost", 0) == 0
    assert len(await client.events(conversation.id)) >= 4


async def test_what_a_state_repeats_of_the_users_keys_is_not_kept(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, sandbox = await quiet(client, service, fake_agent)
    agent = {"llm": {"model": "m", "extra_headers": {"X-Key": "hunter2"}}}
    full = {**status_event(1, "", "2040-01-01T00:00:01"), "key": "full_state"}
    await deliver(sandbox, conversation.id, {**full, "value": {"agent": agent}})
    [found] = [one for one in await client.events(conversation.id) if one["id"] == "status-1"]
    assert found["value"] == {"agent": {"llm": {"model": "m", "extra_headers": {"X-Key": MASK}}}}


# Gaps


async def test_without_webhooks_everything_is_fetched(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, _ = await quiet(client, service, fake_agent)
    sandbox_of(fake_agent, conversation).has_webhooks = False
    body = {"content": [{"type": "text", "text": "go"}]}
    answer = await client.post(f"{PATH}/{conversation.id}/send-message", json=body)
    assert answer.status == 200, answer.text
    found = await client.wait_for_execution(conversation.id, "finished")
    assert found["metrics"]["accumulated_cost"] == pytest.approx(conversation.cost)
    await wait_for_all_events(client, conversation)


async def test_what_happened_while_the_server_was_down_is_fetched(
    client: Client, service: Service, fake_agent: TroubledAgent, direct: list[Client]
) -> None:
    conversation, _ = await quiet(client, service, fake_agent)
    await service.stop()
    sandbox_of(fake_agent, conversation).has_webhooks = False
    await tell_directly(direct, fake_agent, conversation, "go")
    await eventually(lambda: conversation.status == "finished")
    await service.start()
    await client.wait_for_execution(conversation.id, "finished")
    await wait_for_all_events(client, conversation)


async def test_after_a_start_agent_servers_that_are_silent_hold_up_nobody_elses_events(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    await reconfigure(service, conversations={"agent_seconds": 3})
    other, _ = await quiet(client, service, fake_agent)
    first, _ = await quiet(client, service, fake_agent)
    silent = sandbox_of(fake_agent, first)
    # More than are asked at a time, and asked before the other, which is older.
    for _ in range(9):
        await client.start_conversation(None, sandbox_id=silent.sandbox_id)
    await service.stop()
    sandbox_of(fake_agent, other).has_webhooks = False
    other.set_status("error")
    silent.slow_seconds = 3600.0
    await service.start()
    await client.wait_for_execution(other.id, "error")


async def test_a_status_that_is_fetched_comes_after_the_events_that_led_to_it(
    client: Client, service: Service, fake_agent: TroubledAgent, direct: list[Client]
) -> None:
    conversation, _ = await quiet(client, service, fake_agent)
    await service.stop()
    sandbox_of(fake_agent, conversation).has_webhooks = False
    fake_agent.hold("info")
    await service.start()
    # Every event there is has been fetched by now; what follows is only in the answer.
    await fake_agent.waits("info")
    await tell_directly(direct, fake_agent, conversation, "go")
    await eventually(lambda: conversation.status == "finished")
    fake_agent.let_go()
    await client.wait_for_execution(conversation.id, "finished")
    assert await has_all_events(client, conversation)


async def test_more_than_a_page_of_missed_events_is_fetched(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, _ = await quiet(client, service, fake_agent)
    await service.stop()
    sandbox_of(fake_agent, conversation).has_webhooks = False
    for number in range(250):
        conversation.add_state("number", number)
    await service.start()
    await wait_for_all_events(client, conversation)


async def test_a_time_that_is_none_is_not_kept_and_keeps_nothing_from_being_fetched(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, _ = await quiet(client, service, fake_agent)
    for number, at in enumerate(("9" * 100_000, "2040-01-01T00:00:00")):
        conversation.events.append(status_event(number, "idle", at))
        await service.app[CONVERSATIONS].ingestor.sync(conversation.id)
    assert [one["id"] for one in await client.events(conversation.id)][-1] == "status-1"
    sizes = await service.app[DATABASE].column("SELECT LENGTH(facts) FROM conversations")
    assert max(sizes) < 10_000


async def test_what_was_lost_with_an_agent_server_that_died_is_fetched_with_its_end(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, _ = await quiet(client, service, fake_agent)
    sandbox = sandbox_of(fake_agent, conversation)
    await service.stop()
    sandbox.has_webhooks = False
    conversation.set_status("running")
    # The error that a restart makes of a run is in no event.
    fake_agent.crash(sandbox.sandbox_id)
    fake_agent.restart(sandbox.sandbox_id)
    await service.start()
    await client.wait_for_execution(conversation.id, "error")
    await wait_for_all_events(client, conversation)


async def test_a_resumed_sandbox_is_asked_for_what_was_missed(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, _ = await quiet(client, service, fake_agent)
    sandbox = sandbox_of(fake_agent, conversation)
    await client.post(f"/api/v1/sandboxes/{sandbox.sandbox_id}/pause")
    sandbox.has_webhooks = False
    conversation.set_status("error")
    await client.post(f"/api/v1/sandboxes/{sandbox.sandbox_id}/resume")
    await client.wait_for_execution(conversation.id, "error")


async def test_an_agent_server_that_does_not_answer_is_asked_again_and_logged_once(
    client: Client,
    service: Service,
    fake_agent: TroubledAgent,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    conversation, _ = await quiet(client, service, fake_agent)
    sandbox = sandbox_of(fake_agent, conversation)
    sandbox.has_webhooks = False
    sandbox.is_down = True
    conversation.set_status("error")
    # The service that ends may have noticed it already.
    await service.stop()
    caplog.clear()
    before = len(sandbox.requests)
    await service.start()
    await eventually(lambda: len(sandbox.requests) >= before + 3)
    logged = [
        one for one in caplog.records if one.message == "conversation events cannot be fetched now"
    ]
    assert len(logged) == 1
    sandbox.is_down = False
    await client.wait_for_execution(conversation.id, "error")


async def test_a_conversation_its_agent_server_has_lost_keeps_what_is_stored(
    client: Client,
    service: Service,
    fake_agent: TroubledAgent,
    caplog: pytest.LogCaptureFixture,
) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    events = len(await client.events(conversation_id))
    conversation = fake_agent.conversation_of(conversation_id)
    sandbox_of(fake_agent, conversation).conversations.clear()
    await service.restart()
    message = "agent server does not know the conversation"
    await eventually(lambda: any(one.message == message for one in caplog.records))
    found = await client.conversation(conversation_id)
    assert found["execution_status"] == "finished"
    assert len(await client.events(conversation_id)) == events


# Titles


async def test_the_agents_title_comes_without_wiping_the_costs(
    client: Client, fake_agent: TroubledAgent
) -> None:
    conversation_id = await client.start_conversation()
    found = await client.wait_for_conversation(
        conversation_id, lambda seen: seen["title"] == fake_agent.title
    )
    found = await client.wait_for_execution(conversation_id, "finished")
    cost = fake_agent.conversation_of(conversation_id).cost
    assert cost > 0
    assert found["title"] == fake_agent.title
    assert found["metrics"]["accumulated_cost"] == pytest.approx(cost)


async def test_a_title_of_the_user_is_never_overwritten(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    given = await client.start_conversation(title="mine")
    changed = await client.start_conversation()
    await client.patch(f"{PATH}/{changed}", json={"title": "also mine"})
    for conversation_id, title in ((given, "mine"), (changed, "also mine")):
        found = await client.wait_for_execution(conversation_id, "finished")
        sandbox = service.client_with(found["session_api_key"])
        await report(sandbox, fake_agent.conversation_of(conversation_id), title="the agent's")
        assert (await client.conversation(conversation_id))["title"] == title


async def test_long_texts_of_a_sandbox_are_not_kept(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, sandbox = await quiet(client, service, fake_agent)
    named = "bedrock/arn:aws:bedrock:eu-central-1:123456789012:inference-profile/eu.claude"
    conversation.body["agent"]["llm"]["model"] = named
    told = {
        **conversation.info(),
        "title": "Fix \N{WOMAN}\u200d\N{PERSONAL COMPUTER}\0 it\n" * 3_000,
    }
    for model in (named, "m" * 100_000, "a\nb"):
        cost = {"model_name": model, "accumulated_cost": 0.25}
        told |= {"agent": {"llm": {"model": model}}, "stats": {"usage_to_metrics": {"a": cost}}}
        assert (await sandbox.post(f"{HOOKS}/conversations", json=told)).status == 200
    event = stats_event(1, 0.25, "2040-01-01T00:00:01")
    event["value"]["usage_to_metrics"]["agent"]["model_name"] = "m" * 10_000
    await deliver(sandbox, conversation.id, event)
    found = await client.conversation(conversation.id)
    assert found["llm_model"] == named
    assert found["title"].startswith("Fix \N{WOMAN}\u200d\N{PERSONAL COMPUTER}  it Fix")
    assert len(found["title"]) <= 200
    assert len(found["metrics"]["model_name"]) <= 255


async def test_what_is_longer_than_any_conversation_is_not_adopted(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, sandbox = await quiet(client, service, fake_agent)
    told = {"id": "f" * 32, "workspace": {"working_dir": "/" + "w" * 5000}}
    answer = await sandbox.post(f"{HOOKS}/conversations", json=told)
    assert answer.status == 422
    long = io.BytesIO(msgspec.json.encode({"id": "f" * 32, "tags": {"a": "x" * 2**24}}))
    kind = {"Content-Type": "application/json"}
    assert (await sandbox.post(f"{HOOKS}/conversations", data=long, headers=kind)).status == 413
    found = (await client.get(f"{PATH}/search")).json()["items"]
    assert [one["id"] for one in found] == [conversation.id]


async def test_a_title_that_was_cleared_is_given_anew(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, sandbox = await quiet(client, service, fake_agent)
    await client.patch(f"{PATH}/{conversation.id}", json={"title": "mine"})
    await client.patch(f"{PATH}/{conversation.id}", json={"title": None})
    await report(sandbox, conversation, title="the agent's")
    assert (await client.conversation(conversation.id))["title"] == "the agent's"


async def test_a_title_that_takes_a_while_is_asked_for_again(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    fake_agent.title = None
    conversation, sandbox = await quiet(client, service, fake_agent)
    asked = sandbox_of(fake_agent, conversation)
    before = len(asked.requests)
    message = {**status_event(1, "", "2040-01-01T00:00:01"), "kind": "MessageEvent"}
    asked.fail_next(500, f"/{conversation.id}")
    await deliver(sandbox, conversation.id, message)
    await eventually(lambda: len(asked.requests) >= before + 2)
    conversation.title = "at last"
    await client.wait_for_conversation(conversation.id, lambda seen: seen["title"] == "at last")


# The budget

SLOW = Reply(
    calls=(ToolCall(tool="terminal", arguments={"command": "sleep 60"}),), delay_seconds=60
)
EXPENSIVE = [call("terminal", command=f"echo {number}") for number in range(20)]


def stops(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event.get("code") == "MaxBudgetReached"]


async def test_a_run_that_reaches_the_budget_is_interrupted_and_the_conversation_says_so(
    client: Client, fake_agent: TroubledAgent
) -> None:
    await client.save_settings(max_budget_per_task=0.03)
    fake_agent.playbook = Playbook([*EXPENSIVE, SLOW])
    conversation_id = await client.start_conversation()
    found = await client.wait_for_execution(conversation_id, "paused")
    assert found["metrics"]["max_budget_per_task"] == 0.03
    [event] = stops(await client.events(conversation_id))
    assert "the budget of this conversation is 0.0300" in event["detail"]
    assert fake_agent.count("/interrupt") == 1


async def test_after_a_budget_stop_a_message_goes_on_until_the_next_costs(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    await client.save_settings(max_budget_per_task=0.03)
    fake_agent.playbook = Playbook([*EXPENSIVE, SLOW])
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "paused")
    conversation = fake_agent.conversation_of(conversation_id)
    # The model thinks about its first answer; nothing was spent yet.
    conversation.set_status("running")
    await client.wait_for_execution(conversation_id, "running")
    seen = fake_agent.count(f"GET /api/conversations/{conversation_id}")
    await eventually(
        lambda: fake_agent.count(f"GET /api/conversations/{conversation_id}") >= seen + 3
    )
    assert fake_agent.count("/interrupt") == 1
    conversation.cost += 1
    conversation.add_state("stats", conversation.stats())
    await eventually(lambda: fake_agent.count("/interrupt") == 2)
    assert len(stops(await client.events(conversation_id))) == 2


async def test_a_budget_stop_that_the_server_did_not_get_to_deliver_is_delivered_after_a_restart(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    await client.save_settings(max_budget_per_task=0.03)
    fake_agent.playbook = Playbook([*EXPENSIVE, SLOW])
    fake_agent.interrupt_refusals = [503]
    hold = fake_agent.hold("interrupt")
    conversation_id = await client.start_conversation()
    await fake_agent.waits("interrupt")
    await service.stop()
    hold.set()
    fake_agent.let_go()
    await service.start()
    await client.wait_for_execution(conversation_id, "paused")
    assert len(stops(await client.events(conversation_id))) == 1
    assert fake_agent.count("/interrupt") == 2


async def test_a_budget_stop_that_the_agent_server_could_not_take_is_repeated(
    client: Client, fake_agent: TroubledAgent
) -> None:
    await client.save_settings(max_budget_per_task=0.03)
    fake_agent.playbook = Playbook([*EXPENSIVE, SLOW])
    fake_agent.interrupt_refusals = [503]
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "paused")
    assert len(stops(await client.events(conversation_id))) == 1


async def test_a_stop_that_came_too_late_is_forgotten(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    await client.save_settings(max_budget_per_task=0.001)
    fake_agent.playbook = Playbook([say("That was quick.")])
    fake_agent.interrupt_refusals = [503] * 2
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    await eventually(lambda: fake_agent.count("/interrupt") >= 1)
    conversation = fake_agent.conversation_of(conversation_id)
    seen = fake_agent.count(f"GET /api/conversations/{conversation_id}")
    await eventually(lambda: fake_agent.count(f"GET /api/conversations/{conversation_id}") > seen)
    conversation.set_status("running")
    await client.wait_for_execution(conversation_id, "running")
    assert fake_agent.count("/interrupt") == 1


async def test_without_a_budget_nothing_is_interrupted(
    client: Client, fake_agent: TroubledAgent
) -> None:
    fake_agent.playbook = Playbook([*EXPENSIVE[:3], finish("done")])
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    assert stops(await client.events(conversation_id)) == []


# Deleted ones

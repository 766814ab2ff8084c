"""The history that a copied conversation goes on with: which events, in which order, and where."""

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from msgspec.json import encode

from agentsvc.base.values import new_id
from agentsvc.conversations.event_table import StoredEvent
from agentsvc.conversations.history import (
    lines_of,
    moved_event,
    read_step,
    with_prompt,
    without_parent,
)
from agentsvc.testing.llm import Playbook, fail
from tests.conversations.test_archives import PackingAgent, fake_agent, start
from tests.http.v1.test_webhook_subscriptions import configure, subscribe
from tests.receivers import Receiver
from tests.service import Client, Service

__all__ = ["fake_agent"]

PATH = "/api/v1/app-conversations"
type Event = dict[str, Any]

SYSTEM: Event = {"kind": "SystemPromptEvent", "id": "00000001"}
USER: Event = {"kind": "MessageEvent", "id": "00000002"}
ACT: Event = {
    "kind": "ActionEvent",
    "id": "00000003",
    "tool_name": "terminal",
    "tool_call_id": "call",
}
DONE: Event = {"kind": "ObservationEvent", "id": "00000004", "tool_call_id": "call"}
AFTER: Event = {"kind": "MessageEvent", "id": "00000005"}
TOLD: Event = {"kind": "ConversationStateUpdateEvent", "id": "00000006"}


def stored(event: Event, seq: int = 0) -> StoredEvent:
    body = {"timestamp": "2026-01-01T00:00:00", "source": "agent", **event}
    return StoredEvent(
        conversation_id="c",
        seq=seq,
        id=str(event["id"]),
        kind=str(event["kind"]),
        timestamp="2026-01-01T00:00:00",
        source="agent",
        body=encode(body),
    )


def copied(*events: Event) -> list[str]:
    """Return the ids of a history, and `open` for each call that is ended by the copy."""
    steps = [step for event in events if (step := read_step(stored(event))) is not None]
    return [line.id if line.made is None else "open" for line in lines_of(steps)]


def ids(*events: Event) -> list[str]:
    return [event["id"] for event in events]


def chained(*events: Event) -> list[Event]:
    """Return the events, each the child of the one before it."""
    pairs = itertools.pairwise(events)
    return [events[0], *({**child, "parent_id": parent["id"]} for parent, child in pairs)]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], []),
        ([SYSTEM, USER, ACT, DONE, AFTER], ids(SYSTEM, USER, ACT, DONE, AFTER)),
        (chained(SYSTEM, USER, ACT, DONE), ids(SYSTEM, USER, ACT, DONE)),
        # Only told, never known.
        ([SYSTEM, TOLD, USER, TOLD], ids(SYSTEM, USER)),
        # A parent that was only told.
        ([SYSTEM, TOLD, {**USER, "parent_id": TOLD["id"]}], ids(SYSTEM, USER)),
        # A parent that nobody has.
        ([SYSTEM, {**USER, "parent_id": "ffffffff"}], ids(SYSTEM, USER)),
        # A branch that was left.
        (
            [SYSTEM, *chained(SYSTEM, USER, ACT, DONE)[1:], {**AFTER, "parent_id": "00000001"}],
            ids(SYSTEM, AFTER),
        ),
        ([SYSTEM, USER, {**AFTER, "parent_id": "__root__"}], ids(AFTER)),
        # A circle.
        (
            [{**SYSTEM, "parent_id": USER["id"]}, {**USER, "parent_id": SYSTEM["id"]}],
            ids(SYSTEM, USER),
        ),
        # Calls without an end, ends without a call, and what was too large to be kept.
        ([SYSTEM, USER, ACT], [*ids(SYSTEM, USER, ACT), "open"]),
        ([SYSTEM, ACT, AFTER], [*ids(SYSTEM, ACT), "open", AFTER["id"]]),
        ([SYSTEM, DONE, AFTER], ids(SYSTEM, AFTER)),
        (
            [SYSTEM, ACT, {**DONE, "truncated": True}, AFTER],
            [*ids(SYSTEM, ACT), "open", AFTER["id"]],
        ),
        ([SYSTEM, {**ACT, "truncated": True}, DONE, AFTER], ids(SYSTEM, AFTER)),
        # What no agent server writes.
        ([SYSTEM, {**USER, "id": "../../etc/passwd"}], ids(SYSTEM)),
        ([SYSTEM, {**USER, "parent_id": 7}], ids(SYSTEM)),
    ],
)
def test_a_history_is_the_branch_on_which_the_agent_went_on(
    events: list[Event], expected: list[str]
) -> None:
    assert copied(*events) == expected


def test_two_calls_at_once_are_both_ended_before_anything_else_is_said() -> None:
    second = {**ACT, "id": "00000013", "tool_call_id": "other"}
    assert copied(ACT, second, AFTER) == [*ids(ACT, second), "open", "open", AFTER["id"]]
    assert copied(ACT, second, DONE) == [*ids(ACT, second, DONE), "open"]


def test_a_history_without_instructions_begins_with_some() -> None:
    def begun(*events: Event) -> list[str]:
        steps = [step for event in events if (step := read_step(stored(event))) is not None]
        lines = with_prompt(lines_of(steps), steps)
        return [str(line.made["kind"]) if line.made else line.id for line in lines]

    assert begun() == []
    assert begun(USER, AFTER) == ["SystemPromptEvent", *ids(USER, AFTER)]
    assert begun(SYSTEM, USER) == ids(SYSTEM, USER)
    assert begun(TOLD, SYSTEM, USER) == ids(SYSTEM, USER)


def test_an_event_loses_only_its_place() -> None:
    body = encode({"id": "a", "parent_id": "b", "n": 12345678901234567890, "x": None})
    assert without_parent(body) == b'{"id":"a","n":12345678901234567890,"x":null}'


def test_the_agent_is_told_where_its_files_are() -> None:
    def text(old: str | None, new: str) -> str:
        event = moved_event("c" * 32, "2026-01-01T00:00:00", old_dir=old, new_dir=new)
        return str(event["llm_message"]["content"][0]["text"])

    assert "in /a are in /b now" in text("/a", "/b")
    assert "where they were: /a" in text("/a", "/a")
    assert "are not here: look at what is in /b" in text(None, "/b")


async def events_of(client: Client, conversation_id: str) -> list[Event]:
    path = f"/api/v1/conversation/{conversation_id}/events/search?limit=100"
    found: list[Event] = (await client.get(path)).json()["items"]
    return found


async def test_a_fork_goes_on_with_the_history(client: Client, fake_agent: PackingAgent) -> None:
    conversation_id, _ = await start(client)
    await client.wait_for_execution(conversation_id, "finished")
    before = [one["id"] for one in await events_of(client, conversation_id)]

    words = {"content": [{"type": "text", "text": "Which number?"}]}
    answer = await client.post(f"{PATH}/{conversation_id}/fork", json={"initial_message": words})
    assert answer.status == 200, answer.text
    ended = await client.end_of_start(answer.json()["id"])
    assert ended["status"] == "READY", ended["detail"]
    fork_id = str(ended["app_conversation_id"])
    await client.wait_for_execution(fork_id, "finished")

    assert [one["id"] for one in await events_of(client, fork_id)][: len(before)] == before
    known = fake_agent.find_conversation(fork_id)
    assert known is not None
    said = [
        one["llm_message"]["content"][0]["text"]
        for one in known.events
        if one["kind"] == "MessageEvent" and one["llm_message"]["role"] == "user"
    ]
    assert said[0] == "please work"
    assert said[1].startswith("This conversation is a copy")
    assert said[2] == "Which number?"
    assert not any("parent_id" in one for one in known.events[:3])
    assert b"Which number?" not in encode(await events_of(client, conversation_id))


async def test_a_fork_whose_model_refuses_at_once_does_not_start(
    client: Client, fake_agent: PackingAgent
) -> None:
    conversation_id, _ = await start(client)
    await client.wait_for_execution(conversation_id, "finished")
    fake_agent.playbook = Playbook([], {}, [fail(401)])
    words = {"content": [{"type": "text", "text": "Which number?"}]}
    order = {"initial_message": words, "llm_model": "openai/other"}
    task = (await client.post(f"{PATH}/{conversation_id}/fork", json=order)).json()
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "ERROR"
    assert "The language model refused the first request" in ended["detail"]


async def test_what_a_fork_is_told_first_is_told_again_where_its_agent_server_has_lost_it(
    client: Client, fake_agent: PackingAgent
) -> None:
    conversation_id, _ = await start(client)
    await client.wait_for_execution(conversation_id, "finished")
    fake_agent.loses_message = True
    # It is in the history, too.
    words = {"content": [{"type": "text", "text": "please work"}]}
    answer = await client.post(f"{PATH}/{conversation_id}/fork", json={"initial_message": words})
    ended = await client.end_of_start(answer.json()["id"])
    assert ended["status"] == "READY", ended["detail"]
    fork_id = str(ended["app_conversation_id"])
    known = fake_agent.find_conversation(fork_id)
    assert known is not None
    assert [one["source"] for one in known.events].count("user") == 2
    await client.wait_for_execution(fork_id, "finished")


async def test_a_fork_goes_on_with_a_history_of_one_event(client: Client, service: Service) -> None:
    # One that a sandbox has told of, and of which it has nothing more to tell.
    first_id, sandbox_id = await start(client)
    key = (await client.conversation(first_id))["session_api_key"]
    sandbox = service.client_with(key)
    conversation_id = "11111111222233334444555555555555"
    told = {"id": "11111111-2222-3333-4444-555555555555", "title": "Started inside"}
    assert (await sandbox.post("/api/v1/webhooks/conversations", json=told)).status == 200
    event = {**USER, "timestamp": "2026-01-01T00:00:00", "source": "user"}
    path = f"/api/v1/webhooks/events/{conversation_id}"
    assert (await sandbox.post(path, json=[event])).status == 200
    assert (await client.delete(f"/api/v1/sandboxes/{sandbox_id}")).status == 200
    assert await events_of(client, conversation_id) == [event]

    answer = await client.post(f"{PATH}/{conversation_id}/fork", json={})
    assert answer.status == 200, answer.text


async def test_a_fork_may_end_with_an_event_of_the_history(
    client: Client, fake_agent: PackingAgent
) -> None:
    conversation_id, _ = await start(client)
    await client.wait_for_execution(conversation_id, "finished")
    before = await events_of(client, conversation_id)
    last = next(one["id"] for one in before if one["kind"] == "MessageEvent")
    path = f"{PATH}/{conversation_id}/fork"
    for wrong, status in ((new_id(), 404), ("", 422), ("x" * 256, 422), (7, 422)):
        refused = await client.post(path, json={"up_to_event_id": wrong})
        assert refused.status == status, refused.text

    answer = await client.post(path, json={"up_to_event_id": last})
    ended = await client.end_of_start(answer.json()["id"])
    assert ended["status"] == "READY", ended["detail"]
    fork_id = str(ended["app_conversation_id"])
    known = fake_agent.find_conversation(fork_id)
    assert known is not None
    kept = [one["id"] for one in before][: [one["id"] for one in before].index(last) + 1]
    copied = {one["id"] for one in await events_of(client, fork_id)} & {one["id"] for one in before}
    assert copied == set(kept)
    assert len(kept) < len(before)
    assert last in [one["id"] for one in known.events]
    counted = await client.get(f"/api/v1/conversation/{fork_id}/events/count")
    assert counted.json() == len(await events_of(client, fork_id))


async def test_webhooks_are_told_what_is_new_in_a_fork_and_not_its_history(
    client: Client, service: Service
) -> None:
    await configure(service)
    conversation_id, _ = await start(client)
    await client.wait_for_execution(conversation_id, "finished")
    async with Receiver() as receiver:
        await subscribe(client, receiver.url, changes=["conversation"])
        words = {"content": [{"type": "text", "text": "Which number?"}]}
        order = {"initial_message": words}
        task = (await client.post(f"{PATH}/{conversation_id}/fork", json=order)).json()
        ended = await client.end_of_start(task["id"])
        fork_id = str(ended["app_conversation_id"])
        await client.wait_for_execution(fork_id, "finished")

        def told() -> set[str]:
            found = receiver.of_type("conversation.event")
            return {one["event"]["id"] for one in found if one["conversation_id"] == fork_id}

        def changed() -> set[str]:
            return {one["id"] for one in receiver.of_type("conversation.changed")}

        known = {one["id"] for one in await events_of(client, conversation_id)}
        new = {one["id"] for one in await events_of(client, fork_id)} - known
        # Its agent may have done all before the start says that it is ready.
        await receiver.wait_for(lambda: new <= told() and fork_id in changed())
        assert not told() & known


async def model_of_fork(client: Client, conversation_id: str, **order: str) -> str:
    """Fork a conversation, and return with which model that goes on."""
    answer = await client.post(f"{PATH}/{conversation_id}/fork", json=order)
    assert answer.status == 200, answer.text
    ended = await client.end_of_start(answer.json()["id"])
    assert ended["status"] == "READY", ended["detail"]
    return str((await client.conversation(ended["app_conversation_id"]))["llm_model"])


async def test_a_fork_goes_on_with_the_model_of_its_first_one(client: Client) -> None:
    saved = {"llm": {"model": "openai/saved", "api_key": "key-of-saved"}}
    assert (await client.post("/api/v1/settings/profiles/quick", json=saved)).status in {200, 201}
    conversation_id, _ = await start(client)
    default = (await client.conversation(conversation_id))["llm_model"]
    assert await model_of_fork(client, conversation_id) == default
    await asyncio.sleep(1.5)  # what it was asked after its run, it has answered
    switched = await client.post(
        f"{PATH}/{conversation_id}/switch_profile", json={"profile_name": "quick"}
    )
    assert switched.status == 200, switched.text
    await client.wait_for_conversation(
        conversation_id, lambda found: found["llm_model"] == "openai/saved"
    )
    assert await model_of_fork(client, conversation_id) == "openai/saved"
    named = await model_of_fork(client, conversation_id, llm_model="openai/other")
    assert named == "openai/other"
    # There is no key for it any more.
    assert (await client.delete("/api/v1/settings/profiles/quick")).status == 200
    assert await model_of_fork(client, conversation_id) == default


async def test_a_fork_goes_on_with_a_model_that_only_a_start_named(client: Client) -> None:
    conversation_id = await client.start_conversation(llm_model="openai/named")
    await client.wait_for_execution(conversation_id, "finished")
    assert await model_of_fork(client, conversation_id) == "openai/named"


async def test_a_fork_fails_where_the_agent_server_does_not_read_its_history(
    client: Client, fake_agent: PackingAgent
) -> None:
    conversation_id, _ = await start(client)
    await client.wait_for_execution(conversation_id, "finished")
    fake_agent.reads_history = False
    task = (await client.post(f"{PATH}/{conversation_id}/fork")).json()
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "ERROR"
    assert "does not read the history" in ended["detail"]
    assert not fake_agent.sandboxes[ended["sandbox_id"]].conversations


def test_a_body_that_is_no_event_is_left_out() -> None:
    broken = msgspec.structs.replace(stored(USER), body=b'{"id": 1}')
    assert read_step(broken) is None

"""Conversations as their owners find, change and delete them, and as nobody else does."""

import asyncio

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.agentserver.responses import CommandResult
from agentsvc.conversations.message_queue_table import PendingKind
from agentsvc.domain.orders import Content, ContentKind, Message
from agentsvc.http.keys import CONVERSATIONS, DATABASE, KEYRING, PENDING
from agentsvc.sandboxes import SandboxStatus
from agentsvc.storage.database import Transaction
from agentsvc.testing.llm import Playbook, call, finish
from tests.service import Answer, Client, Service
from tests.troubles import TroubledAgent, TroubledWorld, eventually

PATH = "/api/v1/app-conversations"
HELLO = {"content": [{"type": "text", "text": "hello"}]}


async def user_of(service: Service, name: str = "admin") -> str:
    user_id = await service.app[KEYRING].find_user(name)
    assert user_id is not None
    return user_id


async def test_a_conversation_started_runs_to_its_end(client: Client) -> None:
    conversation_id = await client.start_conversation()
    seen = await client.wait_for_execution(conversation_id, "finished")
    assert seen["sandbox_status"] == "RUNNING"
    kinds = [event["kind"] for event in await client.events(conversation_id)]
    assert "ActionEvent" in kinds
    assert "ObservationEvent" in kinds


# Whose it is


async def test_nobody_sees_or_changes_another_users_conversation(
    client: Client, service: Service
) -> None:
    conversation_id = await client.start_conversation()
    task = (await client.get(f"{PATH}/start-tasks/search")).json()["items"][0]
    other = await service.make_client("eve", Role.MEMBER)
    await other.save_settings()

    assert await other.conversation(conversation_id) is None
    assert (await other.get(f"{PATH}/search")).json()["items"] == []
    assert (await other.get(f"{PATH}/count")).json() == 0
    assert await other.task(task["id"]) is None
    assert (await other.get(f"{PATH}/start-tasks/search")).json()["items"] == []
    assert (await other.get(f"{PATH}/start-tasks/count")).json() == 0
    for answer in await refused(other, conversation_id):
        assert answer.status == 404, answer.text
    assert await other.events(conversation_id) == []
    found = await client.conversation(conversation_id)
    assert found["title"] != "stolen"


async def refused(other: Client, conversation_id: str) -> list[Answer]:
    return [
        await other.get(f"{PATH}/{conversation_id}"),
        await other.patch(f"{PATH}/{conversation_id}", json={"title": "stolen"}),
        await other.post(f"{PATH}/{conversation_id}/send-message", json=HELLO),
        await other.delete(f"{PATH}/{conversation_id}"),
    ]


async def test_a_sandbox_tells_nothing_of_a_conversation_in_another_one(
    client: Client, service: Service
) -> None:
    first = await client.conversation(await client.start_conversation(None))
    other = await service.make_client("eve", Role.MEMBER)
    await other.save_settings()
    eves = await other.conversation(await other.start_conversation(None))
    caller = service.client_with(eves["session_api_key"])
    answer = await caller.post(f"/api/v1/webhooks/events/{first['id']}", json=[])
    assert answer.status == 404
    info = {"id": first["id"], "title": "stolen"}
    answer = await caller.post("/api/v1/webhooks/conversations", json=info)
    assert answer.status == 404
    assert (await client.conversation(first["id"]))["title"] != "stolen"


async def test_tags_that_an_agent_server_tells_are_merged_and_listed(
    client: Client, service: Service
) -> None:
    conversation_id = await client.start_conversation(None)
    made = await client.conversation(conversation_id)
    caller = service.client_with(made["session_api_key"])
    for tags in (
        {"team": "core", "kind": "bug"},
        {"kind": "feature", "No Tag": "x", "long": "x" * 257},
        {f"t{number}": "x" for number in range(100)},
    ):
        info = {"id": conversation_id, "tags": tags}
        answer = await caller.post("/api/v1/webhooks/conversations", json=info)
        assert answer.status == 200, answer.text
    told = (await client.conversation(conversation_id))["tags"]
    assert told["team"] == "core"
    assert told["kind"] == "feature"
    assert not {"No Tag", "long"} & set(told)
    assert len(told) == 64
    [listed] = (await client.get(f"{PATH}/search")).json()["items"]
    assert listed["tags"] == told


# Deleting


async def test_deleting_a_conversation_removes_its_children_events_tasks_and_empty_sandbox(
    client: Client, fake_world: TroubledWorld
) -> None:
    parent = await client.start_conversation()
    child = await client.start_conversation(parent_conversation_id=parent)
    grandchild = await client.start_conversation(parent_conversation_id=child)
    assert (await client.delete(f"{PATH}/{parent}")).status == 200
    await eventually(lambda: not fake_world.sandboxes)
    for conversation_id in (parent, child, grandchild):
        assert await client.conversation(conversation_id) is None
        assert await client.events(conversation_id) == []
    assert (await client.get(f"{PATH}/start-tasks/count")).json() == 0
    assert (await client.delete(f"{PATH}/{parent}")).status == 404


async def test_others_write_while_a_long_conversation_is_deleted(
    client: Client, service: Service
) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    database, named = service.app[DATABASE], {"id": conversation_id}
    more = """
        WITH RECURSIVE numbers (value) AS (
            SELECT 1000 UNION ALL SELECT value + 1 FROM numbers WHERE value < 5000
        )
        INSERT INTO events (conversation_id, seq, id, kind, timestamp, source, body, received_at)
        SELECT :id, value, 'e' || value, 'MessageEvent', '', 'agent', x'', ''
        FROM numbers
    """
    await database.write(lambda tx: tx.run(more, named))
    end = "UPDATE conversations SET next_seq = 5001 WHERE id = :id"
    await database.write(lambda tx: tx.run(end, named))

    async def count(tx: Transaction) -> int:
        found = await tx.value("SELECT COUNT(*) FROM events WHERE conversation_id = :id", named)
        return int(found or 0)

    whole = await database.write(count)
    seen = {whole}
    async with asyncio.TaskGroup() as group:
        deleting = group.create_task(client.delete(f"{PATH}/{conversation_id}"))
        while not deleting.done():
            seen.add(await database.write(count))
    assert deleting.result().status == 200
    assert await database.write(count) == 0
    assert len(seen - {whole, 0}) > 1


async def test_a_deleted_child_leaves_its_parent_and_their_sandbox(
    client: Client, fake_world: TroubledWorld
) -> None:
    parent = await client.start_conversation()
    child = await client.start_conversation(parent_conversation_id=parent)
    assert (await client.delete(f"{PATH}/{child}")).status == 200
    await fake_world.sweeps(2)
    assert len(fake_world.sandboxes) == 1
    assert (await client.conversation(parent))["sub_conversation_ids"] == []


async def test_a_conversation_whose_sandbox_is_gone_can_be_deleted(
    client: Client, fake_world: TroubledWorld
) -> None:
    conversation_id = await client.start_conversation()
    sandbox_id = (await client.conversation(conversation_id))["sandbox_id"]
    await client.delete(f"/api/v1/sandboxes/{sandbox_id}")
    await eventually(lambda: not fake_world.sandboxes)
    assert (await client.conversation(conversation_id))["sandbox_status"] == "MISSING"
    assert (await client.delete(f"{PATH}/{conversation_id}")).status == 200
    assert await client.conversation(conversation_id) is None


async def test_one_of_two_conversations_without_their_sandbox_can_be_deleted(
    client: Client, fake_world: TroubledWorld
) -> None:
    first = await client.start_conversation(None)
    sandbox_id = (await client.conversation(first))["sandbox_id"]
    second = await client.start_conversation(None, sandbox_id=sandbox_id)
    await client.delete(f"/api/v1/sandboxes/{sandbox_id}")
    await eventually(lambda: not fake_world.sandboxes)
    assert (await client.delete(f"{PATH}/{second}")).status == 200
    assert await client.conversation(first) is not None


async def test_a_deletion_that_a_stop_interrupts_goes_on_with_the_sandbox(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    conversation_id = await client.start_conversation()
    fake_world.unreachable = True
    assert (await client.delete(f"{PATH}/{conversation_id}")).status == 200
    await service.stop()
    fake_world.unreachable = False
    await service.start()
    await eventually(lambda: not fake_world.sandboxes)


# Talking to the agent


@pytest.mark.parametrize(
    ("state", "status", "words"),
    [
        ("paused", 409, "resume"),
        ("failed", 503, "it fell over"),
        ("gone", 410, "does not exist any more"),
        ("deleted", 410, "does not exist any more"),
    ],
)
async def test_a_message_to_a_sandbox_that_does_not_run_says_what_to_do(
    client: Client, fake_world: TroubledWorld, *, state: str, status: int, words: str
) -> None:
    conversation_id = await client.start_conversation()
    sandbox_id = (await client.conversation(conversation_id))["sandbox_id"]
    match state:
        case "paused":
            await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
        case "failed":
            fake_world.end(sandbox_id, reason="it fell over")
            await client.wait_for_sandbox(sandbox_id, "ERROR")
        case "gone":
            fake_world.vanish(sandbox_id)
            await client.wait_for_sandbox(sandbox_id, "MISSING")
        case _:
            await client.delete(f"/api/v1/sandboxes/{sandbox_id}")
    answer = await client.post(f"{PATH}/{conversation_id}/send-message", json=HELLO)
    assert answer.status == status
    assert words in answer.json()["detail"]


async def test_a_message_to_a_conversation_that_is_still_starting_is_refused(
    client: Client, fake_agent: TroubledAgent
) -> None:
    fake_agent.hold("openhands/setup.sh", is_command=True)
    await client.start_task(conversation_id="0f" * 16)
    await fake_agent.waits("openhands/setup.sh")
    answer = await client.post(f"{PATH}/{'0f' * 16}/send-message", json=HELLO)
    assert answer.status == 409
    assert "still being started" in answer.json()["detail"]


async def test_what_the_agent_server_says_of_a_message_is_passed_on(
    client: Client, fake_agent: TroubledAgent
) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    sandbox_id = (await client.conversation(conversation_id))["sandbox_id"]
    fake_agent.sandboxes[sandbox_id].is_down = True
    answer = await client.post(f"{PATH}/{conversation_id}/send-message", json=HELLO)
    assert answer.status == 502
    assert answer.json()["code"] == "agent_unavailable"


async def test_an_agent_is_paused_run_interrupted_and_answered(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    slow = CommandResult(exit_code=0, stdout="", stderr="")
    fake_agent.on_command("^slow", slow, seconds=30)
    ask = call("terminal", command="slow")
    fake_agent.playbook = Playbook([ask, finish("done")], follow_up=[ask, ask])
    await client.save_settings(confirmation_mode=True)
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "waiting_for_confirmation")
    pending, user_id = service.app[PENDING], await user_of(service)

    await pending.tell(user_id, conversation_id, PendingKind.REJECT, reason="not that")
    await client.wait_for_execution(conversation_id, "idle")
    [rejected] = [one for one in await client.events(conversation_id) if "rejection_reason" in one]
    assert rejected["rejection_reason"] == "not that"
    await pending.tell(user_id, conversation_id, PendingKind.RUN)
    await client.wait_for_execution(conversation_id, "finished")

    message = Message(content=(Content(kind=ContentKind.TEXT, text="again"),))
    status = await pending.send(user_id, conversation_id, message, run=True)
    assert status is SandboxStatus.RUNNING
    await client.wait_for_execution(conversation_id, "waiting_for_confirmation")
    await pending.tell(user_id, conversation_id, PendingKind.ACCEPT)
    await client.wait_for_execution(conversation_id, "running")
    await pending.tell(user_id, conversation_id, PendingKind.INTERRUPT)
    await client.wait_for_execution(conversation_id, "paused")
    await pending.tell(user_id, conversation_id, PendingKind.PAUSE)
    assert fake_agent.count("/pause") == 1


# Finding


async def test_a_conversation_that_is_starting_is_shown_only_where_that_is_asked_for(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    fake_agent.hold("openhands/setup.sh", is_command=True)
    await client.start_task(conversation_id="0f" * 16)
    await fake_agent.waits("openhands/setup.sh")
    assert await client.conversation("0f" * 16) is None
    view = await service.app[CONVERSATIONS].get(
        await user_of(service), "0f" * 16, include_starting=True
    )
    assert view.sandbox_status is SandboxStatus.RUNNING
    assert not view.conversation.is_ready


async def test_a_conversation_shows_starting_before_it_has_a_sandbox(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.hold("create")
    conversations, user_id = service.app[CONVERSATIONS], await user_of(service)
    await client.start_task(conversation_id="0f" * 16)
    view = await conversations.get(user_id, "0f" * 16, include_starting=True)
    assert view.sandbox_status is SandboxStatus.STARTING
    assert view.agent_url is None
    assert view.session_api_key is None
    fake_world.held.pop("create").set()


async def test_a_repository_or_branch_that_cannot_be_is_not_stored(client: Client) -> None:
    conversation_id = await client.start_conversation()
    for body in ({"selected_repository": "a;b"}, {"selected_branch": "-x"}):
        answer = await client.patch(f"{PATH}/{conversation_id}", json=body)
        assert answer.status == 422
    good = {"selected_repository": "acme/app", "selected_branch": "main"}
    answer = await client.patch(f"{PATH}/{conversation_id}", json=good)
    assert answer.status == 200
    assert answer.json()["selected_branch"] == "main"


async def test_a_change_beside_a_deletion_ends_well_or_is_not_found(client: Client) -> None:
    conversation_id = await client.start_conversation()
    changed, deleted = await asyncio.gather(
        client.patch(f"{PATH}/{conversation_id}", json={"title": "mine"}),
        client.delete(f"{PATH}/{conversation_id}"),
    )
    assert deleted.status == 200
    assert changed.status in (200, 404)
    assert await client.conversation(conversation_id) is None

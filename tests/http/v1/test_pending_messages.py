"""Messages that wait until their conversation can take them."""

import asyncio
from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.agentserver.responses import CommandResult
from agentsvc.base.values import dashed, new_id
from agentsvc.testing.llm import Playbook, call, finish
from tests.fake_agent import FakeAgent
from tests.fake_sandbox import FakeSandbox
from tests.service import Answer, Client, Service

SLOW = CommandResult(exit_code=0, stdout="", stderr="")
FIRST = "please work"


async def _queue(client: Client, reference: str, text: str = "and more") -> Answer:
    return await client.post(
        f"/api/v1/conversations/{reference}/pending-messages",
        json={"content": [{"type": "text", "text": text}]},
    )


async def _texts(client: Client, conversation_id: str) -> list[str]:
    """Return what users said in a conversation, in order."""
    return [
        "".join(part["text"] for part in event["llm_message"]["content"])
        for event in await client.events(conversation_id)
        if event["kind"] == "MessageEvent" and event["source"] == "user"
    ]


async def _wait_for_texts(client: Client, conversation_id: str, texts: list[str]) -> None:
    seen: list[str] = []
    try:
        async with asyncio.timeout(client.patience):
            while seen != texts:
                await asyncio.sleep(0.05)
                seen = await _texts(client, conversation_id)
    except TimeoutError:
        raise AssertionError(f"what was said stayed like this: {seen}") from None


async def _wait_for_event(client: Client, conversation_id: str, code: str) -> dict[str, Any]:
    async with asyncio.timeout(client.patience):
        while True:
            for event in await client.events(conversation_id):
                if event.get("code") == code:
                    return event
            await asyncio.sleep(0.05)


async def _start_slowly(client: Client, fake_agent: FakeAgent, **fields: Any) -> dict[str, Any]:
    """Return the task of a start that takes a while."""
    fake_agent.on_command("git init", SLOW, seconds=1.0)
    return await client.start_task(FIRST, **fields)


def _sandbox(fake_agent: FakeAgent) -> FakeSandbox:
    [found] = fake_agent.sandboxes.values()
    return found


async def test_messages_wait_for_the_start_and_are_delivered_in_order(
    client: Client, fake_agent: FakeAgent
) -> None:
    task = await _start_slowly(client, fake_agent)
    texts = [f"number {number}" for number in range(1, 4)]
    answers = [await _queue(client, f"task-{task['id']}", text) for text in texts]
    assert [answer.status for answer in answers] == [201] * 3
    assert [answer.json()["position"] for answer in answers] == [1, 2, 3]
    queued = answers[0].json()
    assert set(queued) == {"id", "queued", "position"}
    assert queued["queued"] is True
    assert queued["id"] == dashed(queued["id"].replace("-", ""))
    conversation_id = (await client.end_of_start(task["id"]))["app_conversation_id"]
    await _wait_for_texts(client, conversation_id, [FIRST, *texts])
    sent = [body for path, body in _sandbox(fake_agent).bodies if path.endswith("/events")]
    assert [body["run"] for body in sent] == [True] * 3


async def test_a_message_that_waits_is_shown_as_queued_and_the_agent_not_as_idle(
    client: Client, fake_agent: FakeAgent
) -> None:
    fake_agent.on_command("git init", SLOW, seconds=1.0)
    conversation_id = new_id()
    task = await client.start_task(None, conversation_id=conversation_id)
    await _queue(client, conversation_id, FIRST)
    assert (await client.task(task["id"]))["queued_messages"] == 1
    seen: list[tuple[str | None, int]] = []
    async with asyncio.timeout(client.patience):
        while not seen or seen[-1] != ("finished", 0):
            told = await client.conversation(conversation_id)
            if told is not None:
                now = (told["execution_status"], told["queued_messages"])
                seen += [now] if now not in seen[-1:] else []
    assert seen in (
        [("running", 1), ("running", 0), ("finished", 0)],
        [("running", 1), ("finished", 0)],
    )
    assert (await client.task(task["id"]))["queued_messages"] == 0


async def test_both_forms_of_the_ids_are_taken(client: Client, fake_agent: FakeAgent) -> None:
    conversation_id = new_id()
    task = await _start_slowly(client, fake_agent, conversation_id=conversation_id)
    references = [conversation_id, dashed(conversation_id), f"task-{dashed(task['id'])}"]
    statuses = [(await _queue(client, reference, reference)).status for reference in references]
    assert statuses == [201] * 3
    await client.end_of_start(task["id"])
    await _wait_for_texts(client, conversation_id, [FIRST, *references])


async def test_a_ready_conversation_gets_a_message_at_once(client: Client) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    answer = await _queue(client, conversation_id)
    assert (answer.status, answer.json()["position"]) == (201, 1)
    await _wait_for_texts(client, conversation_id, [FIRST, "and more"])


async def test_no_more_than_ten_wait(client: Client, fake_agent: FakeAgent) -> None:
    fake_agent.on_command("git init", SLOW, seconds=30)
    task = await client.start_task(FIRST)
    statuses = [(await _queue(client, f"task-{task['id']}")).status for _ in range(10)]
    assert statuses == [201] * 10
    answer = await _queue(client, f"task-{task['id']}")
    assert (answer.status, answer.json()["code"]) == (429, "too_many_requests")
    assert answer.headers["Retry-After"] == "1"


async def test_of_many_at_once_no_more_than_ten_are_taken(
    client: Client, fake_agent: FakeAgent
) -> None:
    fake_agent.on_command("git init", SLOW, seconds=30)
    task = await client.start_task(FIRST)
    answers = await asyncio.gather(*(_queue(client, f"task-{task['id']}") for _ in range(15)))
    taken = sorted(answer.json()["position"] for answer in answers if answer.status == 201)
    assert taken == list(range(1, 11))


async def test_messages_survive_a_restart_of_the_server(
    client: Client, service: Service, fake_agent: FakeAgent
) -> None:
    task = await _start_slowly(client, fake_agent)
    texts = [f"number {number}" for number in range(3)]
    for text in texts:
        assert (await _queue(client, f"task-{task['id']}", text)).status == 201
    await service.restart()
    ended = await client.end_of_start(task["id"])
    await _wait_for_texts(client, ended["app_conversation_id"], [FIRST, *texts])


async def test_a_message_waits_until_a_paused_sandbox_is_resumed(client: Client) -> None:
    conversation_id = await client.start_conversation()
    seen = await client.wait_for_execution(conversation_id, "finished")
    path = f"/api/v1/sandboxes/{seen['sandbox_id']}"
    await client.post(f"{path}/pause")
    await client.wait_for_sandbox(seen["sandbox_id"], "PAUSED")
    assert (await _queue(client, conversation_id)).status == 201
    await asyncio.sleep(0.5)
    assert (await _queue(client, conversation_id, "the second")).json()["position"] == 2
    await client.post(f"{path}/resume")
    await _wait_for_texts(client, conversation_id, [FIRST, "and more", "the second"])


async def test_a_message_is_tried_again_while_the_agent_does_not_answer(
    client: Client, fake_agent: FakeAgent
) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    _sandbox(fake_agent).is_down = True
    assert (await _queue(client, conversation_id)).status == 201
    await asyncio.sleep(0.5)
    _sandbox(fake_agent).is_down = False
    await _wait_for_texts(client, conversation_id, [FIRST, "and more"])


@pytest.mark.parametrize("older", [False, True])
async def test_no_message_overtakes_one_that_waits(
    client: Client, fake_agent: FakeAgent, *, older: bool
) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    _sandbox(fake_agent).is_down = True
    assert (await _queue(client, conversation_id, "the first")).status == 201
    assert (await _queue(client, conversation_id, "the second")).status == 201
    said: dict[str, Any] = {"args": {"content": "the third"}, "action": "message"}
    path = f"/api/conversations/{conversation_id}/events"
    if not older:
        said = {"content": [{"type": "text", "text": "the third"}]}
        path = f"/api/v1/app-conversations/{conversation_id}/send-message"
    answer = await client.post(path, json=said)
    assert answer.status == 200, answer.text
    _sandbox(fake_agent).is_down = False
    texts = [FIRST, "the first", "the second", "the third"]
    await _wait_for_texts(client, conversation_id, texts)
    assert (await client.post(path, json=said)).status == 200
    await _wait_for_texts(client, conversation_id, [*texts, "the third"])


async def test_a_message_that_arrived_unnoticed_is_not_sent_again(
    client: Client, fake_agent: FakeAgent
) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    sandbox = _sandbox(fake_agent)
    sandbox.lose_next_answer("/events")
    assert (await _queue(client, conversation_id)).status == 201
    assert (await _queue(client, conversation_id, "the second")).status == 201
    await _wait_for_texts(client, conversation_id, [FIRST, "and more", "the second"])
    assert sandbox.lost_answers == []
    assert len([path for path, _ in sandbox.bodies if path.endswith("/events")]) == 2


async def test_the_same_text_twice_is_said_twice(client: Client) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    for _ in range(2):
        assert (await _queue(client, conversation_id, FIRST)).status == 201
    await _wait_for_texts(client, conversation_id, [FIRST] * 3)


async def test_a_message_the_agent_refuses_is_kept_in_an_event(
    client: Client, fake_agent: FakeAgent
) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    _sandbox(fake_agent).refuse_next_message("No such image")
    assert (await _queue(client, conversation_id, "look at this")).status == 201
    assert (await _queue(client, conversation_id, "the second")).status == 201
    event = await _wait_for_event(client, conversation_id, "MessageNotDelivered")
    assert "No such image" in event["detail"]
    assert event["detail"].endswith("look at this")
    await _wait_for_texts(client, conversation_id, [FIRST, "the second"])


async def test_a_message_for_a_start_that_fails_is_kept_in_an_event(
    client: Client, fake_agent: FakeAgent
) -> None:
    failed = CommandResult(exit_code=1, stdout="", stderr="no space")
    fake_agent.on_command("git init", failed, seconds=0.7)
    task = await client.start_task(FIRST)
    assert (await _queue(client, f"task-{task['id']}", "never")).status == 201
    assert (await client.end_of_start(task["id"]))["status"] == "ERROR"
    [start] = (await client.get("/api/conversations")).json()["results"]
    event = await _wait_for_event(client, start["conversation_id"], "MessageNotDelivered")
    assert event["detail"].endswith("never")
    answer = await _queue(client, f"task-{task['id']}")
    assert (answer.status, answer.json()["code"]) == (409, "conflict")


async def test_a_conversation_whose_sandbox_is_gone_takes_no_message(client: Client) -> None:
    conversation_id = await client.start_conversation(None)
    seen = await client.conversation(conversation_id)
    await client.delete(f"/api/v1/sandboxes/{seen['sandbox_id']}")
    await client.wait_for_conversation(
        conversation_id, lambda one: one["sandbox_status"] == "MISSING"
    )
    answer = await _queue(client, conversation_id)
    assert (answer.status, answer.json()["code"]) == (410, "gone")


async def test_the_messages_of_a_deleted_conversation_go_with_it(
    client: Client, fake_agent: FakeAgent
) -> None:
    conversation_id = new_id()
    task = await _start_slowly(client, fake_agent, conversation_id=conversation_id)
    assert (await _queue(client, conversation_id)).status == 201
    answer = await client.delete(f"/api/v1/app-conversations/{conversation_id}")
    assert answer.status == 200, answer.text
    assert (await _queue(client, conversation_id)).status == 404
    assert (await _queue(client, f"task-{task['id']}")).status == 404


@pytest.mark.parametrize(
    "reference", ["0" * 32, f"task-{'0' * 32}", "task-", "task-nonsense", "nonsense"]
)
async def test_an_unknown_conversation_is_a_404(client: Client, reference: str) -> None:
    answer = await _queue(client, reference)
    assert (answer.status, answer.json()["code"]) == (404, "not_found")
    assert answer.json()["detail"].startswith("Conversation ")


async def test_a_conversation_of_somebody_else_is_a_404(client: Client, service: Service) -> None:
    task = await client.start_task(None)
    conversation_id = (await client.end_of_start(task["id"]))["app_conversation_id"]
    other = await service.make_client("bob", Role.MEMBER)
    for reference in (conversation_id, f"task-{task['id']}"):
        assert (await _queue(other, reference)).status == 404


@pytest.mark.parametrize("content", [None, [], {}, "text", 1])
async def test_content_that_is_no_list_or_empty_is_a_400(client: Client, content: Any) -> None:
    path = f"/api/v1/conversations/{new_id()}/pending-messages"
    answer = await client.post(path, json={"content": content})
    assert (answer.status, answer.json()["detail"]) == (400, "content must be a non-empty list")
    assert (await client.post(path, json={})).status == 400


@pytest.mark.parametrize(
    "part", [1, "text", {"type": "text"}, {"type": "sound"}, {"type": "text", "text": "a", "x": 1}]
)
async def test_a_part_of_the_content_that_is_none_is_a_400(client: Client, part: Any) -> None:
    path = f"/api/v1/conversations/{new_id()}/pending-messages"
    answer = await client.post(path, json={"content": [{"type": "text", "text": "a"}, part]})
    assert answer.status == 400
    assert answer.json()["detail"].startswith("Invalid content format: content.1")


async def test_more_parts_than_a_message_may_have_are_a_400(client: Client) -> None:
    path = f"/api/v1/conversations/{new_id()}/pending-messages"
    answer = await client.post(path, json={"content": [{"type": "text", "text": "a"}] * 1001})
    assert (answer.status, answer.json()["code"]) == (400, "bad_request")


@pytest.mark.parametrize("data", [b"", b"{", b"[]"])
async def test_a_body_that_is_no_object_is_a_422(client: Client, data: bytes) -> None:
    path = f"/api/v1/conversations/{new_id()}/pending-messages"
    answer = await client.post(path, data=data, headers={"Content-Type": "application/json"})
    assert answer.status == 422


async def test_a_key_is_needed(service: Service) -> None:
    nobody = await service.make_client(None)
    assert (await _queue(nobody, "0" * 32)).status == 401


async def test_a_message_that_waits_is_cancelled_and_never_told(
    client: Client, fake_agent: FakeAgent
) -> None:
    task = await _start_slowly(client, fake_agent)
    reference = f"task-{task['id']}"
    first, second, third = [
        (await _queue(client, reference, text)).json()["id"] for text in ("one", "two", "three")
    ]
    path = f"/api/v1/conversations/{reference}/pending-messages"
    waiting = (await client.get(path)).json()
    assert [(one["id"], one["is_sent"]) for one in waiting] == [
        (first, False),
        (second, False),
        (third, False),
    ]
    assert waiting[1]["content"] == [{"type": "text", "text": "two", "cache_prompt": False}]
    assert (await client.delete(f"{path}/{second}")).json() == {"success": True}
    assert (await client.delete(f"{path}/{second}")).status == 404
    assert (await client.delete(f"{path}/zzz")).status == 422
    conversation_id = (await client.end_of_start(task["id"]))["app_conversation_id"]
    await _wait_for_texts(client, conversation_id, [FIRST, "one", "three"])
    assert (await client.get(path)).json() == []


async def test_what_the_agent_was_sent_is_not_cancelled_nor_anything_by_another_user(
    client: Client, service: Service, fake_agent: FakeAgent
) -> None:
    fake_agent.on_command("^slow", SLOW, seconds=60)
    fake_agent.playbook = Playbook([call("terminal", command="slow"), finish("done")])
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "running")
    await _queue(client, conversation_id, "one")
    await _queue(client, conversation_id, "two")
    path = f"/api/v1/conversations/{conversation_id}/pending-messages"
    async with asyncio.timeout(client.patience):
        while True:
            one, two = (await client.get(path)).json()
            if (one["is_sent"], two["is_sent"]) == (True, False):
                break
            await asyncio.sleep(0.05)
    stranger = await service.make_client("stranger")
    assert (await stranger.get(path)).status == 404
    assert (await stranger.delete(f"{path}/{two['id']}")).status == 404
    assert (await client.delete(f"{path}/{one['id']}")).status == 409
    assert (await client.delete(f"{path}/{two['id']}")).status == 200
    assert (await client.conversation(conversation_id))["queued_messages"] == 1

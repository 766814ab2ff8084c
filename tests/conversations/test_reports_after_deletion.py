"""Deleted conversations: agent servers are told of it, and what they still report brings none back."""

import pytest

from tests.conversations.test_event_ingestor import PATH, deliver, quiet, report, status_event
from tests.fake_sandbox import FakeSandbox
from tests.service import Client, Service
from tests.troubles import TroubledAgent, TroubledWorld, eventually, reconfigure


async def shared(client: Client, agent: TroubledAgent) -> tuple[str, str, FakeSandbox]:
    """Return two conversations in one sandbox, and what the agent server has of it."""
    first = await client.start_conversation(None)
    sandbox_id = (await client.conversation(first))["sandbox_id"]
    second = await client.start_conversation(None, sandbox_id=sandbox_id)
    return first, second, agent.sandboxes[sandbox_id]


async def test_a_conversation_deleted_out_of_a_shared_sandbox_stays_deleted(
    client: Client, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    first, second, sandbox = await shared(client, fake_agent)
    assert (await client.delete(f"{PATH}/{second}")).status == 200
    await eventually(lambda: list(sandbox.conversations) == [first])
    await eventually(lambda: not sandbox.queue)
    assert await client.conversation(second) is None
    assert await client.conversation(first) is not None
    assert list(fake_world.sandboxes) == [sandbox.sandbox_id]


async def test_a_deleted_conversation_that_is_still_reported_is_not_taken_in_again(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    first, second, sandbox = await shared(client, fake_agent)
    conversation = fake_agent.conversation_of(second)
    await client.delete(f"{PATH}/{second}")
    await eventually(lambda: second not in sandbox.conversations)
    caller = service.client_with(sandbox.key)
    sandbox.conversations[second] = conversation  # it came too late for the deletion
    await report(caller, conversation)
    await deliver(caller, second, status_event(1, "running", "2040-01-01T00:00:01"))
    assert await client.conversation(second) is None
    await eventually(lambda: list(sandbox.conversations) == [first])


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_an_agent_server_out_of_reach_is_told_of_a_deletion_later(
    client: Client, service: Service, fake_agent: TroubledAgent, *, is_restarted: bool
) -> None:
    first, second, sandbox = await shared(client, fake_agent)
    sandbox.is_down = True
    assert (await client.delete(f"{PATH}/{second}")).status == 200
    await eventually(lambda: f"POST /api/conversations/{second}/interrupt" in sandbox.requests)
    if is_restarted:
        await service.restart()
    sandbox.is_down = False
    await eventually(lambda: list(sandbox.conversations) == [first])
    wanted = f"DELETE /api/conversations/{second}"
    told = []
    for _ in range(5):  # reports that were under way may have it told again, but not for ever
        await eventually(lambda: not sandbox.queue)
        told.append(sandbox.requests.count(wanted))
        await reconfigure(service)
        await client.wait_for_execution(first, "idle")
    told.append(sandbox.requests.count(wanted))
    assert told[-1] == told[-2]


async def test_a_deleted_conversation_that_is_started_anew_is_not_deleted_again(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    _, second, sandbox = await shared(client, fake_agent)
    sandbox.is_down = True
    await client.delete(f"{PATH}/{second}")
    await eventually(lambda: f"POST /api/conversations/{second}/interrupt" in sandbox.requests)
    task = await client.start_task(conversation_id=second, sandbox_id=sandbox.sandbox_id)
    await service.stop()
    sandbox.is_down = False
    await service.start()
    assert (await client.end_of_start(task["id"]))["status"] == "READY"
    # The deleted one went before it began.
    asked = [one for one in sandbox.requests if one.startswith(("DELETE", "POST /api/conv"))]
    begun = len(asked) - asked[::-1].index("POST /api/conversations")
    assert f"DELETE /api/conversations/{second}" not in asked[begun:]
    assert second in sandbox.conversations


async def test_the_report_of_a_deletion_takes_nothing_in(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, sandbox = await quiet(client, service, fake_agent)
    unknown = "12345678-1234-4234-8234-123456789abc"
    await report(sandbox, conversation, id=unknown, execution_status="deleting")
    assert await client.conversation(unknown.replace("-", "")) is None
    await report(sandbox, conversation, id=unknown)
    assert await client.conversation(unknown.replace("-", "")) is not None

"""What is told of a run whose agent server does not answer any more: that nobody knows."""

import msgspec

from tests.conversations.test_event_ingestor import quiet, sandbox_of
from tests.service import Client, Service
from tests.troubles import TroubledAgent, eventually


async def be_impatient(service: Service) -> None:
    told = msgspec.structs.replace(service.config.conversations, silent_seconds=0.2)
    service.config = msgspec.structs.replace(service.config, conversations=told)
    await service.restart()


async def test_a_run_whose_agent_server_is_silent_is_not_said_to_run(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, _ = await quiet(client, service, fake_agent)
    await be_impatient(service)
    conversation.set_status("running")
    await client.wait_for_execution(conversation.id, "running")
    sandbox = sandbox_of(fake_agent, conversation)
    sandbox.slow_seconds = 3600.0
    found = await client.wait_for_conversation(
        conversation.id, lambda seen: seen["execution_status"] is None
    )
    assert found["sandbox_status"] == "RUNNING"
    sandbox.slow_seconds = 0.0
    await client.wait_for_execution(conversation.id, "running")


async def test_an_agent_server_of_no_run_is_not_asked_whether_it_is_there(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation, _ = await quiet(client, service, fake_agent)
    sandbox = sandbox_of(fake_agent, conversation)
    asked = fake_agent.count(f"GET /api/conversations/{conversation.id}")
    before = sandbox.requests.count("GET /alive")
    await be_impatient(service)
    await eventually(lambda: fake_agent.count(f"GET /api/conversations/{conversation.id}") > asked)
    assert sandbox.requests.count("GET /alive") == before
    assert (await client.conversation(conversation.id))["execution_status"] == "idle"

"""The FakeAgent does what the real agent server does, as far as the checks look."""

from collections.abc import AsyncIterator

import pytest

from agentsvc.agentserver.client import AgentClient
from agentsvc.agentserver.responses import CommandResult
from agentsvc.base.errors import AgentRefused, AgentUnavailable
from agentsvc.base.values import Secret, monotonic, new_id
from agentsvc.plugin.backend import Order, Port
from tests.agent_checks import CHECKS, SCRIPTS, Rig
from tests.fake_agent import FakeAgent

KEY = Secret("a-session-key")


@pytest.fixture
async def agent() -> AsyncIterator[FakeAgent]:
    async with FakeAgent(scripts=SCRIPTS) as agent:
        ok = CommandResult(exit_code=0, stdout="", stderr="")
        agent.on_command("sleep 30", ok, seconds=30)
        agent.on_command(r"sleep 0\.4", ok, seconds=0.4)
        agent.on_command("sleep 2", ok, seconds=2)
        yield agent


@pytest.fixture
async def client() -> AsyncIterator[AgentClient]:
    client = AgentClient()
    await client.open()
    yield client
    await client.close()


def order(**members: str) -> Order:
    return Order(
        sandbox_id=new_id(),
        secret_env={"OH_SESSION_API_KEYS_0": KEY},
        env=members,
        ports=(Port(name="agent"),),
    )


@pytest.fixture
def rig(agent: FakeAgent, client: AgentClient) -> Rig:
    url = agent.on_create(order())["agent"]
    return Rig(client.at(url, KEY), model_url="http://127.0.0.1:9/v1", model_key="k", path="/work")


@pytest.mark.parametrize("check", CHECKS)
async def test_the_fake_agent_does_as_the_real_one(rig: Rig, check: str) -> None:
    await CHECKS[check](rig)


async def test_another_key_is_refused(agent: FakeAgent, client: AgentClient) -> None:
    agent.on_create(order())
    with pytest.raises(AgentRefused, match="another server"):
        await client.at(agent.url, Secret("some other key")).wait_ready(1)


async def test_a_crashed_server_does_not_answer_until_its_restart(
    agent: FakeAgent, client: AgentClient
) -> None:
    made = order()
    server = client.at(agent.on_create(made)["agent"], KEY)
    agent.crash(made.sandbox_id)
    with pytest.raises(AgentUnavailable):
        await server.home()
    assert not await server.is_alive()
    agent.restart(made.sandbox_id)
    await server.wait_ready(1)


async def test_a_crash_leaves_an_error_in_the_log(agent: FakeAgent, client: AgentClient) -> None:
    made = order()
    server = client.at(agent.on_create(made)["agent"], KEY)
    rig = Rig(server, model_url="", model_key="", path="/work")
    conversation_id = await rig.start("[script:slow] go")
    await rig.wait_for_kind(conversation_id, "ActionEvent")
    agent.crash(made.sandbox_id)
    agent.restart(made.sandbox_id)
    assert (await rig.wait(conversation_id)).execution_status == "error"
    assert (await rig.story(conversation_id))[-1] == "AgentErrorEvent"


async def test_commands_are_answered_by_pattern(agent: FakeAgent, client: AgentClient) -> None:
    failed = CommandResult(exit_code=128, stdout="", stderr="no such repository")
    agent.on_command("git clone", failed)
    made = order()
    server = client.at(agent.on_create(made)["agent"], KEY)
    assert await server.run_command("git clone x", time_limit=1) == failed
    assert (await server.run_command("true", time_limit=1)).exit_code == 0
    assert agent.sandboxes[made.sandbox_id].commands == ["git clone x", "true"]


async def test_failures_can_be_ordered(agent: FakeAgent, client: AgentClient) -> None:
    made = order()
    server = client.at(agent.on_create(made)["agent"], KEY)
    agent.sandboxes[made.sandbox_id].fail_next(503, "/home")
    with pytest.raises(AgentUnavailable):
        await server.home()
    await server.home()


async def test_a_command_over_its_time_limit_is_stopped(
    agent: FakeAgent, client: AgentClient
) -> None:
    made = order()
    server = client.at(agent.on_create(made)["agent"], KEY)
    result = await server.run_command("sleep 30", cwd="/work", time_limit=0.2)
    assert result.timed_out
    assert agent.sandboxes[made.sandbox_id].requests[-2].endswith("/stop")
    [(_, body)] = agent.sandboxes[made.sandbox_id].bodies
    assert body == {"command": "sleep 30", "timeout": 1, "cwd": "/work"}


async def test_skills_and_hooks_are_what_the_test_says(
    agent: FakeAgent, client: AgentClient
) -> None:
    made = order()
    server = client.at(agent.on_create(made)["agent"], KEY)
    sandbox = agent.sandboxes[made.sandbox_id]
    sandbox.skills = [{"name": "a", "content": "b"}]
    sandbox.hook_config = {"stop": []}
    assert await server.load_skills("/work") == sandbox.skills
    assert await server.load_hooks("/work") == {"stop": []}
    assert sandbox.bodies[0][1]["load_public"] is False
    assert sandbox.bodies[0][1]["sandbox_config"] is None


async def test_a_slow_server_answers_late(agent: FakeAgent, client: AgentClient) -> None:
    made = order()
    server = client.at(agent.on_create(made)["agent"], KEY)
    agent.sandboxes[made.sandbox_id].slow_seconds = 0.2
    begun = monotonic()
    await server.home()
    assert monotonic() - begun >= 0.2

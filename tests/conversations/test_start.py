"""Starting a conversation: its stages, and going on after a restart."""

import asyncio

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.agentserver.responses import CommandResult
from agentsvc.domain.orders import StartStatus
from agentsvc.http.keys import CONVERSATIONS
from agentsvc.testing.backend import WORKING_DIR
from agentsvc.testing.llm import Playbook, Reply
from tests.conversations.starts import PATH, admin_of, failed, stored_task
from tests.service import Client, Service
from tests.troubles import TroubledAgent, TroubledWorld, eventually, reconfigure

IN_ORDER = [
    StartStatus.WORKING,
    StartStatus.WAITING_FOR_SANDBOX,
    StartStatus.PREPARING_REPOSITORY,
    StartStatus.RUNNING_SETUP_SCRIPT,
    StartStatus.SETTING_UP_GIT_HOOKS,
    StartStatus.SETTING_UP_SKILLS,
    StartStatus.STARTING_CONVERSATION,
    StartStatus.READY,
]


# The way to ready


async def test_every_status_passes_in_order_and_is_timed(client: Client, service: Service) -> None:
    task = await client.start_task()
    user_id = await admin_of(service)
    seen: list[StartStatus] = []
    async for one in service.app[CONVERSATIONS].starts.follow(user_id, task["id"]):
        if one.status not in seen[-1:]:
            seen.append(one.status)
    assert seen == IN_ORDER[-len(seen) :]
    stages = (await stored_task(service, task["id"])).stages
    assert [stage.status for stage in stages] == IN_ORDER
    assert all(stage.duration_ms is not None for stage in stages[:-1])


async def test_a_start_shows_where_its_time_went(client: Client) -> None:
    task = await client.start_task()
    shown = (await client.end_of_start(task["id"]))["stages"]
    assert [stage["status"] for stage in shown] == IN_ORDER
    parts = {stage["status"]: stage["parts"] for stage in shown}
    assert list(parts["WAITING_FOR_SANDBOX"]) == ["turn", "choice", "room", "sandbox", "agent"]
    assert list(parts["STARTING_CONVERSATION"]) == ["conversation", "first_answer"]
    for stage in shown[:-1]:
        # Each part is rounded by itself.
        assert sum(stage["parts"].values()) <= stage["duration_ms"] + len(stage["parts"])
    assert shown[-1]["duration_ms"] is None


async def test_without_a_message_the_agent_waits(client: Client, fake_agent: TroubledAgent) -> None:
    conversation_id = await client.start_conversation(None)
    await client.wait_for_execution(conversation_id, "idle")
    found = fake_agent.find_conversation(conversation_id)
    assert found is not None
    assert "initial_message" not in found.body


async def test_a_conversation_alone_in_its_sandbox_works_in_its_working_directory(
    client: Client, fake_agent: TroubledAgent
) -> None:
    found = fake_agent.find_conversation(await client.start_conversation())
    assert found is not None
    assert found.body["workspace"]["working_dir"] == WORKING_DIR


async def test_a_start_says_what_its_sandbox_is_waiting_for(
    client: Client, fake_world: TroubledWorld
) -> None:
    fake_world.unreachable = True
    task = await client.start_task()
    async with asyncio.timeout(client.patience):
        while True:
            seen = await client.task(task["id"])
            if seen["detail"]:
                break
            await asyncio.sleep(0.03)
    assert seen["status"] == "WAITING_FOR_SANDBOX"
    assert seen["detail"] == "The fake world is out of reach"
    fake_world.unreachable = False
    ended = await client.end_of_start(task["id"])
    assert (ended["status"], ended["detail"]) == ("READY", None)


async def test_conversations_in_one_sandbox_work_in_directories_of_their_own(
    client: Client, fake_agent: TroubledAgent
) -> None:
    first = await client.conversation(await client.start_conversation())
    second = await client.start_conversation(sandbox_id=first["sandbox_id"])
    found = fake_agent.find_conversation(second)
    assert found is not None
    assert found.body["workspace"]["working_dir"] == f"{WORKING_DIR}/{second}"
    assert len(fake_agent.sandboxes) == 1


async def test_a_child_works_beside_its_parent(client: Client, fake_agent: TroubledAgent) -> None:
    parent = await client.start_conversation()
    child = await client.start_conversation(parent_conversation_id=parent)
    found = fake_agent.find_conversation(child)
    assert found is not None
    assert found.body["workspace"]["working_dir"] == WORKING_DIR
    assert (await client.conversation(parent))["sub_conversation_ids"] == [child]


async def test_a_sandbox_that_does_not_say_where_it_works_is_worked_in_at_home(
    client: Client, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    fake_world.hides_working_dir = True
    found = fake_agent.find_conversation(await client.start_conversation())
    assert found is not None
    assert found.body["workspace"]["working_dir"] == "/home/agent/project"


async def test_tokens_identity_secrets_and_resources_of_the_settings_reach_the_sandbox(
    client: Client, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    tokens = {
        "github": {"token": "ghp-1"},
        "gitlab": {"token": "glp-1", "host": "git.acme.example:8443"},
        "bitbucket_data_center": {"token": "bbd-1"},
    }
    await client.save_settings(
        git_user_name="Grace",
        git_user_email="grace@acme.example",
        remote_runtime_resource_factor=4,
        secrets_store={"provider_tokens": tokens},
    )
    found = fake_agent.conversation_of(await client.start_conversation())
    [sandbox] = fake_agent.sandboxes.values()
    [file] = [data for path, data in sandbox.files.items() if "git-credentials" in path]
    assert file.decode().splitlines() == [
        "https://x-access-token:ghp-1@github.com",
        "https://oauth2:glp-1@git.acme.example:8443",
    ]
    assert any("user.name Grace" in command for command in sandbox.commands)
    assert not any("ghp-1" in command for command in sandbox.commands)
    assert "GITHUB_TOKEN" in found.body["secrets"]
    [made] = fake_world.sandboxes.values()
    assert made.order.resource_factor == 4


async def test_a_paused_sandbox_is_resumed_for_a_new_conversation(
    client: Client, fake_world: TroubledWorld
) -> None:
    first = await client.conversation(await client.start_conversation())
    await client.post(f"/api/v1/sandboxes/{first['sandbox_id']}/pause")
    await client.start_conversation(sandbox_id=first["sandbox_id"])
    assert fake_world.count("resume") == 1


async def test_a_failed_sandbox_is_started_again_for_a_new_conversation(
    client: Client, fake_world: TroubledWorld
) -> None:
    first = await client.conversation(await client.start_conversation())
    fake_world.end(first["sandbox_id"])
    await client.wait_for_sandbox(first["sandbox_id"], "ERROR")
    await client.start_conversation(sandbox_id=first["sandbox_id"])
    assert fake_world.count("restart") == 1


async def test_an_agent_server_that_stumbles_is_asked_again(
    client: Client, fake_agent: TroubledAgent
) -> None:
    fake_agent.refusals = [(503, "starting up")]
    await client.start_conversation()
    assert fake_agent.started() == 2


async def test_a_conversation_the_agent_server_has_lost_is_started_again(
    client: Client, fake_agent: TroubledAgent
) -> None:
    fake_agent.forgets_next = True
    conversation_id = await client.start_conversation()
    assert fake_agent.started() == 2
    assert fake_agent.find_conversation(conversation_id) is not None


@pytest.mark.parametrize(
    ("pattern", "name", "stage"),
    [
        ("openhands/setup.sh", ".openhands/setup.sh", StartStatus.RUNNING_SETUP_SCRIPT),
        ("openhands/pre-commit.sh", ".openhands/pre-commit.sh", StartStatus.SETTING_UP_GIT_HOOKS),
    ],
)
async def test_a_script_that_fails_is_noted_and_does_not_stop_the_start(
    client: Client,
    service: Service,
    fake_agent: TroubledAgent,
    caplog: pytest.LogCaptureFixture,
    *,
    pattern: str,
    name: str,
    stage: StartStatus,
) -> None:
    fake_agent.on_command(pattern, failed("token is hunter2", exit_code=3))
    task = await client.start_task()
    assert (await client.end_of_start(task["id"]))["status"] == "READY"
    notes = {one.status: one.note for one in (await stored_task(service, task["id"])).stages}
    assert notes[stage] == f"{name} ended with exit code 3:\ntoken is hunter2"
    assert "hunter2" not in caplog.text


async def test_a_set_up_script_that_takes_too_long_is_stopped_and_noted(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    await reconfigure(service, conversations={"setup_script_seconds": 0.2})
    done = CommandResult(exit_code=0, stdout="", stderr="")
    fake_agent.on_command("openhands/setup.sh", done, seconds=60)
    task = await client.start_task()
    assert (await client.end_of_start(task["id"]))["status"] == "READY"
    notes = [one.note for one in (await stored_task(service, task["id"])).stages if one.note]
    assert notes == [".openhands/setup.sh took longer than 0.2 s and was stopped"]


# Going on after a restart


async def restart_at(service: Service, agent: TroubledAgent, world: TroubledWorld) -> None:
    """Stop the server, let all that was held go, and start it again."""
    await service.stop()
    agent.let_go()
    world.held.clear()
    await service.start()


async def check_once(client: Client, agent: TroubledAgent, world: TroubledWorld) -> None:
    """Check that there is one sandbox and one conversation that was told once."""
    assert len(world.sandboxes) == 1
    [sandbox] = agent.sandboxes.values()
    [conversation] = sandbox.conversations.values()
    messages = [one for one in conversation.events if one["kind"] == "MessageEvent"]
    assert [one["source"] for one in messages].count("user") == 1
    await client.wait_for_execution(conversation.id, "finished")


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("git init", "PREPARING_REPOSITORY"),
        ("openhands/setup.sh", "RUNNING_SETUP_SCRIPT"),
        ("openhands/pre-commit.sh", "SETTING_UP_GIT_HOOKS"),
        ("hooks", "SETTING_UP_SKILLS"),
        ("conversation", "STARTING_CONVERSATION"),
        ("alive", "WAITING_FOR_SANDBOX"),
    ],
)
async def test_a_restart_in_the_middle_of_a_step_goes_on_and_starts_nothing_twice(
    client: Client,
    service: Service,
    fake_agent: TroubledAgent,
    fake_world: TroubledWorld,
    *,
    name: str,
    status: str,
) -> None:
    fake_agent.hold(name, is_command=name not in ("hooks", "conversation", "alive"))
    task = await client.start_task()
    await fake_agent.waits(name)
    before = await client.task(task["id"])
    assert before["status"] == status
    await restart_at(service, fake_agent, fake_world)
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "READY", ended["detail"]
    assert ended["sandbox_id"] == before["sandbox_id"]
    assert fake_world.count("create") == 1
    await check_once(client, fake_agent, fake_world)


@pytest.mark.parametrize("moment", ["create", "save", "created"])
async def test_a_restart_while_the_sandbox_is_made_goes_on_with_that_one(
    client: Client,
    service: Service,
    fake_agent: TroubledAgent,
    fake_world: TroubledWorld,
    moment: str,
) -> None:
    fake_world.hold(moment)
    task = await client.start_task()
    await fake_world.waits(moment)
    await restart_at(service, fake_agent, fake_world)
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "READY", ended["detail"]
    assert fake_agent.started() == 1
    await check_once(client, fake_agent, fake_world)


async def test_a_restart_after_the_conversation_began_finds_it_again(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, conversations={"first_answer_seconds": 30.0})
    fake_agent.playbook = Playbook([Reply(text="hello", delay_seconds=1)])
    task = await client.start_task()
    await eventually(lambda: fake_agent.started() == 1)
    await service.restart()
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "READY", ended["detail"]
    await check_once(client, fake_agent, fake_world)


async def test_a_run_that_failed_long_after_its_start_is_no_failed_start(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    fake_agent.hold("conversation")
    task = await client.start_task()
    await fake_agent.waits("conversation")
    await service.stop()
    fake_agent.playbook = Playbook([Reply(text="I am at it")])
    fake_agent.let_go()
    [sandbox] = fake_agent.sandboxes.values()
    await eventually(lambda: bool(sandbox.conversations))
    [conversation] = sandbox.conversations.values()
    await eventually(lambda: conversation.status == "finished")
    conversation.add_error("LLMServiceUnavailableError", "the model went away")
    await service.start()
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "READY", ended["detail"]
    assert len(fake_world.sandboxes) == 1


async def test_a_start_whose_sandbox_the_server_paused_at_its_end_goes_on(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, sandboxes={"on_shutdown": "pause"})
    fake_agent.hold("openhands/setup.sh", is_command=True)
    task = await client.start_task()
    await fake_agent.waits("openhands/setup.sh")
    await restart_at(service, fake_agent, fake_world)
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "READY", ended["detail"]
    assert fake_world.count("resume") == 1


async def test_a_start_that_was_lost_without_a_restart_is_taken_up_again(
    client: Client, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    fake_agent.hold("openhands/setup.sh", is_command=True)
    task = await client.start_task()
    await fake_agent.waits("openhands/setup.sh")
    [running] = [one for one in asyncio.all_tasks() if one.get_name() == f"start {task['id']}"]
    running.cancel()
    fake_agent.let_go()
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "READY", ended["detail"]
    await check_once(client, fake_agent, fake_world)


# The same order again


async def test_the_same_order_at_once_and_later_is_one_task(
    client: Client, fake_world: TroubledWorld
) -> None:
    body = {"conversation_id": "0f" * 16}
    tasks = await asyncio.gather(*(client.start_task(**body) for _ in range(4)))
    await client.end_of_start(tasks[0]["id"])
    tasks.append(await client.start_task(**body))
    assert len({task["id"] for task in tasks}) == 1
    assert len(fake_world.sandboxes) == 1


async def test_another_order_for_a_known_conversation_is_a_conflict(
    client: Client, service: Service
) -> None:
    await client.start_task(conversation_id="0f" * 16)
    answer = await client.post(PATH, json={"conversation_id": "0f" * 16, "title": "another"})
    assert answer.status == 409
    other = await service.make_client("eve", Role.MEMBER)
    answer = await other.post(PATH, json={"conversation_id": "0f" * 16})
    assert answer.status == 409

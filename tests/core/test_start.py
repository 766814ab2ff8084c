"""Starting a conversation: its stages, what makes it fail, and going on after a restart."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from agentsvc.agent_answers import CommandResult
from agentsvc.auth import Role
from agentsvc.config import SpecConfig
from agentsvc.conversations.model import StartTask
from agentsvc.datadir import DataDir
from agentsvc.errors import CapacityExceeded, NotFound, OrderRejected
from agentsvc.http.keys import CONVERSATIONS, DATABASE, KEYRING, SANDBOXES
from agentsvc.orders import StartStatus
from agentsvc.sandboxes import Target
from agentsvc.testing.backend import WORKING_DIR
from agentsvc.testing.llm import Reply, fail, make_playbook
from agentsvc.vault import Vault
from tests.core.troubles import TroubledAgent, TroubledWorld, eventually, reconfigure
from tests.service import Client, Service

PATH = "/api/v1/app-conversations"

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


async def admin_of(service: Service) -> str:
    user_id = await service.app[KEYRING].find_user("admin")
    assert user_id is not None
    return user_id


async def stored_task(service: Service, task_id: str) -> StartTask:
    tasks = await service.app[CONVERSATIONS].find_start_tasks(await admin_of(service), [task_id])
    assert tasks[0] is not None
    return tasks[0]


async def failure(client: Client, **fields: Any) -> str:
    """Start a conversation that cannot be, and return what is said about it."""
    task = await client.start_task(**fields)
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "ERROR"
    assert ended["app_conversation_id"] is None
    return str(ended["detail"])


def failed(text: str, exit_code: int = 128) -> CommandResult:
    return CommandResult(exit_code=exit_code, stdout="", stderr=text)


async def damage_settings(service: Service) -> None:
    """Store settings of a form that no version of the server has written."""
    vault = Vault.open(DataDir(path=service.data_dir).master_key)
    sealed = vault.seal(b"[]", f"settings/{await admin_of(service)}")
    await service.app[DATABASE].write(
        lambda tx: tx.run("UPDATE settings SET sealed = :sealed", {"sealed": sealed})
    )


# The way to ready


async def test_every_status_passes_in_order_and_is_timed(client: Client, service: Service) -> None:
    task = await client.start_task()
    user_id = await admin_of(service)
    seen: list[StartStatus] = []
    async for one in service.app[CONVERSATIONS].follow(user_id, task["id"]):
        if one.status not in seen[-1:]:
            seen.append(one.status)
    assert seen == IN_ORDER[-len(seen) :]
    stages = (await stored_task(service, task["id"])).stages
    assert [stage.status for stage in stages] == IN_ORDER
    assert all(stage.duration_ms is not None for stage in stages[:-1])


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


# What makes it fail: cause, remedy, stage


async def test_without_a_model_the_start_names_the_setting(service: Service) -> None:
    client = await service.make_client("fresh", Role.MEMBER)
    detail = await failure(client)
    assert "No language model is configured. Set `llm_model`" in detail
    assert detail.endswith("(at stage WORKING)")


async def test_a_name_git_does_not_take_is_refused_at_once(client: Client) -> None:
    body = {"selected_repository": "acme/app", "selected_branch": "--upload-pack=x"}
    answer = await client.post(PATH, json=body)
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "selected_branch"]


@pytest.mark.parametrize(
    ("output", "exit_code", "cause", "remedy"),
    [
        (
            "fatal: Remote branch nope not found in upstream origin",
            128,
            "Branch `nope` does not exist in acme/app (https://github.com/acme/app.git)",
            "Name one that does",
        ),
        (
            "fatal: could not read Username for 'https://github.com': terminal prompts disabled",
            128,
            "Access to acme/app (https://github.com/acme/app.git) was refused",
            "Store a token",
        ),
        ("The requested URL returned error: 403", 128, "was refused", "check the one"),
        (
            "fatal: repository 'https://github.com/acme/app.git/' not found",
            128,
            "Repository acme/app (https://github.com/acme/app.git) was not found",
            "Check its name",
        ),
        (
            "fatal: unable to access 'https://github.com/': Could not resolve host: github.com",
            128,
            "The host of acme/app (https://github.com/acme/app.git) cannot be reached",
            "Check name and network",
        ),
        ("bash: git: command not found", 127, "git is not installed", "where the sandbox runs"),
        ("fatal: write error: No space left on device", 128, "exit code 128", "No space left"),
    ],
)
async def test_a_clone_that_fails_says_why_and_what_to_do(
    client: Client,
    fake_agent: TroubledAgent,
    *,
    output: str,
    exit_code: int,
    cause: str,
    remedy: str,
) -> None:
    fake_agent.on_command("git clone", failed(output, exit_code))
    detail = await failure(client, selected_repository="acme/app", selected_branch="nope")
    assert cause in detail
    assert remedy in detail
    assert output in detail
    assert detail.endswith("(at stage PREPARING_REPOSITORY)")


async def test_a_clone_that_takes_too_long_names_the_setting(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    await reconfigure(service, conversations={"clone_seconds": 0.2})
    done = CommandResult(exit_code=0, stdout="", stderr="")
    fake_agent.on_command("git clone", done, seconds=60)
    detail = await failure(client, selected_repository="acme/app")
    assert "Cloning acme/app took longer than 0.2 s" in detail
    assert "`conversations.clone_seconds`" in detail


async def test_a_workspace_that_cannot_be_made_shows_what_the_shell_said(
    client: Client, fake_agent: TroubledAgent
) -> None:
    fake_agent.on_command("mkdir -p", failed("mkdir: cannot create directory: Read-only", 1))
    detail = await failure(client)
    assert "The sandbox failed at making the workspace" in detail
    assert "Read-only" in detail


async def test_an_agent_server_that_never_answers_is_named_with_the_setting(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    await reconfigure(service, conversations={"agent_seconds": 0.3, "start_seconds": 60})
    fake_agent.is_born_down = True
    detail = await failure(client)
    assert "The agent server did not answer within 0.3 seconds" in detail
    assert "`conversations.agent_seconds`" in detail
    assert detail.endswith("(at stage WAITING_FOR_SANDBOX)")


async def test_an_agent_server_that_refuses_is_quoted(
    client: Client, fake_agent: TroubledAgent
) -> None:
    fake_agent.refusals = [(422, "agent.tools: there is no such tool")]
    detail = await failure(client)
    assert "The agent server refused: agent.tools: there is no such tool" in detail
    assert "Change what it names" in detail
    assert detail.endswith("(at stage STARTING_CONVERSATION)")


async def test_an_agent_server_that_stays_unable_ends_the_start_at_its_deadline(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    await reconfigure(service, conversations={"start_seconds": 0.8})
    fake_agent.refusals = [(503, "too busy")] * 20
    detail = await failure(client)
    assert "too busy" in detail
    assert "Start the conversation anew" in detail


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OrderRejected("no such image"), "Start the conversation anew"),
        (CapacityExceeded("all places are taken"), "all places are taken"),
    ],
)
async def test_a_sandbox_that_cannot_be_made_is_quoted(
    client: Client,
    service: Service,
    fake_world: TroubledWorld,
    error: CapacityExceeded | OrderRejected,
    remedy: str,
) -> None:
    await reconfigure(service, sandboxes={"start_seconds": 0.3})
    fake_world.always["create"] = error
    detail = await failure(client)
    assert f"The sandbox failed: {error.message}" in detail
    assert remedy in detail
    assert detail.endswith("(at stage WAITING_FOR_SANDBOX)")


async def test_a_sandbox_that_fails_under_a_start_is_told_with_its_last_lines(
    client: Client, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    fake_agent.hold("openhands/setup.sh", is_command=True)
    task = await client.start_task()
    await fake_agent.waits("openhands/setup.sh")
    sandbox_id = (await client.task(task["id"]))["sandbox_id"]
    fake_world.write_log(sandbox_id, "ModuleNotFoundError: No module named 'openhands'")
    fake_agent.crash(sandbox_id)
    fake_world.end(sandbox_id, reason="the command exited with code 1")
    fake_agent.let_go()
    ended = await client.end_of_start(task["id"])
    assert "The sandbox failed: the command exited with code 1" in ended["detail"]
    assert "install the `agent` extra" in ended["detail"]
    assert "ModuleNotFoundError" in ended["detail"]
    assert ended["detail"].endswith("(at stage RUNNING_SETUP_SCRIPT)")


async def test_a_sandbox_paused_under_a_start_is_told(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.stays_starting = True
    task = await client.start_task()
    await eventually(lambda: len(fake_world.sandboxes) == 1)
    [sandbox_id] = fake_world.sandboxes
    fake_world.held["inspect"] = asyncio.Event()
    sandboxes = service.app[SANDBOXES]
    await fake_world.waits("inspect")
    pausing = asyncio.ensure_future(sandboxes.pause(await admin_of(service), sandbox_id))  # noqa: TID251  # a test is not the server
    await sandboxes.wait_for(
        sandbox_id, lambda one: one is None or one.target is Target.PAUSED, time_limit=3
    )
    fake_world.finish_start(sandbox_id)
    fake_world.held.pop("inspect").set()
    await pausing
    ended = await client.end_of_start(task["id"])
    assert "The sandbox was paused while it was being waited for" in ended["detail"]


async def test_a_sandbox_that_does_not_start_in_time_is_told(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, conversations={"start_seconds": 0.3})
    fake_world.stays_starting = True
    detail = await failure(client)
    assert "The sandbox did not start within 0.3 s" in detail
    assert "`conversations.start_seconds`" in detail
    assert "Start the conversation anew" in detail


async def test_a_spec_without_an_agents_port_is_told(client: Client, service: Service) -> None:
    blind = SpecConfig(id="blind", backend="fake", command=("sleep", "1"))
    service.config = msgspec.structs.replace(service.config, specs={"blind": blind})
    await service.restart()
    answer = await client.post("/api/v1/sandboxes?sandbox_spec_id=blind")
    detail = await failure(client, sandbox_id=answer.json()["id"])
    assert "has no port called `agent`. Give its spec `blind` one" in detail


async def test_an_unknown_sandbox_is_named_with_what_to_do(client: Client) -> None:
    detail = await failure(client, sandbox_id="0" * 32)
    assert f"Sandbox not found: {'0' * 32}" in detail
    assert "Leave `sandbox_id` out" in detail
    assert detail.endswith("(at stage WAITING_FOR_SANDBOX)")


async def test_another_users_sandbox_is_an_unknown_one(client: Client, service: Service) -> None:
    first = await client.conversation(await client.start_conversation())
    other = await service.make_client("eve", Role.MEMBER)
    await other.save_settings()
    detail = await failure(other, sandbox_id=first["sandbox_id"])
    assert f"Sandbox not found: {first['sandbox_id']}" in detail


async def test_another_users_conversation_is_no_parent(client: Client, service: Service) -> None:
    parent = await client.start_conversation()
    other = await service.make_client("eve", Role.MEMBER)
    answer = await other.post(PATH, json={"parent_conversation_id": parent})
    assert answer.status == 404


async def test_a_lost_sandbox_of_the_parent_is_told(
    client: Client, fake_world: TroubledWorld
) -> None:
    parent = await client.start_conversation()
    sandbox_id = (await client.conversation(parent))["sandbox_id"]
    fake_world.vanish(sandbox_id)
    await client.wait_for_sandbox(sandbox_id, "MISSING")
    detail = await failure(client, parent_conversation_id=parent)
    assert "The sandbox does not exist any more. Start the conversation anew" in detail


async def test_a_sandbox_that_cannot_be_started_again_is_told(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.capabilities = frozenset()
    await service.restart()
    first = await client.conversation(await client.start_conversation())
    fake_world.end(first["sandbox_id"], reason="it ran out of memory")
    await client.wait_for_sandbox(first["sandbox_id"], "ERROR")
    detail = await failure(client, sandbox_id=first["sandbox_id"])
    assert "it ran out of memory. Leave `sandbox_id` out" in detail


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(401, "Check `llm_api_key`"), (404, "Check `llm_model`"), (500, "with another model")],
)
async def test_a_model_that_refuses_the_first_request_fails_the_start(
    client: Client, fake_agent: TroubledAgent, status: int, remedy: str
) -> None:
    fake_agent.playbook = make_playbook([fail(status)])
    detail = await failure(client)
    assert "The language model refused the first request" in detail
    assert remedy in detail
    assert detail.endswith("(at stage STARTING_CONVERSATION)")


async def test_the_models_key_is_in_no_detail_and_no_log_line(
    client: Client,
    fake_agent: TroubledAgent,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    fake_agent.playbook = make_playbook([Reply(text="too late", delay_seconds=5)])
    task = await client.start_task()
    await eventually(lambda: fake_agent.started() == 1)
    stored = (await client.task(task["id"]))["sandbox_id"]
    await eventually(lambda: bool(fake_agent.sandboxes[stored].conversations))
    [conversation] = fake_agent.sandboxes[stored].conversations.values()
    conversation.add_error("LLMAuthenticationError", "model-key-1 is no key of ours", "auth")
    ended = await client.end_of_start(task["id"])
    assert "********** is no key of ours" in ended["detail"]
    assert "model-key-1" not in caplog.text


async def test_a_failed_start_is_an_event_of_the_conversation_too(
    client: Client, fake_agent: TroubledAgent
) -> None:
    fake_agent.refusals = [(422, "no")]
    conversation_id = "0f" * 16
    await failure(client, conversation_id=conversation_id)
    events = await client.events(conversation_id)
    assert [event["code"] for event in events if "code" in event] == ["StartFailed"]


async def test_a_message_to_a_conversation_that_did_not_start_says_why(
    client: Client, fake_agent: TroubledAgent
) -> None:
    fake_agent.refusals = [(422, "no such tool")]
    conversation_id = "0f" * 16
    await failure(client, conversation_id=conversation_id)
    body = {"content": [{"type": "text", "text": "hello?"}]}
    answer = await client.post(f"{PATH}/{conversation_id}/send-message", json=body)
    assert answer.status == 409
    assert "no such tool" in answer.json()["detail"]


async def test_an_unforeseen_error_ends_the_start_and_is_only_in_the_log(
    client: Client,
    service: Service,
    fake_agent: TroubledAgent,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake_agent.hold("git init", is_command=True)
    task = await client.start_task()
    await fake_agent.waits("git init")
    await damage_settings(service)
    await service.restart()
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "ERROR"
    assert ended["detail"].startswith("An unexpected error; the server's log has the details")
    assert "Traceback" in caplog.text


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
    fake_agent.playbook = make_playbook([Reply(text="hello", delay_seconds=1)])
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
    fake_agent.playbook = make_playbook([Reply(text="I am at it")])
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


# Deleting while it starts


@pytest.mark.parametrize("name", ["git init", "openhands/setup.sh", "conversation"])
async def test_a_conversation_deleted_while_it_starts_leaves_nothing(
    client: Client,
    fake_agent: TroubledAgent,
    fake_world: TroubledWorld,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    fake_agent.hold(name, is_command=name != "conversation")
    task = await client.start_task(conversation_id="0f" * 16)
    await fake_agent.waits(name)
    assert (await client.delete(f"{PATH}/{'0f' * 16}")).status == 200
    fake_agent.let_go()
    await eventually(lambda: not fake_world.sandboxes)
    assert await client.task(task["id"]) is None
    assert "conversation did not start" not in caplog.text


async def test_a_conversation_deleted_before_its_sandbox_is_made_makes_none(
    client: Client, fake_world: TroubledWorld
) -> None:
    fake_world.hold("create")
    await client.start_task(conversation_id="0f" * 16)
    await fake_world.waits("create")
    assert (await client.delete(f"{PATH}/{'0f' * 16}")).status == 200
    fake_world.held.pop("create").set()
    await fake_world.sweeps(2)
    await eventually(lambda: not fake_world.sandboxes)


async def test_a_conversation_deleted_while_its_sandbox_is_resumed_is_not_started(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    first = await client.conversation(await client.start_conversation(None))
    hold = fake_world.hold("resume")
    await client.post(f"/api/v1/sandboxes/{first['sandbox_id']}/pause")
    await client.start_task(conversation_id="0f" * 16, sandbox_id=first["sandbox_id"])
    await fake_world.waits("resume")
    assert (await client.delete(f"{PATH}/{'0f' * 16}")).status == 200
    hold.set()
    await client.wait_for_sandbox(first["sandbox_id"], "RUNNING")
    await eventually(lambda: not starting())
    assert fake_agent.started() == 1
    assert await client.conversation("0f" * 16) is None


def starting() -> list[str]:
    """Return the names of the starts that are under way."""
    names = [one.get_name() for one in asyncio.all_tasks()]
    return [name for name in names if name.startswith("start ")]


async def test_what_is_started_in_a_shared_sandbox_after_its_deletion_is_deleted_there_too(
    client: Client, fake_agent: TroubledAgent
) -> None:
    first = await client.conversation(await client.start_conversation())
    fake_agent.hold("conversation")
    await client.start_task(conversation_id="0f" * 16, sandbox_id=first["sandbox_id"])
    await fake_agent.waits("conversation")
    assert (await client.delete(f"{PATH}/{'0f' * 16}")).status == 200
    sandbox = fake_agent.sandboxes[first["sandbox_id"]]
    wanted = f"DELETE /api/conversations/{'0f' * 16}"
    await eventually(lambda: wanted in sandbox.requests)
    fake_agent.let_go()
    await eventually(lambda: sandbox.requests.count(wanted) > 1)
    await eventually(lambda: list(sandbox.conversations) == [first["id"]])
    assert await client.conversation("0f" * 16) is None


async def test_a_followed_start_ends_when_its_conversation_is_deleted(
    client: Client, fake_agent: TroubledAgent
) -> None:
    fake_agent.hold("openhands/setup.sh", is_command=True)
    streaming = asyncio.ensure_future(  # noqa: TID251  # a test is not the server
        client.post(f"{PATH}/stream-start", json={"conversation_id": "0f" * 16})
    )
    await fake_agent.waits("openhands/setup.sh")
    await client.delete(f"{PATH}/{'0f' * 16}")
    statuses = [task["status"] for task in (await streaming).json()]
    assert statuses[-1] == "RUNNING_SETUP_SCRIPT"


async def test_a_start_that_nobody_knows_cannot_be_followed(service: Service) -> None:
    with pytest.raises(NotFound):
        async for _ in service.app[CONVERSATIONS].follow("nobody", "0" * 32):
            pass


# What failed starts leave


async def test_the_sandbox_of_a_failed_start_goes_after_a_while(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    fake_agent.refusals = [(422, "no")]
    await failure(client)
    await service.app[CONVERSATIONS].remove_failed()
    assert len(fake_world.sandboxes) == 1
    await reconfigure(service, conversations={"keep_failed_seconds": 0})
    await service.app[CONVERSATIONS].remove_failed()
    await eventually(lambda: not fake_world.sandboxes)


async def test_a_sandbox_that_was_there_before_a_failed_start_stays(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, conversations={"keep_failed_seconds": 0})
    sandbox_id = (await client.post("/api/v1/sandboxes")).json()["id"]
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    fake_agent.refusals = [(422, "no")]
    await failure(client, sandbox_id=sandbox_id)
    await service.app[CONVERSATIONS].remove_failed()
    await fake_world.sweeps(2)
    assert list(fake_world.sandboxes) == [sandbox_id]


async def test_a_sandbox_that_others_joined_after_a_failed_start_stays(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, conversations={"keep_failed_seconds": 0})
    fake_agent.refusals = [(422, "no")]
    await failure(client)
    [sandbox_id] = fake_world.sandboxes
    await client.start_conversation(sandbox_id=sandbox_id)
    await service.app[CONVERSATIONS].remove_failed()
    await fake_world.sweeps(2)
    assert list(fake_world.sandboxes) == [sandbox_id]
    assert await service.app[SANDBOXES].find_any(sandbox_id) is not None

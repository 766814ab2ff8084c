"""What makes a start fail: each says the cause, the remedy and the stage."""

import asyncio
import logging

import msgspec
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.agentserver.responses import CommandResult
from agentsvc.base.errors import CapacityExceeded, OrderRejected
from agentsvc.config.sandboxes import SpecConfig
from agentsvc.http.keys import SANDBOXES
from agentsvc.sandboxes import Target
from agentsvc.testing.llm import Playbook, Reply, fail
from tests.conversations.starts import PATH, admin_of, damage_settings, failed, failure
from tests.service import Client, Service
from tests.troubles import TroubledAgent, TroubledWorld, eventually, reconfigure


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
    await reconfigure(service, conversations={"start_seconds": 2.5})
    fake_agent.refusals = [(503, "too busy")] * 100
    detail = await failure(client)
    assert "too busy" in detail
    assert "Start the conversation again" in detail


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OrderRejected("no such image"), "Start the conversation again"),
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
        sandbox_id, lambda one: one is None or one.target is Target.PAUSED, time_limit=10
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
    assert "Start the conversation again" in detail


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
    assert "The sandbox does not exist any more. Start the conversation again" in detail


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
    fake_agent.playbook = Playbook([fail(status)])
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
    fake_agent.playbook = Playbook([Reply(text="too late", delay_seconds=5)])
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

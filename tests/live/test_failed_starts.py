"""Starts that cannot work: each says what went wrong, where, and what to do."""

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.live.client import PATIENCE, LiveClient
from tests.live.conftest import MakeInstallation
from tests.live.events import errors
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

WITHOUT_PACKAGES = ["{python}", "-S", "-m", "openhands.agent_server"]
SHELL = ["/bin/sh", "-c"]
NEVER = [*SHELL, "echo I wait; sleep 100"]


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (
            WITHOUT_PACKAGES,
            [
                "The agent server is not installed",
                "pip install 'agentsvc[agent]'",
                "No module named",
            ],
        ),
        (
            [*SHELL, "echo I will not >&2; exit 7"],
            [
                "The sandbox failed: the command exited with code 7",
                "I will not",
                "Start the conversation again",
            ],
        ),
        (["/no/such/program"], ["cannot run /no/such/program: No such file or directory"]),
        (
            NEVER,
            ["its ports did not respond within 10 s", "`sandboxes.start_seconds`", "I wait"],
        ),
        (
            ["{python}", "-m", "http.server", "--bind", "127.0.0.1", "{port.agent}"],
            ["conversations.agent_seconds", "The last lines of the sandbox's log", "GET /alive"],
        ),
    ],
    ids=["no agent server", "exits", "no program", "never answers", "answers something else"],
)
async def test_a_sandbox_that_does_not_come_up_says_why(
    make_installation: MakeInstallation, tmp_path: Path, command: list[str], found: list[str]
) -> None:
    config = tmp_path / "config.toml"
    # What ends, or answers something else, has all the time to do so.
    seconds = 10 if command is NEVER else PATIENCE
    config.write_text(
        f"[specs.bad]\ncommand = {command!r}\nports = [{{ name = 'agent' }}]\n"
        f"[sandboxes]\ndefault_spec = 'bad'\nstart_seconds = {seconds}\n"
        "[conversations]\nagent_seconds = 10\n"
    )
    own = await make_installation(AGENTSVC_CONFIG=str(config))
    client = own.client()
    ended = await fail_to_start(client, run("ls"))
    for text in [*found, "at stage WAITING_FOR_SANDBOX"]:
        assert text in ended["detail"]
    assert own.key.reveal() not in ended["detail"]


async def test_a_start_without_a_model_says_what_to_set(client: LiveClient) -> None:
    await client.save_settings(llm_model="")
    ended = await fail_to_start(client, "[script:say]")
    assert ended["sandbox_id"] is None
    assert "No language model is configured" in ended["detail"]
    assert "`llm_model`" in ended["detail"]


async def test_a_refused_model_key_is_a_failed_start(client: LiveClient, sandbox_id: str) -> None:
    await client.save_settings(llm_api_key="sk-not-the-right-one")
    ended = await fail_to_start(client, "[script:say]", sandbox_id=sandbox_id)
    assert "The language model refused the first request" in ended["detail"]
    assert "Check `llm_api_key` in the settings" in ended["detail"]
    assert "sk-not-the-right-one" not in ended["detail"]


async def test_an_unknown_model_is_a_failed_start(client: LiveClient, sandbox_id: str) -> None:
    await client.save_settings(llm_model="nobody/knows-this")
    ended = await fail_to_start(client, "[script:say]", sandbox_id=sandbox_id)
    assert "Check `llm_model`" in ended["detail"]


async def test_a_model_whose_address_nobody_answers_at_is_a_failed_start(
    client: LiveClient, sandbox_id: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    await client.save_settings(llm_base_url=f"http://127.0.0.1:{port}/v1")
    ended = await fail_to_start(client, "[script:say]", sandbox_id=sandbox_id)
    assert f"nothing answers the sandbox at port {port} of 127.0.0.1" in ended["detail"]
    assert "Check `llm_base_url`" in ended["detail"]


async def fail_to_start(client: LiveClient, text: str, **order: Any) -> dict[str, Any]:
    """Start what cannot work, and return the task after its failure, seen through V0, too."""
    task = await client.start_task(text, **order)
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "ERROR"
    [shown] = (await client.get("/api/conversations?limit=1")).json()["results"]
    assert shown["status"] == "ERROR"
    assert errors(await client.events(shown["conversation_id"]))[-1]["detail"] == ended["detail"]
    return ended

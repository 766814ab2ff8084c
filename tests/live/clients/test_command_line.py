"""The published command-line client: its login, the conversation that it starts, and an editor's."""

import asyncio
import json
import re
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from tests.live.client import PATIENCE, LiveClient
from tests.live.clients.published import Client
from tests.live.console.users import new_user, usual_settings
from tests.live.events import outputs
from tests.live.installation import Installation, eventually
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

_CODE = re.compile(r"user_code=([A-Z-]+)")
_STARTED = re.compile(r"Conversation ID: (\w+)")


async def test_the_command_line_client_logs_in_and_starts_a_conversation(
    command_line: Client, shared: Installation, tmp_path: Path
) -> None:
    # Another try of this test has logged in, too.
    shutil.rmtree(command_line.home / ".openhands", ignore_errors=True)
    # A user of its own, who has one sandbox, and whose settings are changed.
    client = await new_user(shared, Role.ADMIN)
    await usual_settings(client)
    sandbox_id = (await client.post("/api/v1/sandboxes")).json()["id"]
    await client.wait_for_sandbox(sandbox_id, "RUNNING", time_limit=2 * PATIENCE)
    openhands = str(Path(command_line.command[0]).parent / "openhands")
    log = tmp_path / "login.log"
    login = f'exec {openhands} login --server-url {shared.url} >"{log}" 2>&1'
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(command_line.call("sh", "-c", login))
        code = await eventually(
            lambda: _CODE.search(log.read_text()) if log.exists() else None,
            "the program shows a code",
        )
        assert code
        approved = await client.post(
            "/oauth/device/verify-authenticated", json={"user_code": code[1]}
        )
        assert approved.status == 200, approved.text
    assert waiting.done()
    assert "User settings retrieved" in log.read_text()
    assert "LLM Model: openai/scripted" in log.read_text()

    said = await command_line.call(
        openhands, "cloud", "--server-url", shared.url, "--task", run("echo from afar")
    )
    await client.post("/api/v1/settings", json={"sandbox_grouping_strategy": "NO_GROUPING"})
    started = _STARTED.search(said)
    assert started, said
    # It names the start instead where it has asked fifteen times and the start was not done.
    is_known = await client.conversation(started[1])
    name = (
        started[1] if is_known else (await client.end_of_start(started[1]))["app_conversation_id"]
    )
    conversation = await client.wait_for_execution(name, "finished")
    assert outputs(await client.events(name)) == ["from afar"]
    assert conversation["sandbox_id"] == sandbox_id

    key = (command_line.home / ".openhands" / "cloud" / "api_key.txt").read_text()
    assert key.endswith("~sdk-1.21")
    await _talk_by_acp(command_line, client, shared, tmp_path)


async def _talk_by_acp(
    command_line: Client, client: LiveClient, shared: Installation, tmp_path: Path
) -> None:
    """Do what an editor does, and go on with the same conversation by a second program."""
    openhands = Path(command_line.command[0]).parent / "openhands"
    model = {
        "model": "openai/scripted",
        "base_url": client.model.url,
        "api_key": client.model.key.reveal(),
        "usage_id": "agent",
    }
    settings = command_line.home / ".openhands" / "agent_settings.json"
    settings.write_text(json.dumps({"llm": model, "tools": [], "kind": "Agent"}))
    task: dict[str, Any] = {
        "openhands": str(openhands),
        "url": shared.url,
        "cwd": str(tmp_path),
    }
    seen = await command_line.run("acp_cloud.py", text=run("echo from an editor"), **task)
    assert seen["ended"] == "end_turn"
    assert any("from an editor" in text for text in seen["results"]), seen
    again = await command_line.run(
        "acp_cloud.py", text=run("echo once more"), resume=seen["session"], **task
    )
    assert again["session"] == seen["session"]
    assert again["replayed"]
    assert any("once more" in text for text in again["results"]), again
    name = uuid.UUID(seen["session"]).hex
    events = await client.until(
        name, lambda events: outputs(events) == ["from an editor", "once more"]
    )
    assert any("parent_id" in event for event in events)
    sandbox = (await client.conversation(name))["sandbox_id"]
    assert (await client.delete(f"/api/v1/sandboxes/{sandbox}")).status == 200

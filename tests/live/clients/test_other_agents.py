"""Published command-line agents as the agents of conversations, in sandboxes, over a kill of the server."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentsvc.models.hosts import host_of_url
from agentsvc.testing.llm import ScriptedModel
from tests.live.client import PATIENCE, LiveClient
from tests.live.clients.published import Client
from tests.live.conftest import MakeInstallation
from tests.live.events import Event, errors, finishes, of_kind
from tests.live.installation import Installation
from tests.live.scripts import DONE, run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

PRICES = {"input_cost_per_token": 1e-4, "output_cost_per_token": 1e-3}


async def test_published_agents_work_on_over_a_kill_and_a_pause_without_the_key(
    make_installation: MakeInstallation, other_agents: Client, model: ScriptedModel
) -> None:
    packages = other_agents.home / "node_modules"
    installation = await make_installation(
        AGENTSVC_BACKENDS__PROCESS__READABLE=json.dumps([str(packages)]),
        AGENTSVC_SANDBOXES__MODEL_HOSTS=json.dumps([host_of_url(model.url)]),
    )
    client = installation.client()
    together = {"sandbox_grouping_strategy": "ADD_TO_ANY"}
    # Otherwise it starts itself a second time, which takes as long again.
    qwen = ["env", "QWEN_CODE_NO_RELAUNCH=1", "node", str(packages / "@qwen-code/qwen-code/cli.js")]
    qwen += ["--acp", "--auth-type=openai", "--model=any"]
    [opencode] = packages.glob("opencode-linux-*/bin/opencode")
    agents: tuple[dict[str, Any], ...] = (
        {"acp_server": "custom", "acp_command": qwen, "acp_session_mode": "yolo"},
        {"acp_server": "opencode", "acp_command": [str(opencode), "acp"], "acp_session_mode": None},
    )
    for number, options in enumerate(agents):
        spent = await _spent(client)
        diff = {"agent_settings_diff": {"agent_kind": "acp", "llm": PRICES, **options}, **together}
        assert (await client.post("/api/v1/settings", json=diff)).status == 200
        await _work(installation, f"{number}.txt", kills=number == 0)
        # It says nothing of costs; what it asks the model is counted here, the last perhaps later.
        assert await _spent(client) - spent > (5 - number) * 0.2 - 0.01


async def _spent(client: LiveClient) -> float:
    spent: float = (await client.get("/api/v1/users/me/usage")).json()["spent_this_month"]
    return spent


async def _work(installation: Installation, name: str, *, kills: bool) -> None:
    """Have an agent write a file, perhaps over a kill of the server, and read it after a pause."""
    client = installation.client()
    write = f"echo hello >{name}; env >>{name}"
    waits = ("for i in 1 2 3 4 5 6; do sleep 1; done",) * kills
    message = run(write, *waits, "echo two") + "\n"
    conversation_id = await client.start_conversation(message, time_limit=2 * PATIENCE)

    def calls(events: list[Event], command: str) -> list[Event]:
        found = of_kind(events, "ACPToolCallEvent")
        return [one for one in found if command in str(one["raw_input"])]

    if kills:
        await client.until(conversation_id, lambda events: bool(calls(events, "sleep 1")))
        await installation.restart()
    seen = await client.wait_for_execution(conversation_id, "finished")
    events = await client.until(conversation_id, lambda events: DONE in str(finishes(events)))
    assert errors(events) == []
    for command in (write, *waits, "echo two"):
        found = calls(events, command)
        assert found[-1]["status"] == "completed", found
        assert len({one["tool_call_id"] for one in found}) == 1

    sandbox = installation.sandbox_dir(seen["sandbox_id"])
    [written] = (path for path in sandbox.rglob(name))
    assert written.read_text().startswith("hello\n")
    assert "OPENAI_API_KEY=asmt_" in written.read_text()
    _look_for(installation, sandbox, client.model.key.reveal())

    path = f"/api/v1/sandboxes/{seen['sandbox_id']}"
    assert (await client.post(f"{path}/pause")).status == 200
    await client.wait_for_sandbox(seen["sandbox_id"], "PAUSED")
    assert (await client.post(f"{path}/resume")).status == 200
    await client.wait_for_sandbox(seen["sandbox_id"], "RUNNING")
    await client.send(conversation_id, run(f"head -1 {name}"))
    await client.until(conversation_id, lambda events: len(finishes(events)) > 1)
    # It is still the same conversation to the agent.
    assert write in str(client.asked(f"head -1 {name}")[-1]["messages"])


def _look_for(installation: Installation, sandbox: Path, key: str) -> None:
    """Fail if a key is in a file or in the environment of a process of a sandbox."""
    files = [path for path in sandbox.rglob("*") if path.is_file() and not path.is_symlink()]
    environments = [Path(f"/proc/{one.pid}/environ") for one in installation.processes()]
    for path in (*files, *environments):
        try:
            assert key.encode() not in path.read_bytes(), path
        except OSError:  # it has gone meanwhile
            continue

"""Published command-line agents as the agents of conversations, in sandboxes, over a kill of the server."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentsvc.models.hosts import host_of_url
from agentsvc.testing.llm import ScriptedModel
from tests.live.client import PATIENCE
from tests.live.clients.published import Client, takes_minutes
from tests.live.conftest import MakeInstallation
from tests.live.events import Event, errors, finishes, of_kind
from tests.live.installation import Installation
from tests.live.scripts import DONE, run

pytestmark = [
    pytest.mark.live,
    takes_minutes,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

PRICES = {"input_cost_per_token": 1e-4, "output_cost_per_token": 1e-3}
WAIT = "for i in 1 2 3 4 5 6; do sleep 1; done"
_ONE_CALL = 1000 * PRICES["input_cost_per_token"] + 100 * PRICES["output_cost_per_token"]


async def test_published_agents_work_on_over_a_kill_and_a_pause_without_the_key(
    make_installation: MakeInstallation, other_agents: Client, model: ScriptedModel
) -> None:
    packages = other_agents.home / "node_modules"
    installation = await make_installation(
        AGENTSVC_BACKENDS__PROCESS__READABLE=json.dumps([str(packages)]),
        AGENTSVC_SANDBOXES__MODEL_HOSTS=json.dumps([host_of_url(model.url)]),
        AGENTSVC_SANDBOXES__START_SECONDS=str(2 * PATIENCE),
    )
    client = installation.client()
    # Two programs that take ten seconds of a processor each to start, on a machine that is shared.
    client.patience = 3 * PATIENCE
    begun: dict[str, str] = {}
    for name, options in _agents(packages).items():
        agent = {"agent_kind": "acp", "llm": PRICES, "acp_startup_timeout": client.patience}
        diff = {"agent_settings_diff": agent | options, "sandbox_grouping_strategy": "ADD_TO_ANY"}
        assert (await client.post("/api/v1/settings", json=diff)).status == 200
        message = run(_write(name), WAIT, "echo two") + "\n"
        begun[name] = await client.start_conversation(message)
    await client.until(begun["opencode"], lambda events: bool(_calls(events, WAIT)))
    await installation.restart()

    sandbox_id = (await client.conversation(begun["qwen"]))["sandbox_id"]
    sandbox = installation.sandbox_dir(sandbox_id)
    for name, conversation_id in begun.items():
        await client.wait_for_execution(conversation_id, "finished")
        events = await client.until(conversation_id, lambda events: DONE in str(finishes(events)))
        assert errors(events) == []
        for command in (_write(name), WAIT, "echo two"):
            found = _calls(events, command)
            assert found[-1]["status"] == "completed", found
            assert len({one["tool_call_id"] for one in found}) == 1
        [written] = sandbox.rglob(f"{name}.txt")
        assert written.read_text().startswith("hello\n")
        assert "OPENAI_API_KEY=asmt_" in written.read_text()
    _look_for(installation, sandbox, model.key.reveal())

    path = f"/api/v1/sandboxes/{sandbox_id}"
    assert (await client.post(f"{path}/pause")).status == 200
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    assert (await client.post(f"{path}/resume")).status == 200
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    for name, conversation_id in begun.items():
        await client.send(conversation_id, run(f"head -1 {name}.txt"))
        await client.until(conversation_id, lambda events: len(finishes(events)) > 1)
        # It is still the same conversation to the agent.
        assert _write(name) in str(client.asked(f"head -1 {name}.txt")[-1]["messages"])
    # They say nothing of costs; what they ask the model is counted here, the last perhaps later.
    used = (await client.get("/api/v1/users/me/usage")).json()["spent_this_month"]
    assert used > 10.9 * _ONE_CALL


def _agents(packages: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of each agent, by its name."""
    [opencode] = packages.glob("opencode-linux-*/bin/opencode")
    # Otherwise it starts itself a second time, which takes as long again.
    qwen = ["env", "QWEN_CODE_NO_RELAUNCH=1", "node", str(packages / "@qwen-code/qwen-code/cli.js")]
    qwen += ["--acp", "--auth-type=openai", "--model=any"]
    return {
        "qwen": {"acp_server": "custom", "acp_command": qwen, "acp_session_mode": "yolo"},
        "opencode": {
            "acp_server": "opencode",
            "acp_command": [str(opencode), "acp"],
            "acp_session_mode": None,
        },
    }


def _write(name: str) -> str:
    return f"echo hello >{name}.txt; env >>{name}.txt"


def _calls(events: list[Event], command: str) -> list[Event]:
    """Return what is told of an agent's call of a command."""
    found = of_kind(events, "ACPToolCallEvent")
    return [one for one in found if command in str(one["raw_input"])]


def _look_for(installation: Installation, sandbox: Path, key: str) -> None:
    """Fail if a key is in a file or in the environment of a process of a sandbox."""
    files = [path for path in sandbox.rglob("*") if path.is_file() and not path.is_symlink()]
    environments = [Path(f"/proc/{one.pid}/environ") for one in installation.processes()]
    for path in (*files, *environments):
        try:
            assert key.encode() not in path.read_bytes(), path
        except OSError:  # it has gone meanwhile
            continue

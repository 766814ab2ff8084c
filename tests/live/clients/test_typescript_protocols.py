"""The published TypeScript clients of MCP and of the Agent Client Protocol, with a real agent."""

import asyncio
import sys

import pytest

from agentsvc.base.values import new_id
from tests.live.client import PATIENCE
from tests.live.clients.published import Client
from tests.live.conftest import MakeInstallation
from tests.live.installation import eventually
from tests.live.scripts import DONE, run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_a_task_over_mcp_goes_on_after_a_kill(
    protocols: Client, make_installation: MakeInstallation
) -> None:
    own = await make_installation(AGENTSVC_MCP_SERVER__ENABLED="true")
    chosen = new_id()
    work = protocols.run(
        "mcp.mjs",
        url=own.url,
        key=own.key.reveal(),
        id=chosen,
        text=run("echo hello >a.txt", "sleep 3; echo two"),
        more=run("echo more >b.txt"),
        patience=PATIENCE,
    )
    async with asyncio.TaskGroup() as both:
        program = both.create_task(work)
        await eventually(own.sandbox_dirs, "its sandbox")
        await own.kill()
        await own.start()
    seen = program.result()
    assert seen["failures"]
    assert {"start_conversation", "answer_confirmation"} <= set(seen["tools"])
    status, answer, changes = seen["ended"]
    assert (status, answer) == ("finished", DONE)
    assert {"status": "ADDED", "path": "a.txt"} in changes
    assert (seen["file"], seen["more"]) == ("hello\n", DONE)


async def test_an_editor_works_here_and_loads_the_session_from_elsewhere(
    protocols: Client, make_installation: MakeInstallation
) -> None:
    own = await make_installation(AGENTSVC_ACP_AGENT__ENABLED="true")
    await own.client().save_settings(confirmation_mode=True, security_analyzer="none")
    text = run("echo three")
    seen = await protocols.run(
        "acp.mjs",
        url=own.url,
        key=own.key.reveal(),
        command=[sys.executable, "-m", "agentsvc", "acp", "--url", own.url],
        environment={"AGENTSVC_API_KEY": own.key.reveal()},
        text=text,
        patience=PATIENCE,
    )
    assert (seen["command"], seen["socket"]) == ([True, True], [True, True])
    assert (seen["ended"], seen["asked"]) == ("end_turn", 1)
    assert DONE in seen["said"]
    assert seen["loaded"][0] == [text]
    assert DONE in seen["loaded"][1]

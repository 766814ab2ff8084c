"""A conversation with the real agent server, in a sandbox that another server of ours runs."""

import pytest

from tests.live.conftest import MakeInstallation
from tests.live.events import finishes, outputs
from tests.live.installation import eventually
from tests.live.scripts import DONE, run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_a_conversation_runs_on_a_second_server_and_survives_its_restart(
    make_installation: MakeInstallation,
) -> None:
    far = await make_installation()
    near = await make_installation(
        AGENTSVC_SANDBOXES__DEFAULT_BACKEND="agentsvc",
        AGENTSVC_BACKENDS__AGENTSVC__URL=far.url,
        AGENTSVC_BACKENDS__AGENTSVC__API_KEY=far.key.reveal(),
    )
    client = near.client()
    name = await client.start_conversation(run("pwd >where.txt; echo one"))
    await client.wait_for_execution(name, "finished")
    events = await client.until(name, lambda events: len(finishes(events)) == 1)
    assert outputs(events) == ["one"]
    assert near.processes() == []
    assert len(far.agent_servers()) == 1
    await far.restart()
    text = [{"type": "text", "text": run("echo two")}]
    answer = await client.post(
        f"/api/v1/app-conversations/{name}/send-message", json={"content": text}
    )
    assert answer.status == 200, answer.text
    events = await client.until(name, lambda events: len(finishes(events)) == 2)
    assert outputs(events) == ["one", "two"]
    assert finishes(events) == [DONE, DONE]
    assert (await client.delete(f"/api/v1/app-conversations/{name}")).status == 200
    await eventually(
        lambda: not (far.processes() or far.sandbox_dirs() or far.temp_dirs()),
        "nothing of the sandbox is left at the other server",
    )

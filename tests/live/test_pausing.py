"""Sandboxes that are paused in the middle of everything, and resumed."""

import asyncio

import pytest

from tests.live.conftest import PLAIN, MakeInstallation
from tests.live.events import outputs
from tests.live.installation import eventually, size
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest.mark.parametrize("use_cgroups", ["true", "false"])
async def test_a_pause_stops_every_process_and_a_resume_continues_it(
    make_installation: MakeInstallation, use_cgroups: str
) -> None:
    own = await make_installation(**PLAIN, AGENTSVC_BACKENDS__PROCESS__USE_CGROUPS=use_cgroups)
    client = own.client()
    files = [own.at_home(name) for name in ("job", "daemon", "tmux", "command")]
    job, daemon, tmux, command = (f"echo x >>{file}; sleep 0.05; done" for file in files)
    conversation_id = await client.start_conversation(
        run(
            f"(while :; do {job}) >/dev/null 2>&1 &",
            f"setsid nohup sh -c 'while :; do {daemon}' >/dev/null 2>&1 </dev/null &",
            f"env -u TMUX tmux -L mine new-session -d 'while :; do {tmux}'",
            # What prints nothing for 30 s is not waited for, however long it was paused.
            f"for i in $(seq 240); do echo $i; {command}; echo counted",
        )
    )
    await eventually(lambda: min(map(size, files)) > 10, "all of them run")
    stored = await client.until(conversation_id, lambda events: len(outputs(events)) == 3)
    seen = await client.wait_for_execution(conversation_id, "running")
    path = f"/api/v1/sandboxes/{seen['sandbox_id']}"
    agents = own.agent_servers()

    for _ in range(2):
        assert (await client.post(f"{path}/pause")).json() == {"success": True}
    before = [size(file) for file in files]
    paused = await client.conversation(conversation_id)
    assert (paused["sandbox_status"], paused["execution_status"]) == ("PAUSED", None)
    assert (paused["conversation_url"], paused["session_api_key"]) == (None, None)
    known = {event["id"] for event in stored}
    stored = await client.events(conversation_id)
    assert known <= {event["id"] for event in stored}
    refused = await client.post(
        f"/api/v1/app-conversations/{conversation_id}/send-message",
        json={"content": [{"type": "text", "text": "Hello?"}]},
    )
    assert refused.status == 409
    await own.restart()
    await asyncio.sleep(1)
    assert (await client.conversation(conversation_id))["sandbox_status"] == "PAUSED"
    assert [size(file) for file in files] == before
    assert [event["id"] for event in await client.events(conversation_id)] == [
        event["id"] for event in stored
    ]

    for _ in range(2):
        assert (await client.post(f"{path}/resume")).json() == {"success": True}
    await client.wait_for_sandbox(seen["sandbox_id"], "RUNNING")
    await eventually(
        lambda: all(size(file) > known for file, known in zip(files, before, strict=True)),
        "all of them go on",
    )
    ended = await client.wait_for_execution(conversation_id, "finished")
    assert outputs(await client.events(conversation_id))[3].split()[-1] == "counted"
    assert size(files[3]) == 480
    assert own.agent_servers() == agents
    for name in ("conversation_url", "session_api_key"):
        assert ended[name] == seen[name]

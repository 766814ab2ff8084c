"""Idle sandboxes are paused and woken, and copied, with the real agent server."""

import aiohttp
import pytest

from tests.live.conftest import MakeInstallation
from tests.live.events import said
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

PATH = "/api/v1/app-conversations"
TEXT = "Are you still there?"
SERVE = "echo kept >kept && (setsid python3 -m http.server $WORKER_1 >/dev/null 2>&1 &)"
WORK = "mkdir sub && echo kept >sub/notes && chmod 4755 sub/notes && ln -s sub/notes in && ln -s /etc out"


async def test_a_culled_conversation_can_be_forked_and_goes_on_with_the_next_message(
    make_installation: MakeInstallation,
) -> None:
    installation = await make_installation(
        AGENTSVC_SANDBOXES__PAUSE_AFTER_SECONDS="2",
        AGENTSVC_SANDBOXES__SWEEP_SECONDS="0.5",
    )
    client = installation.client()
    conversation_id = await client.start_conversation(run(WORK))
    seen = await client.wait_for_execution(conversation_id, "finished")
    await client.wait_for_sandbox(seen["sandbox_id"], "PAUSED")

    task = (await client.post(f"{PATH}/{conversation_id}/fork")).json()
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "READY", ended["detail"]
    workspace = installation.sandbox_dir(ended["sandbox_id"]) / "workspace"
    notes = workspace / "sub" / "notes"
    assert notes.read_text() == "kept\n"
    assert notes.stat().st_mode & 0o7777 == 0o755
    assert (workspace / "in").read_text() == "kept\n"
    # As it is in the first one: where it leads is another matter in each sandbox.
    assert (workspace / "out").is_symlink()
    assert (await client.get("/api/v1/archives")).json()["items"] == []

    fork_id = ended["app_conversation_id"]
    await client.send(fork_id, "[script:recall] How did it begin?")
    events = await client.until(
        fork_id, lambda events: any("It began with: " in text for text in said(events, "agent"))
    )
    assert any(WORK in text for text in said(events, "agent"))
    assert [WORK in text for text in said(events, "user")][:1] == [True]

    await client.wait_for_sandbox(seen["sandbox_id"], "PAUSED")
    await client.send(conversation_id, TEXT)
    await client.until(conversation_id, lambda events: TEXT in said(events, "user"))


@pytest.mark.parametrize("how", ["frozen", "stopped"])
async def test_who_uses_what_runs_in_a_culled_sandbox_wakes_it(
    make_installation: MakeInstallation, how: str
) -> None:
    rule = {"frozen": "PAUSE", "stopped": "STOP"}[how]
    own = await make_installation(
        **{f"AGENTSVC_SANDBOXES__{rule}_AFTER_SECONDS": "2"},
        AGENTSVC_SANDBOXES__SWEEP_SECONDS="0.5",
        # What was stopped has to be loaded anew, which takes long on a busy machine.
        AGENTSVC_GATEWAY__START_SECONDS="120",
    )
    client = own.client()
    conversation_id = await client.start_conversation(run(SERVE))
    seen = await client.wait_for_execution(conversation_id, "finished")
    sandbox_id, agents = seen["sandbox_id"], own.agent_servers()
    # Files are what is kept of one that is stopped: nothing listens there any more.
    served = [("worker_1", "/kept")] if how == "frozen" else []
    for port, path in [("agent", "/api/file/download?path=/etc/os-release"), *served]:
        paused = await client.wait_for_sandbox(sandbox_id, "PAUSED")
        assert paused["paused_as"] == how
        url = f"/sandboxes/{sandbox_id}/{port}{path}"
        async with aiohttp.ClientSession() as nobody, nobody.get(f"{own.url}{url}") as refused:
            assert refused.status == 401
        assert (await client.sandbox(sandbox_id) or {})["status"] == "PAUSED"
        answer = await client.get(url)
        assert answer.status == 200, answer.text
    assert (own.agent_servers() == agents) is (how == "frozen")

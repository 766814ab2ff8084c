"""An imported conversation goes on in a new sandbox: the real agent server reads its history."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.client import LiveClient
from tests.live.events import Event, said
from tests.live.installation import Installation
from tests.openhands_data import OLDER_ID, every_event, lay_older

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(480),
    pytest.mark.asyncio(loop_scope="session"),
]


def said_last(events: list[Event]) -> str:
    return "".join(said(events, "agent")[-1:])


async def test_an_agent_goes_on_with_the_history_of_an_imported_conversation(
    client: LiveClient, shared: Installation, tmp_path: Path
) -> None:
    lay_older(tmp_path, events=every_event(), selected_repository=None, selected_branch=None)
    # Other tests make administrators, too.
    words = [
        "import",
        "openhands",
        str(tmp_path),
        "--data-dir",
        str(shared.data.path),
        "--user",
        "admin",
    ]
    await asyncio.to_thread(subprocess.run, [sys.executable, "-m", "agentsvc", *words], check=True)

    task = (await client.post(f"/api/v1/app-conversations/{OLDER_ID}/fork")).json()
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "READY", ended["detail"]
    fork = ended["app_conversation_id"]
    await client.send(fork, "[script:recall] How did it begin?")
    events = await client.until(fork, lambda events: "It began with: " in said_last(events))
    assert "'Begin'" in said_last(events)
    older = (await client.get(f"/api/conversations/{fork}/trajectory")).json()["trajectory"]
    assert older[: len(every_event())] == every_event()
    assert [event["id"] for event in older] == list(range(len(older)))
    await client.delete(f"/api/v1/sandboxes/{ended['sandbox_id']}")

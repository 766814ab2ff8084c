"""Agent servers that are forks of a loaded one: whole conversations in them, whatever ends before."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from process import uplink
from process.inspection import OWN_NETWORK, PROXIED_NETWORK
from process.programs.shim import ZYGOTE

from agentsvc.base.values import monotonic
from tests.live.client import LiveClient
from tests.live.conftest import unavailable
from tests.live.events import outputs
from tests.live.installation import Installation, eventually
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_conversations_run_in_forks_and_go_on_without_what_they_were_forked_from(
    own: Installation,
) -> None:
    has_uplink = not uplink.why_not()
    client = own.client()
    began = monotonic()
    first, second = await asyncio.gather(
        *(client.post("/api/v1/sandboxes") for _ in range(2)),
    )
    ids = [answer.json()["id"] for answer in (first, second)]
    for sandbox_id in ids:
        sandbox = await client.wait_for_sandbox(sandbox_id, "RUNNING")
        assert sandbox["facts"]["started by"] == ZYGOTE
        if sandbox["isolation"] != "bubblewrap":
            unavailable("bubblewrap does not work here")
        assert sandbox["facts"]["network"] == (OWN_NETWORK if has_uplink else PROXIED_NETWORK)
    conversations = [await work(client, own, sandbox_id) for sandbox_id in ids]
    assert await uptime(client, conversations[0]) <= monotonic() - began

    (zygote,) = await asyncio.to_thread(zygotes, own.pid)
    await own.restart()
    await eventually(lambda: not is_alive(zygote), "the zygote has ended with its server")
    client = own.client()
    for conversation_id in conversations:
        await client.send(conversation_id, run("echo still $((40 + 2))"))
        await client.until(conversation_id, lambda events: "still 42" in outputs(events))


async def uptime(client: LiveClient, conversation_id: str) -> float:
    """Return for how long an agent server says that it has been there."""
    agent = client.agent(await client.conversation(conversation_id))
    seconds: float = (await agent.get("/server_info")).json()["uptime"]
    return seconds


async def work(client: LiveClient, server: Installation, sandbox_id: str) -> str:
    """Have an agent work in a sandbox, and return its conversation."""
    told = run(f"echo {sandbox_id} > $HOME/name", "cat $HOME/name", "pwd")
    conversation_id = await client.start_conversation(told, sandbox_id=sandbox_id)
    await client.wait_for_execution(conversation_id, "finished")
    _, name, directory = outputs(await client.events(conversation_id))
    place = server.sandbox_dir(sandbox_id)
    assert name == sandbox_id
    assert directory == "/workspace/project"
    assert (place / "home" / "name").read_text() == f"{sandbox_id}\n"
    return conversation_id


def children(parent: int) -> list[int]:
    files = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for file in files for pid in read(file).split()]


def read(file: Path) -> str:
    """Return what a file of a process says, or nothing once that has ended."""
    with contextlib.suppress(OSError):
        return file.read_text()
    return ""


def zygotes(server: int) -> list[int]:
    """Return the processes below a server that are loaded agent servers; bubblewrap may hold them."""
    found = children(server)
    found += [pid for held in found for pid in children(held)]
    return [pid for pid in found if read(Path(f"/proc/{pid}/comm")) == "agentsvc-zygote\n"]


def is_alive(pid: int) -> bool:
    """Say whether there is a process that has not ended, whoever is to be told of its end."""
    with contextlib.suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False

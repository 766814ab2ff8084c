"""Sandboxes that start together, die and are deleted."""

import asyncio
import os
import shutil
import signal
import socket

import pytest
import pytest_asyncio
from process.tree import Process, send

from tests.live.client import LiveClient
from tests.live.conftest import MakeInstallation
from tests.live.events import finishes, of_kind, outputs
from tests.live.installation import Installation, eventually, size
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

AT_ONCE = 4


@pytest_asyncio.fixture(loop_scope="session")
async def own(make_installation: MakeInstallation) -> Installation:
    """Return a server of the test's own that soon sees what has become of sandboxes."""
    return await make_installation(AGENTSVC_SANDBOXES__SWEEP_SECONDS="0.5")


async def test_sandboxes_that_start_at_once_do_not_disturb_each_other(
    own: Installation,
) -> None:
    client = own.client()
    first = await client.start_conversation(run("export STATE=first"))
    await client.wait_for_execution(first, "finished")

    texts = [run(f"export STATE={number}; pwd") for number in range(AT_ONCE)]
    ids = await asyncio.gather(*(client.start_conversation(text) for text in texts))
    every = [first, *ids]
    seen = [await client.wait_for_execution(one, "finished") for one in every]
    assert len({one["conversation_url"].rpartition("/api/")[0] for one in seen}) == len(every)
    assert len({one["session_api_key"] for one in seen}) == len(every)
    assert len(own.agent_servers()) == len(every)
    for one in seen[1:]:
        [place] = outputs(await client.events(one["id"]))
        assert place == "/workspace/project"

    for known in every:
        await client.send(known, run("echo $STATE"))
    for known, state in zip(every, ["first", "0", "1", "2", "3"], strict=True):
        events = await client.until(known, lambda events: len(finishes(events)) == 2)
        assert outputs(events)[-1] == state

    await remove_each_in_another_way(own, client, seen)


async def agent_address(client: LiveClient, sandbox_id: str) -> str:
    """Return where a sandbox's agent server listens on this machine."""
    sandbox = await client.sandbox(sandbox_id)
    assert sandbox is not None
    [agent] = [each for each in sandbox["exposed_urls"] if each["name"] == "AGENT_SERVER"]
    return f"127.0.0.1:{agent['port']}"


async def remove_each_in_another_way(
    own: Installation, client: LiveClient, seen: list[dict[str, str]]
) -> None:
    """Delete sandboxes through each operation that does, and see that nothing is left of them."""
    busy = run("(while :; do sleep 0.1; done) & env -u TMUX tmux -L mine new -d; sleep 25")
    for one in seen:
        await client.send(one["id"], busy)
    for one in seen:
        await client.wait_for_execution(one["id"], "running")
    addresses = [await agent_address(client, one["sandbox_id"]) for one in seen]
    for one, path in zip(
        seen,
        [
            "/api/v1/app-conversations/{id}",
            "/api/conversations/{id}",
            "/api/v1/sandboxes/{sandbox_id}",
            "/api/v1/sandboxes/{sandbox_id}?sandbox_id={sandbox_id}",
            "",
        ],
        strict=True,
    ):
        if path:
            answer = await client.delete(path.format(**one))
            assert answer.status == 200, answer.text
    kept = seen[-1]["sandbox_id"]
    gone = [one["sandbox_id"] for one in seen[:-1]]
    await eventually(lambda: own.sandbox_dirs() == [own.sandbox_dir(kept)], "the files are gone")
    for sandbox_id in gone:
        assert own.processes(sandbox_id) == []
    assert len(own.temp_dirs()) == 1
    # Not even the one that is kept listens in the network of this machine.
    assert not any(map(is_listening, addresses))
    assert len(own.agent_servers(kept)) == 1

    shown = (await client.get("/api/conversations?limit=100")).json()["results"]
    assert {one["conversation_id"]: one["status"] for one in shown} == {
        seen[2]["id"]: "ARCHIVED",
        seen[3]["id"]: "ARCHIVED",
        seen[4]["id"]: "RUNNING",
    }
    assert outputs(await client.events(seen[2]["id"]))
    assert (await client.conversation(seen[2]["id"]))["sandbox_status"] == "MISSING"


async def test_a_sandbox_whose_process_died_is_an_error_and_can_be_brought_back(
    own: Installation,
) -> None:
    client = own.client()
    count = own.at_home("count")
    text = run("echo first", f"for i in $(seq 200); do echo $i >>{count}; sleep 0.1; done")
    conversation_id = await client.start_conversation(text)
    await eventually(lambda: size(count) > 5, "the command runs")
    seen = await client.wait_for_execution(conversation_id, "running")
    sandbox_id = seen["sandbox_id"]
    # With a lease on it, the next agent server would not know the conversation for a while.
    assert list(own.sandbox_dir(sandbox_id).rglob("owner_lease.json")) == []
    [pid] = own.agent_servers(sandbox_id)
    os.kill(pid, signal.SIGKILL)
    failed = await client.wait_for_sandbox(sandbox_id, "ERROR", time_limit=30)
    assert "SIGKILL" in failed["status_detail"]
    # How it ended is noted before what is left of it is ended.
    await eventually(lambda: own.processes(sandbox_id) == [], "its processes have ended")
    refused = await client.post(
        f"/api/v1/app-conversations/{conversation_id}/send-message",
        json={"content": [{"type": "text", "text": "Hello?"}]},
    )
    assert refused.status == 503
    assert "SIGKILL" in refused.json()["detail"]
    [old] = (await client.get("/api/conversations")).json()["results"]
    assert old["status"] == "ERROR"

    resumed = await client.post(f"/api/v1/sandboxes/{sandbox_id}/resume")
    assert resumed.json() == {"success": True}
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    after = await client.wait_for_execution(conversation_id, "error")
    assert after["session_api_key"] == seen["session_api_key"]
    [error] = await client.until_kind(conversation_id, "AgentErrorEvent")
    assert "restart" in error["error"]
    await client.send(conversation_id, run("echo goes on"))
    events = await client.until(conversation_id, lambda events: bool(finishes(events)))
    assert outputs(events) == ["first", "goes on"]

    # A server that sees only a part of this says that the sandbox has failed, and looks no more.
    await own.kill()
    # What has been killed may still write until it has ended, and the directory is then not empty.
    await eventually(lambda: not killed(own.processes(sandbox_id)), "its processes have ended")
    await asyncio.to_thread(shutil.rmtree, own.sandbox_dir(sandbox_id))
    await own.start()
    await client.wait_for_sandbox(sandbox_id, "MISSING", time_limit=30)
    lost = await client.conversation(conversation_id)
    assert (lost["sandbox_status"], lost["execution_status"]) == ("MISSING", None)
    assert of_kind(await client.events(conversation_id), "AgentErrorEvent") == [error]
    for action in ("pause", "resume"):
        assert (await client.post(f"/api/v1/sandboxes/{sandbox_id}/{action}")).status == 410


def killed(processes: list[Process]) -> list[Process]:
    """Kill processes; return those that there were."""
    for process in processes:
        send(process, signal.SIGKILL)
    return processes


def is_listening(address: str) -> bool:
    """Whether anything takes connections at `host:port`."""
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0

"""Forks of conversations: all files and the history, beside a first one that goes on."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from process.cgroup import is_frozen
from process.tree import Process, look_up

from tests.live.client import LiveClient
from tests.live.conftest import MakeInstallation
from tests.live.events import outputs, said
from tests.live.installation import Installation, eventually, size
from tests.live.scripts import run
from tests.live.test_repositories import Watch, files_with

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

PATH = "/api/v1/app-conversations"
FILES = "mkdir deep && echo kept >deep/notes && ln deep/notes same && echo at-home >~/own"
MANY = "mkdir many && cd many && seq 20000 | xargs touch"
# As long as the other one is not told to end it, it writes.
BUSY = "while [ ! -e ~/enough ]; do date +%s%N >>ticks; sleep 0.02; done; tail -n 1 ticks"


async def fork(client: LiveClient, conversation_id: str, text: str) -> dict[str, Any]:
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    answer = await client.post(f"{PATH}/{conversation_id}/fork", json={"initial_message": message})
    assert answer.status == 200, answer.text
    task: dict[str, Any] = answer.json()
    return task


def stopped(processes: list[Process], groups: list[Path]) -> list[str]:
    """Name what of a sandbox stands still."""
    seen = [again for one in processes if (again := look_up(one.pid)) is not None]
    found = [str(one) for one in seen if one.state in ("T", "t")]
    return found + [str(group) for group in groups if is_frozen(group)]


async def test_a_fork_has_all_files_and_the_first_one_is_not_disturbed(own: Installation) -> None:
    client = own.client()
    first_id = await client.start_conversation(run(FILES))
    first = await client.wait_for_execution(first_id, "finished")
    await client.send(first_id, run(BUSY))
    workspace = own.sandbox_dir(first["sandbox_id"]) / "workspace"
    await eventually((workspace / "ticks").exists, "the first one is at work")

    processes = own.processes(first["sandbox_id"])
    groups = [path for path in own.groups() if first["sandbox_id"] in str(path)]
    written = size(workspace / "ticks")
    async with Watch(lambda: stopped(processes, groups)) as watch:
        task = await fork(client, first_id, run("cat same ~/own"))
        begun = await client.end_of_start(task["id"])
    assert begun["status"] == "READY", begun["detail"]
    second = await client.wait_for_execution(begun["app_conversation_id"], "finished")
    events = await client.events(second["id"])
    assert any(FILES in text for text in said(events, "user"))
    assert outputs(events)[-1].split() == ["kept", "at-home"]
    copy = own.sandbox_dir(second["sandbox_id"])
    assert (copy / "workspace" / "ticks").exists()
    assert not (copy / "layer.part").exists()

    # Nothing of the first one's opens anything there, and it has not stood still.
    assert second["session_api_key"] != first["session_api_key"]
    assert files_with(first["session_api_key"], [copy / "home", copy / "workspace"]) == []
    assert watch.looks > 0
    assert watch.found == []
    await eventually(lambda: size(workspace / "ticks") > written, "the first one goes on")
    (own.sandbox_dir(first["sandbox_id"]) / "home" / "enough").touch()
    await client.wait_for_execution(first_id, "finished")

    # What each does from now on is its own matter.
    await client.send(second["id"], run("echo changed >same && rm -r deep"))
    await client.wait_for_execution(second["id"], "finished")
    assert (workspace / "deep" / "notes").read_text() == "kept\n"


async def test_a_copy_that_was_killed_is_made_again(own: Installation) -> None:
    client = own.client()
    first_id = await client.start_conversation(run(MANY))
    first = await client.wait_for_execution(first_id, "finished")
    task = await fork(client, first_id, run("ls many | wc -l"))
    copies = own.data.path / "backends" / "process"
    [part] = await eventually(lambda: list(copies.glob("*/layer.part/0")), "it is being copied")
    await own.kill()
    assert part.exists()
    await own.restart()
    client = own.client()
    begun = await client.end_of_start(task["id"])
    assert begun["status"] == "READY", begun["detail"]
    second = await client.wait_for_execution(begun["app_conversation_id"], "finished")
    assert outputs(await client.events(second["id"]))[-1].split() == ["20000"]
    assert list(copies.glob("*/layer.part")) == []
    assert (await client.conversation(first_id))["sandbox_status"] == "RUNNING"
    assert first["sandbox_id"] != second["sandbox_id"]


async def test_files_go_back_to_what_they_were_before_a_turn(
    make_installation: MakeInstallation,
) -> None:
    own = await make_installation()
    client = own.client()
    conversation_id = await client.start_conversation(run("echo good >notes", "echo x >~/own"))
    seen = await client.wait_for_execution(conversation_id, "finished")
    await client.send(conversation_id, run("echo spoilt >notes; rm ~/own; sleep 1000 &"))
    await client.wait_for_execution(conversation_id, "finished")
    kept = (await client.get(f"{PATH}/{conversation_id}/checkpoints")).json()["items"]
    assert len(kept) == 2
    place = own.sandbox_dir(seen["sandbox_id"])

    wanted = {"checkpoint_id": kept[0]["id"]}
    answer = await client.post(f"{PATH}/{conversation_id}/rollback", json=wanted)
    assert answer.status == 200, answer.text
    # What a kill leaves is a sandbox that rests, or has its old files, or these.
    await own.kill()
    await own.restart()
    client = own.client()
    await client.post(f"/api/v1/sandboxes/{seen['sandbox_id']}/resume")
    await client.wait_for_sandbox(seen["sandbox_id"], "RUNNING")
    assert (place / "workspace" / "notes").read_text() == "good\n"
    await client.send(conversation_id, run("cat notes ~/own; pgrep -c sleep"))
    events = await client.until(
        conversation_id, lambda events: "good" in "".join(outputs(events)[-1:])
    )
    assert outputs(events)[-1].split() == ["good", "x", "0"]
    assert any("put back to what they were" in text for text in said(events, "user"))
    assert not (place / "rollback").exists()


@pytest.mark.parametrize("moment", ["asked", "stopped", "copying"])
async def test_a_kill_while_files_go_back_leaves_one_or_the_other(
    make_installation: MakeInstallation, moment: str
) -> None:
    own = await make_installation()
    client = own.client()
    conversation_id = await client.start_conversation(run(f"({MANY})", "echo good >~/notes"))
    seen = await client.wait_for_execution(conversation_id, "finished")
    await client.send(conversation_id, run("echo spoilt >~/notes; cd many && rm 1 2 3"))
    await client.wait_for_execution(conversation_id, "finished")
    kept = (await client.get(f"{PATH}/{conversation_id}/checkpoints")).json()["items"]
    place = own.sandbox_dir(seen["sandbox_id"])
    [agent] = own.agent_servers()
    moments: dict[str, Callable[[], bool]] = {
        "asked": lambda: True,
        "stopped": lambda: agent not in own.agent_servers(),
        "copying": (place / "layer.part").exists,
    }

    wanted = {"checkpoint_id": kept[0]["id"]}
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(lost(client, conversation_id, wanted))
        await eventually(moments[moment], f"it is {moment}")
        await own.kill()
    assert asked.done()
    await own.restart()
    client = own.client()
    await client.send(conversation_id, run(f"cat ~/notes; ls {place}/workspace/many | wc -l"))
    events = await client.until(conversation_id, lambda events: len(outputs(events)) == 4)
    is_told = any("put back to what they were" in text for text in said(events, "user"))
    # It is told of what was done, and of nothing else, and no file is of the other ones.
    assert outputs(events)[-1].split() == (["good", "20000"] if is_told else ["spoilt", "19997"])
    assert is_told or moment == "asked"
    assert (await client.conversation(conversation_id))["sandbox_status"] == "RUNNING"
    assert [one.name for one in place.glob("*.part")] == []


async def lost(client: LiveClient, conversation_id: str, wanted: dict[str, str]) -> None:
    """Go back, whoever answers."""
    with contextlib.suppress(aiohttp.ClientError):
        await client.post(f"{PATH}/{conversation_id}/rollback", json=wanted)

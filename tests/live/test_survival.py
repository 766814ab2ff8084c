"""Servers that are killed while they or their agents are in the middle of something."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.git_server import GitServer
from tests.live.client import LiveClient
from tests.live.conftest import PLAIN, MakeInstallation
from tests.live.events import finishes, outputs, said
from tests.live.installation import Installation, eventually, secret, size
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

STAGES = [
    "PREPARING_REPOSITORY",
    "RUNNING_SETUP_SCRIPT",
    "SETTING_UP_GIT_HOOKS",
    "SETTING_UP_SKILLS",
    "STARTING_CONVERSATION",
]


@pytest_asyncio.fixture(loop_scope="session")
async def own(make_installation: MakeInstallation) -> Installation:
    """Return a server of the test's own, whose agent servers start by themselves."""
    return await make_installation(**PLAIN)


async def test_a_killed_server_finds_its_sandbox_and_what_it_missed(
    make_installation: MakeInstallation,
) -> None:
    # The model of the tests is on this machine, where only the server leads to from another network.
    own = await make_installation(AGENTSVC_BACKENDS__PROCESS__NETWORK="host")
    client = own.client()
    count, done = own.at_home("count"), own.at_home("done")
    conversation_id = await client.start_conversation(
        run(
            "echo first",
            f"for i in $(seq 100); do echo $i >>{count}; sleep 0.1; done; echo slow",
            f"echo last && touch {done}",
        )
    )
    before = await client.wait_for_execution(conversation_id, "running")
    await eventually(lambda: size(count) > 5, "the command runs")
    processes = own.processes()
    await own.kill()
    at_kill = size(count)
    await eventually(done.exists, "the agent went on without the server")
    assert size(count) > at_kill
    assert count.read_text().split() == [str(number) for number in range(1, 101)]
    await asyncio.sleep(1)
    await own.start()

    after = await client.wait_for_execution(conversation_id, "finished")
    for name in ("sandbox_id", "conversation_url", "session_api_key"):
        assert after[name] == before[name]
    known = {process.identity for process in processes}
    assert set(own.agent_servers()) <= {process.pid for process in processes}
    assert len(own.agent_servers()) == 1
    assert known & {process.identity for process in own.processes()}
    events = await client.until(conversation_id, lambda events: len(finishes(events)) == 1)
    assert outputs(events) == ["first", "slow", "last"]
    await assert_complete(client, after)

    history = (await client.get(f"/api/conversations/{conversation_id}/events?limit=100")).json()
    assert [event["id"] for event in history["events"]] == list(range(len(history["events"])))


async def test_a_server_that_is_told_to_stop_ends_requests_but_leaves_sandboxes_running(
    own: Installation,
) -> None:
    client = own.client()
    count, enough = own.at_home("count"), own.at_home("enough")
    text = run(f"until [ -e {enough} ]; do echo x >>{count}; sleep 0.1; done; echo slow")
    conversation_id = await client.start_conversation(text)
    await eventually(lambda: size(count) > 5, "the command runs")
    [agent] = own.agent_servers()
    assert await own.stop() == 0
    at_stop = size(count)
    await eventually(lambda: size(count) > at_stop + 10, "the agent goes on")
    assert own.agent_servers() == [agent]
    count.path.with_name("enough").touch()
    await own.start()
    seen = await client.wait_for_execution(conversation_id, "finished")
    assert own.agent_servers() == [agent]
    assert outputs(await client.events(conversation_id)) == ["slow"]
    await assert_complete(client, seen)

    # A message that comes while a tool is used is taken when the tool has ended.
    await client.send(conversation_id, run("sleep 3; echo waited"))
    await client.wait_for_execution(conversation_id, "running")
    waiting = f"/api/v1/conversations/{conversation_id}/pending-messages"
    async with asyncio.TaskGroup() as group:
        sent = group.create_task(client.send(conversation_id, "[script:say] And another thing."))
        while not sent.done():
            if "another thing" in (await client.get(waiting)).text:
                break
        assert await own.stop() == 0
    await own.start()
    events = await client.until(conversation_id, lambda events: bool(said(events, "agent")))
    assert said(events, "user")[-1] == "[script:say] And another thing."
    assert outputs(events) == ["slow", "waited"]


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_a_start_goes_on_after_a_kill_while_its_sandbox_starts(
    own: Installation, *, is_at_once: bool
) -> None:
    client = own.client()
    task = await client.start_task(run("echo started"))
    if not is_at_once:
        await eventually(own.agent_servers, "the agent server starts")
    await own.kill()
    await own.start()
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "READY", ended["detail"]
    conversation_id = ended["app_conversation_id"]
    await client.wait_for_execution(conversation_id, "finished")
    assert outputs(await client.events(conversation_id)) == ["started"]
    assert len(own.agent_servers()) == 1
    assert len(own.sandbox_dirs()) == 1
    found = (await client.get("/api/v1/sandboxes/search")).json()["items"]
    assert [one["id"] for one in found] == [ended["sandbox_id"]]


async def test_a_start_goes_on_after_a_kill_at_any_later_stage(
    own: Installation, git_server: GitServer
) -> None:
    await git_server.add_repository("acme/slow", SLOW_FILES)
    client = own.client()
    known = {"token": git_server.token.reveal(), "host": f"http://{git_server.host}"}
    tokens = {"secrets_store": {"provider_tokens": {"github": known}}}
    await client.save_settings(**tokens)
    sandbox_id = (await client.post("/api/v1/sandboxes")).json()["id"]
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    for stage in STAGES:
        task = await client.start_task(
            "[script:slow]", selected_repository="acme/slow", sandbox_id=sandbox_id
        )
        reached = await reach(client, task["id"], stage)
        await own.kill()
        await own.start()
        ended = await client.end_of_start(task["id"])
        assert ended["status"] == "READY", f"killed at {reached}: {ended['detail']}"
        seen = await client.wait_for_execution(ended["app_conversation_id"], "finished")
        info = (await client.agent(seen).get(f"/api/conversations/{seen['id']}")).json()
        inside = Path(info["workspace"]["working_dir"]).relative_to("/workspace/project")
        work = own.sandbox_dir(sandbox_id) / "workspace" / inside
        assert (work / "begun").read_text() == "begun\n", f"killed at {reached}"
        assert (work / "ended").read_text() == "ended\n", f"killed at {reached}"
        await assert_complete(client, seen)
        count = await client.agent(seen).get("/api/conversations/count")
        assert count.json() == STAGES.index(stage) + 1
    assert len(own.agent_servers()) == 1


SLOW_FILES = {".openhands/setup.sh": "echo begun >>begun; sleep 0.8; echo ended >>ended\n"}


async def test_a_server_on_another_port_still_hears_of_its_sandboxes(
    make_installation: MakeInstallation,
) -> None:
    # So that nothing is heard of by asking.
    own = await make_installation(AGENTSVC_CONVERSATIONS__SYNC_SECONDS="3600")
    client = own.client()
    value = secret("custom").reveal()
    await client.save_settings(secrets_store={"custom_secrets": {"KEY": {"secret": value}}})
    conversation_id = await client.start_conversation(run("echo first"))
    await client.wait_for_execution(conversation_id, "finished")
    for _ in range(2):
        before = own.url
        await own.kill()
        own.url = ""
        await own.start()
        assert own.url != before
    client = own.client()
    used = own.at_home("used")
    await client.send(conversation_id, run(f'echo "$KEY" >{used}', "sleep 3; echo second"))
    events = await client.until(conversation_id, lambda events: len(finishes(events)) == 2)
    assert outputs(events) == ["first", "", "second"]
    assert used.read_text() == f"{value}\n"


# What the tests share


async def reach(client: LiveClient, task_id: str, stage: str) -> str:
    """Return as soon as a start has come to a stage, or to a later one; say to which."""
    order = [*STAGES, "READY", "ERROR"]
    for _ in range(5000):
        status = str((await client.task(task_id))["status"])
        if status in order[order.index(stage) :]:
            return status
        await asyncio.sleep(0.005)
    raise AssertionError(f"the start did not come to {stage}")


async def assert_complete(client: LiveClient, seen: dict[str, Any]) -> None:
    """Assert that each event the agent server has is stored, and each stored one only once."""
    stored = [event["id"] for event in await client.events(seen["id"])]
    assert len(set(stored)) == len(stored)
    there = await client.agent(seen).get(f"/api/conversations/{seen['id']}/events/search?limit=100")
    assert {event["id"] for event in there.json()["items"]} <= set(stored)

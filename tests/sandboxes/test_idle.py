"""Sandboxes that nobody uses: paused, woken by the next message, deleted, or paused for others."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.base.errors import BackendUnavailable
from agentsvc.base.values import now
from agentsvc.http.keys import DATABASE, SANDBOXES
from agentsvc.plugin.backend import Capability
from agentsvc.sandboxes import Target
from agentsvc.sandboxes.idle import IdleSandboxes
from agentsvc.storage import Transaction
from agentsvc.testing.backend import FakeWorld
from agentsvc.testing.llm import Playbook, Reply, ToolCall
from tests.fake_agent import FakeAgent
from tests.new_data import write_database
from tests.service import WAIT_SECONDS, Client, Service
from tests.troubles import TroubledAgent, TroubledWorld, eventually, reconfigure

STARTS = "/api/v1/app-conversations"
SANDBOX_PATH = "/api/v1/sandboxes"
RULES = "/api/v1/sandbox-rules"
TEXT = "and another thing"
BUSY = Reply(
    calls=(ToolCall(tool="terminal", arguments={"command": "sleep 60"}),), delay_seconds=60
)


def said(text: str = TEXT) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


async def start(client: Client) -> tuple[str, str]:
    """Return a conversation whose run is over, and its sandbox."""
    conversation_id = await client.start_conversation()
    seen = await client.wait_for_execution(conversation_id, "finished")
    return conversation_id, str(seen["sandbox_id"])


async def start_busy(client: Client, agent: FakeAgent) -> str:
    """Return the sandbox of a conversation whose agent runs and does not stop."""
    earlier, agent.playbook = agent.playbook, Playbook((BUSY,))
    conversation_id = await client.start_conversation()
    seen = await client.wait_for_execution(conversation_id, "running")
    agent.playbook = earlier
    return str(seen["sandbox_id"])


async def until[T](look: Callable[[], Awaitable[T]]) -> T:
    """Return what is found, as soon as it is something."""
    async with asyncio.timeout(WAIT_SECONDS):
        for pause in itertools.repeat(0.05):
            if found := await look():
                return found
            await asyncio.sleep(pause)
    raise AssertionError


async def pause_unused(service: Service, sandbox_id: str) -> None:
    """Have a sandbox paused as one that nobody uses, once what followed its start does so no more."""
    idle = service.app[SANDBOXES].idle
    await until(lambda: idle.cull(sandbox_id, Target.PAUSED, unused_since=now()))


async def is_resting_as(client: Client, sandbox_id: str, how: str) -> None:
    """Wait until a sandbox is paused, and how."""

    async def look() -> bool:
        seen = await client.sandbox(sandbox_id)
        return seen is not None and (seen["status"], seen["paused_as"]) == ("PAUSED", how)

    await until(look)


async def removals(client: Client) -> list[dict[str, Any]]:
    answer = await client.get(f"{SANDBOX_PATH}/removals")
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def has_no_removals(client: Client) -> bool:
    return not await removals(client)


async def hears(client: Client, conversation_id: str, text: str = TEXT) -> None:
    """Wait until the agent has a message."""

    async def times() -> int:
        events = await client.events(conversation_id)
        return sum(one["kind"] == "MessageEvent" and text in str(one) for one in events)

    await until(times)
    assert await times() == 1


@pytest.mark.parametrize("generation", ["v0", "v1"])
async def test_an_unused_sandbox_is_paused_and_the_next_message_wakes_it(
    client: Client, service: Service, generation: str
) -> None:
    conversation_id, sandbox_id = await start(client)
    await reconfigure(service, sandboxes={"pause_after_seconds": 0.3})
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    if generation == "v0":
        path, body = f"/api/conversations/{conversation_id}/message", {"message": TEXT}
    else:
        path, body = f"{STARTS}/{conversation_id}/send-message", said()
    answer = await client.post(path, json=body)
    assert answer.status == 200, answer.text
    assert answer.json()["success"] is True
    await hears(client, conversation_id)


async def test_a_sandbox_that_its_user_pauses_while_it_is_culled_rests_for_the_user(
    client: Client, service: Service
) -> None:
    _, sandbox_id = await start(client)
    sandboxes = service.app[SANDBOXES]
    await pause_unused(service, sandbox_id)
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    found = await sandboxes.find_any(sandbox_id)
    assert found is not None
    # Both are stored by one commit, in this order.
    _, is_asked = await asyncio.gather(
        sandboxes.pause(found.user_id, sandbox_id),
        sandboxes.idle.cull(sandbox_id, Target.STOPPED, unused_since=now()),
    )
    assert is_asked
    assert not await sandboxes.idle.is_culled(found)


async def test_an_unused_sandbox_is_stopped_after_its_pause_and_the_next_message_starts_it(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    conversation_id, sandbox_id = await start(client)
    await reconfigure(service, sandboxes={"pause_after_seconds": 0.1, "stop_after_seconds": 1.0})
    await is_resting_as(client, sandbox_id, "stopped")
    assert fake_world.count("pause") == 1
    stops = fake_world.count("stop")
    await fake_world.sweeps(3)
    assert fake_world.count("stop") == stops
    answer = await client.post(f"{STARTS}/{conversation_id}/send-message", json=said())
    assert answer.status == 200, answer.text
    await hears(client, conversation_id)
    assert fake_world.count("restart") == 1


async def test_an_unused_sandbox_is_reclaimed_after_its_pause_and_the_next_message_wakes_it(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    conversation_id, sandbox_id = await start(client)
    await reconfigure(service, sandboxes={"pause_after_seconds": 0.1, "reclaim_after_seconds": 1.0})
    await is_resting_as(client, sandbox_id, "reclaimed")
    await fake_world.sweeps(3)
    assert (fake_world.count("pause"), fake_world.count("reclaim")) == (1, 1)
    await service.restart()
    await is_resting_as(client, sandbox_id, "reclaimed")
    answer = await client.post(f"{STARTS}/{conversation_id}/send-message", json=said())
    assert answer.status == 200, answer.text
    await hears(client, conversation_id)
    assert (fake_world.count("reclaim"), fake_world.count("restart")) == (1, 0)


async def test_an_unused_sandbox_is_hibernated_after_its_pause_and_the_next_message_wakes_it(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    conversation_id, sandbox_id = await start(client)
    rules = {"reclaim_after_seconds": 0.1, "hibernate_after_seconds": 1.0}
    await reconfigure(service, sandboxes=rules)
    await is_resting_as(client, sandbox_id, "on_disk")
    await fake_world.sweeps(3)
    counts = [fake_world.count(verb) for verb in ("pause", "reclaim", "hibernate")]
    assert counts == [1, 1, 1]
    await service.restart()
    await is_resting_as(client, sandbox_id, "on_disk")
    answer = await client.post(f"{STARTS}/{conversation_id}/send-message", json=said())
    assert answer.status == 200, answer.text
    await hears(client, conversation_id)
    assert (fake_world.count("resume"), fake_world.count("restart")) == (1, 0)


async def test_a_sandbox_that_loses_its_memory_on_the_way_to_disk_is_started_by_the_next_message(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.hibernation_fails = True
    conversation_id, sandbox_id = await start(client)
    await reconfigure(service, sandboxes={"hibernate_after_seconds": 0.1})
    await is_resting_as(client, sandbox_id, "stopped")
    await fake_world.sweeps(3)
    assert fake_world.count("hibernate") == 1
    answer = await client.post(f"{STARTS}/{conversation_id}/send-message", json=said())
    assert answer.status == 200, answer.text
    await hears(client, conversation_id)
    assert fake_world.count("restart") == 1


@pytest.mark.parametrize(
    ("why_no_reclaim", "rest"), [("", "reclaimed"), ("there is no swap", "frozen")]
)
async def test_a_sandbox_that_no_disk_takes_rests_one_tier_above(
    client: Client, service: Service, fake_world: TroubledWorld, why_no_reclaim: str, rest: str
) -> None:
    fake_world.why_no_hibernate = "there is no gVisor"
    fake_world.why_no_reclaim = why_no_reclaim
    _, sandbox_id = await start(client)
    await reconfigure(
        service, sandboxes={"pause_after_seconds": 0.1, "hibernate_after_seconds": 1.0}
    )
    await is_resting_as(client, sandbox_id, rest)
    await fake_world.sweeps(3)
    assert fake_world.count("hibernate") == 0
    await client.post(f"{SANDBOX_PATH}/{sandbox_id}/resume")
    await client.wait_for_sandbox(sandbox_id, "RUNNING")


async def test_a_sandbox_whose_memory_can_go_nowhere_is_paused(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.why_no_reclaim = "there is no swap"
    _, sandbox_id = await start(client)
    await reconfigure(service, sandboxes={"reclaim_after_seconds": 0.1})
    await is_resting_as(client, sandbox_id, "frozen")
    await fake_world.sweeps(3)
    assert (fake_world.count("pause"), fake_world.count("reclaim")) == (1, 0)


async def test_a_sandbox_that_is_being_reclaimed_is_resumed_at_once(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    _, sandbox_id = await start(client)
    fake_world.endless_reclaim = True
    await reconfigure(service, sandboxes={"reclaim_after_seconds": 0.1})
    await eventually(lambda: fake_world.count("reclaim") > 0)
    assert (await client.post(f"{SANDBOX_PATH}/{sandbox_id}/resume")).status == 200
    await eventually(lambda: fake_world.count("resume") > 0)


async def test_a_sandbox_that_cannot_be_stopped_is_paused(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.capabilities -= {Capability.STOP}
    _, sandbox_id = await start(client)
    await reconfigure(service, sandboxes={"stop_after_seconds": 0.1})
    await is_resting_as(client, sandbox_id, "frozen")
    await fake_world.sweeps(3)
    assert fake_world.count("stop") == 0
    answer = await client.post(f"{SANDBOX_PATH}/{sandbox_id}/stop")
    assert answer.status == 409, answer.text


async def test_a_paused_sandbox_is_stopped_when_asked_and_resumed_when_asked(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    _, sandbox_id = await start(client)
    path = f"{SANDBOX_PATH}/{sandbox_id}"
    assert (await client.post(f"{path}/pause")).status == 200
    await is_resting_as(client, sandbox_id, "frozen")
    for verb in ("stop", "stop", "pause"):
        assert (await client.post(f"{path}/{verb}")).status == 200
        await is_resting_as(client, sandbox_id, "stopped")
    await service.restart()
    await is_resting_as(client, sandbox_id, "stopped")
    assert (await client.post(f"{path}/resume")).status == 200
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert (fake_world.count("restart"), fake_world.count("resume")) == (1, 0)


async def test_a_sandbox_that_ends_while_it_is_being_stopped_has_failed(
    client: Client, fake_world: TroubledWorld
) -> None:
    _, sandbox_id = await start(client)
    let_go = fake_world.hold("stop")
    stopping = asyncio.create_task(client.post(f"{SANDBOX_PATH}/{sandbox_id}/stop"))  # noqa: TID251
    await fake_world.waits("stop")
    fake_world.end(sandbox_id, 3)
    let_go.set()
    assert (await stopping).status == 200
    await client.wait_for_sandbox(sandbox_id, "ERROR")


async def test_a_message_that_wakes_its_sandbox_outlives_the_server(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    conversation_id, sandbox_id = await start(client)
    await reconfigure(service, sandboxes={"pause_after_seconds": 0.3})
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    fake_world.unreachable = True
    answer = await client.post(f"{STARTS}/{conversation_id}/send-message", json=said())
    assert answer.json() == {"success": True, "sandbox_status": "STARTING", "message": None}
    await service.stop()
    fake_world.unreachable = False
    await service.start()
    await hears(client, conversation_id)


async def test_a_sandbox_that_its_user_paused_is_not_woken(
    client: Client, service: Service
) -> None:
    conversation_id, sandbox_id = await start(client)
    assert (await client.post(f"{SANDBOX_PATH}/{sandbox_id}/pause")).status == 200
    answer = await client.post(f"{STARTS}/{conversation_id}/send-message", json=said())
    assert answer.status == 409
    assert "resume it first" in answer.json()["detail"]
    # Nor does a rule take it over.
    await reconfigure(service, sandboxes={"pause_after_seconds": 0.1})
    answer = await client.post(f"{STARTS}/{conversation_id}/send-message", json=said())
    assert answer.status == 409


async def test_a_request_to_the_agent_wakes_a_culled_sandbox_and_a_look_does_not(
    client: Client, service: Service
) -> None:
    conversation_id, sandbox_id = await start(client)
    await reconfigure(service, sandboxes={"pause_after_seconds": 0.3})
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    agent = f"/sandboxes/{sandbox_id}/agent/api/conversations/{conversation_id}"
    assert (await client.get(agent)).status == 409
    message = {"role": "user", **said(), "run": True}
    answer = await client.post(f"{agent}/events", json=message)
    assert answer.status == 200, answer.text
    await hears(client, conversation_id)


async def test_a_sandbox_whose_agent_runs_is_never_idle(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start_busy(client, fake_agent)
    await reconfigure(
        service, sandboxes={"pause_after_seconds": 0.01, "delete_after_seconds": 0.02}
    )
    await fake_world.sweeps(4)
    seen = await client.sandbox(sandbox_id)
    assert seen is not None
    assert seen["status"] == "RUNNING"


async def test_what_the_agent_server_says_counts_where_nothing_was_told(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    conversation_id, sandbox_id = await start(client)
    await service.stop()
    # As one that its events have not reached the server from.
    conversation = fake_agent.conversation_of(conversation_id)
    conversation.status = "running"
    await reconfigure(service, sandboxes={"pause_after_seconds": 0.01})
    await fake_world.sweeps(4)
    seen = await client.sandbox(sandbox_id)
    assert seen is not None
    assert seen["status"] == "RUNNING"


async def test_an_agent_server_that_does_not_answer_is_not_taken_for_idle(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    _, sandbox_id = await start(client)
    fake_agent.sandboxes[sandbox_id].fail_next(500, "/count", times=10_000)
    await reconfigure(service, sandboxes={"pause_after_seconds": 0.01})
    await fake_world.sweeps(4)
    seen = await client.sandbox(sandbox_id)
    assert seen is not None
    assert seen["status"] == "RUNNING"


async def test_a_sandbox_that_cannot_be_culled_keeps_no_other_running(
    client: Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, broken), (_, idle) = [await start(client) for _ in range(2)]
    whole = IdleSandboxes.cull

    async def cull(self: IdleSandboxes, sandbox_id: str, target: Target, **since: Any) -> bool:
        if sandbox_id == broken:
            raise RuntimeError("a sandbox of another kind")
        return await whole(self, sandbox_id, target, **since)

    monkeypatch.setattr(IdleSandboxes, "cull", cull)
    await reconfigure(service, sandboxes={"pause_after_seconds": 0.1})
    await client.wait_for_sandbox(idle, "PAUSED")
    assert (await client.sandbox(broken) or {})["status"] == "RUNNING"


async def test_a_user_whose_settings_cannot_be_read_keeps_no_others_sandbox_running(
    client: Client, service: Service
) -> None:
    ann = await service.make_client("ann")
    await ann.save_settings()
    owners = {(await start(one))[1]: one for one in (client, ann)}
    first, second = await service.app[SANDBOXES].idle.find_unused()

    async def damage(tx: Transaction) -> None:
        sql = "UPDATE settings SET sealed = x'00' WHERE user_id = :id"
        await tx.run(sql, {"id": first.user_id})

    await service.app[DATABASE].write(damage)
    await reconfigure(service, sandboxes={"pause_after_seconds": 0.1})
    await owners[second.id].wait_for_sandbox(second.id, "PAUSED")


async def test_looking_is_no_use_and_what_is_open_is(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    conversation_id, sandbox_id = await start(client)
    await reconfigure(service, sandboxes={"pause_after_seconds": 0.5})
    with service.app[SANDBOXES].usage.hold(sandbox_id):
        await fake_world.sweeps(8)
        seen = await client.sandbox(sandbox_id)
        assert seen is not None
        assert seen["status"] == "RUNNING"
    # The waits ask again and again.
    await client.wait_for_conversation(
        conversation_id, lambda found: found["sandbox_status"] == "PAUSED"
    )


async def test_to_resume_a_sandbox_is_to_use_it(client: Client, service: Service) -> None:
    _, sandbox_id = await start(client)
    await client.post(f"{SANDBOX_PATH}/{sandbox_id}/pause")
    await reconfigure(service, sandboxes={"pause_after_seconds": 3600.0})
    sandboxes = service.app[SANDBOXES]
    before = now()
    assert (await client.post(f"{SANDBOX_PATH}/{sandbox_id}/resume")).status == 200
    [unused] = await sandboxes.idle.find_unused()
    assert sandboxes.usage.latest(sandbox_id, unused.active_at) >= before


async def test_an_unused_sandbox_is_deleted_with_its_files(
    client: Client, service: Service, fake_world: FakeWorld
) -> None:
    conversation_id, sandbox_id = await start(client)
    await client.post(f"{SANDBOX_PATH}/{sandbox_id}/pause")
    await reconfigure(service, sandboxes={"delete_after_seconds": 0.2})
    await eventually(lambda: not fake_world.sandboxes)
    seen = await client.wait_for_conversation(
        conversation_id, lambda found: found["sandbox_status"] == "MISSING"
    )
    assert seen["id"].replace("-", "") == conversation_id.replace("-", "")
    assert await client.events(conversation_id)


async def test_a_users_own_rules_win(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    stored = await client.put(RULES, json={"pause_after_seconds": 0})
    assert stored.json() == {
        "pause_after_seconds": 0.0,
        "reclaim_after_seconds": None,
        "hibernate_after_seconds": None,
        "stop_after_seconds": None,
        "delete_after_seconds": None,
    }
    _, sandbox_id = await start(client)
    await reconfigure(service, sandboxes={"pause_after_seconds": 0.01})
    await fake_world.sweeps(4)
    seen = await client.sandbox(sandbox_id)
    assert seen is not None
    assert seen["status"] == "RUNNING"
    await client.put(RULES, json={"pause_after_seconds": 0.1})
    assert (await client.get(RULES)).json()["pause_after_seconds"] == 0.1
    await client.wait_for_sandbox(sandbox_id, "PAUSED")


async def test_bad_rules_and_rules_without_settings_are_refused(
    client: Client, service: Service
) -> None:
    assert (await client.put(RULES, json={"pause_after_seconds": -1})).status == 422
    assert (await client.put(RULES, json={"delete_after_seconds": "soon"})).status == 422
    newcomer = await service.make_client("newcomer", Role.MEMBER)
    assert (await newcomer.get(RULES)).status == 200
    assert (await newcomer.put(RULES, json={})).status == 404


async def test_the_sandbox_idle_longest_is_paused_to_make_room(
    client: Client, service: Service
) -> None:
    await reconfigure(service, sandboxes={"max_running": 2, "min_idle_seconds": 0.0})
    _, first = await start(client)
    second_conversation, second = await start(client)
    task = await client.start_task(when_full="pause_idle")
    assert (await client.end_of_start(task["id"]))["status"] == "READY"
    await client.wait_for_sandbox(first, "PAUSED")
    await client.wait_for_sandbox(second, "RUNNING")
    # Who was paused for it comes back in the same way.
    assert (await client.post(f"{SANDBOX_PATH}/{first}/resume?when_full=pause_idle")).status == 200
    await client.wait_for_sandbox(first, "RUNNING")
    await client.wait_for_conversation(
        second_conversation, lambda found: found["sandbox_status"] == "PAUSED"
    )


async def test_no_running_agent_is_paused_to_make_room(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    await reconfigure(service, sandboxes={"max_running": 1, "min_idle_seconds": 0.0})
    sandbox_id = await start_busy(client, fake_agent)
    answer = await client.post(STARTS, json={"when_full": "pause_idle"})
    assert answer.status == 429
    assert "none is idle" in answer.json()["detail"]
    seen = await client.sandbox(sandbox_id)
    assert seen is not None
    assert seen["status"] == "RUNNING"


async def test_what_cannot_be_removed_is_listed_for_administrators_and_tried_again(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    _, sandbox_id = await start(client)
    fake_world.always["delete"] = OSError("no way in")
    await client.delete(f"{SANDBOX_PATH}/{sandbox_id}")
    found = await until(lambda: removals(client))
    assert found[0]["sandbox_id"] == sandbox_id
    assert found[0]["tries"] >= 1
    assert "fake" in found[0]["reason"]
    assert found[0]["next_try_at"] > "2"
    bob = await service.make_client("bob", Role.MEMBER)
    assert (await bob.get(f"{SANDBOX_PATH}/removals")).status == 403
    await service.restart()
    del fake_world.always["delete"]
    await eventually(lambda: not fake_world.sandboxes)
    await until(lambda: has_no_removals(client))


async def test_an_orphan_that_cannot_be_removed_is_listed(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await start(client)
    await service.stop()
    await asyncio.to_thread(write_database, service.data_dir / "agentsvc.db")
    for name in ("agentsvc.db-wal", "agentsvc.db-shm"):
        (service.data_dir / name).unlink(missing_ok=True)
    fake_world.always["delete"] = OSError("no way in")
    await reconfigure(service, sandboxes={"orphan_grace_seconds": 0.0})
    admin = await service.make_client()
    found = await until(lambda: removals(admin))
    assert (found[0]["user_id"], found[0]["backend"]) == (None, "fake")
    del fake_world.always["delete"]
    await eventually(lambda: not fake_world.sandboxes)


async def test_a_sandbox_is_in_use_while_its_agent_is_told_something(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    conversation_id, sandbox_id = await start(client)
    async with fake_agent.conversation_of(conversation_id).step_lock:
        answer = await client.post(f"{STARTS}/{conversation_id}/send-message", json=said())
        assert answer.status == 200, answer.text
        idle = service.app[SANDBOXES].idle
        assert not await idle.cull(sandbox_id, Target.PAUSED, unused_since=now())
    await hears(client, conversation_id)


async def test_a_message_that_comes_while_a_sandbox_is_culled_wakes_it(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    conversation_id, sandbox_id = await start(client)
    let_go = fake_world.hold("pause")
    await pause_unused(service, sandbox_id)
    await fake_world.waits("pause")
    answer = await client.post(f"{STARTS}/{conversation_id}/send-message", json=said())
    assert answer.status == 200, answer.text
    let_go.set()
    await hears(client, conversation_id)
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert fake_world.count("resume") == 1


async def test_a_message_to_a_sandbox_whose_pause_fails_is_told_at_once(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, conversations={"sync_seconds": 60.0})
    conversation_id, sandbox_id = await start(client)
    fake_world.always["pause"] = BackendUnavailable("not now")
    let_go = fake_world.hold("pause")
    await pause_unused(service, sandbox_id)
    await fake_world.waits("pause")
    let_go.set()
    answer = await client.post(f"{STARTS}/{conversation_id}/send-message", json=said())
    assert answer.status == 200, answer.text
    await hears(client, conversation_id)
    await client.wait_for_sandbox(sandbox_id, "RUNNING")

"""Where only so many sandboxes may run: refusing, waiting in turn, and who is counted."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.base.values import now
from agentsvc.config.schema import Config
from agentsvc.conversations.retention import delete_idle
from agentsvc.http.keys import DATABASE
from agentsvc.testing.backend import FakeWorld
from tests.conftest import FAST
from tests.http.gateway.steps import until
from tests.plugin_loading import load_plugins
from tests.service import Answer, Client, Service

STARTS = "/api/v1/app-conversations"
SANDBOXES = "/api/v1/sandboxes"
SINCE = "in the queue: the limit of the backend `fake` is reached"


def limited(**fields: Any) -> Config:
    """Return a configuration in which only so many sandboxes may run."""
    return msgspec.structs.replace(
        FAST, sandboxes=msgspec.structs.replace(FAST.sandboxes, **fields)
    )


@pytest.fixture
async def full(tmp_path: Path, fake_world: FakeWorld) -> AsyncIterator[Service]:
    """A server on which one sandbox may run."""

    config = msgspec.structs.replace(FAST, backends={"fake": {"max_running": 1}})
    service = Service(tmp_path / "data", config, lambda: load_plugins(fake=fake_world.plugin()))
    await service.start()
    yield service
    await service.close()


async def admin(service: Service) -> Client:
    client = await service.make_client()
    await client.save_settings()
    return client


async def member(service: Service, name: str = "bob") -> Client:
    client = await service.make_client(name, Role.MEMBER)
    await client.save_settings()
    return client


async def start_sandbox(client: Client, **query: str) -> dict[str, Any]:
    answer = await client.post(SANDBOXES, params=query)
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def position_of(client: Client, task_id: str, position: int | None) -> dict[str, Any]:
    """Return a start task once it has this place in the queue."""
    async with asyncio.timeout(client.patience):
        while True:
            task = await client.task(task_id)
            if task["queue_position"] == position:
                return task
            await asyncio.sleep(0.03)


def check_refused(answer: Answer) -> None:
    assert answer.status == 429, answer.text
    assert answer.json()["code"] == "sandbox_limit_reached"
    assert "fake" in answer.json()["detail"]
    assert int(answer.headers["Retry-After"]) > 0


async def test_over_the_limit_every_start_is_refused_with_the_time_to_come_back(
    full: Service, fake_world: FakeWorld
) -> None:
    client = await admin(full)
    first = await client.start_conversation()
    check_refused(await client.post(STARTS, json={}))
    check_refused(await client.post("/api/conversations", json={}))
    check_refused(await client.post(SANDBOXES))
    # Nothing of what was refused is left.
    found = (await client.get(f"{STARTS}/search")).json()["items"]
    assert [one["id"] for one in found] == [(await client.conversation(first))["id"]]
    assert len((await client.get(f"{SANDBOXES}/search")).json()["items"]) == 1
    assert len(fake_world.sandboxes) == 1


async def test_a_pause_makes_room_and_a_resume_needs_it(full: Service) -> None:
    client = await admin(full)
    first = await start_sandbox(client)
    await client.wait_for_sandbox(first["id"], "RUNNING")
    await client.post(f"{SANDBOXES}/{first['id']}/pause")
    second = await start_sandbox(client)
    await client.wait_for_sandbox(second["id"], "RUNNING")
    check_refused(await client.post(f"{SANDBOXES}/{first['id']}/resume"))
    waits = await client.post(f"{SANDBOXES}/{first['id']}/resume?when_full=queue")
    assert waits.status == 200
    seen = await client.sandbox(first["id"])
    assert seen is not None
    assert (seen["status"], seen["status_detail"]) == (
        "STARTING",
        f"waiting for capacity, position 1 {SINCE}",
    )
    await client.delete(f"{SANDBOXES}/{second['id']}")
    await client.wait_for_sandbox(first["id"], "RUNNING")


async def test_starts_wait_in_turn_and_say_their_place_also_after_a_restart(
    full: Service, fake_world: FakeWorld
) -> None:
    client = await admin(full)
    first = await client.start_conversation()
    tasks = [await client.start_task(when_full="queue") for _ in range(2)]
    waits = await position_of(client, tasks[1]["id"], 2)
    assert waits["status"] == "WAITING_FOR_SANDBOX"
    assert waits["detail"] == f"Waiting for capacity, position 2 {SINCE}"
    await full.restart()
    assert (await position_of(client, tasks[0]["id"], 1))["status"] == "WAITING_FOR_SANDBOX"
    assert len(fake_world.sandboxes) == 1
    await client.delete(f"{STARTS}/{first}")
    ended = await client.end_of_start(tasks[0]["id"])
    assert (ended["status"], ended["detail"], ended["queue_position"]) == ("READY", None, None)
    assert (await position_of(client, tasks[1]["id"], 1))["status"] == "WAITING_FOR_SANDBOX"
    await client.delete(f"{STARTS}/{ended['app_conversation_id']}")
    assert (await client.end_of_start(tasks[1]["id"]))["status"] == "READY"


async def test_a_start_that_waits_can_be_deleted(full: Service) -> None:
    client = await admin(full)
    await client.start_conversation()
    task = await client.start_task(when_full="queue", conversation_id="1" * 32)
    await position_of(client, task["id"], 1)
    assert (await client.delete("/api/conversations/" + "1" * 32)).json() is True
    later = await client.start_task(when_full="queue")
    await position_of(client, later["id"], 1)


async def test_one_that_waits_and_was_never_made_cannot_be_paused(full: Service) -> None:
    client = await admin(full)
    await start_sandbox(client)
    waits = await start_sandbox(client, when_full="queue")
    assert waits["status_detail"] == f"waiting for capacity, position 1 {SINCE}"
    answer = await client.post(f"{SANDBOXES}/{waits['id']}/pause")
    assert answer.status == 409
    assert "is queued" in answer.json()["detail"]


async def test_a_bad_choice_is_refused(full: Service) -> None:
    client = await admin(full)
    assert (await client.post(STARTS, json={"when_full": "shove"})).status == 422
    assert (await client.post(f"{SANDBOXES}?when_full=shove")).status == 422


async def test_a_limit_of_one_user_leaves_others_alone(
    service: Service, fake_world: FakeWorld
) -> None:
    service.config = limited(max_running_per_user=1)
    await service.restart()
    ann, bob = await admin(service), await member(service)
    await start_sandbox(ann)
    await start_sandbox(bob)
    answer = await ann.post(SANDBOXES)
    assert (answer.status, answer.json()["code"]) == (429, "sandbox_limit_reached")
    assert "your limit" in answer.json()["detail"]
    assert len(fake_world.sandboxes) <= 2


async def test_what_ended_needs_no_room(full: Service, fake_world: FakeWorld) -> None:
    client = await admin(full)
    first = await start_sandbox(client)
    await client.wait_for_sandbox(first["id"], "RUNNING")
    fake_world.end(first["id"])
    await client.wait_for_sandbox(first["id"], "ERROR")
    second = await start_sandbox(client)
    await client.wait_for_sandbox(second["id"], "RUNNING")
    check_refused(await client.post(f"{SANDBOXES}/{first['id']}/resume"))


async def test_at_most_so_many_wait(service: Service) -> None:
    service.config = limited(max_running=1, max_queued=1, when_full="queue")
    await service.restart()
    client = await admin(service)
    await start_sandbox(client)
    await start_sandbox(client)
    answer = await client.post(SANDBOXES)
    assert answer.status == 429
    assert "1 wait already" in answer.json()["detail"]


async def test_a_start_that_fails_before_it_uses_its_sandbox_gives_the_room_back(
    full: Service, fake_world: FakeWorld
) -> None:
    client = await admin(full)
    await client.save_settings(llm_model="")
    task = await client.start_task()
    assert (await client.end_of_start(task["id"]))["status"] == "ERROR"
    async with asyncio.timeout(client.patience):
        while fake_world.sandboxes:  # noqa: ASYNC110  # a thread of its own removes it
            await asyncio.sleep(0.02)


async def test_without_limits_nothing_waits(client: Client) -> None:
    found = [await start_sandbox(client, when_full="reject") for _ in range(5)]
    for one in found:
        await client.wait_for_sandbox(one["id"], "RUNNING")


async def test_one_that_is_given_up_past_the_server_while_it_waits_for_room_is_removed(
    full: Service,
) -> None:
    client = await admin(full)
    await start_sandbox(client)
    waiting = await start_sandbox(client, when_full="queue")
    database = full.app[DATABASE]
    # As `agentsvc prune` does beside the server, and `agentsvc restore` before it.
    before = now() + timedelta(minutes=1)
    assert await delete_idle(database, before, only=[waiting["id"]]) == 1

    async def is_gone() -> bool:
        sql = "SELECT 1 FROM sandboxes WHERE id = :id"
        return await database.value(sql, {"id": waiting["id"]}) is None

    await until(is_gone)

"""Only so many starts work on the server's machine at a time: whose turn it is, and their places."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.base.errors import BackendUnavailable
from agentsvc.config.schema import Config
from agentsvc.sandboxes import StartSlots
from tests.conftest import FAST
from tests.plugin_loading import load_plugins
from tests.service import Client, Service
from tests.troubles import TroubledAgent, TroubledWorld, eventually, reconfigure

NEVER_SECONDS = 10_000.0


def in_turn(places: int = 1, **fields: Any) -> Config:
    """Return a configuration in which so many starts work at a time, and none lapses."""
    wanted = {"starts_at_once": places, "turn_seconds": NEVER_SECONDS, "start_seconds": 30} | fields
    return msgspec.structs.replace(
        FAST,
        conversations=msgspec.structs.replace(FAST.conversations, **wanted),
        sandboxes=msgspec.structs.replace(FAST.sandboxes, start_seconds=30),
    )


@pytest.fixture
async def narrow(tmp_path: Path, fake_world: TroubledWorld) -> AsyncIterator[Service]:
    """A server whose machine one start at a time may use; sandboxes begin when they are told to."""
    fake_world.is_here = True
    fake_world.stays_starting = True
    service = Service(tmp_path / "data", in_turn(), lambda: load_plugins(fake=fake_world.plugin()))
    await service.start()
    yield service
    await service.close()


async def admin(service: Service) -> Client:
    client = await service.make_client()
    await client.save_settings()
    return client


async def member(service: Service, name: str) -> Client:
    client = await service.make_client(name, Role.MEMBER)
    await client.save_settings()
    return client


async def at_place(client: Client, task_id: str, place: int | None) -> dict[str, Any]:
    """Return a start task once it has this place in the queue."""
    async with asyncio.timeout(client.patience):
        while True:
            task = await client.task(task_id)
            if task["queue_position"] == place:
                return task
            await asyncio.sleep(0.03)


async def begun(client: Client, world: TroubledWorld, count: int = 1) -> dict[str, Any]:
    """Return a new start task that has its turn: one whose sandbox is made."""
    task = await client.start_task()
    await eventually(lambda: len(world.sandboxes) == count)
    return await client.task(task["id"])


async def waiting(client: Client, place: int, **fields: Any) -> dict[str, Any]:
    """Return a new start task that has this place in the queue."""
    return await at_place(client, (await client.start_task(**fields))["id"], place)


async def finish(client: Client, world: TroubledWorld, task_id: str) -> dict[str, Any]:
    """Let the sandbox of a start that has its turn become usable, and return how it ends."""
    async with asyncio.timeout(client.patience):
        while True:
            task = await client.task(task_id)
            if task["sandbox_id"] in world.sandboxes:
                break
            await asyncio.sleep(0.03)
    world.finish_start(task["sandbox_id"])
    return await client.end_of_start(task_id)


async def test_starts_wait_in_order_and_move_on_as_those_before_them_are_ready(
    narrow: Service, fake_world: TroubledWorld
) -> None:
    client = await admin(narrow)
    first = await begun(client, fake_world)
    assert (first["status"], first["queue_position"]) == ("WAITING_FOR_SANDBOX", None)
    tasks = [await waiting(client, place) for place in (1, 2, 3)]
    assert tasks[2]["status"] == "WAITING_FOR_SANDBOX"
    assert tasks[2]["detail"] == "Waiting for its turn, position 3 in the queue"
    # Nothing was made for those that wait.
    assert (len(fake_world.sandboxes), tasks[0]["sandbox_id"]) == (1, None)
    assert (await finish(client, fake_world, first["id"]))["status"] == "READY"
    await at_place(client, tasks[0]["id"], None)
    await at_place(client, tasks[1]["id"], 1)
    await at_place(client, tasks[2]["id"], 2)
    for task in tasks:
        ended = await finish(client, fake_world, task["id"])
        assert (ended["status"], ended["detail"], ended["queue_position"]) == ("READY", None, None)


async def test_what_has_begun_gives_way_until_nothing_starts_any_more(
    narrow: Service, fake_world: TroubledWorld
) -> None:
    client = await admin(narrow)

    def told() -> list[str]:
        return [ids for method, ids in fake_world.calls if method == "give_way"]

    first = await begun(client, fake_world)
    second = await waiting(client, 1)
    assert told() == []
    ids = [(await finish(client, fake_world, first["id"]))["sandbox_id"]]
    await eventually(lambda: told() == ids)
    assert (await finish(client, fake_world, second["id"]))["status"] == "READY"
    await eventually(lambda: told() == [*ids, ""])
    # One that starts alone slows nobody.
    for _ in range(2):
        alone = await client.start_task()
        assert (await finish(client, fake_world, alone["id"]))["status"] == "READY"
    assert told() == [*ids, ""]


async def test_a_backend_that_could_not_be_told_is_told_the_next_time(
    narrow: Service, fake_world: TroubledWorld
) -> None:
    client = await admin(narrow)
    first = await begun(client, fake_world)
    second = await waiting(client, 1)
    await finish(client, fake_world, first["id"])
    await eventually(lambda: fake_world.count("give_way") == 1)
    fake_world.next["give_way"] = [BackendUnavailable("nobody is there")]
    await finish(client, fake_world, second["id"])
    await eventually(lambda: fake_world.count("give_way") == 2)
    alone = await client.start_task()
    await finish(client, fake_world, alone["id"])
    await eventually(lambda: fake_world.count("give_way") == 3)


async def test_turns_go_round_between_users(narrow: Service, fake_world: TroubledWorld) -> None:
    alice, bob = await admin(narrow), await member(narrow, "bob")
    first = await begun(alice, fake_world)
    [second, third] = [await waiting(alice, place) for place in (1, 2)]
    of_bob = await waiting(bob, 1)
    await at_place(alice, second["id"], 2)
    await at_place(alice, third["id"], 3)
    await finish(alice, fake_world, first["id"])
    assert (await finish(bob, fake_world, of_bob["id"]))["status"] == "READY"
    for task in (second, third):
        assert (await finish(alice, fake_world, task["id"]))["status"] == "READY"


async def test_a_start_that_fails_gives_its_place_to_the_next(
    narrow: Service, fake_world: TroubledWorld
) -> None:
    client = await admin(narrow)
    first = await begun(client, fake_world)
    second = await waiting(client, 1)
    fake_world.end(first["sandbox_id"])
    assert (await client.end_of_start(first["id"]))["status"] == "ERROR"
    assert (await finish(client, fake_world, second["id"]))["status"] == "READY"


async def test_a_start_that_works_or_waits_can_be_deleted(
    narrow: Service, fake_world: TroubledWorld
) -> None:
    client = await admin(narrow)
    ids = [digit * 32 for digit in "123"]
    await client.start_task(conversation_id=ids[0])
    await eventually(lambda: len(fake_world.sandboxes) == 1)
    await waiting(client, 1, conversation_id=ids[1])
    third = await waiting(client, 2, conversation_id=ids[2])
    assert (await client.delete(f"/api/conversations/{ids[1]}")).json() is True
    await at_place(client, third["id"], 1)
    assert (await client.delete(f"/api/conversations/{ids[0]}")).json() is True
    assert (await finish(client, fake_world, third["id"]))["status"] == "READY"
    assert fake_world.count("create") == 2


async def test_those_that_waited_take_turns_after_a_restart_the_oldest_first(
    narrow: Service, fake_world: TroubledWorld
) -> None:
    client = await admin(narrow)
    first = await begun(client, fake_world)
    tasks = [await waiting(client, place) for place in (1, 2)]
    await narrow.restart()
    for place, task in enumerate(tasks, 1):
        assert (await at_place(client, task["id"], place))["sandbox_id"] is None
    await at_place(client, first["id"], None)
    assert (await finish(client, fake_world, first["id"]))["status"] == "READY"
    await at_place(client, tasks[1]["id"], 1)
    for task in tasks:
        assert (await finish(client, fake_world, task["id"]))["status"] == "READY"
    assert len(fake_world.sandboxes) == 3


async def test_a_start_that_takes_long_keeps_others_waiting_only_so_long(
    narrow: Service, fake_world: TroubledWorld
) -> None:
    client = await admin(narrow)
    await reconfigure(narrow, conversations={"turn_seconds": 0.3})
    first = await client.start_task()
    later = await client.start_task()
    await eventually(lambda: len(fake_world.sandboxes) == 2)
    assert (await finish(client, fake_world, later["id"]))["status"] == "READY"
    assert (await finish(client, fake_world, first["id"]))["status"] == "READY"


async def test_nobody_waits_for_the_repository_of_another(
    narrow: Service, fake_world: TroubledWorld, fake_agent: TroubledAgent
) -> None:
    client = await admin(narrow)
    fake_world.stays_starting = False
    is_fetched = fake_agent.hold("git clone", is_command=True)
    first = await client.start_task(selected_repository="acme/widgets")
    await fake_agent.waits("git clone")
    later = await client.start_task()
    assert (await client.end_of_start(later["id"]))["status"] == "READY"
    assert (await client.task(first["id"]))["status"] == "PREPARING_REPOSITORY"
    is_fetched.set()
    assert (await client.end_of_start(first["id"]))["status"] == "READY"


async def test_a_start_in_a_sandbox_that_runs_does_not_wait_for_new_ones(
    narrow: Service, fake_world: TroubledWorld
) -> None:
    client = await admin(narrow)
    fake_world.stays_starting = False
    home = (await client.end_of_start((await client.start_task())["id"]))["sandbox_id"]
    fake_world.stays_starting = True
    await begun(client, fake_world, 2)
    await waiting(client, 1)
    joining = await client.start_task(sandbox_id=home)
    assert (await client.end_of_start(joining["id"]))["status"] == "READY"


async def test_what_was_asked_for_at_once_is_made_only_in_turn_also_after_a_restart(
    narrow: Service, fake_world: TroubledWorld
) -> None:
    # Where room is limited, a start asks for its sandbox when it is stored.
    await reconfigure(narrow, sandboxes={"max_running": 10})
    client = await admin(narrow)
    first = await begun(client, fake_world)
    tasks = [await waiting(client, place) for place in (1, 2)]
    assert all(task["sandbox_id"] for task in tasks)
    await fake_world.sweeps(2)
    assert list(fake_world.sandboxes) == [first["sandbox_id"]]
    await narrow.restart()
    await at_place(client, tasks[1]["id"], 2)
    await fake_world.sweeps(2)
    assert list(fake_world.sandboxes) == [first["sandbox_id"]]
    for task in (first, *tasks):
        assert (await finish(client, fake_world, task["id"]))["status"] == "READY"


async def test_elsewhere_all_start_at_once(narrow: Service, fake_world: TroubledWorld) -> None:
    client = await admin(narrow)
    fake_world.is_here = False
    tasks = [await client.start_task() for _ in range(4)]
    await eventually(lambda: len(fake_world.sandboxes) == 4)
    for task in tasks:
        assert (await finish(client, fake_world, task["id"]))["status"] == "READY"


async def test_a_sandbox_is_held_until_the_first_turn_of_those_who_wait_for_it() -> None:
    slots = StartSlots(1, lapse_seconds=NEVER_SECONDS)
    for start in ("first", "second"):
        slots.defer(start, "sandbox")
    slots.remove("first")
    assert slots.is_deferred("sandbox")
    slots.allow("sandbox")
    assert not slots.is_deferred("sandbox")

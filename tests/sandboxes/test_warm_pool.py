"""Sandboxes that are there before anybody asks: given away once, told for whom they are, never lost."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentsvc.config.sandboxes import SpecConfig
from agentsvc.config.schema import Config
from agentsvc.http.keys import SANDBOXES
from agentsvc.plugin.backend import Network, Phase
from agentsvc.sandboxes.admission.warm_pool_table import WarmSandbox, WarmSandboxState
from agentsvc.testing.backend import FakeWorld
from tests.conftest import FAST
from tests.fake_agent import FakeAgent
from tests.plugin_loading import load_plugins
from tests.plugins.process.rig import until
from tests.service import Client, Service

START = "/api/v1/sandboxes"
DORMANT = "OH_DEFERRED_INIT"

pytestmark = pytest.mark.timeout(60)

type Serve = Callable[..., Awaitable[Service]]


@pytest.fixture
async def serve(tmp_path: Path, fake_world: FakeWorld) -> AsyncIterator[Serve]:
    """Return what starts a server that keeps a sandbox ready."""
    services: list[Service] = []

    async def start(**fields: Any) -> Service:
        service = Service(
            tmp_path / "data", keeping(**fields), lambda: load_plugins(fake=fake_world.plugin())
        )
        services.append(service)
        await service.start()
        return service

    yield start
    for service in services:
        await service.close()


def keeping(
    *, backend: dict[str, Any] | None = None, age_seconds: float = 3600, **spec: Any
) -> Config:
    """Return a configuration in which a sandbox is kept ready."""
    return msgspec.structs.replace(
        FAST,
        specs={
            "fake": SpecConfig(backend="fake", **{"pool": 1, **spec}),
            "other": SpecConfig(backend="fake"),
        },
        backends={**FAST.backends, "fake": backend or {}},
        sandboxes=msgspec.structs.replace(
            FAST.sandboxes,
            default_spec="fake",
            orphan_grace_seconds=0,
            pool_age_seconds=age_seconds,
            start_seconds=30,
        ),
    )


async def kill(service: Service, world: FakeWorld) -> None:
    """End a server so that nobody can tell it from one that was killed."""
    left = service.data_dir.with_name("left")
    await asyncio.to_thread(shutil.copytree, service.data_dir, left)
    world.unreachable = True
    await service.stop()
    world.unreachable = False
    service.data_dir = left


async def spares(service: Service) -> list[WarmSandbox]:
    return await service.app[SANDBOXES].warm_pool.stores.warm_pool.unclaimed()


async def all_ready(service: Service, count: int, but: str = "") -> list[str]:
    """Return the ids of the sandboxes that are ready for anybody, once there are so many."""
    while True:
        found = await spares(service)
        ids = [one.id for one in found if one.state is WarmSandboxState.READY]
        if len(found) == len(ids) == count and but not in ids:
            return ids
        await asyncio.sleep(0.01)


async def ready(service: Service, but: str = "") -> str:
    """Return the id of the one sandbox that is ready for anybody, once there is one."""
    (found,) = await all_ready(service, 1, but)
    return found


async def admin(service: Service) -> Client:
    client = await service.make_client()
    await client.save_settings()
    return client


async def start(client: Client, **query: str) -> str:
    answer = await client.post(START, params=query)
    assert answer.status == 200, answer.text
    sandbox_id: str = answer.json()["id"]
    return sandbox_id


async def test_a_conversation_runs_in_the_sandbox_that_is_ready(
    serve: Serve, fake_agent: FakeAgent, fake_world: FakeWorld
) -> None:
    service = await serve()
    spare_id = await ready(service)
    assert DORMANT in fake_world.sandboxes[spare_id].order.env
    client = await admin(service)
    conversation_id = await client.start_conversation("echo hello")
    conversation = await client.wait_for_execution(conversation_id, "finished")
    assert conversation["sandbox_id"] == spare_id
    agent = fake_agent.sandboxes[spare_id]
    assert agent.key not in (agent.init_key, "")
    assert agent.webhook_url == f"{service.url}/api/v1/webhooks"
    assert await ready(service) != spare_id


async def test_two_who_ask_at_once_get_different_sandboxes(serve: Serve) -> None:
    service = await serve(pool=2)
    ids = set(await all_ready(service, 2))
    client = await admin(service)
    assert set(await asyncio.gather(*(start(client) for _ in range(2)))) == ids
    for sandbox_id in ids:
        await client.wait_for_sandbox(sandbox_id, "RUNNING")


async def test_nothing_is_kept_of_those_that_were_given_away(serve: Serve) -> None:
    service = await serve()
    client, pool = await admin(service), service.app[SANDBOXES].warm_pool
    given = ""
    for _ in range(3):
        spare_id = await ready(service, given)
        await pool.refill()
        assert spare_id in msgspec.structs.asdict(pool)["_seen"]
        given = await start(client)
    await ready(service, given)
    await pool.refill()
    assert len(msgspec.structs.asdict(pool)["_seen"]) <= 1


async def test_what_is_ready_is_removed_when_the_server_stops(
    serve: Serve, fake_world: FakeWorld
) -> None:
    service = await serve()
    await ready(service)
    sandbox_id = await start(await admin(service))
    await ready(service)
    await service.stop()
    assert list(fake_world.sandboxes) == [sandbox_id]


async def test_what_is_ready_is_kept_by_the_server_after_one_that_was_killed(
    serve: Serve, fake_world: FakeWorld
) -> None:
    service = await serve()
    spare_id = await ready(service)
    await kill(service, fake_world)
    await service.start()
    await service.app[SANDBOXES].sweep()
    assert list(fake_world.sandboxes) == [spare_id]
    assert await start(await admin(service)) == spare_id


async def test_one_that_was_being_made_is_made_by_the_next_server(
    serve: Serve, fake_world: FakeWorld
) -> None:
    fake_world.stays_starting = True
    service = await serve()
    await until(lambda: bool(fake_world.sandboxes))
    (spare_id,) = fake_world.sandboxes
    await kill(service, fake_world)
    await service.start()
    fake_world.finish_start(spare_id)
    assert await ready(service) == spare_id
    assert list(fake_world.sandboxes) == [spare_id]


async def test_who_got_one_before_the_server_was_killed_has_it_afterwards(
    serve: Serve, fake_world: FakeWorld, fake_agent: FakeAgent
) -> None:
    service = await serve()
    spare_id = await ready(service)
    fake_agent.sandboxes[spare_id].is_down = True
    client = await admin(service)
    assert await start(client) == spare_id
    assert fake_agent.sandboxes[spare_id].is_dormant
    await kill(service, fake_world)
    fake_agent.sandboxes[spare_id].is_down = False
    await service.start()
    sandbox = await client.wait_for_sandbox(spare_id, "RUNNING")
    assert sandbox["session_api_key"] == fake_agent.sandboxes[spare_id].key
    assert await ready(service) != spare_id


async def test_one_that_was_told_while_nobody_heard_the_answer_is_told_once(
    serve: Serve, fake_agent: FakeAgent
) -> None:
    service = await serve()
    spare_id = await ready(service)
    agent = fake_agent.sandboxes[spare_id]
    agent.lose_next_answer("/api/init")
    client = await admin(service)
    assert await start(client) == spare_id
    await client.wait_for_sandbox(spare_id, "RUNNING")
    assert agent.requests.count("POST /api/init") == 1


@pytest.mark.parametrize("trouble", ["ended", "vanished", "refuses"])
async def test_one_that_is_no_good_is_made_again_for_who_got_it(
    serve: Serve, fake_world: FakeWorld, fake_agent: FakeAgent, trouble: str
) -> None:
    service = await serve()
    spare_id = await ready(service)
    agent = fake_agent.sandboxes[spare_id]
    agent.is_down = True
    client = await admin(service)
    assert await start(client) == spare_id
    if trouble == "ended":
        fake_world.end(spare_id)
    elif trouble == "vanished":
        fake_world.vanish(spare_id)
    agent.fail_next(400, "/api/init")
    agent.is_down = False
    await client.wait_for_sandbox(spare_id, "RUNNING")
    assert DORMANT not in fake_world.sandboxes[spare_id].order.env


async def test_what_is_stale_is_replaced(serve: Serve, fake_world: FakeWorld) -> None:
    service = await serve()
    spare_id = await ready(service)
    await kill(service, fake_world)
    service.config = keeping(env={"MORE": "than before"})
    await service.start()
    second = await ready(service, but=spare_id)
    assert fake_world.sandboxes[second].order.env["MORE"] == "than before"
    assert list(fake_world.sandboxes) == [second]


async def test_what_is_too_old_is_replaced(serve: Serve) -> None:
    service = await serve(age_seconds=1)
    assert await ready(service, but=await ready(service))


async def test_one_that_ends_is_replaced(serve: Serve, fake_world: FakeWorld) -> None:
    service = await serve()
    spare_id = await ready(service)
    fake_world.end(spare_id)
    second = await ready(service, but=spare_id)
    await until(lambda: list(fake_world.sandboxes) == [second])


async def test_who_asks_for_something_else_gets_the_room(
    serve: Serve, fake_world: FakeWorld
) -> None:
    service = await serve(backend={"max_running": 1})
    spare_id = await ready(service)
    client = await admin(service)
    other = await start(client, sandbox_spec_id="other")
    await client.wait_for_sandbox(other, "RUNNING")
    await until(lambda: list(fake_world.sandboxes) == [other])
    assert spare_id != other
    assert await spares(service) == []


async def test_one_that_is_ready_takes_no_more_room_when_it_is_given_away(serve: Serve) -> None:
    service = await serve(backend={"max_running": 1})
    spare_id = await ready(service)
    assert await start(await admin(service)) == spare_id
    assert await spares(service) == []


async def test_where_there_can_be_none_the_log_says_why(
    serve: Serve, fake_world: FakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    fake_world.fences = msgspec.structs.replace(fake_world.fences, networks=frozenset(Network))
    service = await serve(network=Network.NONE)
    await until(lambda: "warm pool disabled" in caplog.text)
    (record,) = [one for one in caplog.records if "warm pool disabled" in one.getMessage()]
    assert vars(record)["reason"] == "its network access depends on its user"
    assert await spares(service) == []


async def test_nobody_sees_or_culls_what_is_ready(serve: Serve, fake_world: FakeWorld) -> None:
    service = await serve()
    spare_id = await ready(service)
    client = await admin(service)
    assert (await client.get(f"{START}/search")).json()["items"] == []
    assert fake_world.sandboxes[spare_id].phase is Phase.RUNNING

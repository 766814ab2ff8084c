"""A group of backends: each sandbox goes where there is most room, and to no backend that is down."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from process.specs import DEFAULT_SPEC

from agentsvc.base.errors import StartFailed
from agentsvc.config.sandboxes import SandboxesConfig, SpecConfig
from agentsvc.config.schema import Config
from agentsvc.http.keys import BACKENDS, SANDBOXES
from agentsvc.plugin.hookspecs import hookimpl
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.sandboxes.registry import BackendRegistry
from agentsvc.testing.backend import FakeBackend, FakeWorld
from tests.conftest import FAST
from tests.plugin_loading import load_plugins
from tests.service import Client, Service

type Worlds = dict[str, FakeWorld]
type StartPool = Callable[..., Awaitable[Client]]


@pytest.fixture
def worlds() -> Iterator[Worlds]:
    worlds = {"big": FakeWorld(), "small": FakeWorld()}
    for world in worlds.values():
        world.on_create = lambda order: {port.name: "http://127.0.0.1:9" for port in order.ports}
    yield worlds
    for world in worlds.values():
        world.close()


@pytest.fixture
async def services() -> AsyncIterator[list[Service]]:
    services: list[Service] = []
    yield services
    for service in services:
        await service.close()


@pytest.fixture
async def start(tmp_path: Path, worlds: Worlds, services: list[Service]) -> StartPool:
    async def start(**tables: dict[str, Any]) -> Client:
        config = Config(
            sandboxes=SandboxesConfig(
                default_backend="machines", sweep_seconds=0.2, start_seconds=10, call_seconds=3
            ),
            conversations=FAST.conversations,
            backends={
                "big": {},
                "small": {},
                "machines": {"pool": ["big", "small"]},
                **tables,
            },
            specs={"any": SpecConfig(command=("agent",))},
        )
        service = Service(tmp_path / "data", config, lambda: make_plugins(worlds))
        services.append(service)
        await service.start()
        return await service.make_client()

    return start


def make_plugins(worlds: Worlds) -> PluginHost:
    host = load_plugins()
    for name, world in worlds.items():
        kind = type("Kind", (FakeBackend,), {"world": world, "name": name})
        plugin = type("Plugin", (), {"agentsvc_register_backends": _offer(kind)})
        host.add(name, plugin(), version="", origin="tests")
    return host


def _offer(kind: type) -> Any:
    @hookimpl
    def agentsvc_register_backends(self: Any) -> list[type]:
        del self
        return [kind]

    return agentsvc_register_backends


async def backend_of(service: Service, sandbox_id: str) -> str:
    sandbox = await service.app[SANDBOXES].find_any(sandbox_id)
    assert sandbox is not None
    return sandbox.backend


async def place(client: Client) -> str:
    answer = await client.post("/api/v1/sandboxes")
    assert answer.status == 200, answer.text
    sandbox_id: str = answer.json()["id"]
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    return sandbox_id


async def test_sandboxes_are_spread_and_each_record_names_its_own_backend(
    start: StartPool, services: list[Service], worlds: Worlds
) -> None:
    client = await start()
    names = [await place(client) for _ in range(4)]
    found = [await backend_of(services[0], name) for name in names]
    assert sorted(found) == ["big", "big", "small", "small"]
    assert {name: len(world.sandboxes) for name, world in worlds.items()} == {"big": 2, "small": 2}


async def test_the_one_with_more_room_gets_more(start: StartPool, worlds: Worlds) -> None:
    client = await start(small={"max_running": 1}, big={"max_running": 3})
    for _ in range(4):
        await place(client)
    assert {name: len(world.sandboxes) for name, world in worlds.items()} == {"big": 3, "small": 1}
    assert (await client.post("/api/v1/sandboxes")).status == 429


async def test_a_backend_that_is_down_gets_none_and_gets_some_when_it_is_back(
    start: StartPool, services: list[Service], worlds: Worlds
) -> None:
    client = await start()
    worlds["big"].unreachable = True
    await services[0].app[BACKENDS].check_health(1)
    for _ in range(3):
        await place(client)
    assert len(worlds["small"].sandboxes) == 3
    worlds["big"].unreachable = False
    await services[0].app[BACKENDS].check_health(1)
    await place(client)
    assert len(worlds["big"].sandboxes) == 1


async def test_a_slow_backend_is_no_place_either(
    start: StartPool, services: list[Service], worlds: Worlds
) -> None:
    client = await start()
    worlds["big"].slow = 30
    await services[0].app[BACKENDS].check_health(0.05)
    await place(client)
    assert len(worlds["small"].sandboxes) == 1
    worlds["big"].slow = 0


async def test_with_all_of_them_down_the_answer_says_what_is_wrong_with_each(
    start: StartPool, services: list[Service], worlds: Worlds
) -> None:
    client = await start()
    for world in worlds.values():
        world.unreachable = True
    await services[0].app[BACKENDS].check_health(1)
    answer = await client.post("/api/v1/sandboxes")
    assert answer.status == 503
    assert answer.json()["code"] == "backend_unavailable"
    for name in worlds:
        assert f"`{name}`: The fake world is out of reach" in answer.json()["detail"]
    assert (await client.get("/ready")).status == 503


async def test_a_server_on_a_group_is_ready_while_one_of_it_is(
    start: StartPool, services: list[Service], worlds: Worlds
) -> None:
    client = await start()
    worlds["big"].unreachable = True
    await services[0].app[BACKENDS].check_health(1)
    assert (await client.get("/ready")).status == 200


async def test_sandboxes_are_found_again_after_a_restart(
    start: StartPool, services: list[Service], worlds: Worlds
) -> None:
    client = await start()
    sandbox_id = await place(client)
    await services[0].restart()
    client = services[0].client_with(client.key)
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    await client.delete(f"/api/v1/sandboxes/{sandbox_id}")
    assert [len(world.sandboxes) for world in worlds.values()] == [0, 0]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"pool": []}, "is not a list of backends"),
        ({"pool": "big"}, "is not a list of backends"),
        ({"pool": ["big"], "type": "big"}, "takes no key but `pool`: type"),
        ({"pool": ["gone"]}, "names `gone`, and there is no such backend"),
        ({"pool": ["machines"]}, "names `machines`, and there is no such backend"),
    ],
)
def test_a_group_that_is_none_stops_the_start(
    tmp_path: Path, worlds: Worlds, table: dict[str, Any], said: str
) -> None:
    config = Config(
        sandboxes=SandboxesConfig(default_backend="big"),
        backends={"big": {}, "machines": table},
    )
    with pytest.raises(StartFailed, match=said):
        BackendRegistry.build(make_plugins(worlds), config, instance_id="i", state_dir=tmp_path)


def test_a_spec_that_says_nothing_is_what_is_usual_at_each_backend(tmp_path: Path) -> None:
    far = {"type": "agentsvc", "url": "http://far.example"}
    config = Config(
        backends={"far": far, "machines": {"pool": ["process", "far"]}},
        specs={"any": SpecConfig(backend="machines", env={"OWN": "1"})},
    )
    registry = BackendRegistry.build(PluginHost.load(), config, instance_id="i", state_dir=tmp_path)
    [spec] = [spec for spec in registry.specs() if spec.id == "any"]
    here, there = (registry.complete(spec, name) for name in registry.members("machines"))
    assert (here.backend, here.command) == ("process", DEFAULT_SPEC.command)
    assert here.env == {**DEFAULT_SPEC.env, "OWN": "1"}
    assert (there.backend, there.command, there.env) == ("far", None, {"OWN": "1"})

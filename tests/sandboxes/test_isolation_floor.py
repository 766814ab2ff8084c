"""The floor of isolation: what is held less is refused, and what is held less than it says is failed."""

from typing import Any

import msgspec
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.base.errors import OrderRejected, StartFailed
from agentsvc.config.sandboxes import MinimumIsolation, SpecConfig
from agentsvc.config.schema import Config
from agentsvc.plugin.backend import Fences, Isolation, Limits, Network, RuntimeBackend, Spec
from agentsvc.plugin.hookspecs import hookimpl
from agentsvc.sandboxes.isolation import with_floor
from agentsvc.testing import FakeWorld
from tests.conftest import FAST
from tests.plugin_loading import load_plugins
from tests.service import Client, Service


def floored(level: MinimumIsolation) -> Config:
    sandboxes = msgspec.structs.replace(FAST.sandboxes, isolation=level)
    return msgspec.structs.replace(FAST, sandboxes=sandboxes)


FLOOR = floored(MinimumIsolation.BUBBLEWRAP)


class OtherPlugin:
    """A plugin that offers a world as a backend of another name."""

    def __init__(self, world: FakeWorld) -> None:
        self._type = type("OtherBackend", (world.backend_type(),), {"name": "other"})

    @hookimpl
    def agentsvc_register_backends(self) -> list[type[RuntimeBackend[Any]]]:
        return [self._type]


def test_each_level_meets_itself_and_what_is_weaker() -> None:
    levels = [one for one in Isolation if one is not Isolation.REMOTE]
    for number, level in enumerate(levels):
        assert [one for one in levels if level.meets(one)] == levels[: number + 1]
    assert Isolation.REMOTE.meets(Isolation.NONE)
    assert not Isolation.REMOTE.meets(Isolation.LANDLOCK)


def test_a_spec_may_ask_for_more_than_the_floor_and_not_for_less() -> None:
    spec = Spec(id="x", isolation=Isolation.CONTAINER)
    assert with_floor(spec, Isolation.BUBBLEWRAP) == spec
    assert with_floor(spec, Isolation.GVISOR).isolation is Isolation.GVISOR


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (Spec(id="x", isolation=Isolation.LANDLOCK), "at least `landlock` .*; read the manual"),
        (Spec(id="x", network=Network.NONE), "the network `none`"),
        (Spec(id="x", allow_hosts=("example.org",)), "`allow_hosts` needs"),
        (Spec(id="x", limits=Limits(pids=3)), "the limit `pids`"),
    ],
)
def test_what_a_backend_does_not_enforce_it_refuses_by_name(spec: Spec, named: str) -> None:
    world = FakeWorld()
    world.fences = Fences(remedy="read the manual")
    with pytest.raises(OrderRejected, match=named):
        world.backend().check_fences(spec)


async def test_a_sandbox_below_the_floor_is_refused_with_the_remedy(
    service: Service, client: Client, fake_world: FakeWorld
) -> None:
    fake_world.fences = Fences(isolation=Isolation.BUBBLEWRAP)
    await service.stop()
    service.config = FLOOR
    await service.start()
    fake_world.fences = Fences(reason="it broke", remedy="install the package `bubblewrap`")
    answer = await service.client_with(client.key).post("/api/v1/sandboxes")
    assert answer.status == 422
    assert answer.json()["code"] == "order_rejected"
    assert (
        "at least `bubblewrap` is required; it broke; install the package"
        in answer.json()["detail"]
    )
    assert fake_world.sandboxes == {}


async def test_a_server_does_not_start_below_the_level_that_its_backend_is_made_for(
    service: Service, fake_world: FakeWorld
) -> None:
    await service.stop()
    fake_world.default_isolation = Isolation.CONTAINER
    fake_world.fences = Fences(
        isolation=Isolation.LANDLOCK, reason="it has none", remedy="get it one"
    )
    with pytest.raises(StartFailed) as refused:
        await service.start()
    await service.stop()
    assert refused.value.message == (
        "sandboxes of the backend `fake` would have isolation `landlock` instead of `container`:"
        " it has none"
    )
    assert refused.value.hint == (
        'get it one; to accept it without, configure: sandboxes.isolation = "landlock"'
    )
    service.config = floored(MinimumIsolation.LANDLOCK)
    await service.start()


async def test_no_configuration_accepts_less_than_what_a_backend_must_have(
    service: Service, fake_world: FakeWorld
) -> None:
    await service.stop()
    fake_world.least_isolation = Isolation.BUBBLEWRAP
    fake_world.fences = Fences(isolation=Isolation.LANDLOCK, remedy="get it one")
    service.config = floored(MinimumIsolation.NONE)
    with pytest.raises(StartFailed, match="`landlock` instead of `bubblewrap`") as refused:
        await service.start()
    await service.stop()
    assert refused.value.hint == "get it one"


async def test_a_configured_spec_counts_as_the_default_one_does(
    service: Service, fake_world: FakeWorld
) -> None:
    await service.stop()
    other = FakeWorld()
    other.default_isolation = Isolation.VM
    both = {"fake": fake_world.plugin(), "other": OtherPlugin(other)}
    service.config = msgspec.structs.replace(FAST, backends={"fake": {}, "other": {}})
    service.make_plugins = lambda: load_plugins(**both)
    await service.start()
    await service.stop()
    spec = SpecConfig(backend="other", command=("agent",))
    service.config = msgspec.structs.replace(service.config, specs={"special": spec})
    with pytest.raises(StartFailed, match="the backend `other` would have isolation `none`"):
        await service.start()
    await service.stop()


async def test_what_ran_without_what_a_backend_must_have_is_ended(
    service: Service, client: Client, fake_world: FakeWorld
) -> None:
    answer = await client.post("/api/v1/sandboxes")
    await client.wait_for_sandbox(answer.json()["id"], "RUNNING")
    await service.stop()
    fake_world.least_isolation = Isolation.BUBBLEWRAP
    fake_world.fences = Fences(isolation=Isolation.BUBBLEWRAP)
    await service.start()
    client = service.client_with(client.key)
    failed = await client.wait_for_sandbox(answer.json()["id"], "ERROR")
    assert "at least `bubblewrap` is required" in failed["status_detail"]
    # Begun anew, it is asked to be held as everything is now.
    fake_world.end(answer.json()["id"])
    fake_world.isolation = Isolation.BUBBLEWRAP
    await client.post(f"/api/v1/sandboxes/{answer.json()['id']}/resume")
    seen = await client.wait_for_sandbox(answer.json()["id"], "RUNNING")
    assert seen["isolation"] == "bubblewrap"
    [sandbox] = fake_world.sandboxes.values()
    assert sandbox.order.isolation is Isolation.BUBBLEWRAP


async def test_administrators_and_users_are_told_when_sandboxes_are_held_less_than_usual(
    service: Service, client: Client, fake_world: FakeWorld
) -> None:
    fake_world.fences = Fences(isolation=Isolation.CONTAINER)
    user = await service.make_client("ann", Role.MEMBER)
    usual = {"backend": "fake", "isolation": "container", "default_isolation": "none"}
    told = (await user.get("/api/v1/protection")).json()
    assert told == [
        {**usual, "is_below_default": False, "reason": "", "remedy": "", "limits": {},
         "not_limited": ["memory_bytes", "disk_bytes", "pids", "open_files"]}
    ]  # fmt: skip
    await service.stop()
    fake_world.default_isolation = Isolation.VM
    fake_world.fences = Fences(isolation=Isolation.GVISOR, reason="so it is", remedy="get more")
    service.config = floored(MinimumIsolation.GVISOR)
    await service.start()
    admin, user = service.client_with(client.key), service.client_with(user.key)
    [seen] = (await user.get("/api/v1/protection")).json()
    assert (seen["is_below_default"], seen["isolation"]) == (True, "gvisor")
    assert (seen["reason"], seen["remedy"]) == ("", "")
    [seen] = (await admin.get("/api/v1/protection")).json()
    assert (seen["reason"], seen["remedy"]) == ("so it is", "get more")
    ready = (await admin.get("/ready")).json()
    assert ready == {"status": "ok", "sandboxes": [seen]}
    for other in (user, service.client_with(None), service.client_with("asvc_" + "x" * 43)):
        answer = await other.get("/ready")
        assert (answer.status, answer.json()) == (200, "OK")


async def test_a_sandbox_that_is_held_less_than_its_backend_said_fails(
    service: Service, client: Client, fake_world: FakeWorld
) -> None:
    fake_world.fences = Fences(isolation=Isolation.GVISOR)
    await service.stop()
    service.config = FLOOR
    await service.start()
    client = service.client_with(client.key)
    answer = await client.post("/api/v1/sandboxes")
    failed = await client.wait_for_sandbox(answer.json()["id"], "ERROR")
    assert failed["isolation"] == "none"
    assert failed["status_cause"] == "not_started"
    assert "runs it with isolation `none`" in failed["status_detail"]


async def test_clients_see_how_a_sandbox_is_held_and_paused(
    client: Client, fake_world: FakeWorld
) -> None:
    fake_world.isolation = Isolation.CONTAINER
    sandbox_id = (await client.post("/api/v1/sandboxes")).json()["id"]
    seen = await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert (seen["isolation"], seen["paused_as"], seen["enforced_limits"]) == (
        "container",
        None,
        [],
    )
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    seen = await client.wait_for_sandbox(sandbox_id, "PAUSED")
    assert seen["paused_as"] == "frozen"
    fake_world.end(sandbox_id)
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/resume")
    seen = await client.wait_for_sandbox(sandbox_id, "ERROR")
    assert (seen["status_cause"], seen["paused_as"]) == ("exited", None)

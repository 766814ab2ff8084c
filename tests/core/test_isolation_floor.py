"""The floor of isolation: what is held less is refused, and what is held less than it says is failed."""

import msgspec
import pytest

from agentsvc.backend import Fences, Isolation, Limits, Network, Spec
from agentsvc.errors import OrderRejected
from agentsvc.sandboxes.order import with_floor
from agentsvc.testing import FakeWorld
from tests.conftest import FAST
from tests.service import Client, Service

FLOOR = msgspec.structs.replace(
    FAST, sandboxes=msgspec.structs.replace(FAST.sandboxes, isolation=Isolation.BUBBLEWRAP)
)


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
    fake_world.fences = Fences(remedy="install the package `bubblewrap`")
    await service.stop()
    service.config = FLOOR
    await service.start()
    answer = await service.client_with(client.key).post("/api/v1/sandboxes")
    assert answer.status == 422
    assert answer.json()["code"] == "order_rejected"
    assert "at least `bubblewrap` is asked for; install the package" in answer.json()["detail"]
    assert fake_world.sandboxes == {}


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

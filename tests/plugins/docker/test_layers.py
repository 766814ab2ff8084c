"""What the docker backend makes of layers without an engine: names, mounts, homes, and where they are."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agentsvc.base.errors import BackendUnavailable, OrderRejected
from agentsvc.base.values import new_id
from agentsvc.plugin.backend import Order
from tests.plugin_loading import part

if TYPE_CHECKING:
    from docker import engine, fleet, inventory, layers, names, plan, settings
else:
    engine, fleet, layers = part("docker.engine"), part("docker.fleet"), part("docker.layers")
    inventory = part("docker.inventory")
    names, plan, settings = part("docker.names"), part("docker.plan"), part("docker.settings")

USERS = "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/bash\nbad\n"
ORDER = Order(sandbox_id=new_id(), image="a", command=("x",), layer=new_id())


def body(order: Order, *, has_volume: bool) -> dict[str, Any]:
    return plan.container(
        order,
        plan.ImageInfo(id="sha256:layer"),
        settings.DockerConfig(),
        place=plan.Placement(network="n", address="10.0.0.3"),
        has_init=True,
        instance_id=new_id(),
        base="sha256:base",
        has_volume=has_volume,
    )


def test_what_begins_with_a_layer_has_its_files_in_the_container_or_in_a_volume() -> None:
    for has_volume in (True, False):
        made = body(ORDER, has_volume=has_volume)
        targets = [mount["Target"] for mount in made["HostConfig"]["Mounts"]]
        assert targets == [*([plan.WORKSPACE] if has_volume else []), plan.PRIVATE]
        assert made["Image"] == "sha256:layer"
        assert made["Labels"][names.BASE] == "sha256:base"


def test_an_image_does_not_say_itself_what_is_below_it() -> None:
    hostile = plan.ImageInfo(id="sha256:own", labels={names.BASE: "sha256:of-others"})
    made = plan.container(
        msgspec.structs.replace(ORDER, layer=""),
        hostile,
        settings.DockerConfig(),
        place=plan.Placement(network="n", address="10.0.0.3"),
        has_init=True,
        instance_id=new_id(),
    )
    assert made["Labels"][names.BASE] == "sha256:own"


@pytest.mark.parametrize(
    ("runtime", "is_read_only", "needs"),
    [("", False, False), ("runc", True, True), ("runsc", False, True), ("kata", False, False)],
)
def test_files_are_in_a_volume_where_the_container_does_not_keep_them(
    runtime: str, is_read_only: bool, needs: bool
) -> None:
    assert plan.needs_volume(runtime, is_read_only=is_read_only) is needs


@pytest.mark.parametrize(
    ("user", "home"),
    [("1000:1000", "/home/agent"), ("agent", "/home/agent"), ("0", "/root"), ("7", ""), ("", "")],
)
def test_a_home_is_that_of_the_images_user(user: str, home: str) -> None:
    assert plan.home_in(user, USERS) == home


def test_names_of_removed_layers_tell_them_apart() -> None:
    layer_id = new_id()
    assert names.is_layers(names.layer(layer_id))
    assert names.is_layers(names.passing(layer_id))
    assert names.is_passing(names.passing(layer_id))
    assert not names.is_passing(names.layer(layer_id))
    assert not names.is_layers("localhost/other:1")


async def test_what_a_layer_is_made_in_is_no_sandbox_whatever_its_image_says() -> None:
    made: dict[str, Any] = {}

    async def ask(_method: str, path: str, *, body: Any, **_: Any) -> Any:
        if path == "containers/create":
            made.update(body["Labels"])
        return {"Id": "made"}

    async def get(path: str) -> Any:
        return {"Id": "base", "Config": {"Cmd": ["x"]}} if path == "images/base/json" else None

    async def remove(*_: str, **__: Any) -> None:
        """Nothing is left."""

    @contextlib.asynccontextmanager
    async def stream(*_: str, **__: Any) -> AsyncIterator[None]:
        yield None

    async def source() -> Any:
        return {"Id": "s", "Image": "base", "Config": {"Env": ["HOME=/home/a"]}}

    here: Any = SimpleNamespace(name="one", ask=ask, get=get, remove=remove, stream=stream)
    await layers.Layers("here").keep(here, new_id(), source, max_bytes=1)
    assert made[names.SANDBOX] == ""


async def test_a_label_that_an_image_made_up_is_no_id_of_a_sandbox() -> None:
    known = new_id()

    async def listed(kind: str, _: Any) -> Any:
        ids = ["", "..", "../../../master.key", "/etc/passwd", known]
        labels = [{names.INSTALLATION: "here", names.SANDBOX: one} for one in ids]
        return [{"Labels": one, "Created": 1} for one in labels if kind == "containers"]

    here: Any = SimpleNamespace(listed=listed)
    assert set(await inventory.sandboxes_on(here, "here")) == {known}


@pytest.mark.parametrize("bad", ["", "a/b", "passing-1", "A", "x" * 65])
async def test_an_id_that_cannot_name_an_image_is_refused(bad: str) -> None:
    known = layers.Layers(new_id())
    with pytest.raises(OrderRejected):
        await known.find(engine.Engine(settings.Host(host="unix:///nowhere"), time_limit=1), bad)


async def test_a_sandbox_goes_where_its_layer_is_and_away_is_not_gone(tmp_path: Path) -> None:
    hosts = [settings.Host(name=name, host="unix:///nowhere") for name in ("a", "b")]
    engines = [engine.Engine(host, time_limit=1) for host in hosts]
    placed = fleet.EnginePool(engines, new_id(), tmp_path)

    async def nowhere(_: Any) -> bool:
        return False

    async def away(one: Any) -> bool:
        if one.name == "b":
            raise one.away("it is far")
        return False

    with pytest.raises(OrderRejected, match="No container engine has the files"):
        await placed.place(new_id(), {}, nowhere)
    with pytest.raises(BackendUnavailable, match="`b` cannot be reached"):
        await placed.place(new_id(), {}, away)
    # One that was placed before stays there, whatever is known now.
    (tmp_path / "placements").mkdir()
    (tmp_path / "placements" / "known").write_text("b")
    assert (await placed.place("known", {}, nowhere)).name == "b"

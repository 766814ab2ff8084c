"""Files that are kept and copied by volume snapshots, and clusters that have none."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentsvc.base.errors import BackendUnavailable, Conflict, OrderRejected
from agentsvc.base.values import new_id
from agentsvc.plugin.backend import Order, Phase, StillFetching
from agentsvc.testing.rig import Rig
from tests.kube.api import KubeApi
from tests.kube.snapshots import SnapshotApi, snapshot_class, storage_class
from tests.kube.store import Refused
from tests.plugin_loading import part
from tests.plugins.kubernetes.rigs import rig_on, until

if TYPE_CHECKING:
    from kubernetes import objects, settings, snapshots
else:
    objects, settings = part("kubernetes.objects"), part("kubernetes.settings")
    snapshots = part("kubernetes.snapshots")

pytestmark = pytest.mark.timeout(300)

GROUP = "/apis/snapshot.storage.k8s.io/v1"
MAX = 2**40
type Json = dict[str, Any]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[SnapshotApi]:
    with SnapshotApi(tmp_path / "volumes") as server:
        yield server


async def fetched[T](ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except StillFetching:
            await asyncio.sleep(0.02)


async def stopped_with(rig: Rig, text: bytes) -> Any:
    handle, report = await rig.run()
    await rig.ask(report, "PUT", "/files/note", text)
    await rig.backend.stop(handle)
    return handle


async def kept(rig: Rig) -> str:
    """Return the id of a layer with a note, whose sandbox is gone."""
    handle, layer = await stopped_with(rig, b"kept"), new_id()
    await fetched(lambda: rig.backend.keep_layer(handle, layer, max_bytes=MAX))
    await rig.backend.delete(handle)
    return layer


async def begun(rig: Rig, order: Order) -> Any:
    """Return a sandbox that runs, once what it begins with is there."""
    handle = await fetched(lambda: rig.create(order))
    return handle, await rig.wait(handle, Phase.RUNNING)


def asked_for_snapshots(api: KubeApi) -> list[tuple[str, str]]:
    return [
        (method, path)
        for method, path, _ in api.requests
        if "volumesnapshots" in path and path.startswith("/apis/snapshot")
    ]


# What is kept


async def test_a_layer_is_a_snapshot_of_the_claim_and_claims_are_made_of_it(
    api: SnapshotApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        handle, layer = await stopped_with(rig, b"kept"), new_id()
        size = await fetched(lambda: rig.backend.keep_layer(handle, layer, max_bytes=MAX))
        assert size == 10 * 2**30
        [snapshot] = api.snapshots()
        assert snapshot["spec"] == {
            "source": {"persistentVolumeClaimName": f"oh-agent-server-{handle.sandbox_id}"},
            "volumeSnapshotClassName": "copies",
        }
        assert snapshot["metadata"]["labels"]["agentsvc/installation"] == rig.instance_id
        # It is no sandbox, and is left over as long as it is there.
        await rig.backend.delete(handle)
        assert await rig.backend.scan() == []
        assert await rig.backend.leftovers() == [f"volumesnapshots oh-agent-server-layer-{layer}"]
        order = rig.order(layer=layer)
        _, report = await begun(rig, order)
        assert await rig.ask(report, "GET", "/files/note") == b"kept"
        assert len(await rig.backend.scan()) == 1
        claim = api.store.get(
            "persistentvolumeclaims", "default", f"oh-agent-server-{order.sandbox_id}"
        )
        assert claim["spec"]["dataSource"]["name"] == f"oh-agent-server-layer-{layer}"
        await rig.backend.remove_layer(layer)
        await until(lambda: api.snapshots() == [])


async def test_what_is_in_memory_is_written_to_the_disk_first(
    api: SnapshotApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        first, _ = await rig.run()
        await begun(rig, rig.order(copy_of=first.sandbox_id))
        told = [
            "sync" if "command=sync" in query else method
            for method, path, query in api.requests
            if path.endswith("/exec") or (method == "POST" and path.endswith("/volumesnapshots"))
        ]
        assert told == ["sync", "POST"]
        await rig.backend.stop(first)
        assert "command=sync" in [q for _, p, q in api.requests if p.endswith("/exec")][-1]


async def test_a_layer_that_was_broken_off_is_listed_and_no_sandbox_begins_with_it(
    api: SnapshotApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        handle, layer = await stopped_with(rig, b"kept"), new_id()
        api.takes = False
        with pytest.raises(StillFetching):
            await rig.backend.keep_layer(handle, layer, max_bytes=MAX)
        # The server is killed, and the next one looks.
        await rig.close(rig.backend)
        rig.backend = await rig.open()
        assert await rig.backend.layers() == [layer]
        with pytest.raises(OrderRejected, match="are gone"):
            await rig.create(rig.order(layer=layer))
        await rig.backend.remove_layer(layer)
        assert await rig.backend.layers() == []
        await until(lambda: api.snapshots() == [])


async def test_a_layer_stays_while_a_claim_is_filled_from_it(
    api: SnapshotApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        layer = await kept(rig)
        api.fills = False
        handle = await rig.create(rig.order(layer=layer))
        await rig.backend.remove_layer(layer)
        assert await rig.backend.layers() == [layer]

        def fill(here: KubeApi) -> None:
            assert isinstance(here, SnapshotApi)
            here.fills = True
            here.store.tell()

        api.tell(fill)
        report = await rig.wait(handle, Phase.RUNNING)
        assert await rig.ask(report, "GET", "/files/note") == b"kept"
        await rig.backend.remove_layer(layer)
        assert await rig.backend.layers() == []


async def test_what_no_snapshot_comes_of_is_said_and_removed(
    api: SnapshotApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path, end_seconds=1.0) as rig:
        handle = await stopped_with(rig, b"kept")
        api.takes = False

        async def keep(layer: str) -> int:
            return await rig.backend.keep_layer(handle, layer, max_bytes=MAX)

        lost, layer = new_id(), new_id()
        with pytest.raises(OrderRejected, match="snapshot controller"):
            await fetched(lambda: keep(lost))
        with pytest.raises(StillFetching):
            await keep(layer)
        snapshot = api.store.get("volumesnapshots", "default", f"oh-agent-server-layer-{layer}")
        failed = {"error": {"message": "rpc error: out of quota"}, "readyToUse": False}
        told = {**snapshot, "metadata": dict(snapshot["metadata"]), "status": failed}
        api.tell(lambda here: here.store.put("volumesnapshots", told))
        with pytest.raises(OrderRejected, match="out of quota"):
            await fetched(lambda: keep(layer))
        assert await rig.backend.layers() == []
        # Only what is stopped is kept.
        running, _ = await rig.run()
        with pytest.raises(Conflict, match="not stopped"):
            await rig.backend.keep_layer(running, new_id(), max_bytes=MAX)


async def test_an_api_server_that_is_away_has_lost_no_layers(
    api: SnapshotApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        layer = await kept(rig)
        api.cut(is_cut=True)
        try:
            assert not (await rig.backend.probe()).ok
            with pytest.raises(BackendUnavailable):
                await rig.backend.layers()
            with pytest.raises(BackendUnavailable):
                await rig.create(rig.order(layer=layer))
        finally:
            api.cut(is_cut=False)
        assert rig.backend.why_no_copies() == ""
        assert await rig.backend.layers() == [layer]


async def test_of_others_nothing_is_copied_and_nothing_removed(
    api: SnapshotApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        layer = await kept(rig)
        first, _ = await rig.run()
        other = await rig.open(new_id())
        assert await other.layers() == []
        await other.remove_layer(layer)
        for changes in ({"layer": layer}, {"copy_of": first.sandbox_id}, {"layer": "../x"}):
            with pytest.raises(OrderRejected):
                await rig.create(rig.order(**changes), other)
        assert await rig.backend.layers() == [layer]
        order = rig.order(copy_of=first.sandbox_id)
        name = f"oh-agent-server-{order.sandbox_id}"
        source = {"persistentVolumeClaimName": "theirs"}
        metadata = {"namespace": "default", "name": name}
        foreign = {"metadata": metadata, "spec": {"source": source}}
        api.takes = False
        api.tell(lambda here: here.store.put("volumesnapshots", foreign))
        with pytest.raises(OrderRejected, match="not of this server"):
            await rig.create(order)
        api.tell(lambda here: here.store.remove("volumesnapshots", "default", name))


# What is copied


async def test_a_copy_that_was_broken_off_is_found_and_goes_on(
    api: SnapshotApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        first, report = await rig.run()
        await rig.ask(report, "PUT", "/files/note", b"kept")
        order = rig.order(copy_of=first.sandbox_id)
        api.takes = False
        with pytest.raises(StillFetching):
            await rig.create(order)
        # The server is killed. The next one finds it, and is asked again.
        await rig.close(rig.backend)
        rig.backend = await rig.open()
        assert await rig.is_listed(order.sandbox_id)

        def take(here: KubeApi) -> None:
            assert isinstance(here, SnapshotApi)
            here.takes = True
            here.store.tell()

        api.tell(take)
        handle, report = await begun(rig, order)
        assert await rig.ask(report, "GET", "/files/note") == b"kept"
        # The snapshot has served.
        await rig.backend.scan()
        await until(lambda: api.snapshots() == [])
        await rig.backend.delete(first)
        assert await rig.ask(report, "GET", "/files/note") == b"kept"
        await rig.backend.delete(handle)
        assert await rig.backend.leftovers() == []


async def test_a_copy_that_is_given_up_leaves_nothing(api: SnapshotApi, tmp_path: Path) -> None:
    async with rig_on(api, tmp_path) as rig:
        first = await stopped_with(rig, b"kept")
        order = rig.order(copy_of=first.sandbox_id)
        api.takes = False
        with pytest.raises(StillFetching):
            await rig.create(order)
        await rig.backend.delete(rig.saved[order.sandbox_id][-1])
        await until(lambda: api.snapshots() == [])
        assert not await rig.is_listed(order.sandbox_id)


# What a cluster lacks


async def test_without_the_api_it_says_so_and_asks_for_none(tmp_path: Path) -> None:
    with KubeApi(tmp_path / "volumes") as api:
        async with rig_on(api, tmp_path) as rig:
            why = rig.backend.why_no_copies()
            assert "the cluster has no volume snapshots" in why
            health = await rig.backend.probe()
            assert (health.ok, health.facts["kept files"]) == (True, why)
            assert why in health.advice[0].text
            handle = await stopped_with(rig, b"kept")
            with pytest.raises(OrderRejected, match="no volume snapshots"):
                await rig.backend.keep_layer(handle, new_id(), max_bytes=MAX)
            for changes in ({"layer": new_id()}, {"copy_of": handle.sandbox_id}):
                with pytest.raises(OrderRejected, match="no volume snapshots"):
                    await rig.create(rig.order(**changes))
            assert await rig.backend.layers() == []
            await rig.backend.remove_layer(new_id())
            await rig.backend.delete(handle)
            assert await rig.backend.scan() == []
            assert await rig.backend.leftovers() == []
            assert asked_for_snapshots(api) == []


async def test_a_role_from_before_lets_everything_else_go_on(
    api: SnapshotApi, tmp_path: Path
) -> None:
    api.refusals["GET", "volumesnapshots"] = Refused(403, "Forbidden", "cannot list resource")
    async with rig_on(api, tmp_path) as rig:
        assert "apply the Role" in rig.backend.why_no_copies()
        handle, _ = await rig.run()
        assert len(await rig.backend.scan()) == 1
        await rig.backend.delete(handle)
        assert asked_for_snapshots(api) == []
        # The Role is applied, and found out by the next look.
        api.refusals.clear()
        assert (await rig.backend.probe()).facts["kept files"] == "by volume snapshots"
        assert rig.backend.why_no_copies() == ""


async def test_classes_that_may_not_be_read_are_left_to_the_cluster(
    api: SnapshotApi, tmp_path: Path
) -> None:
    for kind in ("storageclasses", "volumesnapshotclasses"):
        api.refusals["GET", kind] = Refused(403, "Forbidden", "cannot list resource")
    async with rig_on(api, tmp_path) as rig:
        await kept(rig)
        [snapshot] = api.snapshots()
        assert "volumeSnapshotClassName" not in snapshot["spec"]


async def test_a_storage_class_without_a_snapshot_class_keeps_nothing(
    api: SnapshotApi, tmp_path: Path
) -> None:
    api.storage_classes.append(storage_class("plain", driver="other"))
    async with rig_on(api, tmp_path, storage_class="plain") as rig:
        assert "driver `other`" in rig.backend.why_no_copies()
        handle = await stopped_with(rig, b"kept")
        with pytest.raises(OrderRejected, match="driver `other`"):
            await rig.backend.keep_layer(handle, new_id(), max_bytes=MAX)


ONE = snapshot_class("one")
OTHER = snapshot_class("other", is_default=True)
FOREIGN = snapshot_class("foreign", driver="x", is_default=True)
KEEPING = snapshot_class("keeping", policy="Retain", is_default=True)
DRIVER = ONE["driver"]


@pytest.mark.parametrize(
    ("wanted", "classes", "chosen"),
    [
        ("", [ONE, FOREIGN, KEEPING], "one"),
        ("", [ONE, OTHER], "other"),
        ("one", [ONE, OTHER], "one"),
        ("", [ONE, snapshot_class("two")], ""),
        ("", [FOREIGN, KEEPING], ""),
        ("keeping", [ONE, KEEPING], ""),
        ("foreign", [ONE, FOREIGN], ""),
    ],
)
def test_the_class_is_one_that_fits_and_removes(
    wanted: str, classes: list[Json], chosen: str
) -> None:
    if chosen:
        assert snapshots.choose(DRIVER, wanted, classes) == chosen
        return
    with pytest.raises(OrderRejected, match="VolumeSnapshotClass of the driver"):
        snapshots.choose(DRIVER, wanted, classes)


def test_the_driver_is_that_of_the_class_or_of_the_newest_default_one() -> None:
    plain, older = storage_class("a", driver="one"), storage_class("b", driver="two")
    newer = storage_class("c", driver="three", is_default=True)
    newer["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    older = storage_class("b", driver="two", is_default=True)
    older["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    assert snapshots.driver_of("a", [plain, newer, older]) == "one"
    assert snapshots.driver_of("", [plain, newer, older]) == "three"
    for name, text in (("x", "no storage class `x`"), ("", "no default storage class")):
        with pytest.raises(OrderRejected, match=text):
            snapshots.driver_of(name, [plain])


@pytest.mark.parametrize(
    ("restore_size", "size"), [("20Gi", "20Gi"), ("5Gi", "10Gi"), ("10737418241", "10737418241")]
)
def test_a_claim_is_no_smaller_than_what_it_is_made_of(restore_size: str, size: str) -> None:
    config = settings.KubernetesConfig()
    place = objects.PodContext(instance_id=new_id(), namespace="agents", config=config)
    source = {"metadata": {"name": "s"}, "status": {"restoreSize": restore_size}}
    spec = objects.claim(Order(sandbox_id=new_id(), image="a:1"), place, source)["spec"]
    assert spec["resources"] == {"requests": {"storage": size}}
    assert spec["dataSource"] == {
        "apiGroup": "snapshot.storage.k8s.io",
        "kind": "VolumeSnapshot",
        "name": "s",
    }


@pytest.mark.parametrize("versions", [["v1beta1"], []])
def test_another_version_of_the_api_is_none(versions: list[str]) -> None:
    name = "snapshot.storage.k8s.io"
    group = {"name": name, "versions": [{"version": one} for one in versions]}
    assert not snapshots.is_served({"groups": [group]})
    group["versions"] = [*({"version": one} for one in versions), {"version": "v1"}]
    assert snapshots.is_served({"groups": [group]})

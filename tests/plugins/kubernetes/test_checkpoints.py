"""Checkpoints that a container beside the agent's keeps, and pods that go back to one."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentsvc.base.errors import AgentsvcError, Conflict, OrderRejected
from agentsvc.base.values import new_id
from agentsvc.plugin.backend import Phase, StillFetching
from agentsvc.testing.rig import Rig
from tests.kube.api import KubeApi
from tests.kube.snapshots import SnapshotApi
from tests.kube.standard import breaches
from tests.kube.store import Refused
from tests.plugin_loading import part
from tests.plugins.kubernetes.rigs import pod_of, rig_on
from tests.plugins.kubernetes.test_snapshots import begun

if TYPE_CHECKING:
    from kubernetes import names
else:
    names = part("kubernetes.names")

pytestmark = pytest.mark.timeout(300)

type Json = dict[str, Any]


async def taken(ask: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            return await ask()
        except StillFetching:
            continue


class Kept:
    """A sandbox that runs, whose files are kept."""

    def __init__(self, rig: Rig, handle: Any) -> None:
        self.rig, self.handle = rig, handle

    async def write(self, text: str) -> None:
        await self.sh(f"printf {text} >note")

    async def read(self) -> str:
        return await self.sh("cat note")

    async def sh(self, script: str) -> str:
        done = await self.rig.backend.execute(
            self.handle, ["sh", "-c", script], env={}, time_limit=20, max_output=1000
        )
        assert done.exit_code == 0, done.stderr
        return done.stdout.decode()

    async def take(self, *, keep: int = 2, max_bytes: int = 10**9) -> str:
        checkpoint_id, backend = new_id(), self.rig.backend
        await taken(
            lambda: backend.checkpoint(self.handle, checkpoint_id, keep=keep, max_bytes=max_bytes)
        )
        return checkpoint_id

    async def listed(self) -> list[str]:
        return [one.id for one in await self.rig.backend.checkpoints(self.handle)]

    async def go_back(self, checkpoint_id: str) -> None:
        backend = self.rig.backend
        await backend.stop(self.handle)
        await backend.roll_back(self.handle, checkpoint_id)
        self.handle = await backend.resume(self.handle)


async def kept(rig: Rig, **order: Any) -> Kept:
    await rig.close(rig.backend)
    rig.backend = await rig.open(keeps_checkpoints=True)
    handle, _ = await rig.run(rig.order(working_dir="project", **order))
    return Kept(rig, handle)


async def test_a_pod_that_keeps_checkpoints_keeps_the_restricted_standard(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        sandbox = await kept(rig, options={"read_only": True})
        await sandbox.write("kept")
        checkpoint_id = await sandbox.take()
        pod = pod_of(api, sandbox.handle.sandbox_id)
        assert breaches(pod) == []
        agent, keeper = pod["spec"]["containers"]
        [hidden] = [one for one in agent["volumeMounts"] if one["name"] == "hidden"]
        assert hidden == {"name": "hidden", "mountPath": "/workspace/.agentsvc", "readOnly": True}
        assert "env" not in keeper
        await sandbox.go_back(checkpoint_id)
        pod = pod_of(api, sandbox.handle.sandbox_id)
        assert breaches(pod) == []
        assert [one["name"] for one in pod["spec"]["initContainers"]] == ["prepare", "restore"]
        await rig.wait(sandbox.handle, Phase.RUNNING)
        # Once it is done, the next pods have nothing to do.
        await sandbox.take()
        await rig.backend.stop(sandbox.handle)
        sandbox.handle = await rig.backend.resume(sandbox.handle)
        pod = pod_of(api, sandbox.handle.sandbox_id)
        assert [one["name"] for one in pod["spec"]["initContainers"]] == ["prepare"]


async def test_a_pod_is_as_it_was_where_the_server_keeps_none(api: KubeApi, tmp_path: Path) -> None:
    async with rig_on(api, tmp_path) as rig:
        handle, _ = await rig.run()
        pod = pod_of(api, handle.sandbox_id)
        assert [one["name"] for one in pod["spec"]["containers"]] == ["sandbox"]
        assert [one["name"] for one in pod["spec"]["volumes"]] == ["workspace", "shm"]
        with pytest.raises(OrderRejected, match="start the sandbox again"):
            await rig.backend.checkpoint(handle, new_id(), keep=1, max_bytes=10**9)
        await rig.backend.stop(handle)
        with pytest.raises(Conflict, match="does not run"):
            await rig.backend.checkpoint(handle, new_id(), keep=1, max_bytes=10**9)


async def test_what_is_listed_is_there_when_a_server_was_killed_while_it_copied(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        sandbox = await kept(rig)
        await sandbox.write("first")
        first = await sandbox.take(keep=1)
        await sandbox.write("second")
        refused = Refused(500, "InternalError", "etcd is away")
        api.tell(lambda here: here.refusals.update({("PATCH", "persistentvolumeclaims"): refused}))
        with pytest.raises(AgentsvcError):
            await sandbox.take(keep=1)
        api.tell(lambda here: here.refusals.clear())
        assert await sandbox.listed() == [first]
        # One that is configured otherwise when it runs again goes back all the same.
        await rig.backend.stop(sandbox.handle)
        await rig.backend.roll_back(sandbox.handle, first)
        await rig.close(rig.backend)
        rig.backend = await rig.open()
        order = rig.order(sandbox_id=sandbox.handle.sandbox_id, working_dir="project")
        save = rig.save_to(order.sandbox_id)
        sandbox.handle = await rig.backend.restart(order, sandbox.handle, save)
        await rig.wait(sandbox.handle, Phase.RUNNING)
        assert await sandbox.read() == "first"
        third = await sandbox.take(keep=1)
        assert await sandbox.listed() == [third]
        store = api.node.place_of(
            pod_of(api, sandbox.handle.sandbox_id),
            f"/workspace/.agentsvc/{sandbox.handle.sandbox_id}",
        )
        assert [one.name.partition("-")[2] for one in store.glob("*-*")] == [third]


async def test_a_pod_whose_checkpoint_is_gone_fails_and_says_so(
    api: KubeApi, tmp_path: Path
) -> None:
    async with rig_on(api, tmp_path) as rig:
        sandbox = await kept(rig)
        await sandbox.write("kept")
        good, lost = await sandbox.take(), await sandbox.take()
        [directory] = api.node.place_of(
            pod_of(api, sandbox.handle.sandbox_id), "/workspace/.agentsvc"
        ).glob(f"*/*-{lost}")
        directory.rename(directory.parent.parent / "elsewhere")
        await sandbox.write("changed")
        await sandbox.go_back(lost)
        report = await rig.wait(sandbox.handle, Phase.FAILED)
        assert "its files cannot be put back: The checkpoint" in report.reason
        await rig.backend.roll_back(sandbox.handle, good)
        order = rig.order(sandbox_id=sandbox.handle.sandbox_id, working_dir="project")
        save = rig.save_to(order.sandbox_id)
        sandbox.handle = await rig.backend.restart(order, sandbox.handle, save)
        await rig.wait(sandbox.handle, Phase.RUNNING)
        assert await sandbox.read() == "kept"


async def test_files_of_the_agent_server_are_not_kept(api: KubeApi, tmp_path: Path) -> None:
    async with rig_on(api, tmp_path) as rig:
        sandbox = await kept(rig, env={"OH_CONVERSATIONS_PATH": "/workspace/project/state"})
        with pytest.raises(OrderRejected, match="own files are in /workspace/project"):
            await sandbox.take()


async def test_a_copy_has_no_checkpoints_of_the_first(tmp_path: Path) -> None:
    with SnapshotApi(tmp_path / "volumes") as api:
        async with rig_on(api, tmp_path) as rig:
            first = await kept(rig)
            await first.write("first")
            old = await first.take()
            order = rig.order(copy_of=first.handle.sandbox_id, working_dir="project")
            handle, _ = await begun(rig, order)
            second = Kept(rig, handle)
            assert await second.listed() == []
            new = await second.take()
            assert await second.listed() == [new]
            assert await second.read() == "first"
            claim = api.store.get(
                "persistentvolumeclaims", "default", names.main(handle.sandbox_id)
            )
            assert old not in str(claim)
            stores = api.node.place_of(pod_of(api, handle.sandbox_id), "/workspace/.agentsvc")
            assert [one.name for one in stores.iterdir()] == [handle.sandbox_id]
            assert await first.listed() == [old]

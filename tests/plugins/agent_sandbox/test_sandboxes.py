"""The agent_sandbox backend beyond the contract: pools, the controller, and answers nobody expects."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentsvc.base.errors import BackendUnavailable, Conflict, OrderRejected
from agentsvc.base.values import new_key
from agentsvc.plugin.backend import BackendContext, Cause, Handle, Phase
from agentsvc.testing import WORKLOAD, KitOptions
from agentsvc.testing.rig import Rig, open_rig
from tests.kube.agent_sandbox import ASSIGNED, SandboxApi
from tests.kube.api import KubeApi
from tests.kube.store import Refused, merged
from tests.plugin_loading import part
from tests.plugins.agent_sandbox.pools import POOL, put_pool, shown
from tests.plugins.kubernetes.rigs import config_of, until

if TYPE_CHECKING:
    from agent_sandbox import backend
else:
    backend = part("agent_sandbox.backend")

type Json = dict[str, Any]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[SandboxApi]:
    with SandboxApi(tmp_path / "volumes") as server:
        yield server


@asynccontextmanager
async def rig_on(
    api: KubeApi, tmp_path: Path, pool: str = POOL, **changes: Any
) -> AsyncIterator[Rig]:
    overrides = {
        "image": "agent:1",
        "command": (sys.executable, "-c", WORKLOAD),
        "options": {"warm_pool": pool} if pool else {},
    }
    options = KitOptions(order_overrides=overrides, beacon_host="")
    config = config_of(api, tmp_path, end_seconds=15.0, **changes)
    kind = backend.AgentSandboxBackend
    # One that waits in vain shall say where.
    async with asyncio.timeout(200), open_rig(kind, config, options) as rig:
        yield rig


async def filled(api: SandboxApi, replicas: int) -> None:
    put_pool(api, replicas=replicas)
    await until(lambda: _ready(api) == replicas)


def _ready(api: SandboxApi) -> int:
    [pool] = api.all_of("sandboxwarmpools")
    return int((pool.get("status") or {}).get("readyReplicas", -1))


def claim_of(api: SandboxApi, handle: Handle) -> Json:
    return api.store.get("sandboxclaims", "default", f"oh-agent-server-{handle.sandbox_id}")


def given(api: SandboxApi, handle: Handle) -> str:
    """Return the name of the sandbox that a claim has been given."""
    return str(claim_of(api, handle)["metadata"]["annotations"][ASSIGNED])


# Pools


async def test_each_sandbox_out_of_a_pool_has_a_key_of_its_own(
    api: SandboxApi, tmp_path: Path
) -> None:
    await filled(api, 2)
    async with rig_on(api, tmp_path) as rig:
        keys = [new_key(), new_key()]
        runs = [await rig.run(rig.order(secret_env={"KEY": key})) for key in keys]
        told = [await rig.ask(report, "GET", "/env/KEY") for _, report in runs]
        assert told == [key.reveal().encode() for key in keys]
        assert all(given(api, handle).startswith(f"{POOL}-") for handle, _ in runs)
        known = str([one for (kind, _, _), one in api.store.objects.items() if kind != "secrets"])
        asked = str(api.requests)
        assert [key.reveal() for key in keys if key.reveal() in known + asked] == []
        assert all("env" not in claim["spec"] for claim in api.all_of("sandboxclaims"))


async def test_a_used_up_pool_is_no_failure(api: SandboxApi, tmp_path: Path) -> None:
    await filled(api, 1)
    async with rig_on(api, tmp_path) as rig:
        orders = [rig.order(secret_env={"KEY": new_key()}) for _ in range(3)]
        runs = await asyncio.gather(*(rig.run(order) for order in orders))
        for order, (_, report) in zip(orders, runs, strict=True):
            told = await rig.ask(report, "GET", "/env/KEY")
            assert told == order.secret_env["KEY"].reveal().encode()
        names = {given(api, handle) for handle, _ in runs}
        assert len(names) == 3
        assert any(name.startswith("oh-agent-server-") for name in names)
        for handle, _ in runs:
            await rig.backend.delete(handle)
        assert await rig.backend.leftovers() == []
        left = api.all_of("sandboxes")
        [pool] = api.all_of("sandboxwarmpools")
        uid = pool["metadata"]["uid"]
        assert {one["metadata"]["ownerReferences"][0]["uid"] for one in left} == {uid}


async def test_a_pool_that_is_not_there_is_named(api: SandboxApi, tmp_path: Path) -> None:
    async with rig_on(api, tmp_path, "none") as rig:
        with pytest.raises(OrderRejected, match='sandboxwarmpools "none" not found'):
            await rig.create(rig.order())
        # Who may not read pools hears of it from the controller.
        api.refusals["GET", "sandboxwarmpools"] = Refused(403, "Forbidden", "no")
        handle = await rig.create(rig.order())
        await until(lambda: bool(claim_of(api, handle).get("status")))
        report = await rig.backend.inspect(handle)
        assert (report.phase, "not found" in report.reason) == (Phase.STARTING, True)


@pytest.mark.parametrize("pool", ["../x", "A", 5, ["agents"]])
async def test_a_pool_without_a_name_is_refused(api: SandboxApi, tmp_path: Path, pool: Any) -> None:
    async with rig_on(api, tmp_path) as rig:
        with pytest.raises(OrderRejected, match="warm_pool"):
            await rig.create(rig.order(options={"warm_pool": pool}))
        assert api.all_of("sandboxclaims") == []


async def test_a_template_that_waits_for_nothing_is_told_of(
    api: SandboxApi, tmp_path: Path
) -> None:
    template, pool = shown()
    for one in (template, pool):
        one["metadata"]["namespace"] = "default"
    [container] = template["spec"]["podTemplate"]["spec"]["containers"]
    container |= {"command": ["sleep"], "args": ["100"], "env": []}
    api.put(template)
    api.put(pool)
    async with rig_on(api, tmp_path) as rig:
        handle = await rig.create(rig.order())

        async def is_told() -> bool:
            report = await rig.backend.inspect(handle)
            return report.phase is Phase.STARTING and "AGENTSVC_DIR" in report.reason

        await until(is_told)


# Restarts


async def test_a_server_that_restarts_in_the_middle_of_a_start_goes_on(
    api: SandboxApi, tmp_path: Path
) -> None:
    await filled(api, 1)
    async with rig_on(api, tmp_path) as rig:
        api.controls = False
        key = new_key()
        handle = await rig.create(rig.order(secret_env={"KEY": key}))
        waits = await rig.backend.inspect(handle)
        assert (waits.phase, "check that it runs" in waits.reason) == (Phase.STARTING, True)
        await rig.close(rig.backend)
        rig.backend = await rig.open()
        assert [found.handle for found in await rig.backend.scan()] == [handle]
        api.tell(_control)
        report = await rig.wait(handle, Phase.RUNNING)
        assert await rig.ask(report, "GET", "/env/KEY") == key.reveal().encode()
        await rig.close(rig.backend)
        rig.backend = await rig.open()
        again = await rig.wait(handle, Phase.RUNNING)
        assert again.endpoints == report.endpoints


def _control(api: KubeApi) -> None:
    assert isinstance(api, SandboxApi)
    api.controls = True
    api.store.tell()


@pytest.mark.parametrize("pool", [POOL, ""])
@pytest.mark.parametrize("kind", ["secrets", "sandboxes", "sandboxclaims", "networkpolicies"])
async def test_a_create_that_broke_off_is_repeated_or_removed(
    api: SandboxApi, tmp_path: Path, pool: str, kind: str
) -> None:
    await filled(api, 1)
    async with rig_on(api, tmp_path, pool) as rig:
        orders = [rig.order(), rig.order()]
        api.refusals["PATCH", kind] = Refused(500, "InternalError", "etcd has no leader")
        for order in orders:
            try:
                await rig.create(order)
            except BackendUnavailable as exc:
                assert "no leader" in exc.message  # noqa: PT017  # not every step is in both ways
        api.refusals.clear()
        await rig.close(rig.backend)
        rig.backend = await rig.open()
        again, gone = orders
        await rig.run(again)
        await rig.backend.delete(rig.saved[gone.sandbox_id][-1])
        await rig.backend.delete(rig.saved[again.sandbox_id][-1])
        assert await rig.backend.leftovers() == []


# What becomes of pods


async def test_a_paused_one_of_a_pool_keeps_its_files_and_its_key(
    api: SandboxApi, tmp_path: Path
) -> None:
    await filled(api, 1)
    async with rig_on(api, tmp_path) as rig:
        key = new_key()
        handle, report = await rig.run(rig.order(secret_env={"KEY": key}, working_dir="project"))
        await rig.ask(report, "PUT", "/files/note", b"kept")
        name = given(api, handle)
        await rig.backend.pause(handle)
        assert ("pods", "default", name) not in api.store.objects
        assert api.store.get("sandboxes", "default", name)["spec"]["operatingMode"] == "Suspended"
        assert (await rig.backend.inspect(handle)).phase is Phase.PAUSED
        await rig.backend.resume(handle)
        report = await rig.wait(handle, Phase.RUNNING)
        assert await rig.ask(report, "GET", "/files/note") == b"kept"
        assert await rig.ask(report, "GET", "/env/KEY") == key.reveal().encode()
        ran = await rig.backend.execute(
            handle,
            ["sh", "-c", 'echo "$KEY $MORE"; pwd'],
            env={"MORE": "1"},
            time_limit=5,
            max_output=999,
        )
        said = ran.stdout.decode().split()
        assert (said[:2], said[2].endswith("/project")) == ([key.reveal(), "1"], True)


async def test_a_failed_one_of_a_pool_starts_again_as_it_is_ordered_now(
    api: SandboxApi, tmp_path: Path
) -> None:
    await filled(api, 1)
    async with rig_on(api, tmp_path) as rig:
        order = rig.order(env={"NOW": "first"})
        handle, report = await rig.run(order)
        await rig.ask(report, "PUT", "/files/note", b"kept")
        await rig.ask(report, "POST", "/exit/7")
        assert (await rig.wait(handle, Phase.FAILED)).exit_code == 7
        changed = rig.order(sandbox_id=order.sandbox_id, env={"NOW": "it's $then\nand"})
        await rig.backend.restart(changed, handle, rig.save_to(order.sandbox_id))
        report = await rig.wait(handle, Phase.RUNNING)
        assert await rig.ask(report, "GET", "/env/NOW") == b"it's $then\nand"
        assert await rig.ask(report, "GET", "/files/note") == b"kept"


@pytest.mark.parametrize("pool", [POOL, ""])
async def test_a_pod_deleted_by_hand_is_made_anew_by_the_controller(
    api: SandboxApi, tmp_path: Path, pool: str
) -> None:
    await filled(api, 1)
    async with rig_on(api, tmp_path, pool) as rig:
        key = new_key()
        handle, report = await rig.run(rig.order(secret_env={"KEY": key}))
        run = await rig.ask(report, "GET", "/run")
        name = given(api, handle) if pool else f"oh-agent-server-{handle.sandbox_id}"
        api.do(api.node.end(api.store.get("pods", "default", name), 0))

        async def is_another() -> bool:
            seen = await rig.backend.inspect(handle)
            assert seen.phase in (Phase.STARTING, Phase.RUNNING)
            if seen.phase is not Phase.RUNNING:
                return False
            with contextlib.suppress(OSError):
                return await rig.ask(seen, "GET", "/run") != run
            return False

        await until(is_another)
        report = await rig.wait(handle, Phase.RUNNING)
        assert await rig.ask(report, "GET", "/env/KEY") == key.reveal().encode()
        told = [pod.get("status") or {} for _, _, pod in api.store.since(0, "pods")]
        assert {one.get("phase") for one in told} == {None, "Running"}


# Answers nobody expects


@pytest.mark.parametrize(
    "status",
    [
        {"sandbox": {"name": "../../../../api/v1/namespaces/default/secrets/victim"}},
        {"sandbox": {"name": "victim"}},
        {"sandbox": {"name": ["victim"]}},
        {"sandbox": "victim"},
        {"sandbox": {"name": ""}, "conditions": "none"},
        {"conditions": [None, "Ready", {"type": "Ready", "reason": ["a"], "message": {}}]},
        ["victim"],
    ],
)
async def test_what_a_claim_says_opens_nothing_that_is_not_its_own(
    api: SandboxApi, tmp_path: Path, status: Any
) -> None:
    async with rig_on(api, tmp_path, "") as rig:
        key = new_key()
        victim, report = await rig.run(rig.order(secret_env={"KEY": key}))
        await filled(api, 1)
        api.controls = False
        order = rig.order(options={"warm_pool": POOL}, secret_env={"KEY": new_key()})
        handle = await rig.create(order)
        name = f"oh-agent-server-{victim.sandbox_id}"
        text = str(status).replace("victim", name)
        found: Any = eval(text, {"__builtins__": {}})  # noqa: S307  # what stands above
        claim = claim_of(api, handle)
        api.tell(lambda here: here.store.put("sandboxclaims", {**claim, "status": found}))
        assert (await rig.backend.inspect(handle)).phase is Phase.STARTING
        with pytest.raises(Conflict):
            await rig.backend.pause(handle)
        await rig.backend.delete(handle)
        assert (await rig.backend.inspect(handle)).phase is Phase.GONE
        assert (await rig.backend.inspect(victim)).phase is Phase.RUNNING
        assert await rig.ask(report, "GET", "/env/KEY") == key.reveal().encode()


@pytest.mark.parametrize(
    ("reason", "cause"),
    [("InvalidMetadata", Cause.NOT_STARTED), ("ClaimExpired", Cause.LOST)],
)
async def test_what_the_controller_refuses_for_good_has_failed(
    api: SandboxApi, tmp_path: Path, reason: str, cause: Cause
) -> None:
    await filled(api, 1)
    async with rig_on(api, tmp_path) as rig:
        api.controls = False
        handle = await rig.create(rig.order())
        said = {"type": "Ready", "status": "False", "reason": reason, "message": "because"}
        claim = merged(claim_of(api, handle), {"status": {"conditions": [said]}})
        api.tell(lambda here: here.store.put("sandboxclaims", claim))
        report = await rig.backend.inspect(handle)
        assert (report.phase, report.cause) == (Phase.FAILED, cause)


@pytest.mark.parametrize(
    ("pool", "kind"), [("", "sandboxes"), ("", "secrets"), (POOL, "sandboxclaims")]
)
async def test_what_is_somebody_elses_is_neither_taken_nor_touched(
    api: SandboxApi, tmp_path: Path, pool: str, kind: str
) -> None:
    await filled(api, 1)
    async with rig_on(api, tmp_path, pool) as rig:
        api.controls = False
        order = rig.order()
        name = f"oh-agent-server-{order.sandbox_id}"
        foreign = {"metadata": {"namespace": "default", "name": name}}
        api.tell(lambda here: here.store.put(kind, foreign))
        with pytest.raises(OrderRejected, match="did not create"):
            await rig.create(order)
        handle = rig.saved[order.sandbox_id][-1]
        assert (await rig.backend.inspect(handle)).phase is Phase.GONE
        await rig.backend.delete(handle)
        assert api.store.get(kind, "default", name)["metadata"].get("deletionTimestamp") is None


@pytest.mark.parametrize("data", [{}, {"start": "no base64"}, {"start": 5}, "start"])
async def test_a_secret_that_says_nothing_starts_nothing(
    api: SandboxApi, tmp_path: Path, data: Any
) -> None:
    await filled(api, 1)
    async with rig_on(api, tmp_path) as rig:
        api.controls = False
        handle = await rig.create(rig.order())
        name = f"oh-agent-server-{handle.sandbox_id}"
        secret = api.store.get("secrets", "default", name)
        api.tell(lambda here: here.store.put("secrets", {**secret, "data": data}))
        api.tell(_control)

        async def is_told() -> bool:
            report = await rig.backend.inspect(handle)
            return report.phase is Phase.STARTING and "has no valid start script" in report.reason

        await until(is_told)


async def test_a_cluster_without_the_resources_is_told_of(tmp_path: Path) -> None:
    with KubeApi(tmp_path / "volumes") as api:
        context = BackendContext(instance_id="i", state_dir=tmp_path)
        one = backend.AgentSandboxBackend(config_of(api, tmp_path), context)
        await one.open()
        health = await one.probe()
        await one.close()
        assert (health.ok, "is agent-sandbox installed?" in health.reason) == (False, True)

"""One backend on two engines, each in a network of its own: placement, and one that is cut off."""

import asyncio
import io
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from agentsvc.base.values import monotonic
from agentsvc.config.sandboxes import PortConfig, SandboxesConfig, SpecConfig
from agentsvc.config.schema import Config
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.testing import WORKLOAD
from tests.live import engines
from tests.live.cables import Cable
from tests.live.containers import EVERYWHERE, Engine
from tests.live.engines import BASE, Lease
from tests.live.tls import make_certificates
from tests.service import Client, Service

pytestmark = [pytest.mark.live, pytest.mark.timeout(400, func_only=True)]

PATH = "/api/v1/sandboxes"
PATIENCE = 90.0
AWAY = "The container engine `far` cannot be reached"
SPEC = SpecConfig(
    backend="docker",
    image=BASE,
    command=("python3", "-c", WORKLOAD),
    env={"KIT_PORT": "{port.agent}", "KIT_NAME": "kit", "KIT_HOST": EVERYWHERE},
    ports=(PortConfig(name="agent", number=8000),),
    # The base has no directory for files that belongs to somebody else.
    options={"user": "0:0"},
)


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One of the engines, seen from its own socket, and the cable to it."""

    lease: Lease
    cable: Cable

    def containers(self) -> dict[str, str]:
        """Return the ids of the sandboxes it has, with the ids of their containers."""
        filters = quote(json.dumps({"label": ["agentsvc.role=sandbox"]}))
        path = f"/containers/json?all=true&filters={filters}"
        found = json.loads(engines.ask(self.lease.socket, "GET", path)[1])
        return {one["Labels"]["agentsvc.sandbox"]: one["Id"] for one in found}

    def sandboxes(self) -> set[str]:
        return set(self.containers())

    def left(self) -> list[str]:
        """Name what it has that is labelled as ours."""
        engine = Engine(url=self.lease.url, address="")
        labelled = "?filters=" + quote(json.dumps({"label": ["agentsvc.installation"]}))
        listed = engine.ask(f"/containers/json{labelled}&all=true")
        listed += engine.ask(f"/networks{labelled}")
        listed += engine.ask(f"/volumes{labelled}")["Volumes"] or []
        return [str(one.get("Name") or one.get("Names")) for one in listed]

    def kill(self, container_id: str) -> None:
        status, _ = engines.ask(self.lease.socket, "POST", f"/containers/{container_id}/kill")
        assert status == 204


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory with a path short enough for sockets, without engines at the end."""
    made = Path(tempfile.mkdtemp(prefix="asvc-", dir="/var/tmp"))
    yield made
    deadline = monotonic() + engines.STOP_SECONDS
    while any((made / name).exists() for name in ("near", "far")):
        assert monotonic() < deadline, "an engine is still there"
        threading.Event().wait(0.1)
    shutil.rmtree(made)


@pytest.fixture
async def hosts(engine: Engine, directory: Path) -> AsyncIterator[tuple[Host, Host, Path]]:
    """Return two engines with the image of a third: one at its socket, one by TLS only."""
    number = {"near": 0, "far": 1}
    leases = {"near": Lease(directory / "near", alone=True)}
    address = Cable(leases["near"], number["far"]).far
    server, client = make_certificates(directory, address)
    names = {"tlscacert": "ca.pem", "tlscert": "cert.pem", "tlskey": "key.pem"}
    files = [f"--{option}={server / name}" for option, name in names.items()]
    listen = ("--tlsverify", *files, f"--host=tcp://{EVERYWHERE}:2376")
    leases["far"] = Lease(directory / "far", alone=True, arguments=listen)
    status, image = await asyncio.to_thread(
        engines.ask, engine.socket, "GET", f"/images/{BASE}/get"
    )
    assert status == 200

    def begin(stack: ExitStack, name: str) -> Host:
        lease = stack.enter_context(leases[name])
        status, said = engines.ask(lease.socket, "POST", "/images/load", body=io.BytesIO(image))
        assert status == 200, said
        return Host(lease=lease, cable=stack.enter_context(Cable(lease, number[name])))

    with ExitStack() as one, ExitStack() as other:
        near, far = await asyncio.gather(
            asyncio.to_thread(begin, one, "near"), asyncio.to_thread(begin, other, "far")
        )
        yield near, far, client


@asynccontextmanager
async def serving(directory: Path, near: Host, far: Host, client: Path) -> AsyncIterator[Service]:
    hosts: list[dict[str, Any]] = [
        {"name": "near", "host": near.lease.url, "publish": near.cable.far},
        {
            "name": "far",
            "host": f"tcp://{far.cable.far}:2376",
            "tls_dir": str(client),
            "publish": far.cable.far,
            "labels": {"disk": "fast"},
        },
    ]
    docker = {"hosts": hosts, "pull": "never", "guard_host": False, "request_seconds": 4.0}
    pinned = msgspec.structs.replace(
        SPEC, id="pinned", options={**SPEC.options, "host_labels": {"disk": "fast"}}
    )
    config = Config(
        sandboxes=SandboxesConfig(
            default_backend="docker", default_spec="any", sweep_seconds=0.5, start_seconds=PATIENCE
        ),
        backends={"docker": docker},
        specs={"any": msgspec.structs.replace(SPEC, id="any"), "pinned": pinned},
    )
    service = Service(directory / "data", config, partial(PluginHost.load, disable=["process"]))
    await service.start()
    try:
        yield service
    finally:
        await service.close()
        # Connections that were cut off are closed by TLS: when the engine answers, or after 30 s.
        async with asyncio.timeout(PATIENCE):
            await becomes(partial(connections, far.cable), "")


def connections(cable: Cable) -> str:
    """Return the open connections to the other end of a cable."""
    command = ("ss", "--no-header", "--tcp", "--numeric", "state", "established", "dst", cable.far)
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


async def order(client: Client, spec: str = "any") -> str:
    answer = await client.post(f"{PATH}?sandbox_spec_id={spec}")
    assert answer.status == 200, answer.text
    return str(answer.json()["id"])


async def start(client: Client, spec: str = "any") -> str:
    sandbox_id = await order(client, spec)
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    return sandbox_id


async def wait_for_detail(client: Client, sandbox_id: str, detail: str | None) -> dict[str, Any]:
    """Wait until a sandbox says this of itself; whatever it says, it is there."""
    while True:
        seen = await client.sandbox(sandbox_id)
        assert seen is not None
        assert seen["status"] != "MISSING"
        if seen["status_detail"] == detail:
            return seen
        await asyncio.sleep(0.1)


async def becomes[T](ask: Callable[[], T], wanted: T) -> None:
    """Wait until a question to an engine has this answer."""
    while True:
        if await asyncio.to_thread(ask) == wanted:
            return
        await asyncio.sleep(0.1)


async def test_an_engine_that_is_cut_off_keeps_its_sandboxes_and_the_other_one_works_on(
    hosts: tuple[Host, Host, Path], directory: Path
) -> None:
    near, far, certificates = hosts
    async with serving(directory, near, far, certificates) as service:
        client = await service.make_client()
        client.patience = PATIENCE
        # The first is as good as the other; then the one with less to do is chosen.
        first, second = await start(client), await start(client)
        pinned = await start(client, "pinned")
        before = await asyncio.to_thread(far.containers)
        assert await asyncio.to_thread(near.sandboxes) == {first}
        assert set(before) == {second, pinned}

        async with asyncio.timeout(PATIENCE):
            far.cable.cut()
            assert (await wait_for_detail(client, second, AWAY))["status"] == "RUNNING"
            # The other one takes what is new, is told what to do, and is looked at.
            deleted, waiting, third = await asyncio.gather(
                client.delete(f"{PATH}/{pinned}"), order(client, "pinned"), start(client)
            )
            assert deleted.status == 200
            assert await asyncio.to_thread(near.sandboxes) == {first, third}
            assert (await client.post(f"{PATH}/{first}/pause")).status == 200
            await client.wait_for_sandbox(first, "PAUSED")
            assert (await client.post(f"{PATH}/{first}/resume")).status == 200
            await client.wait_for_sandbox(first, "RUNNING")
            await asyncio.to_thread(near.kill, (await asyncio.to_thread(near.containers))[third])
            await client.wait_for_sandbox(third, "ERROR")
            assert (await client.delete(f"{PATH}/{third}")).status == 200
            await becomes(near.sandboxes, {first})
            await wait_for_detail(client, waiting, AWAY)

            # So it is for a server that begins meanwhile.
            await service.restart()
            assert (await wait_for_detail(client, second, AWAY))["status"] == "RUNNING"

            far.cable.mend()
            assert (await wait_for_detail(client, second, None))["status"] == "RUNNING"
            await client.wait_for_sandbox(waiting, "RUNNING")
            await becomes(far.sandboxes, {second, waiting})
            assert (await asyncio.to_thread(far.containers))[second] == before[second]
            left = (first, second, waiting)
            ended = await asyncio.gather(*(client.delete(f"{PATH}/{one}") for one in left))
            assert [one.status for one in ended] == [200] * len(left)
            for host in (near, far):
                await becomes(host.left, list[str]())

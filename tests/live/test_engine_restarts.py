"""What becomes of sandboxes when their engine is restarted or has no room, on one that nobody else uses."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from agentsvc.base.errors import AgentsvcError
from agentsvc.base.values import monotonic
from agentsvc.plugin.backend import Phase
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.testing import WORKLOAD, KitOptions
from agentsvc.testing.rig import open_rig
from tests.live import engines
from tests.live.containers import EVERYWHERE, Engine
from tests.live.engines import BASE, Lease
from tests.live.podman import carry_image
from tests.live.registry import Registry

pytestmark = [pytest.mark.live, pytest.mark.timeout(400, func_only=True)]

KIND = PluginHost.load().backend_types()["docker"]
OPTIONS = KitOptions(
    order_overrides={
        "image": BASE,
        "command": ("python3", "-c", WORKLOAD),
        "env": {"KIT_HOST": EVERYWHERE},
        # The base has no directory for files that belongs to somebody else.
        "options": {"user": "0:0"},
    },
    beacon_host="",
)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory with a path short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="asvc-", dir="/var/tmp"))
    yield made
    wait_until_gone(made / "engine")
    shutil.rmtree(made)


def wait_until_gone(engine: Path) -> None:
    deadline = monotonic() + engines.STOP_SECONDS
    while engine.exists():
        assert monotonic() < deadline, "the engine is still there"
        threading.Event().wait(0.1)


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """Have a directory be on a disk with hardly any room."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", directory], check=True)
    try:
        yield
        wait_until_gone(directory / "engine")
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def in_network_of(lease: Lease, work: Callable[[], object]) -> None:
    """Do some work where the engine's containers can be reached."""
    failures: list[BaseException] = []

    def run() -> None:
        with Path(f"/proc/{lease.keeper}/ns/net").open() as network:
            os.setns(network.fileno(), os.CLONE_NEWNET)
        try:
            work()
        except BaseException as exc:  # noqa: BLE001  # told where the test is
            failures.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


async def check(lease: Lease, how: signal.Signals, expected: Phase) -> None:
    config = KIND.Config(host=lease.url, guard_host=False, pull="never")
    async with open_rig(KIND, config, OPTIONS) as rig:
        order = rig.order()
        handle, report = await rig.run(order)
        await rig.ask(report, "PUT", "/files/note", b"kept")
        await asyncio.to_thread(lease.restart, how)

        async def is_settled() -> bool:
            return (await rig.backend.inspect(handle)).phase is expected

        async with asyncio.timeout(60):
            await rig.until(is_settled)
        found = await rig.backend.inspect(handle)
        if expected is Phase.FAILED:
            assert found.reason
            save = rig.save_to(order.sandbox_id)
            handle = await rig.backend.restart(order, handle, save)
        report = await rig.wait(handle, Phase.RUNNING)
        assert await rig.ask(report, "GET", "/files/note") == b"kept"


def set_live_restore(lease: Lease, config: Path) -> None:
    """Have a running engine let containers run on when it ends."""
    config.write_text('{"live-restore": true}')
    os.kill(int((lease.directory / "dockerd.pid").read_text()), signal.SIGHUP)

    def is_set() -> bool:
        return bool(json.loads(engines.ask(lease.socket, "GET", "/info")[1])["LiveRestoreEnabled"])

    engines.wait(is_set, engines.START_SECONDS, "the engine has read its file")


def test_the_state_is_honest_after_the_engine_was_restarted(
    engine: Engine, directory: Path
) -> None:
    """Stopped with the engine they are failed and start again; with live-restore they run on."""
    config = directory / "daemon.json"
    config.write_text("{}")
    arguments = [f"--config-file={config}"]
    with Lease(directory / "engine", arguments=arguments, alone=True) as lease:
        carry_image(BASE, engine.socket, lease.socket)
        for expected in (Phase.FAILED, Phase.RUNNING):
            if expected is Phase.RUNNING:
                set_live_restore(lease, config)
            for how in (signal.SIGTERM, signal.SIGKILL):
                in_network_of(lease, partial(asyncio.run, check(lease, how, expected)))


async def fetch(lease: Lease) -> str:
    """Return what is said of an image that is larger than the engine's disk."""
    async with Registry(size=40_000_000) as registry:
        logins = lease.directory / "logins"
        logins.write_text(registry.logins())
        config = KIND.Config(host=lease.url, guard_host=False, auth_file=str(logins))
        async with open_rig(KIND, config, OPTIONS) as rig:
            with pytest.raises(AgentsvcError) as raised:
                await rig.create(rig.order(image=f"{registry.address}/agent:1"))
    return raised.value.message


@pytest.mark.usefixtures("engine")
def test_an_image_for_which_there_is_no_room_is_told_as_that(directory: Path) -> None:
    said: list[str] = []
    with small_disk(directory), Lease(directory / "engine", alone=True) as lease:
        in_network_of(lease, lambda: said.append(asyncio.run(fetch(lease))))
    assert "too full for the image" in said[0]

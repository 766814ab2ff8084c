"""What becomes of sandboxes when their engine is restarted, on an engine that nobody else uses."""

import asyncio
import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from agentsvc.backend import Phase
from agentsvc.plugins import PluginHost
from agentsvc.testing import WORKLOAD, KitOptions
from agentsvc.testing.rig import open_rig
from agentsvc.values import monotonic
from tests.live import engines
from tests.live.containers import EVERYWHERE, Engine
from tests.live.engines import BASE, Lease
from tests.live.podman import carry_image

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
    deadline = monotonic() + engines.STOP_SECONDS
    while (made / "engine").exists():
        assert monotonic() < deadline, "the engine is still there"
        threading.Event().wait(0.1)
    shutil.rmtree(made)


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

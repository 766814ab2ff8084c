"""Sandboxes on disk, on an engine of their own: whole after each cycle, kill and restart."""

import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentsvc.base.values import monotonic
from agentsvc.plugin.backend import Handle, Network, PausedAs, Phase, Report
from agentsvc.testing.checks import CHECKS
from agentsvc.testing.kit import run_check
from agentsvc.testing.rig import Rig, open_rig
from tests.live.containers import Engine
from tests.live.engines import BASE, Lease
from tests.live.hibernating import KIND, WORKLOAD, runsc, settings
from tests.live.podman import carry_image
from tests.live.test_engine_restarts import OPTIONS, in_network_of, wait_until_gone

pytestmark = [pytest.mark.live, pytest.mark.timeout(600, func_only=True)]

CYCLES = 20


@pytest.fixture(scope="module")
def lease(engine: Engine) -> Iterator[Lease]:
    """Return an experimental engine with a gVisor that can save."""
    place = Path(tempfile.mkdtemp(prefix="asvc-", dir="/var/tmp"))
    try:
        program = runsc(place)
        if program is None:
            pytest.skip("gVisor here cannot save what has connections; name one in TEST_RUNSC")
        told = place / "daemon.json"
        told.write_text(json.dumps(settings(program)))
        arguments = [f"--config-file={told}"]
        with Lease(place / "engine", arguments=arguments, alone=True) as lease:
            carry_image(BASE, engine.socket, lease.socket)
            yield lease
        wait_until_gone(place / "engine")
    finally:
        shutil.rmtree(place)


def config_of(lease: Lease, **more: Any) -> Any:
    told = {"host": lease.url, "guard_host": False, "pull": "never", "runtime": "runsc", **more}
    return KIND.Config(**told)


def test_the_kit_is_kept_on_disk(lease: Lease) -> None:
    check = next(one for one in CHECKS if one.name == "a_sandbox_on_disk_goes_on_where_it_was")
    in_network_of(lease, lambda: asyncio.run(run_check(check, KIND, config_of(lease), OPTIONS)))


def test_why_it_cannot_be_is_told(lease: Lease) -> None:
    async def ask() -> None:
        async with open_rig(KIND, config_of(lease, runtime="runc"), OPTIONS) as rig:
            assert "only gVisor containers" in rig.backend.why_no_hibernate()
            handle, _ = await rig.run()
            await rig.backend.pause(handle)
            await rig.backend.hibernate(handle)
            assert (await rig.backend.inspect(handle)).paused_as is PausedAs.FROZEN

    in_network_of(lease, lambda: asyncio.run(ask()))


@pytest.mark.parametrize("network", [Network.OPEN, Network.NONE])
def test_all_goes_on_after_each_of_many_cycles(lease: Lease, network: Network) -> None:
    cycles = CYCLES if network is Network.OPEN else 3
    in_network_of(lease, lambda: asyncio.run(cycle(lease, network, cycles)))


async def cycle(lease: Lease, network: Network, cycles: int) -> None:
    async with open_rig(KIND, config_of(lease), OPTIONS) as rig:
        handle, report = await begin(rig, network)
        begun = await rig.ask(report, "GET", "/")
        count, took = 0, []
        for _ in range(cycles):
            reader, writer = await connected(report)
            await on_disk(rig, handle)
            files = list(lease.directory.glob("root/containers/*/checkpoints/*"))
            assert [one.parent.stat().st_mode & 0o777 for one in files] == [0o700]
            await rig.close(rig.backend)
            rig.backend = await rig.open()
            began = monotonic()
            handle = await rig.backend.resume(handle)
            report = await rig.wait(handle, Phase.RUNNING)
            assert await rig.ask(report, "GET", "/") == begun
            took.append(monotonic() - began)
            seen = int(await rig.ask(report, "GET", "/count"))
            assert seen > count
            count = seen
            assert not list(lease.directory.glob("root/containers/*/checkpoints/*"))
            writer.transport.abort()
            del reader
        lines = (await rig.ask(report, "GET", "/lines")).decode().split()
        assert lines == [str(number) for number in range(1, len(lines) + 1)]
        assert len(lines) >= count
        print("resume", [f"{one:.2f}" for one in sorted(took)])  # noqa: T201  # a figure to be told


async def begin(rig: Rig, network: Network = Network.OPEN) -> tuple[Handle, Report]:
    return await rig.run(rig.order(command=("python3", "-c", WORKLOAD), network=network))


async def connected(report: Report) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection that stays open while its other end is saved."""
    host, _, port = report.endpoints[0].url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /count HTTP/1.1\r\nHost: sandbox\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    return reader, writer


async def on_disk(rig: Rig, handle: Handle) -> None:
    await rig.backend.pause(handle)
    await rig.backend.hibernate(handle)
    seen = await rig.backend.inspect(handle)
    assert (seen.phase, seen.paused_as) == (Phase.PAUSED, PausedAs.ON_DISK)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_one_on_disk_goes_on_after_its_engine_was_restarted(
    lease: Lease, how: signal.Signals
) -> None:
    async def go_on() -> None:
        async with open_rig(KIND, config_of(lease), OPTIONS) as rig:
            handle, report = await begin(rig)
            begun = await rig.ask(report, "GET", "/")
            await on_disk(rig, handle)
            await asyncio.to_thread(lease.restart, how)
            rig.backend = await rig.open()
            assert (await rig.backend.inspect(handle)).paused_as is PausedAs.ON_DISK
            handle = await rig.backend.resume(handle)
            report = await rig.wait(handle, Phase.RUNNING)
            assert await rig.ask(report, "GET", "/") == begun

    in_network_of(lease, lambda: asyncio.run(go_on()))


@pytest.mark.parametrize("verb", ["hibernate", "resume"])
@pytest.mark.parametrize("what", ["server", "engine"])
def test_one_is_whole_or_says_that_it_was_stopped_after_a_kill(
    lease: Lease, verb: str, what: str
) -> None:
    in_network_of(lease, partial(asyncio.run, kill(lease, verb, what)))


async def kill(lease: Lease, verb: str, what: str) -> None:
    """Kill the server or the engine at several points of a verb, and see that no more is said."""
    async with open_rig(KIND, config_of(lease), OPTIONS) as rig:
        for after_seconds in (0.05, 0.2, 0.5, 1.0):
            order = rig.order(command=("python3", "-c", WORKLOAD))
            handle, report = await rig.run(order)
            begun = await rig.ask(report, "GET", "/")
            await rig.backend.pause(handle)
            if verb == "resume":
                await rig.backend.hibernate(handle)
            await cut_off(rig, lease, verb, handle, what=what, after_seconds=after_seconds)
            is_stopped = await gone_on(rig, handle)
            if is_stopped:
                assert what == "engine", "what no engine ended was stopped"
                handle = await rig.backend.restart(order, handle, rig.save_to(order.sandbox_id))
            report = await rig.wait(handle, Phase.RUNNING)
            assert (await rig.ask(report, "GET", "/") == begun) is not is_stopped
            await rig.backend.delete(handle)
            assert await rig.reported_leftovers() == []


async def gone_on(rig: Rig, handle: Handle) -> bool:
    """Take a sandbox from wherever it is to running, as a server does; say whether it has to start."""
    rig.backend = await rig.open()
    while True:
        seen = await rig.backend.inspect(handle)
        if seen.phase is Phase.FAILED or seen.paused_as is PausedAs.STOPPED:
            return True
        await rig.backend.resume(handle)
        if (await rig.backend.inspect(handle)).phase in (Phase.STARTING, Phase.RUNNING):
            return False


async def cut_off(
    rig: Rig, lease: Lease, verb: str, handle: Handle, *, what: str, after_seconds: float
) -> None:
    told = (config_of(lease), handle)
    config, text = (msgspec.json.encode(one).decode() for one in told)
    state = rig.backend.context.state_dir
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.live.hibernating", verb),
        *(config, rig.instance_id, str(state), text),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert server.stdout is not None
    assert await server.stdout.readline() == b"open\n"
    await asyncio.sleep(after_seconds)
    if what == "engine":
        await asyncio.to_thread(lease.restart, signal.SIGKILL)
    elif server.returncode is None:
        server.kill()
    await server.wait()

"""What the docker backend promises beyond the contract, on a real engine."""

import asyncio
import contextlib
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiodocker
import msgspec
import pytest

from agentsvc.base.errors import BackendUnavailable, OrderRejected
from agentsvc.base.values import Secret
from agentsvc.plugin.backend import (
    BackendContext,
    Cause,
    ExecResult,
    Handle,
    Limits,
    Network,
    Order,
    PausedAs,
    Phase,
    Report,
    StillFetching,
)
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.testing import WORKLOAD, KitOptions
from agentsvc.testing.inspection import is_served
from agentsvc.testing.rig import Rig, open_rig
from tests.live.containers import Engine
from tests.live.registry import ABSENT, Registry
from tests.live.tls import carry, make_certificates

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

KIND = PluginHost.load().backend_types()["docker"]
MEMORY = 96 * 1024 * 1024

LISTENER = "0.0.0.0"  # noqa: S104  # what a sandbox must not reach
REACH = """
import socket, sys
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=2) as to:
            to.settimeout(2)
            said = to.recv(16)
    except OSError:
        said = b""
    print("yes" if said == b"welcome" else "no")
"""
PROXY = """
import os, sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=10).status)
    except urllib.error.HTTPError as exc:
        print(exc.code)
    except OSError as exc:
        print("none", exc)
"""

GROWS = """
import os, time
before = os.stat("/tmp/beats").st_size
while os.stat("/tmp/beats").st_size == before:
    time.sleep(0.05)
print("on")
"""


@contextlib.asynccontextmanager
async def rig_on(engine: Engine, **config: Any) -> AsyncIterator[Rig]:
    """Give a rig whose orders are for our own image."""
    overrides = {
        "image": engine.image,
        "command": ("python3", "-c", WORKLOAD),
        "env": {"KIT_HOST": LISTENER},
    }
    settings = KIND.Config(**{"host": engine.url, **config})
    options = KitOptions(order_overrides=overrides, beacon_host="")
    async with open_rig(KIND, settings, options) as rig:
        yield rig


async def python(rig: Rig, handle: Handle, code: str, *arguments: str) -> list[str]:
    result: ExecResult = await rig.backend.execute(
        handle, ["python3", "-c", code, *arguments], env={}, time_limit=60, max_output=10_000
    )
    assert result.exit_code == 0, result.stderr
    return result.stdout.decode().splitlines()


async def address_of(engine: Engine, order: Order) -> str:
    found = await asyncio.to_thread(
        engine.ask, f"/containers/oh-agent-server-{order.sandbox_id}/json"
    )
    [network] = found["NetworkSettings"]["Networks"].values()
    return str(network["IPAddress"])


@contextlib.asynccontextmanager
async def host_service() -> AsyncIterator[int]:
    """Give the port of something on this machine that listens on every address."""

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        with contextlib.suppress(OSError):
            writer.write(b"welcome")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(welcome, LISTENER, 0)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


@pytest.mark.parametrize("network", [Network.NONE, Network.ALLOWLIST])
async def test_a_fenced_sandbox_reaches_the_server_and_neither_this_machine_nor_its_neighbour(
    engine: Engine, network: Network
) -> None:
    async with rig_on(engine) as rig, host_service() as server, host_service() as other:
        url = f"http://agentsvc.internal:{server}/api/v1/webhooks"
        env = {"OH_WEBHOOKS_0_BASE_URL": url}
        order, neighbour = rig.order(network=network, env=env), rig.order(network=network, env=env)
        (handle, report), _ = await asyncio.gather(rig.run(order), rig.run(neighbour))
        # On a busy machine a relay may take long to say that nobody listens yet.
        await rig.until(lambda: is_served(rig, report))
        targets = [
            f"agentsvc.internal:{server}",
            f"agentsvc.internal:{other}",
            f"{engine.address}:{server}",
            f"{engine.address}:{other}",
            f"{await address_of(engine, neighbour)}:8100",
        ]
        assert await python(rig, handle, REACH, *targets) == ["yes", "no", "no", "no", "no"]
        assert report.facts == {}


async def test_an_open_sandbox_reaches_the_server_and_nothing_else_of_this_machine(
    engine: Engine,
) -> None:
    async with rig_on(engine) as rig, host_service() as server, host_service() as other:
        env = {"OH_WEBHOOKS_0_BASE_URL": f"http://agentsvc.internal:{server}/api/v1/webhooks"}
        order = rig.order(env=env)
        handle, report = await rig.run(order)
        targets = [
            f"agentsvc.internal:{server}",
            f"agentsvc.internal:{other}",
            f"{engine.address}:{other}",
        ]
        assert await python(rig, handle, REACH, *targets) == ["yes", "no", "no"]
        assert report.facts == {}
        await rig.backend.delete(handle)
        listed = await asyncio.create_subprocess_exec("iptables-save", stdout=PIPE)
        rules, _ = await listed.communicate()
        assert order.sandbox_id[:10].encode() not in rules


async def test_rules_that_somebody_took_away_are_put_back(engine: Engine) -> None:
    async with rig_on(engine) as rig, host_service() as service:
        order = rig.order()
        handle, _ = await rig.run(order)
        target = f"{engine.address}:{service}"
        assert await python(rig, handle, REACH, target) == ["no"]
        for rule in await _rules_of(order):
            await _iptables("-D", *rule[1:])
        assert await python(rig, handle, REACH, target) == ["yes"]
        while not await _rules_of(order):
            assert (await rig.backend.inspect(handle)).phase is Phase.RUNNING
            await asyncio.sleep(0.1)
        assert await python(rig, handle, REACH, target) == ["no"]


async def _rules_of(order: Order) -> list[list[str]]:
    rules = [line.split() for line in (await _iptables("-S", "INPUT")).splitlines()]
    return [rule for rule in rules if f"agsvo{order.sandbox_id[:10]}" in rule]


async def _iptables(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec("iptables", "-w", *arguments, stdout=PIPE)
    said, _ = await process.communicate()
    return said.decode()


async def test_the_list_of_hosts_is_kept_by_the_gateway(engine: Engine) -> None:
    async with rig_on(engine) as rig:
        service = await asyncio.start_server(_answer_http, LISTENER, 0)
        async with service:
            port = service.sockets[0].getsockname()[1]
            listed = f"{engine.address}:{port}"
            order = rig.order(network=Network.ALLOWLIST, allow_hosts=(listed,))
            handle, _report = await rig.run(order)
            urls = [f"http://{listed}/", "http://not-listed.example/"]
            assert await python(rig, handle, PROXY, *urls) == ["200", "403"]


async def _answer_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
    await writer.drain()
    writer.close()


async def test_without_a_listener_there_is_no_way_back_and_the_report_says_so(
    engine: Engine,
) -> None:
    async with rig_on(engine) as rig:
        env = {"OH_WEBHOOKS_0_BASE_URL": "http://agentsvc.internal:9/api/v1/webhooks"}
        _, report = await rig.run(rig.order(env=env))
        assert report.facts == {"callbacks": "none"}


STATE = """
import os, pathlib, resource
status = dict(line.split(":\\t") for line in open("/proc/self/status") if ":\\t" in line)
for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp"):
    print(status[name].strip())
print(os.getuid(), os.environ["KIT_SECRET"], os.environ["HOME"], os.getcwd())
print([str(p) for p in pathlib.Path("/").glob("**/*.sock") if "/proc/" not in str(p)])
def can_write(directory):
    try:
        (pathlib.Path(directory) / "x").write_text("x")
    except OSError:
        return False
    return True
places = ("/workspace", "/tmp", "/", "/etc", "/usr/bin", "/run/agentsvc", "/mnt/shared")
print([can_write(one) for one in places], pathlib.Path("/mnt/shared/note").read_text())
print(pathlib.Path("/proc/1/comm").read_text().strip())
print(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
for one, other in (("pids/pids.max", "pids.max"), ("memory/memory.limit_in_bytes", "memory.max")):
    group = pathlib.Path("/sys/fs/cgroup")
    print((group / one if (group / one).is_file() else group / other).read_text().strip())
"""


async def test_a_sandbox_has_no_rights_and_its_secrets_are_not_the_engines(
    engine: Engine, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "note").write_text("read")
    (tmp_path / "link").symlink_to("/etc")
    async with rig_on(engine, bind_mounts=(str(tmp_path),)) as rig:
        mounts = [{"source": str(tmp_path / "link"), "target": "/mnt/etc"}]
        with pytest.raises(OrderRejected, match="leads out"):
            await rig.create(rig.order(options={"mounts": mounts}))
        mounts = [{"source": str(shared), "target": "/mnt/shared"}]
        order = rig.order(
            options={"read_only": True, "mounts": mounts},
            secret_env={"KIT_SECRET": Secret("whisper'd")},
            working_dir="project",
            limits=Limits(memory_bytes=2**29, pids=100, open_files=500),
        )
        handle, report = await rig.run(order)
        lines = await python(rig, handle, STATE)
        assert lines[:4] == ["0" * 16, "0" * 16, "1", "2"]
        assert lines[4] == "1000 whisper'd /workspace/.home /"
        assert lines[5] == "[]"
        assert lines[6] == f"{[True, True, False, False, False, False, False]} read"
        assert lines[7:] == ["docker-init", "500", "100", str(2**29)]
        assert set(report.enforced or ()) == {"memory_bytes", "pids", "open_files"}
        name = f"oh-agent-server-{order.sandbox_id}"
        shown = await asyncio.to_thread(engine.ask, f"/containers/{name}/json")
        assert "whisper" not in json.dumps(shown)


async def test_a_frozen_sandbox_that_an_engine_stopped_goes_on_from_its_files(
    engine: Engine,
) -> None:
    async with rig_on(engine) as rig, aiodocker.Docker(engine.url) as docker:
        order = rig.order(network=Network.NONE)
        handle, report = await rig.run(order)
        await rig.ask(report, "PUT", "/files/note", b"kept")
        await rig.backend.pause(handle)
        frozen = await rig.backend.inspect(handle)
        assert (frozen.phase, frozen.paused_as) == (Phase.PAUSED, PausedAs.FROZEN)
        for name in ("", "-gateway"):
            container = docker.containers.container(f"oh-agent-server-{order.sandbox_id}{name}")
            with contextlib.suppress(aiodocker.DockerError):
                await container.unpause()
            await container.kill()
        stopped = await rig.wait(handle, Phase.PAUSED)
        assert stopped.paused_as is PausedAs.STOPPED
        await rig.backend.resume(handle)
        report = await rig.wait(handle, Phase.RUNNING)
        assert await rig.ask(report, "GET", "/files/note") == b"kept"
        # What ends now has not been paused.
        await rig.ask(report, "POST", "/exit/3")
        assert (await rig.wait(handle, Phase.FAILED)).cause is Cause.EXITED


async def test_a_sandbox_whose_container_was_removed_goes_on_from_its_files(
    engine: Engine,
) -> None:
    async with rig_on(engine) as rig, aiodocker.Docker(engine.url) as docker:
        order = rig.order()
        container = docker.containers.container(f"oh-agent-server-{order.sandbox_id}")
        handle, report = await rig.run(order)
        await rig.ask(report, "PUT", "/files/note", b"kept")
        await container.delete(force=True)
        lost = await rig.wait(handle, Phase.FAILED)
        assert (lost.cause, "its files still exist" in lost.reason) == (Cause.LOST, True)
        await rig.backend.restart(order, handle, rig.save_to(order.sandbox_id))
        await rig.wait(handle, Phase.RUNNING)
        # So do stopped ones, which whoever tidies up takes away.
        await rig.backend.stop(handle)
        await container.delete()
        stopped = await rig.wait(handle, Phase.PAUSED)
        assert stopped.paused_as is PausedAs.STOPPED
        await rig.backend.restart(order, handle, rig.save_to(order.sandbox_id))
        report = await rig.wait(handle, Phase.RUNNING)
        assert await rig.ask(report, "GET", "/files/note") == b"kept"
        await rig.ask(report, "POST", "/exit/3")
        assert (await rig.wait(handle, Phase.FAILED)).cause is Cause.EXITED


async def test_a_process_killed_for_want_of_memory_is_heard_of(engine: Engine) -> None:
    async with rig_on(engine) as rig:
        limits = Limits(memory_bytes=MEMORY)
        handle, _ = await rig.run(rig.order(limits=limits))
        hungry = ["python3", "-c", "x = b'x' * 500_000_000"]
        result = await rig.backend.execute(handle, hungry, env={}, time_limit=60, max_output=100)
        assert result.exit_code not in (0, None)

        async def is_told() -> bool:
            return "out_of_memory" in (await rig.backend.inspect(handle)).facts

        await rig.until(is_told)
        assert (await rig.backend.inspect(handle)).phase is Phase.RUNNING
        greedy = await rig.create(rig.order(limits=limits, command=tuple(hungry)))
        failed = await _wait_for_failure(rig, greedy)
        assert failed.cause is Cause.OUT_OF_MEMORY


async def _wait_for_failure(rig: Rig, handle: Handle) -> Report:
    # Until it has eaten all there is, it runs.
    while True:
        report = await rig.backend.inspect(handle)
        if report.phase is Phase.FAILED:
            return report
        await asyncio.sleep(0.1)


async def test_a_child_that_clears_its_environment_ends_with_its_command(engine: Engine) -> None:
    async with rig_on(engine) as rig:
        handle, _ = await rig.run(rig.order())
        beat = "while :; do echo x >> /tmp/beats; sleep 0.05; done"
        script = f"env -i setsid sh -c '{beat}' & exec sleep 100"
        command = ["sh", "-c", f"(true &); {script}"]
        # Long enough for the child to begin, on a busy machine, too.
        result = await rig.backend.execute(handle, command, env={}, time_limit=10, max_output=100)
        assert result.timed_out
        count = "import os, time; n = os.stat('/tmp/beats').st_size; time.sleep(0.5);"
        assert await python(
            rig, handle, f"{count} print(n > 0, os.stat('/tmp/beats').st_size - n)"
        ) == ["True 0"]
        # What another command started goes on.
        argv = ["sh", "-c", f"setsid sh -c '{beat}' >/dev/null 2>&1 &"]
        await rig.backend.execute(handle, argv, env={}, time_limit=60, max_output=100)
        await rig.backend.execute(handle, ["sleep", "60"], env={}, time_limit=0.2, max_output=100)
        assert await python(rig, handle, GROWS) == ["on"]


async def test_somebody_elses_container_is_neither_taken_nor_touched(engine: Engine) -> None:
    async with rig_on(engine) as rig, aiodocker.Docker(engine.url) as docker:
        order = rig.order()
        name = f"oh-agent-server-{order.sandbox_id}"
        config = {"Image": engine.image, "Cmd": ["sleep", "60"]}
        foreign = await docker.containers.create(config, name=name)
        try:
            with pytest.raises(OrderRejected, match="did not create"):
                await rig.create(order)
            handle = rig.saved[order.sandbox_id][-1]
            assert (await rig.backend.inspect(handle)).cause is Cause.LOST
            await rig.backend.delete(handle)
            assert (await rig.backend.inspect(handle)).phase is Phase.GONE
            assert (await foreign.show())["Id"] == foreign.id
        finally:
            await foreign.delete(force=True)
        assert await asyncio.to_thread(engine.has, rig.instance_id) == []


async def test_each_way_an_image_is_not_to_be_had_is_told_apart(
    engine: Engine, tmp_path: Path
) -> None:
    logins = str(tmp_path / "logins")
    async with Registry() as registry:
        (tmp_path / "logins").write_text(registry.logins())
        here = f"{registry.address}/agent"
        asked: list[tuple[str, dict[str, Any], str]] = [
            (f"{here}:1", {}, "refuses the login"),
            (f"{here}:2", {"auth_file": logins}, "no such tag"),
            (f"{registry.address}/{ABSENT}:1", {"auth_file": logins}, "no image"),
            ("127.0.0.1:1/agent:1", {}, "cannot be reached"),
            ("UPPER/case", {}, "not a valid image name"),
            (f"{here}:1", {"pull": "never"}, "`pull` is `never`"),
        ]
        for image, config, words in asked:
            async with rig_on(engine, pull_wait_seconds=20.0, **config) as rig:
                with pytest.raises((OrderRejected, BackendUnavailable), match=words):
                    await rig.create(rig.order(image=image))


async def test_an_image_is_fetched_with_a_login_and_its_progress_is_told(
    engine: Engine, tmp_path: Path
) -> None:
    async with Registry() as registry, aiodocker.Docker(engine.url) as docker:
        logins = tmp_path / "logins"
        logins.write_text(registry.logins())
        image = f"{registry.address}/agent:1"
        async with rig_on(engine, auth_file=str(logins), pull_wait_seconds=1.0) as rig:
            registry.flow.clear()
            order = rig.order(image=image)
            try:
                for _ in range(2):
                    with pytest.raises(StillFetching, match=r"is being pulled: .* of 1 layers"):
                        await rig.create(order)
                registry.flow.set()
                await _create_when_fetched(rig, order)
                # There is nothing in it that could be run.
                report = await _wait_for_failure(rig, rig.saved[order.sandbox_id][-1])
                assert report.cause is Cause.NOT_STARTED
                assert (await docker.images.inspect(image))["Config"]["Cmd"] == ["/content"]
            finally:
                for handle in rig.saved[order.sandbox_id]:
                    await rig.backend.delete(handle)
                with contextlib.suppress(aiodocker.DockerError):
                    await docker.images.delete(image, force=True)


async def _create_when_fetched(rig: Rig, order: Order) -> None:
    while True:
        with contextlib.suppress(BackendUnavailable):
            await rig.create(order)
            return


async def test_an_engine_is_reached_by_tls_with_certificates_and_not_without(
    engine: Engine, tmp_path: Path
) -> None:
    server, theirs = await asyncio.to_thread(make_certificates, tmp_path)
    async with carry(engine.socket, server) as port:
        url = f"tcp://127.0.0.1:{port}"
        tls = {"host": url, "tls_dir": str(theirs), "publish": "127.0.0.1"}
        async with rig_on(engine, **tls) as rig:
            order = rig.order()
            handle, report = await rig.run(order)
            assert await rig.ask(report, "GET", "/name") == order.sandbox_id.encode()
            # Where its port is published may be another place now.
            await rig.backend.stop(handle)
            await rig.backend.restart(order, handle, rig.save_to(order.sandbox_id))
            report = await rig.wait(handle, Phase.RUNNING)
            assert await rig.ask(report, "GET", "/name") == order.sandbox_id.encode()
            await rig.backend.delete(handle)
        for wrong in ("", str(tmp_path)):
            with pytest.raises(BackendUnavailable):
                async with rig_on(engine, host=url, tls_dir=wrong):
                    pass


async def test_an_engine_that_is_away_leaves_the_others_and_its_own_as_they_are(
    engine: Engine, tmp_path: Path
) -> None:
    near = {"name": "near", "host": engine.url, "labels": {"disk": "fast"}}
    away = {"name": "away", "host": f"unix://{tmp_path}/nobody.sock"}
    config = msgspec.convert({"hosts": [near, away]}, KIND.Config)
    async with rig_on(engine) as rig:
        context = BackendContext(instance_id=rig.instance_id, state_dir=tmp_path)
        backend = KIND(config, context)
        await backend.open()
        try:
            order = rig.order(options={"host_labels": {"disk": "fast"}})
            handle = await rig.create(order, backend)
            assert handle.data == {"engine": "near"}
            assert await rig.create(order, backend) == handle
            health = await backend.probe()
            assert health.ok
            assert "`away` cannot be reached" in health.reason
            there = msgspec.structs.replace(handle, data={"engine": "away"})
            for call in (backend.inspect(there), backend.scan(), backend.delete(there)):
                with pytest.raises(BackendUnavailable):
                    await call
            await backend.delete(handle)
            assert (await backend.inspect(handle)).phase is Phase.GONE
            with pytest.raises(OrderRejected, match="host_labels"):
                await rig.create(rig.order(options={"host_labels": {"disk": "slow"}}), backend)
        finally:
            await backend.close()
        rig.saved.clear()

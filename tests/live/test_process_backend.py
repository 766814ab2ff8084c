"""The process backend runs the published agent server, and leaves nothing of it behind."""

import asyncio
import errno
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from process import sandbox_directory, tree
from process.backend import ProcessBackend
from process.programs.shim import ZYGOTE
from process.settings import OpenNetwork, ProcessConfig
from process.specs import DEFAULT_SPEC

from agentsvc.agentserver.client import AgentClient, AgentServer
from agentsvc.base.values import Secret, new_id, new_key
from agentsvc.plugin import AGENT_OUTPUT
from agentsvc.plugin.backend import BackendContext, Handle, Order, Phase, Report
from agentsvc.testing.llm import ScriptedModel, call, finish
from tests.agent_checks import Rig

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

LAST = 120
SCRIPTS = {
    "count": [
        # What prints nothing for 30 s is not waited for.
        call(
            "terminal",
            command=f"for n in $(seq {LAST}); do echo $n; echo >> count; sleep 0.05; done",
        ),
        finish("Counted."),
    ],
}
BOTH_WAYS = pytest.mark.parametrize("use_cgroups", [True, False], ids=["cgroup", "signals"])


class Host:
    """A backend with one sandbox in which the agent server runs."""

    def __init__(self, directory: Path, **config: Any) -> None:
        self.context = BackendContext(instance_id=new_id(), state_dir=directory)
        self.backend = ProcessBackend(ProcessConfig(**config), self.context)
        self.key = new_key()

    def order(self, **env: str) -> Order:
        return Order(
            sandbox_id=new_id(),
            command=DEFAULT_SPEC.command,
            ports=DEFAULT_SPEC.ports,
            env={**DEFAULT_SPEC.env, **env},
            secret_env={"OH_SESSION_API_KEYS_0": Secret(self.key.reveal())},
        )

    async def start(self, order: Order) -> tuple[Handle, Report]:
        async def save(_handle: Handle) -> None: ...

        handle = await self.backend.create(order, save)
        while True:
            report = await self.backend.inspect(handle)
            if report.phase is not Phase.STARTING:
                return handle, report
            await asyncio.sleep(0.05)

    def members(self, handle: Handle) -> list[tree.Process]:
        return tree.Tree(
            mark=sandbox_directory.mark_of(self.context.instance_id, handle.sandbox_id)
        ).members()


@asynccontextmanager
async def on_host(directory: Path, **config: Any) -> AsyncIterator[Host]:
    host = Host(directory, **config)
    await host.backend.open()
    try:
        yield host
    finally:
        for found in await host.backend.scan():
            await host.backend.delete(found.handle)
        await host.backend.close()


def outcomes(port: int) -> set[int | None]:
    """Return what comes of tries to bind a port, in every way in which one can be shared."""
    found: set[int | None] = set()
    for address in ("127.0.0.1", ""):
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            with socket.socket() as taken:
                taken.setsockopt(socket.SOL_SOCKET, option, 1)
                try:
                    taken.bind((address, port))
                    found.add(None)
                except OSError as exc:
                    found.add(exc.errno)
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("use_bubblewrap", [True, False], ids=["bubblewrap", "plain"])
async def test_nobody_can_bind_the_port_of_an_agent_server_in_the_machines_network(
    tmp_path: Path, use_bubblewrap: bool
) -> None:
    async with on_host(
        tmp_path, network=OpenNetwork.HOST, use_bubblewrap=use_bubblewrap, zygote_seconds=150
    ) as host:
        for is_fork in (True, False) if use_bubblewrap else (False,):
            order = msgspec.structs.replace(host.order(**AGENT_OUTPUT), options={"zygote": is_fork})

            async def save(_handle: Handle) -> None: ...

            handle = await host.backend.create(order, save)
            report = await host.backend.inspect(handle)
            (port,) = [one.port for one in report.endpoints if one.name == "agent"]
            assert port is not None
            found = outcomes(port)
            while report.phase is Phase.STARTING:
                report = await host.backend.inspect(handle)
                found |= outcomes(port)
                await asyncio.sleep(0.05)
            assert report.phase is Phase.RUNNING, report.reason
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /alive HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in await reader.readline()
            writer.close()
            assert found | outcomes(port) == {errno.EADDRINUSE}
            assert (report.facts["started by"] == ZYGOTE) is is_fork


@pytest.fixture
async def client() -> AsyncIterator[AgentClient]:
    client = AgentClient()
    await client.open()
    yield client
    await client.close()


@BOTH_WAYS
async def test_an_agent_at_work_is_paused_resumed_and_removed_without_trace(
    tmp_path: Path, client: AgentClient, use_cgroups: bool
) -> None:
    # No server passes the model on here, and a network of its own has no way to this machine's.
    async with on_host(tmp_path, network=OpenNetwork.HOST, use_cgroups=use_cgroups) as host:
        handle, report = await host.start(host.order())
        assert report.phase is Phase.RUNNING, report
        url = next(item.url for item in report.endpoints if item.name == "agent")
        server = client.at(url, host.key)
        assert await server.is_alive()
        await work_with_a_break(host, handle, server, report.working_dir)
        # Asked for its tools, the agent server imports the browser package.
        await server.server_info()
        assert has_downloads(handle)
        await check_that_delete_leaves_nothing(host, handle, report)
        assert is_empty(tmp_path)


async def work_with_a_break(
    host: Host, handle: Handle, server: AgentServer, working_dir: str
) -> None:
    """Let an agent count in its terminal, and pause it in the middle."""
    count = host.backend.context.state_dir / handle.sandbox_id / "workspace" / "count"
    async with ScriptedModel(scripts=SCRIPTS) as model:
        rig = Rig(server, model_url=model.url, model_key=model.key.reveal(), path=working_dir)
        conversation_id = await rig.start("[script:count] go")
        await until_more_than(count, 5)
        await host.backend.pause(handle)
        assert (await host.backend.inspect(handle)).phase is Phase.PAUSED
        frozen_at = lines(count)
        await asyncio.sleep(0.5)
        assert lines(count) == frozen_at < LAST
        await host.backend.resume(handle)
        info = await rig.wait(conversation_id)
        assert info.execution_status == "finished"
    assert lines(count) == LAST


async def check_that_delete_leaves_nothing(host: Host, handle: Handle, report: Report) -> None:
    everyone = host.members(handle)
    names = {name_of(item) for item in everyone}
    assert any(name.startswith("tmux") for name in names), names
    await host.backend.delete(handle)
    assert not [item for item in everyone if tree.is_alive(item.identity)]
    assert sandbox_directory.temp_mark(Path(handle.data["temp"])) is None
    assert not handle.data["cgroup"] or not exists(handle.data["cgroup"])
    for endpoint in report.endpoints:
        with socket.socket() as trial:
            assert trial.connect_ex(("127.0.0.1", endpoint.port)) == errno.ECONNREFUSED


def test_the_browser_package_makes_no_directory_outside_the_sandbox(tmp_path: Path) -> None:
    code = (
        "import sys; sys.addaudithook(lambda name, about:"
        " print(about[0]) if name == 'os.mkdir' else None);"
        "import agentsvc.guest, openhands.tools.browser_use.impl"
    )
    env = {**DEFAULT_SPEC.env, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-Bc", code]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, check=True)
    made = [Path(line) for line in done.stdout.decode().splitlines() if line.startswith("/")]
    assert any(path.name.startswith("downloads-") for path in made), made
    assert [path for path in made if not path.is_relative_to(tmp_path)] == []


async def test_a_missing_agent_server_is_a_failure_that_says_so(tmp_path: Path) -> None:
    async with on_host(tmp_path) as host:
        # Without its site directory this Python has no agent server.
        command = (sys.executable, "-S", "-m", "openhands.agent_server")
        _, report = await host.start(
            Order(sandbox_id=new_id(), command=command, ports=DEFAULT_SPEC.ports)
        )
        assert (report.phase, report.exit_code) == (Phase.FAILED, 1)
        assert "No module named 'openhands" in report.reason


async def until_more_than(count: Path, least: int) -> None:
    while True:
        if lines(count) > least:
            return
        await asyncio.sleep(0.02)


def name_of(process: tree.Process) -> str:
    return Path(f"/proc/{process.pid}/comm").read_text().strip()


def lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def has_downloads(handle: Handle) -> bool:
    # In bubblewrap, where /tmp is the sandbox's own, the browser package names them itself.
    return any(Path(handle.data["temp"], "tmp").glob("*downloads-*"))


def exists(path: str) -> bool:
    return Path(path).exists()


def is_empty(directory: Path) -> bool:
    return not any(directory.iterdir())

"""A process backend, and a look at what it makes from outside."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from process import sandbox_directory, tree
from process.backend import ProcessBackend
from process.settings import ProcessConfig

from agentsvc.base.values import new_id
from agentsvc.plugin.backend import BackendContext, Handle, Order, Phase, Port, Report

SERVE = (
    "import http.server, sys;"
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])),"
    " http.server.SimpleHTTPRequestHandler).serve_forever()"
)
WEB = (Port(name="web"),)

BOTH_WAYS = pytest.mark.parametrize("use_cgroups", [True, False], ids=["cgroup", "signals"])


class CoreRig:
    """A backend, and a look at what it makes from outside."""

    def __init__(self, directory: Path, *, callback: str = "", **config: Any) -> None:
        self.callback = callback
        self.state_dir = directory / "state"
        self.instance_id = new_id()
        self.orders: dict[str, Order] = {}
        fields = {"use_bubblewrap": False, "zygote": False, **config}
        self.backend = ProcessBackend(ProcessConfig(**fields), self.context())

    def context(self) -> BackendContext:
        return BackendContext(
            instance_id=self.instance_id, state_dir=self.state_dir, callback_url=self.callback
        )

    async def create(self, *command: str, **fields: Any) -> Handle:
        order = Order(**{"sandbox_id": new_id(), "command": command, **fields})
        self.orders[order.sandbox_id] = order
        return await self.backend.create(order, no_save)

    async def serve(self, before: str = "pass", **fields: Any) -> Handle:
        """Create a sandbox that first does something and then serves, and wait for that."""
        handle = await self.create(
            "{python}", "-Ic", f"{before};{SERVE}", "{port.web}", ports=WEB, **fields
        )
        await self.wait(handle, Phase.RUNNING)
        return handle

    async def wait(self, handle: Handle, phase: Phase) -> Report:
        while True:
            report = await self.backend.inspect(handle)
            if report.phase is phase:
                return report
            assert report.phase in (Phase.STARTING, Phase.RUNNING), report
            await asyncio.sleep(0.01)

    async def run(self, handle: Handle, *argv: str) -> str:
        result = await self.backend.execute(handle, argv, env={}, time_limit=5, max_output=100_000)
        assert result.exit_code == 0, result
        return result.stdout.decode()

    def directory(self, handle: Handle) -> Path:
        return self.state_dir / handle.sandbox_id

    def state(self, handle: Handle) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.directory(handle) / "state.json").read_text())
        return state

    def processes(self, handle: Handle) -> list[tree.Process]:
        """Return everything alive that was started in a sandbox, found by the mark alone."""
        mark = sandbox_directory.mark_of(self.instance_id, handle.sandbox_id)
        return tree.Tree(mark=mark).members()


@asynccontextmanager
async def core_rig(directory: Path, *, callback: str = "", **config: Any) -> AsyncIterator[CoreRig]:
    bench = CoreRig(directory, callback=callback, **config)
    await bench.backend.open()
    try:
        yield bench
    finally:
        for found in await bench.backend.scan():
            await bench.backend.delete(found.handle)


async def no_save(_handle: Handle) -> None:
    """Save nothing; what matters here is on disk anyway."""


async def until(is_so: Callable[[], object]) -> None:
    while True:
        if is_so():
            return
        await asyncio.sleep(0.01)


def environment(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_text().strip("\0").split("\0")
    return dict(line.split("=", 1) for line in lines)


def change_state(directory: Path, **fields: object) -> None:
    file = directory / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def make_directory(path: str) -> None:
    Path(path).mkdir(mode=0o700)


def is_there(path: str) -> bool:
    return Path(path).exists()


def rights(path: Path | str) -> int:
    return Path(path).stat().st_mode & 0o777

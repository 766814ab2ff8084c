"""The example backend: each sandbox is a directory and a process group of this machine.

Adapt it: replace `_start`, `_kill` and the files that record the state by your infrastructure. The kit
in `tests/` shows what is still missing.
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from agentsvc.base import BackendUnavailable, HandleTooNew, OrderRejected
from agentsvc.plugin import (
    API_VERSION,
    Capability,
    Endpoint,
    Found,
    Handle,
    Health,
    Order,
    Phase,
    Report,
    RuntimeBackend,
    SaveHandle,
    Spec,
    fill,
    hookimpl,
)

HANDLE_VERSION = 1

_HOST = "127.0.0.1"
_POLL_SECONDS = 0.05
_PROCESSES = Path("/proc")
# Stores the exit code, because after a restart of the server nobody waits for the command.
_RUN = '"$@"; echo $? >../exit.part; mv ../exit.part ../exit'


class ExampleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[backends.example]` table."""

    kill_seconds: float = 10.0
    """How long to wait for the processes of a sandbox to end."""


class ExampleBackend(RuntimeBackend[ExampleConfig]):
    """Runs each sandbox as a plain process, without isolation."""

    name: ClassVar[str] = "example"
    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.SURVIVES_RESTART})
    Config = ExampleConfig

    async def open(self) -> None:
        """Create the directory of the sandboxes."""
        try:
            await asyncio.to_thread(self.context.state_dir.mkdir, parents=True, exist_ok=True)
        except OSError as exc:
            raise BackendUnavailable("The state directory cannot be made", detail=str(exc)) from exc

    async def probe(self) -> Health:
        """Report success with the free disk space."""
        free = (await asyncio.to_thread(shutil.disk_usage, self.context.state_dir)).free
        return Health(ok=True, facts={"free disk bytes": str(free)})

    def check_spec(self, spec: Spec) -> None:
        """Reject what this backend does not support."""
        self._check(spec)

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        """Prepare the directory, save the handle, then start the command unless it was started."""
        self._check(order)
        directory = self._directory(order.sandbox_id)
        # The directory is created first: scan lists it, whatever happens next.
        ports = await asyncio.to_thread(_prepare, directory, order)
        handle = Handle(sandbox_id=order.sandbox_id, version=HANDLE_VERSION, data={"ports": ports})
        await save(handle)
        # A thread cannot be cancelled, so wait for it even if this call is cancelled.
        start = asyncio.ensure_future(asyncio.to_thread(_start, directory, order, ports))  # noqa: TID251
        try:
            await asyncio.shield(start)
        except asyncio.CancelledError:
            await start
            raise
        return handle

    async def inspect(self, handle: Handle) -> Report:
        """Read the files, and check the process and its ports."""
        directory = self._directory_of(handle)
        if not await asyncio.to_thread(directory.is_dir):
            return Report(phase=Phase.GONE)
        ports: dict[str, int] = handle.data.get("ports", {})
        code = await asyncio.to_thread(_exit_code, directory)
        if code is not None:
            return Report(
                phase=Phase.FAILED, exit_code=code, reason=f"the command ended with code {code}"
            )
        is_up = all([await _answers(port) for port in ports.values()])
        return Report(
            phase=Phase.RUNNING if is_up else Phase.STARTING,
            endpoints=tuple(
                Endpoint(name=name, port=port, url=f"http://{_HOST}:{port}")
                for name, port in ports.items()
            ),
            working_dir=str(directory / "work"),
        )

    async def scan(self) -> Sequence[Found]:
        """List the directories, whose parent belongs to this installation only."""

        def listed() -> list[Found]:
            return [
                Found(
                    handle=Handle(sandbox_id=directory.name, version=HANDLE_VERSION),
                    created_at=datetime.fromtimestamp(directory.stat().st_mtime, UTC),
                )
                for directory in self.context.state_dir.iterdir()
            ]

        try:
            return await asyncio.to_thread(listed)
        except OSError as exc:
            raise BackendUnavailable("The sandboxes cannot be listed", detail=str(exc)) from exc

    async def delete(self, handle: Handle) -> None:
        """Kill every process of the sandbox, then remove its directory."""
        directory = self._directory_of(handle)
        await asyncio.to_thread(_end, directory, self.config.kill_seconds)
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    def _check(self, asked: Spec | Order) -> None:
        if not asked.command:
            raise OrderRejected("A sandbox of this backend needs a command")
        if asked.image or asked.options:
            raise OrderRejected("This backend has neither images nor options")
        self.check_fences(asked)

    def _directory_of(self, handle: Handle) -> Path:
        if handle.version > HANDLE_VERSION:
            raise HandleTooNew("The sandbox was made by a newer version of this backend")
        return self._directory(handle.sandbox_id)

    def _directory(self, sandbox_id: str) -> Path:
        if not re.fullmatch(r"[a-z0-9]+", sandbox_id):
            raise OrderRejected("The sandbox's id cannot name a directory")
        return self.context.state_dir / sandbox_id


@hookimpl
def agentsvc_register_backends() -> Iterable[type[RuntimeBackend[Any]]]:
    """Register the backend."""
    return [ExampleBackend]


# Blocking functions, which run in threads


def _prepare(directory: Path, order: Order) -> dict[str, int]:
    """Create the directory and choose the ports, or return those chosen before."""
    (directory / "work").mkdir(parents=True, exist_ok=True)
    file = directory / "ports.json"
    if not file.exists():
        ports = {port.name: port.number or _free_port() for port in order.ports}
        (directory / "ports.part").write_bytes(msgspec.json.encode(ports))
        (directory / "ports.part").rename(file)
    return msgspec.json.decode(file.read_bytes(), type=dict[str, int])


def _start(directory: Path, order: Order, ports: dict[str, int]) -> None:
    if (directory / "pid").exists():
        return
    env = {name: fill(value, ports) for name, value in order.env.items()}
    env |= {name: value.reveal() for name, value in order.secret_env.items()}
    env.setdefault("PATH", os.defpath)
    process = subprocess.Popen(  # noqa: S603  # to run the order's command is what it is for
        ["/bin/sh", "-c", _RUN, "sh", *(fill(part, ports) for part in order.command or ())],
        cwd=directory / "work",
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    (directory / "pid").write_text(str(process.pid))
    # The process outlives this object; `_kill` reaps it.
    process.returncode = 0


def _exit_code(directory: Path) -> int | None:
    file = directory / "exit"
    return int(file.read_text()) if file.exists() else None


def _end(directory: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while _kill(directory):
        if time.monotonic() > deadline:
            raise BackendUnavailable("The processes of the sandbox do not end")
        time.sleep(_POLL_SECONDS)


def _kill(directory: Path) -> bool:
    """Kill the process group, and return whether any process may still run."""
    try:
        group = int((directory / "pid").read_text())
        os.killpg(group, signal.SIGKILL)
    except (OSError, ValueError):
        return False
    with contextlib.suppress(ChildProcessError):
        os.waitpid(group, 0)
    return _runs(group)


def _runs(group: int) -> bool:
    """Return whether any process of a group is running, zombies excluded."""
    if not _PROCESSES.is_dir():
        return True
    for file in _PROCESSES.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, member = file.read_text().rpartition(")")[2].split()[:3]
            if int(member) == group and state not in "ZX":
                return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(_HOST, port)
    except OSError:
        return False
    writer.close()
    return True

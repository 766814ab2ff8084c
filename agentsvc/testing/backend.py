"""A fake backend whose sandboxes are threads of the test, with a switch for every failure.

A FakeWorld holds the sandboxes; it outlives the backends created on it, as real infrastructure
outlives the server. It runs the kit's workload in each sandbox, or, with `on_create`,
whatever the test serves at the URLs it returns.
"""

import asyncio
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from agentsvc.base import BackendUnavailable, Conflict, HandleTooNew, OrderRejected, now
from agentsvc.plugin import (
    API_VERSION,
    BackendContext,
    Capability,
    Cause,
    Checkpoint,
    Endpoint,
    Fences,
    Found,
    Handle,
    Health,
    ImageBuild,
    Isolation,
    Limits,
    LogLine,
    Order,
    PausedAs,
    Phase,
    Port,
    Report,
    RuntimeBackend,
    SaveHandle,
    Spec,
    Usage,
    fill,
    hookimpl,
)
from agentsvc.testing.workload import Workload

HANDLE_VERSION: Final = 1
WORKING_DIR: Final = "/workspace/project"

_FOLLOW_SECONDS = 0.01

type Urls = Mapping[str, str]


class FakeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fake backend's table, without keys; its switches are attributes of the world."""


class FakeSandbox:
    """One sandbox of a FakeWorld; tests may inspect all of it."""

    def __init__(self, order: Order, instance_id: str) -> None:
        self.order = order
        self.instance_id = instance_id
        self.created_at: datetime = now()
        self.phase = Phase.STARTING
        self.reason = ""
        self.exit_code: int | None = None
        self.paused_as: PausedAs | None = None
        self.urls: Urls = {}
        self.log: list[LogLine] = []
        self.directory: Path | None = None
        self.checkpoints: list[tuple[Checkpoint, dict[str, bytes]]] = []
        self.ports: dict[str, int] = {}
        self.workload: Workload | None = None
        self.thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._is_removed = False

    def start(self, phase: Phase) -> None:
        """Run the kit's workload in a thread; blocks for a moment."""
        with self._lock:
            if self._is_removed:
                return
            self.directory = self.directory or Path(tempfile.mkdtemp(prefix="agentsvc-fake-"))
            self.ports = self.ports or {port.name: _free_port() for port in self.order.ports}
            secret = {name: value.reveal() for name, value in self.order.secret_env.items()}
            env = {name: fill(value, self.ports) for name, value in self.order.env.items()}
            self.workload = Workload({**env, **secret}, self.directory, self._write)
            self.workload.open()
            self.urls = {name: f"http://127.0.0.1:{port}" for name, port in self.ports.items()}
            self.phase = phase
            self.thread = threading.Thread(target=self._run, args=(self.workload,), daemon=True)
            self.thread.start()

    def stop(self) -> None:
        """Stop the workload's thread; blocks for a moment."""
        with self._lock:
            workload, self.workload = self.workload, None
            if workload is not None and self.thread is not None:
                workload.stop()
                self.thread.join()

    def remove(self) -> None:
        """Stop permanently, and remove the files; blocks for a moment."""
        with self._lock:
            self._is_removed = True
            self.stop()
            if self.directory is not None:
                shutil.rmtree(self.directory, ignore_errors=True)

    def files(self) -> dict[str, bytes]:
        """Return the files by name; blocks for a moment."""
        found = self.directory.iterdir() if self.directory is not None else ()
        return {path.name: path.read_bytes() for path in found}

    def begin_with(self, files: Mapping[str, bytes]) -> None:
        """Replace all files; blocks for a moment."""
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
        self.directory = Path(tempfile.mkdtemp(prefix="agentsvc-fake-"))
        for name, content in files.items():
            (self.directory / name).write_bytes(content)

    def _run(self, workload: Workload) -> None:
        code = workload.run()
        if workload is self.workload:  # it exited by itself
            self.phase, self.exit_code = Phase.FAILED, code
            self.reason = f"the command exited with code {code}"

    def _write(self, text: str) -> None:
        self.log.append(LogLine(at=now(), stream="stdout", text=text))


class FakeWorld:
    """The infrastructure of fake sandboxes, with switches for failures."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, FakeSandbox] = {}
        self.calls: list[tuple[str, str]] = []
        """The method and the sandbox id of every call so far."""
        self.slow = 0.0
        """The duration of every call in seconds."""
        self.unreachable = False
        """Whether every call raises BackendUnavailable."""
        self.fail_next: Exception | None = None
        """An error that the next call raises, once."""
        self.stays_starting = False
        """Whether new sandboxes stay in STARTING until `finish_start` is called."""
        self.on_create: Callable[[Order], Urls] | None = None
        """Returns the URL to report for each port; no workload is run then."""
        self.fences = Fences()
        """The result of `fences`."""
        self.default_isolation = Isolation.NONE
        """The `default_isolation` of backend classes of this world."""
        self.least_isolation = Isolation.NONE
        """The `least_isolation` of its backends."""
        self.usage: Usage | None = None
        """The usage reported for every sandbox; None for real values."""
        self.isolation = Isolation.NONE
        """The isolation in every report."""
        self.layers: dict[str, dict[str, bytes]] = {}
        """The files of each layer, by name."""
        self.images: dict[str, ImageBuild] = {}
        """The build of each image, by id."""
        self.why_no_reclaim = ""
        """The result of `why_no_reclaim`."""
        self.why_no_copies = ""
        """The result of `why_no_copies`."""
        self.why_no_hibernate = ""
        """The result of `why_no_hibernate`."""
        self.hibernation_fails = False
        """Whether writing memory to disk loses it."""
        self.endless_reclaim = False
        """Whether `reclaim` blocks until it is cancelled."""
        self.is_here = False
        """The result of `runs_here`."""

    def backend(self, instance_id: str = "test", state_dir: Path = Path()) -> "FakeBackend":
        """Return a backend on this world; a second one simulates a restart."""
        context = BackendContext(instance_id=instance_id, state_dir=state_dir)
        return self.backend_type()(FakeConfig(), context)

    def backend_type(self) -> "type[FakeBackend]":
        """Return a backend class whose instances are all on this world."""
        attributes = {"world": self, "default_isolation": self.default_isolation}
        return type("FakeBackend", (FakeBackend,), attributes)

    def plugin(self) -> object:
        """Return a plugin that registers this world as the backend and the spec `fake`."""
        return FakePlugin(self)

    def end(self, sandbox_id: str, exit_code: int = 1, reason: str = "it was told to end") -> None:
        """Make a sandbox fail."""
        sandbox = self.sandboxes[sandbox_id]
        sandbox.stop()
        sandbox.phase, sandbox.exit_code, sandbox.reason = Phase.FAILED, exit_code, reason

    def vanish(self, sandbox_id: str) -> None:
        """Remove a sandbox without the knowledge of backend and server."""
        self.sandboxes.pop(sandbox_id).remove()

    def finish_start(self, sandbox_id: str) -> None:
        """Set a sandbox that is kept in STARTING to RUNNING."""
        self.sandboxes[sandbox_id].phase = Phase.RUNNING

    def close(self) -> None:
        """Remove every sandbox."""
        for sandbox_id in list(self.sandboxes):
            self.vanish(sandbox_id)


class FakePlugin:
    """A plugin object that registers a FakeWorld."""

    def __init__(self, world: FakeWorld) -> None:
        self._world = world

    @hookimpl
    def agentsvc_register_backends(self) -> Iterable[type[RuntimeBackend[Any]]]:
        """Register the fake backend."""
        return [self._world.backend_type()]

    @hookimpl
    def agentsvc_register_specs(self) -> Iterable[Spec]:
        """Register one spec with an agent's port."""
        return [FAKE_SPEC]


FAKE_SPEC: Final = Spec(id="fake", backend="fake", command=("agent",), ports=(Port(name="agent"),))
"""A spec for the fake backend."""


class FakeBackend(RuntimeBackend[FakeConfig]):
    """Runs sandboxes in a FakeWorld; create it by `FakeWorld.backend`."""

    name: ClassVar[str] = "fake"
    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {
        Capability.EXECUTE,
        Capability.LIMITS,
    }
    Config = FakeConfig
    world: ClassVar[FakeWorld]

    async def probe(self) -> Health:
        """Report success, unless a switch is set."""
        await self._call("probe")
        return Health(ok=True, facts={"sandboxes": str(len(self.world.sandboxes))})

    @property
    def runs_here(self) -> bool:
        """Return the world's `is_here`."""
        return self.world.is_here

    @property
    def least_isolation(self) -> Isolation:
        """Return the world's `least_isolation`."""
        return self.world.least_isolation

    def fences(self, asked: Spec | Order) -> Fences:
        """Return the world's `fences`."""
        del asked
        return self.world.fences

    def check_spec(self, spec: Spec) -> None:
        """Reject limits, which the fake backend does not enforce."""
        _check(spec)

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        """Create a sandbox that runs at once, unless it exists."""
        self.check_fences(order)
        _check(order)
        await self._call("create", order.sandbox_id)
        if order.layer and order.layer not in self.world.layers:
            raise OrderRejected("There is no such layer")
        files = self.world.layers.get(order.layer)
        if order.copy_of and order.sandbox_id not in self.world.sandboxes:
            other = self.world.sandboxes.get(order.copy_of)
            if other is None:
                raise OrderRejected("There is no such sandbox")
            files = await asyncio.to_thread(other.files)
        if order.sandbox_id not in self.world.sandboxes:
            sandbox = FakeSandbox(order, self.context.instance_id)
            self.world.sandboxes[order.sandbox_id] = sandbox
            if files is not None:
                await asyncio.to_thread(sandbox.begin_with, files)
            await self._start(sandbox)
        handle = self._handle(order.sandbox_id)
        await save(handle)
        return handle

    async def inspect(self, handle: Handle) -> Report:
        """Report the state of a sandbox."""
        sandbox = await self._find("inspect", handle)
        if sandbox is None:
            return Report(phase=Phase.GONE)
        return Report(
            phase=sandbox.phase,
            reason=sandbox.reason,
            exit_code=sandbox.exit_code,
            working_dir=sandbox.order.working_dir or WORKING_DIR,
            isolation=self.world.isolation,
            paused_as=sandbox.paused_as if sandbox.phase is Phase.PAUSED else None,
            cause=Cause.EXITED if sandbox.phase is Phase.FAILED else None,
            enforced=(),
            endpoints=tuple(
                Endpoint(name=name, port=urlsplit(url).port or 80, url=url)
                for name, url in sandbox.urls.items()
            ),
        )

    async def usage(self, handle: Handle) -> Usage | None:
        """Return the world's `usage`, or the CPU time of this process."""
        if self.world.unreachable:
            raise BackendUnavailable("The fake world is out of reach")
        sandbox = self.world.sandboxes.get(handle.sandbox_id)
        if sandbox is None or sandbox.phase is not Phase.RUNNING:
            return None
        used = Usage(cpu_seconds=time.process_time(), memory_bytes=1024 * 1024, processes=1)
        return self.world.usage or used

    async def give_way(self, handles: Sequence[Handle]) -> None:
        """Only record the call."""
        await self._call("give_way", " ".join(sorted(one.sandbox_id for one in handles)))

    async def scan(self) -> Sequence[Found]:
        """List the world's sandboxes of this instance."""
        await self._call("scan")
        return [
            Found(handle=self._handle(sandbox_id), created_at=sandbox.created_at)
            for sandbox_id, sandbox in self.world.sandboxes.items()
            if sandbox.instance_id == self.context.instance_id
        ]

    async def delete(self, handle: Handle) -> None:
        """Remove a sandbox."""
        sandbox = await self._find("delete", handle)
        if sandbox is not None:
            await asyncio.to_thread(sandbox.remove)
            self.world.sandboxes.pop(handle.sandbox_id, None)

    async def pause(self, handle: Handle) -> None:
        """Stop the workload and keep its files; the workload has no memory that matters."""
        sandbox = self._usable(await self._find("pause", handle))
        if sandbox.phase is not Phase.PAUSED:
            await asyncio.to_thread(sandbox.stop)
            sandbox.phase, sandbox.paused_as = Phase.PAUSED, PausedAs.FROZEN

    def why_no_reclaim(self) -> str:
        """Return the world's `why_no_reclaim`."""
        return self.world.why_no_reclaim

    def why_no_copies(self) -> str:
        """Return the world's `why_no_copies`, unless the class has a reason of its own."""
        return super().why_no_copies() or self.world.why_no_copies

    async def reclaim(self, handle: Handle) -> None:
        """Mark a frozen sandbox as reclaimed."""
        sandbox = self._usable(await self._find("reclaim", handle))
        if sandbox.phase is not Phase.PAUSED:
            raise Conflict("The sandbox is not paused")
        if self.world.endless_reclaim:
            await asyncio.Event().wait()
        if sandbox.paused_as is PausedAs.FROZEN and not self.world.why_no_reclaim:
            sandbox.paused_as = PausedAs.RECLAIMED

    def why_no_hibernate(self) -> str:
        """Return the world's `why_no_hibernate`."""
        return self.world.why_no_hibernate

    async def hibernate(self, handle: Handle) -> None:
        """Mark a paused sandbox as on disk, or as stopped if hibernation fails."""
        sandbox = self._usable(await self._find("hibernate", handle))
        if sandbox.phase is not Phase.PAUSED:
            raise Conflict("The sandbox is not paused")
        if sandbox.paused_as is not PausedAs.STOPPED and not self.world.why_no_hibernate:
            is_lost = self.world.hibernation_fails
            sandbox.paused_as = PausedAs.STOPPED if is_lost else PausedAs.ON_DISK

    async def stop(self, handle: Handle) -> None:
        """Stop the workload and keep its files."""
        sandbox = self._usable(await self._find("stop", handle))
        await asyncio.to_thread(sandbox.stop)
        sandbox.phase, sandbox.paused_as = Phase.PAUSED, PausedAs.STOPPED

    async def resume(self, handle: Handle) -> Handle:
        """Start the workload again on its files."""
        sandbox = self._usable(await self._find("resume", handle))
        if sandbox.phase is Phase.PAUSED:
            if sandbox.paused_as is PausedAs.STOPPED:
                raise Conflict("The sandbox was stopped, and has to be started again")
            await self._start(sandbox)
        return handle

    async def restart(self, order: Order, handle: Handle, save: SaveHandle) -> Handle:
        """Start a failed or stopped sandbox again on its files."""
        sandbox = await self._find("restart", handle)
        if sandbox is None:
            raise Conflict("The sandbox cannot be started again: its files are gone")
        is_stopped = sandbox.phase is Phase.PAUSED and sandbox.paused_as is PausedAs.STOPPED
        if sandbox.phase is Phase.FAILED or is_stopped:
            sandbox.order, sandbox.reason, sandbox.exit_code = order, "", None
            await self._start(sandbox)
        await save(handle)
        return handle

    async def keep_layer(self, handle: Handle, layer_id: str, *, max_bytes: int) -> int:
        """Store the files of a stopped sandbox as a layer."""
        sandbox = self._usable(await self._find("keep_layer", handle))
        if sandbox.phase is not Phase.PAUSED or sandbox.paused_as is not PausedAs.STOPPED:
            raise Conflict("The sandbox is not stopped")
        files = await asyncio.to_thread(sandbox.files)
        size = 1 + sum(map(len, files.values()))
        if size > max_bytes:
            raise OrderRejected(f"The files take {size} bytes, and may take {max_bytes}")
        self.world.layers.setdefault(layer_id, files)
        return size

    async def layers(self) -> Sequence[str]:
        """List the layers of the world."""
        await self._call("layers")
        return list(self.world.layers)

    async def remove_layer(self, layer_id: str) -> None:
        """Remove a layer."""
        await self._call("remove_layer")
        self.world.layers.pop(layer_id, None)

    async def build_image(self, image_id: str, build: ImageBuild) -> str:
        """Store a build, unless its Dockerfile does not begin with FROM."""
        await self._call("build_image")
        if not build.dockerfile.startswith("FROM "):
            raise OrderRejected("The image cannot be built: no FROM", detail=build.dockerfile[:100])
        self.world.images.setdefault(image_id, build)
        return f"fake:{image_id}"

    async def images(self) -> Sequence[str]:
        """List the images of the world."""
        await self._call("images")
        return list(self.world.images)

    async def remove_image(self, image_id: str) -> None:
        """Remove an image."""
        await self._call("remove_image")
        self.world.images.pop(image_id, None)

    async def checkpoint(
        self, handle: Handle, checkpoint_id: str, *, keep: int, max_bytes: int
    ) -> None:
        """Store the files of a sandbox as a checkpoint."""
        sandbox = self._usable(await self._find("checkpoint", handle))
        files = await asyncio.to_thread(sandbox.files)
        if 1 + sum(map(len, files.values())) > max_bytes:
            raise OrderRejected("The files are too large for a checkpoint")
        one = Checkpoint(id=checkpoint_id, created_at=now())
        sandbox.checkpoints = [*sandbox.checkpoints, (one, files)][-keep:]

    async def checkpoints(self, handle: Handle) -> Sequence[Checkpoint]:
        """List the checkpoints of a sandbox."""
        sandbox = await self._find("checkpoints", handle)
        return [one for one, _ in sandbox.checkpoints] if sandbox else ()

    async def roll_back(self, handle: Handle, checkpoint_id: str) -> None:
        """Restore the files of a checkpoint in a stopped sandbox."""
        sandbox = self._usable(await self._find("roll_back", handle))
        if sandbox.phase is not Phase.PAUSED or sandbox.paused_as is not PausedAs.STOPPED:
            raise Conflict("The sandbox is not stopped")
        for one, files in sandbox.checkpoints:
            if one.id == checkpoint_id:
                await asyncio.to_thread(sandbox.begin_with, files)
                return
        raise OrderRejected("There is no such checkpoint")

    async def logs(self, handle: Handle, *, tail: int, follow: bool) -> AsyncIterator[LogLine]:
        """Yield the output of the workload."""
        sandbox = await self._find("logs", handle)
        if sandbox is None:
            return
        position = max(0, len(sandbox.log) - tail)
        while True:
            for line in sandbox.log[position:]:
                position += 1
                yield line
            if not follow or handle.sandbox_id not in self.world.sandboxes:
                return
            await asyncio.sleep(_FOLLOW_SECONDS)

    async def _start(self, sandbox: FakeSandbox) -> None:
        phase = Phase.STARTING if self.world.stays_starting else Phase.RUNNING
        if self.world.on_create is not None:
            sandbox.urls = self.world.on_create(sandbox.order)
            sandbox.phase = phase
        else:
            # Completed even if the caller is cancelled, because the sandbox is already listed.
            await asyncio.shield(asyncio.to_thread(sandbox.start, phase))

    async def _find(self, method: str, handle: Handle) -> FakeSandbox | None:
        if handle.version > HANDLE_VERSION:
            raise HandleTooNew("The sandbox was made by a newer version of the fake backend")
        await self._call(method, handle.sandbox_id)
        return self.world.sandboxes.get(handle.sandbox_id)

    def _usable(self, sandbox: FakeSandbox | None) -> FakeSandbox:
        if sandbox is None or sandbox.phase is Phase.FAILED:
            raise Conflict("The sandbox does not run")
        return sandbox

    async def _call(self, method: str, sandbox_id: str = "") -> None:
        self.world.calls.append((method, sandbox_id))
        if self.world.slow:
            await asyncio.sleep(self.world.slow)
        error, self.world.fail_next = self.world.fail_next, None
        if error is not None:
            raise error
        if self.world.unreachable:
            raise BackendUnavailable("The fake world is out of reach")

    def _handle(self, sandbox_id: str) -> Handle:
        return Handle(sandbox_id=sandbox_id, version=HANDLE_VERSION)


def _check(asked: Spec | Order) -> None:
    if asked.limits != Limits():
        raise OrderRejected("The fake backend cannot enforce limits")


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])

"""A backend whose sandboxes are threads of the test, with switches for every misfortune.

A FakeWorld is the place where the sandboxes are; it outlives the backends made on it, as a real
place would outlive the server. It runs the kit's workload in each sandbox, or, with `on_create`,
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
    """The fake backend's table: nothing to configure; its switches are on the world."""


class FakeSandbox:
    """One sandbox of a FakeWorld; tests may look at all of it."""

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
        """End the workload's thread; blocks for a moment."""
        with self._lock:
            workload, self.workload = self.workload, None
            if workload is not None and self.thread is not None:
                workload.stop()
                self.thread.join()

    def remove(self) -> None:
        """Stop for good, and remove the files; blocks for a moment."""
        with self._lock:
            self._is_removed = True
            self.stop()
            if self.directory is not None:
                shutil.rmtree(self.directory, ignore_errors=True)

    def files(self) -> dict[str, bytes]:
        """Return its files by their names; blocks for a moment."""
        found = self.directory.iterdir() if self.directory is not None else ()
        return {path.name: path.read_bytes() for path in found}

    def begin_with(self, files: Mapping[str, bytes]) -> None:
        """Have it begin with these files; blocks for a moment."""
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
        self.directory = Path(tempfile.mkdtemp(prefix="agentsvc-fake-"))
        for name, content in files.items():
            (self.directory / name).write_bytes(content)

    def _run(self, workload: Workload) -> None:
        code = workload.run()
        if workload is self.workload:  # nobody stopped it
            self.phase, self.exit_code = Phase.FAILED, code
            self.reason = f"the command exited with code {code}"

    def _write(self, text: str) -> None:
        self.log.append(LogLine(at=now(), stream="stdout", text=text))


class FakeWorld:
    """Where fake sandboxes are, and the switches that make it misbehave."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, FakeSandbox] = {}
        self.calls: list[tuple[str, str]] = []
        """The method and the sandbox id of every call so far."""
        self.slow = 0.0
        """Seconds that every call takes."""
        self.unreachable = False
        """Every call raises BackendUnavailable."""
        self.fail_next: Exception | None = None
        """Raised by the next call, once."""
        self.stays_starting = False
        """New sandboxes do not become usable until `finish_start` is called."""
        self.on_create: Callable[[Order], Urls] | None = None
        """Returns the URL to report for each port; then no workload is run."""
        self.fences = Fences()
        """How sandboxes are held here."""
        self.default_isolation = Isolation.NONE
        """What backends on this world are made for, as a class says it."""
        self.least_isolation = Isolation.NONE
        """What no configuration may go below."""
        self.usage: Usage | None = None
        """What every sandbox is said to use."""
        self.isolation = Isolation.NONE
        """What every report says is in force, be it true or not."""
        self.layers: dict[str, dict[str, bytes]] = {}
        """The files of each layer, by their names."""
        self.images: dict[str, ImageBuild] = {}
        """What each image was built from, by its id."""
        self.why_no_reclaim = ""
        """Why no memory can be pushed out."""
        self.why_no_copies = ""
        """Why no files can be kept or copied."""
        self.why_no_hibernate = ""
        """Why no memory can be kept on disk."""
        self.hibernation_fails = False
        """Memory is lost when it is written to disk."""
        self.endless_reclaim = False
        """To push memory out takes until it is cancelled."""
        self.is_here = False
        """Sandboxes are said to use the processors of the server's machine."""

    def backend(self, instance_id: str = "test", state_dir: Path = Path()) -> "FakeBackend":
        """Return a backend on this world; a further one is what comes after a restart."""
        context = BackendContext(instance_id=instance_id, state_dir=state_dir)
        return self.backend_type()(FakeConfig(), context)

    def backend_type(self) -> "type[FakeBackend]":
        """Return a class whose instances all are on this world."""
        attributes = {"world": self, "default_isolation": self.default_isolation}
        return type("FakeBackend", (FakeBackend,), attributes)

    def plugin(self) -> object:
        """Return a plugin that offers this world as the backend and the spec `fake`."""
        return FakePlugin(self)

    def end(self, sandbox_id: str, exit_code: int = 1, reason: str = "it was told to end") -> None:
        """Make a sandbox fail."""
        sandbox = self.sandboxes[sandbox_id]
        sandbox.stop()
        sandbox.phase, sandbox.exit_code, sandbox.reason = Phase.FAILED, exit_code, reason

    def vanish(self, sandbox_id: str) -> None:
        """Remove a sandbox behind everybody's back."""
        self.sandboxes.pop(sandbox_id).remove()

    def finish_start(self, sandbox_id: str) -> None:
        """Let a sandbox that stays starting become usable."""
        self.sandboxes[sandbox_id].phase = Phase.RUNNING

    def close(self) -> None:
        """Remove every sandbox."""
        for sandbox_id in list(self.sandboxes):
            self.vanish(sandbox_id)


class FakePlugin:
    """A plugin object that offers one FakeWorld."""

    def __init__(self, world: FakeWorld) -> None:
        self._world = world

    @hookimpl
    def agentsvc_register_backends(self) -> Iterable[type[RuntimeBackend[Any]]]:
        """Offer the fake backend."""
        return [self._world.backend_type()]

    @hookimpl
    def agentsvc_register_specs(self) -> Iterable[Spec]:
        """Offer one spec with an agent's port."""
        return [FAKE_SPEC]


FAKE_SPEC: Final = Spec(id="fake", backend="fake", command=("agent",), ports=(Port(name="agent"),))
"""A spec for the fake backend."""


class FakeBackend(RuntimeBackend[FakeConfig]):
    """Runs sandboxes in a FakeWorld; get one from there."""

    name: ClassVar[str] = "fake"
    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {
        Capability.EXECUTE,
        Capability.LIMITS,
    }
    Config = FakeConfig
    world: ClassVar[FakeWorld]

    async def probe(self) -> Health:
        """Say that all is well, unless a switch says otherwise."""
        await self._call("probe")
        return Health(ok=True, facts={"sandboxes": str(len(self.world.sandboxes))})

    @property
    def runs_here(self) -> bool:
        """Say what the world was told to say."""
        return self.world.is_here

    @property
    def least_isolation(self) -> Isolation:
        """Say what the world was told to say."""
        return self.world.least_isolation

    def fences(self, asked: Spec | Order) -> Fences:
        """Say what the world was told to say."""
        del asked
        return self.world.fences

    def check_spec(self, spec: Spec) -> None:
        """Refuse limits, which nothing here would enforce."""
        _check(spec)

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        """Make a sandbox that runs at once, or the one there is."""
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
        """Report what the world knows."""
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
        """Say what the world was told to say, or what all of this process has used."""
        if self.world.unreachable:
            raise BackendUnavailable("The fake world is out of reach")
        sandbox = self.world.sandboxes.get(handle.sandbox_id)
        if sandbox is None or sandbox.phase is not Phase.RUNNING:
            return None
        used = Usage(cpu_seconds=time.process_time(), memory_bytes=1024 * 1024, processes=1)
        return self.world.usage or used

    async def give_way(self, handles: Sequence[Handle]) -> None:
        """Do nothing but take note."""
        await self._call("give_way", " ".join(sorted(one.sandbox_id for one in handles)))

    async def scan(self) -> Sequence[Found]:
        """List the world's sandboxes that this instance made."""
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
        """Let the workload rest and keep its files; its memory has nothing to be kept."""
        sandbox = self._usable(await self._find("pause", handle))
        if sandbox.phase is not Phase.PAUSED:
            await asyncio.to_thread(sandbox.stop)
            sandbox.phase, sandbox.paused_as = Phase.PAUSED, PausedAs.FROZEN

    def why_no_reclaim(self) -> str:
        """Say what the world was told to say."""
        return self.world.why_no_reclaim

    def why_no_copies(self) -> str:
        """Say what the world was told to say, as well."""
        return super().why_no_copies() or self.world.why_no_copies

    async def reclaim(self, handle: Handle) -> None:
        """Say that the memory of a frozen sandbox is elsewhere."""
        sandbox = self._usable(await self._find("reclaim", handle))
        if sandbox.phase is not Phase.PAUSED:
            raise Conflict("The sandbox is not paused")
        if self.world.endless_reclaim:
            await asyncio.Event().wait()
        if sandbox.paused_as is PausedAs.FROZEN and not self.world.why_no_reclaim:
            sandbox.paused_as = PausedAs.RECLAIMED

    def why_no_hibernate(self) -> str:
        """Say what the world was told to say."""
        return self.world.why_no_hibernate

    async def hibernate(self, handle: Handle) -> None:
        """Say that the memory of a paused sandbox is on disk, or lost."""
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
        """Keep the files of a stopped sandbox."""
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
        """Forget a layer."""
        await self._call("remove_layer")
        self.world.layers.pop(layer_id, None)

    async def build_image(self, image_id: str, build: ImageBuild) -> str:
        """Note what an image is built from, unless it begins with nothing."""
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
        """Forget an image."""
        await self._call("remove_image")
        self.world.images.pop(image_id, None)

    async def checkpoint(
        self, handle: Handle, checkpoint_id: str, *, keep: int, max_bytes: int
    ) -> None:
        """Keep the files of a sandbox."""
        sandbox = self._usable(await self._find("checkpoint", handle))
        files = await asyncio.to_thread(sandbox.files)
        if 1 + sum(map(len, files.values())) > max_bytes:
            raise OrderRejected("The files are too large for a checkpoint")
        one = Checkpoint(id=checkpoint_id, created_at=now())
        sandbox.checkpoints = [*sandbox.checkpoints, (one, files)][-keep:]

    async def checkpoints(self, handle: Handle) -> Sequence[Checkpoint]:
        """List what was kept."""
        sandbox = await self._find("checkpoints", handle)
        return [one for one, _ in sandbox.checkpoints] if sandbox else ()

    async def roll_back(self, handle: Handle, checkpoint_id: str) -> None:
        """Put the files of a checkpoint into a stopped sandbox."""
        sandbox = self._usable(await self._find("roll_back", handle))
        if sandbox.phase is not Phase.PAUSED or sandbox.paused_as is not PausedAs.STOPPED:
            raise Conflict("The sandbox is not stopped")
        for one, files in sandbox.checkpoints:
            if one.id == checkpoint_id:
                await asyncio.to_thread(sandbox.begin_with, files)
                return
        raise OrderRejected("There is no such checkpoint")

    async def logs(self, handle: Handle, *, tail: int, follow: bool) -> AsyncIterator[LogLine]:
        """Yield what the workload printed."""
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
            # To its end even if the caller is cancelled, as the sandbox is listed already.
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

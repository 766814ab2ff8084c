"""The test rig of the conformance kit: a backend, orders, and probes.

If possible, a rig does not rely on the backend: it talks to the workload over HTTP,
and receives its UDP beacon, which shows that it runs even if no backend lists it.
"""

import asyncio
import contextlib
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

import msgspec

from agentsvc.base import AgentsvcError, Secret, monotonic, new_id
from agentsvc.plugin import (
    BackendContext,
    Endpoint,
    ExecResult,
    Handle,
    Order,
    Phase,
    Port,
    Report,
    RuntimeBackend,
    SaveHandle,
)
from agentsvc.testing import host, workload

WORKLOAD: Final = Path(workload.__file__).read_text(encoding="utf-8")
"""The program that the kit runs in a sandbox, as `python3 -c WORKLOAD`."""

_POLL_SECONDS = 0.02

type Backend = RuntimeBackend[Any]
type Unreachable = Callable[[Backend], AbstractAsyncContextManager[None]]
type Leftovers = Callable[[str], Awaitable[Sequence[str]]]


class KitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a backend that the kit cannot find out."""

    order_overrides: Mapping[str, Any] = {}
    """Fields of every order, such as `image` and `command`; `env` is merged."""
    unreachable: Unreachable | None = None
    """Makes a backend's control plane unreachable for a while; without it that check is skipped."""
    leftovers: Leftovers | None = None
    """Lists what is left of an instance, by its id, in places that the kit does not know."""
    enforced_limits: frozenset[str] = frozenset()
    """Fields of Limits that are enforced although LIMITS is not declared."""
    beacon_host: str = "127.0.0.1"
    """Address of this machine as seen from a sandbox; empty if it is unreachable."""
    time_limit: float = 60.0
    """The time limit of one check in seconds."""
    quiet_seconds: float = 1.0
    """How long to wait for a beacon before a workload counts as stopped."""


class Rig:
    """The backends and sandboxes of one check; deletes all of them at the end."""

    def __init__(
        self, kind: type[Backend], config: msgspec.Struct, options: KitOptions, directory: Path
    ) -> None:
        self.kind = kind
        self.config = config
        self.options = options
        self.directory = directory
        self.instance_id = new_id()
        self.saved: defaultdict[str, list[Handle]] = defaultdict(list)
        """The handles passed to each sandbox's save, in order."""
        self.ordered: list[str] = []
        """The ids of all ordered sandboxes."""
        self.runs: set[bytes] = set()
        """The ids of workload runs that must have ended."""
        self._backends: list[Backend] = []
        self._beacon = _Beacon()

    async def __aenter__(self) -> Self:
        if self.options.beacon_host:
            await self._beacon.open(self.options.beacon_host)
        self.backend = await self.open()
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._beacon.close()
        if not self._backends:
            # All backends were closed: a new one deletes what they left.
            await self.open()
        for backend in self._backends:
            try:
                await _delete_all(backend, self.saved.values())
            except AgentsvcError:
                # The error of the check itself matters more than one of the clean-up.
                if error is None:
                    raise
            finally:
                await backend.close()

    async def open(self, instance_id: str = "", *, keeps_checkpoints: bool = False) -> Backend:
        """Open another backend: as after a restart, or of another installation."""
        instance_id = instance_id or self.instance_id
        state_dir = self.directory / instance_id
        context = BackendContext(
            instance_id=instance_id, state_dir=state_dir, keeps_checkpoints=keeps_checkpoints
        )
        backend = self.kind(self.config, context)
        self._backends.append(backend)
        await backend.open()
        return backend

    async def close(self, backend: Backend) -> None:
        """Close a backend, as a server does when it stops."""
        self._backends.remove(backend)
        await backend.close()

    def order(self, **changes: Any) -> Order:
        """Return an order for a new sandbox that runs the workload."""
        sandbox_id = new_id()
        self.ordered.append(str(changes.get("sandbox_id", sandbox_id)))
        overrides = {**self.options.order_overrides, **changes}
        env = {
            "KIT_PORT": "{port.web}",
            "KIT_NAME": sandbox_id,
            "KIT_BEACON": self._beacon.address,
            **self.options.order_overrides.get("env", {}),
            **changes.get("env", {}),
        }
        fields = {
            "sandbox_id": sandbox_id,
            "command": ("python3", "-c", WORKLOAD),
            "ports": (Port(name="web"),),
            **overrides,
            "env": env,
        }
        return Order(**fields)

    def save_to(self, sandbox_id: str) -> SaveHandle:
        """Return a save function for a sandbox, which takes a moment like a disk."""

        async def save(handle: Handle) -> None:
            await asyncio.sleep(_POLL_SECONDS)
            self.saved[sandbox_id].append(handle)

        return save

    async def create(self, order: Order, backend: Backend | None = None) -> Handle:
        """Create a sandbox."""
        backend = backend or self.backend
        return await backend.create(order, self.save_to(order.sandbox_id))

    async def run(self, order: Order | None = None) -> tuple[Handle, Report]:
        """Create a sandbox and wait until it runs."""
        handle = await self.create(order or self.order())
        return handle, await self.wait(handle, Phase.RUNNING)

    async def fail(self, exit_code: int = 1) -> tuple[Handle, Report]:
        """Create a sandbox whose workload exits at once, and wait until it is FAILED."""
        handle = await self.create(self.order(env={"KIT_EXIT": str(exit_code)}))
        return handle, await self.wait(handle, Phase.FAILED)

    async def wait(self, handle: Handle, phase: Phase) -> Report:
        """Wait for a phase; fails the check if another final phase is reached."""
        final = {Phase.FAILED, Phase.GONE} - {phase}
        while True:
            report = await self.backend.inspect(handle)
            if report.phase is phase:
                return report
            expect(report.phase not in final, f"it is {report.phase}: {report.reason}")
            await asyncio.sleep(_POLL_SECONDS)

    async def until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Wait until a condition is true."""
        while True:
            if await is_so():
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def is_listed(self, sandbox_id: str) -> bool:
        """Return whether scan lists a sandbox."""
        return any(item.handle.sandbox_id == sandbox_id for item in await self.backend.scan())

    async def ask(self, report: Report, method: str, path: str, body: bytes = b"") -> bytes:
        """Send a request to the workload and return the response; raises OSError if unreachable."""
        key = report.session_key if web_endpoint(report).needs_key else None
        return await ask(web_url(report), method, path, body, key=key)

    async def leftovers(self) -> list[str]:
        """List everything that exists of the sandboxes, as found by any means."""
        names = [self.instance_id, *self.ordered]
        found = await asyncio.to_thread(host.traces, names, self.backend.context.state_dir)
        return found + (await self.reported_leftovers() or [])

    async def reported_leftovers(self) -> list[str] | None:
        """List what the backend and KitOptions report, or None if both cannot tell."""
        is_able = type(self.backend).leftovers is not RuntimeBackend.leftovers
        if not is_able and self.options.leftovers is None:
            return None
        found = list(await self.backend.leftovers())
        if self.options.leftovers is not None:
            found += await self.options.leftovers(self.instance_id)
        return found

    async def expect_unheard(self, handle: Handle, otherwise: str) -> None:
        """Fail the check if the workload of a sandbox is heard."""
        expect(not await self.is_heard(handle.sandbox_id), otherwise)

    async def sh(
        self, handle: Handle, script: str, *, time_limit: float = 0.0, **changes: Any
    ) -> ExecResult:
        """Run a script in a sandbox; the default time limit is that of the check."""
        asked = {"env": {}, "max_output": 10_000, **changes}
        limit = time_limit or self.options.time_limit
        return await self.backend.execute(handle, ["sh", "-c", script], time_limit=limit, **asked)

    async def is_heard(self, *names: str) -> bool:
        """Wait for beacons of workloads for a while; False if beacons are not available."""
        since = monotonic()
        while self._beacon.address and monotonic() - since < self.options.quiet_seconds:
            await asyncio.sleep(_POLL_SECONDS)
            if any(self._beacon.last.get(name, 0.0) > since for name in names):
                return True
        return False


class _Beacon(asyncio.DatagramProtocol):
    """Receives the beacons of running workloads."""

    def __init__(self) -> None:
        self.address = ""
        self.last: dict[str, float] = {}
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self, host: str) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(host, 0))
        self.address = "{}:{}".format(*self._transport.get_extra_info("sockname")[:2])

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        del addr
        self.last[data.decode()] = monotonic()


class LoopWatch:
    """Measures how long the event loop is blocked."""

    def __init__(self) -> None:
        self._last = 0.0
        self._longest = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def measure(self, work: Awaitable[object]) -> float:
        """Await some work and return the longest time for which it blocked the event loop."""
        self._longest, self._last = 0.0, monotonic()
        self._tick()
        try:
            await work
            await asyncio.sleep(0)
        finally:
            self._record()
            if self._timer is not None:
                self._timer.cancel()
        return self._longest

    def _tick(self) -> None:
        self._record()
        self._timer = asyncio.get_running_loop().call_later(0.005, self._tick)

    def _record(self) -> None:
        now = monotonic()
        self._longest = max(self._longest, now - self._last)
        self._last = now


@contextlib.asynccontextmanager
async def open_rig(
    kind: type[Backend], config: msgspec.Struct, options: KitOptions
) -> AsyncIterator[Rig]:
    """Return a rig with a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="agentsvc-kit-") as directory:
        async with Rig(kind, config, options, Path(directory)) as rig:
            yield rig


async def together[T](*works: Awaitable[T]) -> list[T]:
    """Run awaitables concurrently, all to their end; raises the first error."""
    ended = await asyncio.gather(*works, return_exceptions=True)
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    return [one for one in ended if not isinstance(one, BaseException)]


def expect(is_so: bool, otherwise: str) -> None:
    """Fail the check with a message unless a condition is true."""
    if not is_so:
        raise AssertionError(otherwise)


async def expect_error(kind: type[AgentsvcError], work: Awaitable[object], where: str) -> None:
    """Fail the check unless the work raises this error."""
    try:
        await work
    except kind:
        return
    raise AssertionError(f"{where} does not raise {kind.__name__}")


def web_endpoint(report: Report) -> Endpoint:
    """Return the endpoint of the workload of a running sandbox."""
    for endpoint in report.endpoints:
        if endpoint.name == "web":
            return endpoint
    raise AssertionError("the report has no endpoint for the port `web`")


def web_url(report: Report) -> str:
    """Return the URL of the workload of a running sandbox."""
    return web_endpoint(report).url


async def ask(
    url: str, method: str, path: str, body: bytes = b"", *, key: Secret | None = None
) -> bytes:
    """Send an HTTP request to a workload; raises OSError if nobody, or only a gateway, answers."""
    target = urlsplit(url)
    reader, writer = await _connect(url)
    try:
        shown = f"X-Session-API-Key: {key.reveal()}\r\n" if key else ""
        head = (
            f"{method} {target.path.rstrip('/')}{path} HTTP/1.0\r\nHost: {target.netloc}\r\n"
            f"{shown}Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
    status, _, rest = answer.partition(b"\r\n")
    if key is not None and b" 200 " not in status:
        raise ConnectionRefusedError(f"the gateway answers {status.decode()}")
    expect(b" 200 " in status, f"{method} {path} answers {status.decode()}")
    return rest.partition(b"\r\n\r\n")[2]


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    target = urlsplit(url)
    if target.scheme == "http+unix":
        return await asyncio.open_unix_connection(unquote(target.netloc))
    return await asyncio.open_connection(target.hostname, target.port)


async def _delete_all(backend: Backend, saved: Iterable[list[Handle]]) -> None:
    left = {handles[-1].sandbox_id: handles[-1] for handles in saved if handles}
    left |= {item.handle.sandbox_id: item.handle for item in await backend.scan()}
    await together(*(backend.delete(handle) for handle in left.values()))

"""Sandboxes at a service with the remote runtime API.

The service lists only running sandboxes, so the ids of all that were requested are also kept in the
state directory: an empty file each, created before the request.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Meta

from agentsvc.base import (
    AgentsvcError,
    BackendUnavailable,
    Conflict,
    OrderRejected,
    Secret,
    is_sandbox_id,
    now,
    parse_time,
)
from agentsvc.plugin import (
    API_VERSION,
    Capability,
    Endpoint,
    Found,
    Handle,
    Health,
    Order,
    PartlyScanned,
    Phase,
    Port,
    Report,
    SaveHandle,
    Spec,
    check_handle,
    fill,
    finish,
)

from .calls import HANDLE_VERSION, fingerprint
from .service_backend import (
    GONE,
    ServiceBackend,
    ServiceConfig,
    ServiceSandbox,
    check_url,
    check_usable,
)

_AGENT: Final = "agent"
_USUAL_PORTS: Final[Mapping[str, int]] = {
    _AGENT: 60000,
    "vscode": 60001,
    "worker_1": 12000,
    "worker_2": 12001,
}
_SERVICES: Final[Mapping[str, str]] = {
    "vscode": "vscode",
    "worker_1": "work-1",
    "worker_2": "work-2",
}
"""Names of the ports in URLs, except the agent server's."""
_FORGET_SECONDS: Final = 3600.0
_GONE_POLL_SECONDS: Final = 0.1
_GONE_POLL_SECONDS_MAX: Final = 2.0

type Factor = Annotated[int, Meta(ge=1, le=64)]

RUNTIME_SPEC: Final = Spec(
    id="remote",
    backend="remote",
    image="ghcr.io/openhands/agent-server:1.58.0-python",
    command=("/usr/local/bin/openhands-agent-server", "--port", "{port.agent}"),
    working_dir="/workspace",
    env={
        "LOG_JSON": "true",
        "OH_CONVERSATIONS_PATH": "/workspace/conversations",
        "OH_BASH_EVENTS_DIR": "/workspace/bash_events",
        "OH_ENABLE_VNC": "0",
        "OH_VSCODE_PORT": "{port.vscode}",
        "WORKER_1": "{port.worker_1}",
        "WORKER_2": "{port.worker_2}",
    },
    ports=tuple(
        Port(name=name, number=number, awaited=name == _AGENT)
        for name, number in _USUAL_PORTS.items()
    ),
)
"""The published image of the agent server, as control planes request it."""


class RemoteConfig(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[backends.remote]` table."""

    resource_factor: Factor = 1
    """Size of sandboxes whose user and spec set none."""
    runtime_class: Literal["", "gvisor", "sysbox"] = ""
    """`sysbox` for Docker inside sandboxes; empty for the service's default."""


class Runtime(ServiceSandbox, frozen=True, kw_only=True):
    """A runtime; not all services send the fields with defaults."""

    service: ClassVar[str] = "The runtime API"
    phases: ClassVar[Mapping[str, Phase]] = {
        "running": Phase.RUNNING,
        "starting": Phase.STARTING,
        "paused": Phase.PAUSED,
        "error": Phase.FAILED,
        "stopped": Phase.GONE,
    }

    runtime_id: str
    session_id: str
    url: str = ""
    pod_status: str | None = None
    ports_need_key: bool = False
    port_urls: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def phase(self) -> Phase:
        """The phase of its status; it is not running before its pod is ready."""
        phase = super().phase
        is_ready = self.pod_status is None or self.pod_status.lower() == "ready"
        return Phase.STARTING if phase is Phase.RUNNING and not is_ready else phase


class RuntimeList(msgspec.Struct, frozen=True, kw_only=True):
    """The response of /list."""

    runtimes: list[Runtime]


_RUNTIME: Final = msgspec.json.Decoder(Runtime)
_LISTED: Final = msgspec.json.Decoder(RuntimeList)


class RemoteBackend(ServiceBackend[RemoteConfig]):
    """Runs the sandboxes at a service with the remote runtime API."""

    name: ClassVar[str] = "remote"
    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.PAUSE, Capability.SURVIVES_RESTART}
    )
    key_header: ClassVar[str] = "X-API-Key"
    made_there: ClassVar[frozenset[str]] = frozenset({"OH_SESSION_API_KEYS_0", "SESSION_API_KEY"})
    callbacks: ClassVar[tuple[str, ...]] = ("OH_WEBHOOKS_",)
    Config = RemoteConfig

    async def open(self) -> None:
        """Create the session and the directory of ids; sends no request."""
        await asyncio.to_thread(self._journal.mkdir, mode=0o700, parents=True, exist_ok=True)
        await super().open()

    async def probe(self) -> Health:
        """Request the list of running sandboxes."""
        try:
            running = await self._calls.ask("GET", "/list", _LISTED)
        except AgentsvcError as exc:
            return Health(ok=False, reason=exc.message)
        facts = {"url": self._calls.url, "running": str(len(running.runtimes))}
        return Health(ok=True, facts=facts)

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        """Request a sandbox; the same session id always means the same runtime.

        If cancelled, wait for the response first, so that nothing is created after that.
        """
        self.check_spec(order)
        key = await self._key(order.sandbox_id)
        await asyncio.to_thread((self._journal / order.sandbox_id).touch)
        body = self._start_body(order)
        runtime = await finish(self._calls.ask("POST", "/start", _RUNTIME, key=key, body=body))
        handle = Handle(
            sandbox_id=order.sandbox_id,
            version=HANDLE_VERSION,
            data={
                "runtime_id": runtime.runtime_id,
                "key": fingerprint(key),
                "ports": _numbers(order.ports),
            },
        )
        await save(handle)
        return handle

    async def inspect(self, handle: Handle) -> Report:
        """Request the session; a missing one is GONE only if the service itself responds."""
        runtime = await self._find(handle)
        if runtime is None:
            return Report(phase=Phase.GONE)
        return self._report(runtime, self._endpoints(handle, runtime) if runtime.url else ())

    async def scan(self) -> Sequence[Found]:
        """List the running runtimes, and those of the requested ones that exist but do not run.

        Raises PartlyScanned if some cannot be queried, for example because a user's own key is
        rejected.
        """
        known = await asyncio.to_thread(self._read_journal)
        listed = await self._calls.ask("GET", "/list", _LISTED)
        found = {runtime.session_id: runtime for runtime in listed.runtimes}
        refusals: dict[str, BackendUnavailable] = {}
        for sandbox_id in known:
            session_id = self._prefix + sandbox_id
            if session_id not in found:
                try:
                    runtime = await self._session(session_id, await self._key(sandbox_id))
                except BackendUnavailable as exc:
                    refusals[sandbox_id] = exc
                    continue
                if runtime is not None:
                    found[session_id] = runtime
                else:
                    await asyncio.to_thread(self._forget, sandbox_id, known[sandbox_id])
        seen = [
            Found(
                handle=await self._handle_of(runtime),
                created_at=parse_time(runtime.created_at or "")
                or known.get(session_id.removeprefix(self._prefix), now()),
            )
            for session_id, runtime in found.items()
            if session_id.startswith(self._prefix)
            and is_sandbox_id(session_id.removeprefix(self._prefix))
            and runtime.phase is not Phase.GONE
        ]
        if refusals:
            why = next(iter(refusals.values())).message
            raise PartlyScanned(why, found=seen, unknown=refusals)
        return seen

    async def delete(self, handle: Handle) -> None:
        """Stop the runtime, and return when the service reports it as stopped."""
        runtime = await self._find(handle)
        pause = _GONE_POLL_SECONDS
        while runtime is not None and runtime.phase is not Phase.GONE:
            await self._send("/stop", runtime, handle)
            runtime = await self._find(handle)
            if runtime is not None:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _GONE_POLL_SECONDS_MAX)
        await asyncio.to_thread((self._journal / handle.sandbox_id).unlink, missing_ok=True)

    async def pause(self, handle: Handle) -> None:
        """Pause the runtime."""
        runtime = await self._require_usable(handle)
        if runtime.phase is not Phase.PAUSED and not await self._send("/pause", runtime, handle):
            raise Conflict(GONE)

    async def resume(self, handle: Handle) -> Handle:
        """Resume the runtime; the next report has its key, which may be new."""
        runtime = await self._require_usable(handle)
        if runtime.phase is Phase.PAUSED and not await self._send("/resume", runtime, handle):
            raise Conflict(GONE)
        return handle

    # Shared helpers

    @property
    def _journal(self) -> Path:
        return self.context.state_dir / "sessions"

    async def _key(self, sandbox_id: str) -> Secret:
        return await self.context.owner_key(sandbox_id) or self._calls.key

    def check_spec(self, spec: Spec | Order) -> None:
        """Raise OrderRejected for options that the service does not support."""
        super().check_spec(spec)
        if not spec.image:
            raise OrderRejected("A remote sandbox needs an image")
        primary = _primary(spec.ports)
        for port in spec.ports:
            if port.name != primary and port.name not in _SERVICES:
                raise OrderRejected(
                    f"The remote runtime API has no port `{port.name}`,"
                    f" only {', '.join(sorted(_SERVICES))} beside the first one"
                )
        ports = _numbers(spec.ports)
        for text in (*(spec.command or ()), *spec.env.values()):
            fill(text, ports)

    def _start_body(self, order: Order) -> dict[str, Any]:
        ports = _numbers(order.ports)
        env = {name: fill(value, ports) for name, value in order.env.items()}
        is_sized = order.resource_factor != 1
        body: dict[str, Any] = {
            "image": order.image,
            "environment": self._environment(order, env),
            "session_id": self._prefix + order.sandbox_id,
            "resource_factor": order.resource_factor if is_sized else self.config.resource_factor,
            "run_as_user": 10001,
            "run_as_group": 10001,
            "fs_group": 10001,
        }
        if order.command is not None:
            body["command"] = [fill(part, ports) for part in order.command]
        if order.working_dir:
            body["working_dir"] = order.working_dir
        if self.config.runtime_class == "sysbox":
            body["runtime_class"] = "sysbox-runc"
        return body

    def _endpoints(self, handle: Handle, runtime: Runtime) -> tuple[Endpoint, ...]:
        ports: dict[str, int] = handle.data.get("ports") or dict(_USUAL_PORTS)
        return tuple(
            Endpoint(
                name=name,
                port=number,
                url=_url_of(runtime, name, is_primary=index == 0),
                needs_key=runtime.ports_need_key,
            )
            for index, (name, number) in enumerate(ports.items())
        )

    async def _find(self, handle: Handle) -> Runtime | None:
        """Return the runtime, or None if it is really gone; raises BackendUnavailable."""
        check_handle(handle, HANDLE_VERSION, "remote plugin")
        key = await self._key(handle.sandbox_id)
        runtime = await self._session(self._prefix + handle.sandbox_id, key)
        if runtime is not None:
            return runtime
        made_with = handle.data.get("key")
        if made_with and made_with != fingerprint(key):
            raise BackendUnavailable(
                "The sandbox was created with another key of the runtime API than the present one"
            )
        # A wrong URL or key may also give a 404 for the session.
        await self._calls.ask("GET", "/list", _LISTED, key=key)
        return None

    async def _session(self, session_id: str, key: Secret) -> Runtime | None:
        return await self._calls.find(
            "GET", f"/sessions/{quote(session_id, safe='')}", _RUNTIME, key=key
        )

    async def _require_usable(self, handle: Handle) -> Runtime:
        return check_usable(await self._find(handle))

    async def _send(self, path: str, runtime: Runtime, handle: Handle) -> bool:
        """Send an action; return whether the service knows the runtime."""
        key = await self._key(handle.sandbox_id)
        body = {"runtime_id": runtime.runtime_id}
        return await self._calls.order("POST", path, key=key, body=body)

    async def _handle_of(self, runtime: Runtime) -> Handle:
        sandbox_id = runtime.session_id.removeprefix(self._prefix)
        key = fingerprint(await self._key(sandbox_id))
        data = {"runtime_id": runtime.runtime_id, "key": key}
        return Handle(sandbox_id=sandbox_id, version=HANDLE_VERSION, data=data)

    def _read_journal(self) -> dict[str, datetime]:
        found = {}
        for file in sorted(self._journal.iterdir()):
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                found[file.name] = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        return found

    def _forget(self, sandbox_id: str, requested_at: datetime) -> None:
        """Remove the id of a sandbox that was never created, once no request can be in progress."""
        if (now() - requested_at).total_seconds() > _FORGET_SECONDS:
            (self._journal / sandbox_id).unlink(missing_ok=True)


def _primary(ports: Sequence[Port]) -> str:
    return next((port.name for port in ports if port.awaited), _AGENT)


def _numbers(ports: Sequence[Port]) -> dict[str, int]:
    """Return the port numbers inside, the agent server's first."""
    if not ports:
        return dict(_USUAL_PORTS)
    primary = _primary(ports)
    ordered = sorted(ports, key=lambda port: port.name != primary)
    return {
        port.name: port.number or _USUAL_PORTS.get(port.name, _USUAL_PORTS[_AGENT])
        for port in ordered
    }


def _url_of(runtime: Runtime, name: str, *, is_primary: bool) -> str:
    """Return the URL of a port: as the service reports it, or derived from the runtime's URL."""
    reported = runtime.port_urls.get(_AGENT if is_primary else name)
    if reported is not None or is_primary:
        return check_url(reported or runtime.url)
    service, parts = _SERVICES[name], urlsplit(check_url(runtime.url))
    if parts.path.startswith(f"/{runtime.runtime_id}"):
        return f"{parts.scheme}://{parts.netloc}/{runtime.runtime_id}/{service}"
    return f"{parts.scheme}://{service}-{parts.netloc}{parts.path}".rstrip("/")

"""Sandboxes at another agentsvc, or any server of the V1 API.

Another agentsvc gets our own name of the sandbox, so that a repeated order returns the same sandbox
and a scan finds it, and additional environment variables. Other servers ignore both: they alone
decide what a sandbox runs, and a sandbox that was started just before this server died cannot be
found there again.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlsplit

import msgspec

from agentsvc.base import (
    AgentsvcError,
    BackendUnavailable,
    Conflict,
    OrderRejected,
    now,
    parse_time,
)
from agentsvc.plugin import (
    API_VERSION,
    Capability,
    Cause,
    Endpoint,
    Found,
    Handle,
    Health,
    Order,
    PausedAs,
    Phase,
    Report,
    SaveHandle,
    Spec,
    Usage,
    check_handle,
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
    parse_enum,
)

_SANDBOXES: Final = "/api/v1/sandboxes"
_PAGE: Final = "100"
_PORT_NAMES: Final[Mapping[str, str]] = {"AGENT_SERVER": "agent"}

SERVER_SPEC: Final = Spec(id="agentsvc", backend="agentsvc")
"""The sandbox that the other server starts by default."""


class ServerConfig(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[backends.agentsvc]` table; the key's user at the other server owns all sandboxes."""


class ExposedUrl(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of one port."""

    name: str
    url: str
    port: int = 0


class SandboxInfo(ServiceSandbox, frozen=True, kw_only=True):
    """A sandbox of the other server; only an agentsvc sends a `client_id`."""

    service: ClassVar[str] = "The other server"
    phases: ClassVar[Mapping[str, Phase]] = {
        "STARTING": Phase.STARTING,
        "RUNNING": Phase.RUNNING,
        "PAUSED": Phase.PAUSED,
        "ERROR": Phase.FAILED,
        "MISSING": Phase.GONE,
    }

    id: str
    exposed_urls: list[ExposedUrl] | None = None
    detail: str | None = msgspec.field(name="status_detail", default=None)
    client_id: str | None = None
    paused_as: str | None = None
    status_cause: str | None = None
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    usage: Usage | None = None


class SandboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of sandboxes."""

    items: list[SandboxInfo]
    next_page_id: str | None = None


_INFO: Final = msgspec.json.Decoder(SandboxInfo)
_BATCH: Final = msgspec.json.Decoder(list[SandboxInfo | None])
_PAGES: Final = msgspec.json.Decoder(SandboxPage)
_ANYTHING: Final = msgspec.json.Decoder(msgspec.Raw)


class ServerBackend(ServiceBackend[ServerConfig]):
    """Runs the sandboxes at another server."""

    name: ClassVar[str] = "agentsvc"
    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.PAUSE, Capability.RESTART, Capability.STOP, Capability.SURVIVES_RESTART}
    )
    key_header: ClassVar[str] = "X-Session-API-Key"
    made_there: ClassVar[frozenset[str]] = frozenset({"OH_SESSION_API_KEYS_0", "OH_SECRET_KEY"})
    callbacks: ClassVar[tuple[str, ...]] = ("OH_WEBHOOKS_", "OH_ALLOW_CORS_ORIGINS_")
    Config = ServerConfig

    async def probe(self) -> Health:
        """Check whether the other server is ready and accepts the key."""
        try:
            await self._calls.ask("GET", "/ready", _ANYTHING)
            await self._calls.ask("GET", f"{_SANDBOXES}/search", _PAGES, query=[("limit", "1")])
        except AgentsvcError as exc:
            return Health(ok=False, reason=exc.message)
        return Health(ok=True, facts={"url": self._calls.url})

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        """Request a sandbox under our own name for it.

        If cancelled, wait for the response first, so that nothing is created after that.
        """
        self.check_spec(order)
        info = await finish(self._start(order))
        handle = self._handle(order.sandbox_id, info)
        await save(handle)
        return handle

    async def restart(self, order: Order, handle: Handle, save: SaveHandle) -> Handle:
        """Restart the command at the other server; raises Conflict if that is impossible."""
        self.check_spec(order)
        info = await self._find(handle)
        if info is None or info.phase is Phase.GONE:
            raise Conflict("The sandbox cannot be started again: its files are gone")
        if info.phase is Phase.FAILED or _is_stopped(info):
            await self._send(info, "resume")
        await save(handle)
        return handle

    async def inspect(self, handle: Handle) -> Report:
        """Request the sandbox; if the other server does not know it, it is GONE."""
        info = await self._find(handle)
        if info is None:
            return Report(phase=Phase.GONE)
        if info.phase is Phase.GONE and info.client_id is None:
            # Other servers also report this status for a sandbox that is unreachable for a moment.
            raise BackendUnavailable(f"{self._calls.url} does not report the state of the sandbox")
        endpoints = tuple(self._endpoint(info, one) for one in info.exposed_urls or ())
        report = self._report(info, endpoints)
        return msgspec.structs.replace(
            report,
            facts={**info.facts, **report.facts},
            paused_as=parse_enum(PausedAs, info.paused_as),
            cause=parse_enum(Cause, info.status_cause),
        )

    async def usage(self, handle: Handle) -> Usage | None:
        """Return the other server's last measurement."""
        info = await self._find(handle)
        return None if info is None else info.usage

    async def scan(self) -> Sequence[Found]:
        """List the sandboxes at the other server that have a name of ours."""
        return [
            Found(
                handle=self._handle(info.client_id.removeprefix(self._prefix), info),
                created_at=parse_time(info.created_at or "") or now(),
            )
            async for info in self._list_all()
            if info.client_id is not None and info.client_id.startswith(self._prefix)
        ]

    async def delete(self, handle: Handle) -> None:
        """Delete the sandbox; the other server retries if that fails at first."""
        if (info := await self._find(handle)) is not None:
            query = [("sandbox_id", info.id)]
            await self._calls.order("DELETE", _path(info), query=query)

    async def pause(self, handle: Handle) -> None:
        """Pause the sandbox."""
        await self._send(await self._require_usable(handle), "pause")

    async def stop(self, handle: Handle) -> None:
        """Stop the sandbox, or pause it if the server cannot stop."""
        info = await self._require_usable(handle)
        if not await self._calls.order("POST", f"{_path(info)}/stop"):
            await self._send(info, "pause")

    async def resume(self, handle: Handle) -> Handle:
        """Resume the sandbox."""
        await self._send(await self._require_usable(handle), "resume")
        return handle

    # Shared helpers

    def check_spec(self, spec: Spec | Order) -> None:
        """Raise OrderRejected for options that the service does not support."""
        super().check_spec(spec)
        if spec.command is not None or spec.working_dir:
            raise OrderRejected(
                "The other server's spec sets command and directory of its sandboxes:"
                " put its id in `image`"
            )

    async def _start(self, order: Order) -> SandboxInfo:
        body: dict[str, Any] = {
            "client_id": self._prefix + order.sandbox_id,
            "env": self._environment(order, order.env),
            "resource_factor": order.resource_factor,
        }
        # Servers other than agentsvc read only the query.
        query = [("sandbox_spec_id", order.image)] if order.image else []
        info = await self._calls.find("POST", _SANDBOXES, _INFO, query=query, body=body)
        if info is None:
            raise OrderRejected(
                f"{self._calls.url} has no sandbox spec of this id: `{order.image or 'default'}`"
            )
        return info

    def _handle(self, sandbox_id: str, info: SandboxInfo) -> Handle:
        return Handle(
            sandbox_id=sandbox_id,
            version=HANDLE_VERSION,
            data={"id": info.id, "key": fingerprint(self._calls.key)},
        )

    def _endpoint(self, info: SandboxInfo, exposed: ExposedUrl) -> Endpoint:
        name = _PORT_NAMES.get(exposed.name, exposed.name.lower())
        is_agentsvc = info.client_id is not None
        # At another agentsvc, every port is below the URL that this server uses.
        reported = check_url(exposed.url)
        url = f"{self._calls.url}/sandboxes/{info.id}/{name}" if is_agentsvc else reported
        port = exposed.port or urlsplit(reported).port or 0
        return Endpoint(name=name, port=port, url=url, needs_key=is_agentsvc)

    async def _find(self, handle: Handle) -> SandboxInfo | None:
        """Return the sandbox, or None if it is really gone; raises BackendUnavailable."""
        check_handle(handle, HANDLE_VERSION, "remote plugin")
        query = [("id", str(handle.data["id"]))]
        found = await self._calls.ask("GET", _SANDBOXES, _BATCH, query=query)
        info = found[0] if found else None
        is_ours = (
            info is None
            or info.client_id is None
            or info.client_id == self._prefix + handle.sandbox_id
        )
        if info is not None and is_ours:
            return info
        if handle.data.get("key") != fingerprint(self._calls.key):
            raise BackendUnavailable(
                "The sandbox was created with another key of the other server than the present one"
            )
        return None

    async def _require_usable(self, handle: Handle) -> SandboxInfo:
        return check_usable(await self._find(handle))

    async def _send(self, info: SandboxInfo, verb: str) -> None:
        if not await self._calls.order("POST", f"{_path(info)}/{verb}"):
            raise Conflict(GONE)

    async def _list_all(self) -> AsyncIterator[SandboxInfo]:
        page_id: str | None = ""
        while page_id is not None:
            query = [("limit", _PAGE), *([("page_id", page_id)] if page_id else [])]
            page = await self._calls.ask("GET", f"{_SANDBOXES}/search", _PAGES, query=query)
            for info in page.items:
                yield info
            page_id = page.next_page_id


def _path(info: SandboxInfo) -> str:
    return f"{_SANDBOXES}/{quote(info.id, safe='')}"


def _is_stopped(info: SandboxInfo) -> bool:
    return info.phase is Phase.PAUSED and info.paused_as == PausedAs.STOPPED

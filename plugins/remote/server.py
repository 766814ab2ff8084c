"""Sandboxes at another agentsvc, or any server of the V1 API.

What another agentsvc is told: our own name of the sandbox, under which the same order twice gives
one sandbox and a scan finds it, and what its environment has besides. A server that is no agentsvc
takes neither: it decides alone what a sandbox runs, and what was started in a moment in which this
server died cannot be found there again.
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
"""Whatever the other server starts by itself."""


class ServerConfig(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[backends.agentsvc]` table; the key is that of a user there, who has all sandboxes."""


class ExposedUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Where one port is."""

    name: str
    url: str
    port: int = 0


class SandboxInfo(ServiceSandbox, frozen=True, kw_only=True):
    """A sandbox of the other server; only an agentsvc has a `client_id` for it."""

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
    """Has another server run the sandboxes."""

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
        """Ask the other server whether it is ready, and whether it takes the key."""
        try:
            await self._calls.ask("GET", "/ready", _ANYTHING)
            await self._calls.ask("GET", f"{_SANDBOXES}/search", _PAGES, query=[("limit", "1")])
        except AgentsvcError as exc:
            return Health(ok=False, reason=exc.message)
        return Health(ok=True, facts={"url": self._calls.url})

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        """Ask for a sandbox under our own name for it.

        Cancelled, it waits for the answer first, so that nothing comes to be after its end.
        """
        self.check_spec(order)
        info = await finish(self._start(order))
        handle = self._handle(order.sandbox_id, info)
        await save(handle)
        return handle

    async def restart(self, order: Order, handle: Handle, save: SaveHandle) -> Handle:
        """Have the other server start its command again; raises Conflict where it cannot."""
        self.check_spec(order)
        info = await self._find(handle)
        if info is None or info.phase is Phase.GONE:
            raise Conflict("The sandbox cannot be started again: its files are gone")
        if info.phase is Phase.FAILED or _is_stopped(info):
            await self._order(info, "resume")
        await save(handle)
        return handle

    async def inspect(self, handle: Handle) -> Report:
        """Ask for the sandbox; what the other server does not know is GONE."""
        info = await self._find(handle)
        if info is None:
            return Report(phase=Phase.GONE)
        if info.phase is Phase.GONE and info.client_id is None:
            # Other servers say this, too, of what they cannot reach just now.
            raise BackendUnavailable(f"{self._calls.url} does not say what state the sandbox is in")
        endpoints = tuple(self._endpoint(info, one) for one in info.exposed_urls or ())
        report = self._report(info, endpoints)
        return msgspec.structs.replace(
            report,
            facts={**info.facts, **report.facts},
            paused_as=parse_enum(PausedAs, info.paused_as),
            cause=parse_enum(Cause, info.status_cause),
        )

    async def usage(self, handle: Handle) -> Usage | None:
        """Return what the other server has measured last."""
        info = await self._find(handle)
        return None if info is None else info.usage

    async def scan(self) -> Sequence[Found]:
        """List what has a name of ours there."""
        return [
            Found(
                handle=self._handle(info.client_id.removeprefix(self._prefix), info),
                created_at=parse_time(info.created_at or "") or now(),
            )
            async for info in self._all()
            if info.client_id is not None and info.client_id.startswith(self._prefix)
        ]

    async def delete(self, handle: Handle) -> None:
        """Have it removed; the other server goes on trying if that does not work at once."""
        if (info := await self._find(handle)) is not None:
            query = [("sandbox_id", info.id)]
            await self._calls.order("DELETE", _path(info), query=query)

    async def pause(self, handle: Handle) -> None:
        """Have it paused."""
        await self._order(await self._usable(handle), "pause")

    async def stop(self, handle: Handle) -> None:
        """Have it stopped, or paused by a server that cannot do that."""
        info = await self._usable(handle)
        if not await self._calls.order("POST", f"{_path(info)}/stop"):
            await self._order(info, "pause")

    async def resume(self, handle: Handle) -> Handle:
        """Have it run again."""
        await self._order(await self._usable(handle), "resume")
        return handle

    # Shared parts

    def check_spec(self, spec: Spec | Order) -> None:
        """Raise OrderRejected for what the service does not have."""
        super().check_spec(spec)
        if spec.command is not None or spec.working_dir:
            raise OrderRejected(
                "A spec of the other server says what its sandboxes run, and where:"
                " name it as the `image`"
            )

    async def _start(self, order: Order) -> SandboxInfo:
        body: dict[str, Any] = {
            "client_id": self._prefix + order.sandbox_id,
            "env": self._environment(order, order.env),
            "resource_factor": order.resource_factor,
        }
        # Servers that are no agentsvc read the query only.
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
        # At another agentsvc every port is below the URL at which this server reaches it.
        said = check_url(exposed.url)
        url = f"{self._calls.url}/sandboxes/{info.id}/{name}" if is_agentsvc else said
        port = exposed.port or urlsplit(said).port or 0
        return Endpoint(name=name, port=port, url=url, needs_key=is_agentsvc)

    async def _find(self, handle: Handle) -> SandboxInfo | None:
        """Return the sandbox, None if it is really gone; raises BackendUnavailable."""
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
                "The sandbox was made with another key of the other server than the one there is"
            )
        return None

    async def _usable(self, handle: Handle) -> SandboxInfo:
        return check_usable(await self._find(handle))

    async def _order(self, info: SandboxInfo, verb: str) -> None:
        if not await self._calls.order("POST", f"{_path(info)}/{verb}"):
            raise Conflict(GONE)

    async def _all(self) -> AsyncIterator[SandboxInfo]:
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

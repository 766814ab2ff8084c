"""Shared parts of the two remote backends."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from agentsvc.base import BackendUnavailable, Conflict, OrderRejected, Secret
from agentsvc.plugin import (
    NOT_CALLING,
    BackendContext,
    Endpoint,
    Fences,
    Handle,
    Isolation,
    Order,
    Phase,
    Report,
    RuntimeBackend,
    Spec,
)

from .calls import Calls, one_line, session_prefix

_CODE_MAX: Final = 2**53  # larger ones cannot be stored

GONE: Final = "The sandbox does not exist any more"


class ServiceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of both backends' tables."""

    url: Annotated[str, Meta(pattern=r"^https?://[^/\s@]+(/\S*)?$")]
    """URL of the runtime API, or of the other server; without `/api`."""
    api_key: str = ""
    """Sent with each call; for the runtime API, unless the user has stored a `sandbox_api_key`."""
    calls_back: bool = False
    """Whether sandboxes there can reach this server at `server.internal_url`."""
    isolation: Isolation = Isolation.REMOTE
    """The least isolation that the service is known to have."""
    call_seconds: Annotated[float, Meta(gt=0)] = 30.0
    """Timeout of one call."""


class ServiceSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox as its service reports it; not all services send the fields with defaults."""

    service: ClassVar[str]
    """Name of the service at the beginning of a sentence."""
    phases: ClassVar[Mapping[str, Phase]]
    """The phases of the service's status values."""

    status: str
    session_api_key: str | None = None
    created_at: str | None = None
    detail: str | None = None
    working_dir: str | None = None
    exit_code: int | None = None
    isolation: str | None = None

    @property
    def phase(self) -> Phase:
        """The phase of its status; raises BackendUnavailable for an unknown status."""
        if (phase := self.phases.get(self.status)) is None:
            status = one_line(self.status)
            raise BackendUnavailable(f"{self.service} reports an unknown status: {status}")
        return phase


class ServiceBackend[C: ServiceConfig](RuntimeBackend[C]):
    """Runs the sandboxes at one service; subclasses implement its protocol."""

    key_header: ClassVar[str]
    made_there: ClassVar[frozenset[str]]
    """Variables that the service sets in its sandboxes itself."""
    callbacks: ClassVar[tuple[str, ...]]
    """Prefixes of variables that are only useful if sandboxes can reach this server."""
    default_isolation: ClassVar[Isolation] = Isolation.REMOTE

    def __init__(self, config: C, context: BackendContext) -> None:
        super().__init__(config, context)
        key = Secret(config.api_key)
        self._calls = Calls(config.url, key, header=self.key_header, time_limit=config.call_seconds)
        self._prefix = session_prefix(context.instance_id)

    async def open(self) -> None:
        """Create the session; sends no request."""
        await self._calls.open()

    async def close(self) -> None:
        """Close the connections."""
        await self._calls.close()

    async def confirm(self, handle: Handle, endpoint: Endpoint, source_port: int) -> bool:
        """Return True for HTTPS and for gateways that need a key; otherwise ask the service."""
        if endpoint.needs_key or urlsplit(endpoint.url).scheme == "https":
            return True
        return await super().confirm(handle, endpoint, source_port)

    def fences(self, asked: Spec | Order) -> Fences:
        """Return the configured isolation of the service."""
        del asked
        return Fences(isolation=self.config.isolation, remedy="set `isolation` if it is known")

    def why_no_pool(self, spec: Spec) -> str:
        """Refuse pools: the service assigns the keys of its sandboxes at creation."""
        del spec
        return "the service assigns the keys of its sandboxes"

    def check_spec(self, spec: Spec | Order) -> None:
        """Raise OrderRejected for options that the service does not support."""
        self.check_fences(spec)
        if spec.options:
            raise OrderRejected(f"The {self.name} backend has no option `{min(spec.options)}`")

    def _report(self, found: ServiceSandbox, endpoints: tuple[Endpoint, ...]) -> Report:
        """Return the report with the fields that every service has."""
        return Report(
            phase=found.phase,
            reason=one_line(found.detail or ""),
            exit_code=found.exit_code if abs(found.exit_code or 0) < _CODE_MAX else None,
            endpoints=endpoints,
            working_dir=found.working_dir or "",
            facts={} if self.config.calls_back else dict(NOT_CALLING),
            isolation=parse_enum(Isolation, found.isolation) or self.config.isolation,
            session_key=Secret(found.session_api_key) if found.session_api_key else None,
        )

    def _environment(self, order: Order, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment for the service, including secrets."""
        whole = {**env, **{name: value.reveal() for name, value in order.secret_env.items()}}
        return {
            name: value
            for name, value in whole.items()
            if name not in self.made_there
            and (self.config.calls_back or not name.startswith(self.callbacks))
        }


def check_url(url: str) -> str:
    """Return a port's URL from a service; raises BackendUnavailable unless it is HTTP.

    A Unix socket's URL would be treated as a socket that this server has created.
    """
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_http = False
    if not is_http:
        raise BackendUnavailable(f"The service gave an address that is not valid: {one_line(url)}")
    return url


def parse_enum[E: StrEnum](kind: type[E], text: str | None) -> E | None:
    """Return the enum member of a text, or None if it is unknown."""
    return kind(text) if text in list(kind) else None


def check_usable[S: ServiceSandbox](found: S | None) -> S:
    """Return an existing sandbox; raises Conflict if it is gone or has failed."""
    if found is None or found.phase is Phase.GONE:
        raise Conflict(GONE)
    if found.phase is Phase.FAILED:
        why = one_line(found.detail or "no reason given")
        raise Conflict(f"The sandbox has failed: {why}")
    return found

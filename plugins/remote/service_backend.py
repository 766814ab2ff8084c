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
    """What the tables of both say."""

    url: Annotated[str, Meta(pattern=r"^https?://[^/\s@]+(/\S*)?$")]
    """Where the runtime API, or the other server, is; without `/api`."""
    api_key: str = ""
    """Sent with each call; for the runtime API, unless the user has stored a `sandbox_api_key`."""
    calls_back: bool = False
    """Whether sandboxes there reach this server at `server.internal_url`."""
    isolation: Isolation = Isolation.REMOTE
    """What the service is known to isolate sandboxes with at the least."""
    call_seconds: Annotated[float, Meta(gt=0)] = 30.0
    """How long one call may take."""


class ServiceSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox as its service describes it; what has a default not all of them say."""

    service: ClassVar[str]
    """How the service is called at the beginning of a sentence."""
    phases: ClassVar[Mapping[str, Phase]]
    """What its words for a status mean."""

    status: str
    session_api_key: str | None = None
    created_at: str | None = None
    detail: str | None = None
    working_dir: str | None = None
    exit_code: int | None = None
    isolation: str | None = None

    @property
    def phase(self) -> Phase:
        """What its status means; raises BackendUnavailable for one that nobody knows."""
        if (phase := self.phases.get(self.status)) is None:
            said = one_line(self.status)
            raise BackendUnavailable(f"{self.service} reports an unknown status: {said}")
        return phase


class ServiceBackend[C: ServiceConfig](RuntimeBackend[C]):
    """Has one service run the sandboxes; how it is spoken to is the subclass's matter."""

    key_header: ClassVar[str]
    made_there: ClassVar[frozenset[str]]
    """Variables that the service sets in its sandboxes itself."""
    callbacks: ClassVar[tuple[str, ...]]
    """What those variables begin with that are of use only where sandboxes reach this server."""
    default_isolation: ClassVar[Isolation] = Isolation.REMOTE

    def __init__(self, config: C, context: BackendContext) -> None:
        super().__init__(config, context)
        key = Secret(config.api_key)
        self._calls = Calls(config.url, key, header=self.key_header, time_limit=config.call_seconds)
        self._prefix = session_prefix(context.instance_id)

    async def open(self) -> None:
        """Make the session; the service is not asked."""
        await self._calls.open()

    async def close(self) -> None:
        """Let go of the connections."""
        await self._calls.close()

    async def confirm(self, handle: Handle, endpoint: Endpoint, source_port: int) -> bool:
        """Ask the service, but for certificates, and gateways that know sandboxes by their keys."""
        if endpoint.needs_key or urlsplit(endpoint.url).scheme == "https":
            return True
        return await super().confirm(handle, endpoint, source_port)

    def fences(self, asked: Spec | Order) -> Fences:
        """Say what the operator knows of the service."""
        del asked
        return Fences(isolation=self.config.isolation, remedy="set `isolation` if it is known")

    def why_no_pool(self, spec: Spec) -> str:
        """Say that sandboxes elsewhere have a key from the beginning."""
        del spec
        return "the other side gives its sandboxes their keys"

    def check_spec(self, spec: Spec | Order) -> None:
        """Raise OrderRejected for what the service does not have; a subclass checks more."""
        self.check_fences(spec)
        if spec.options:
            raise OrderRejected(f"The {self.name} backend has no option `{min(spec.options)}`")

    def _report(self, found: ServiceSandbox, endpoints: tuple[Endpoint, ...]) -> Report:
        """Return what every service says of a sandbox."""
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
        """Return the environment that the service is told, with what is secret."""
        whole = {**env, **{name: value.reveal() for name, value in order.secret_env.items()}}
        return {
            name: value
            for name, value in whole.items()
            if name not in self.made_there
            and (self.config.calls_back or not name.startswith(self.callbacks))
        }


def check_url(url: str) -> str:
    """Return where a service says that a port is; raises BackendUnavailable for what is no HTTP.

    A socket of this machine would be believed to be one that this server has made.
    """
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_http = False
    if not is_http:
        raise BackendUnavailable(f"The service gave an address that is not valid: {one_line(url)}")
    return url


def parse_enum[E: StrEnum](kind: type[E], said: str | None) -> E | None:
    """Return the value that the other side says, if it is one that is known here."""
    return kind(said) if said in list(kind) else None


def check_usable[S: ServiceSandbox](found: S | None) -> S:
    """Return what was found; raises Conflict for nothing, and for what has failed."""
    if found is None or found.phase is Phase.GONE:
        raise Conflict(GONE)
    if found.phase is Phase.FAILED:
        why = one_line(found.detail or "no reason given")
        raise Conflict(f"The sandbox has failed: {why}")
    return found

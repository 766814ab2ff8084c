"""Shared parts of the two remote backends."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from agentsvc.base import Conflict, Secret
from agentsvc.plugin import (
    BackendContext,
    Endpoint,
    Fences,
    Handle,
    Isolation,
    Order,
    Phase,
    RuntimeBackend,
    Spec,
)

from .calls import Calls, one_line, session_prefix

GONE: Final = "The sandbox does not exist any more"


class FarConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class FarBackend[C: FarConfig](RuntimeBackend[C]):
    """Has one service run the sandboxes; how it is spoken to is the subclass's matter."""

    key_header: ClassVar[str]
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

    def check_spec(self, spec: Spec) -> None:
        """Raise OrderRejected for what the service does not have."""
        self._check(spec)

    def _check(self, asked: Spec | Order) -> None:
        """Raise OrderRejected; a subclass checks more."""
        self.check_fences(asked)


def usable[T](
    found: T | None, phase_of: Callable[[T], Phase], detail_of: Callable[[T], str | None]
) -> T:
    """Return what was found; raises Conflict for nothing, and for what has failed."""
    if found is None or phase_of(found) is Phase.GONE:
        raise Conflict(GONE)
    if phase_of(found) is Phase.FAILED:
        why = one_line(detail_of(found) or "no reason given")
        raise Conflict(f"The sandbox has failed: {why}")
    return found

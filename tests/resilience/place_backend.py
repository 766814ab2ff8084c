"""A backend for servers that the resilience tests tries: its sandboxes are in the resilience tests's process."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, ClassVar, NoReturn

import aiohttp
import msgspec

from agentsvc.base.errors import BackendUnavailable, Conflict, OrderRejected
from agentsvc.base.values import Secret
from agentsvc.plugin.backend import (
    API_VERSION,
    Capability,
    Fences,
    Found,
    Handle,
    Health,
    Isolation,
    LogLine,
    Order,
    Port,
    Report,
    RuntimeBackend,
    SaveHandle,
    Spec,
    Usage,
)
from agentsvc.plugin.hookspecs import hookimpl

REFUSED = 418


class PlaceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the resilience tests listens."""

    url: str


class PlaceBackend(RuntimeBackend[PlaceConfig]):
    """Asks the resilience tests for whatever a backend does."""

    name: ClassVar[str] = "place"
    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.PAUSE,
            Capability.RESTART,
            Capability.STOP,
            Capability.LOGS,
            Capability.SURVIVES_RESTART,
        }
    )
    Config = PlaceConfig
    _session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Open a session; twice is fine."""
        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=False)

    async def close(self) -> None:
        """Close it; sandboxes stay."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def probe(self) -> Health:
        """Ask whether the resilience tests is there."""
        return msgspec.convert(await self._ask("probe"), Health)

    def fences(self, asked: Spec | Order) -> Fences:
        """Say that nothing gets out, so that nothing else may be asked for."""
        del asked
        return Fences(isolation=Isolation.VM)

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        """Make a sandbox."""
        handle = msgspec.convert(await self._ask("create", order=_plain(order)), Handle)
        await save(handle)
        return handle

    async def inspect(self, handle: Handle) -> Report:
        """Report what the resilience tests knows."""
        answer = await self._ask("inspect", handle=msgspec.to_builtins(handle))
        return msgspec.convert(answer, Report)

    async def usage(self, handle: Handle) -> Usage | None:
        """Say what it uses."""
        answer = await self._ask("usage", handle=msgspec.to_builtins(handle))
        return msgspec.convert(answer, Usage | None)

    async def scan(self) -> Sequence[Found]:
        """List the sandboxes of this instance."""
        return msgspec.convert(await self._ask("scan"), list[Found])

    async def delete(self, handle: Handle) -> None:
        """Remove a sandbox."""
        await self._ask("delete", handle=msgspec.to_builtins(handle))

    async def pause(self, handle: Handle) -> None:
        """Pause a sandbox."""
        await self._ask("pause", handle=msgspec.to_builtins(handle))

    async def stop(self, handle: Handle) -> None:
        """Stop a sandbox."""
        await self._ask("stop", handle=msgspec.to_builtins(handle))

    async def resume(self, handle: Handle) -> Handle:
        """Resume a sandbox."""
        return msgspec.convert(
            await self._ask("resume", handle=msgspec.to_builtins(handle)), Handle
        )

    async def restart(self, order: Order, handle: Handle, save: SaveHandle) -> Handle:
        """Start a sandbox again."""
        answer = await self._ask("restart", order=_plain(order), handle=msgspec.to_builtins(handle))
        made = msgspec.convert(answer, Handle)
        await save(made)
        return made

    async def logs(self, handle: Handle, *, tail: int, follow: bool) -> AsyncIterator[LogLine]:
        """Have none."""
        del handle, tail, follow
        none: tuple[LogLine, ...] = ()
        for line in none:
            yield line

    async def _ask(self, method: str, **body: Any) -> Any:
        if self._session is None:
            raise BackendUnavailable("It is not open")
        url = f"{self.config.url}/{self.context.instance_id}/{method}"
        try:
            async with self._session.post(url, data=msgspec.json.encode(body)) as response:
                told = msgspec.json.decode(await response.read())
                status = response.status
        except aiohttp.ClientError as exc:
            raise BackendUnavailable(
                "The resilience tests cannot be reached", detail=str(exc)
            ) from exc
        if status == REFUSED:
            _raise(told)
        return told


def _plain(order: Order) -> Any:
    return msgspec.to_builtins(order, enc_hook=_reveal)


def _reveal(value: Any) -> str:
    if not isinstance(value, Secret):
        raise NotImplementedError
    return value.reveal()


def _raise(told: dict[str, str]) -> NoReturn:
    known = {kind.__name__: kind for kind in (BackendUnavailable, Conflict, OrderRejected)}
    raise known.get(told["error"], BackendUnavailable)(told["message"])


@hookimpl
def agentsvc_register_backends() -> Iterable[type[RuntimeBackend[Any]]]:
    """Offer it."""
    return [PlaceBackend]


@hookimpl
def agentsvc_register_specs() -> Iterable[Spec]:
    """Offer one spec with an agent's port."""
    return [Spec(id="place", backend="place", command=("agent",), ports=(Port(name="agent"),))]

"""A plugin that does harm as it is told: in its hook, and in all a backend may be asked.

What to do stands in the file `fault` beside the directory it is loaded from; `done` has one byte for
each fault that was done.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

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
)
from agentsvc.plugin.hookspecs import Event, hookimpl

PLACE = Path(__file__).parents[1]
LEAKED: list[bytes] = []
_BLOCKED_SECONDS = 0.2
_LEAKED_BYTES = 100_000


class NoIdea(Exception):
    """Nobody else knows this class."""


def fault() -> str:
    """Return what is to be done, and note that it is."""
    file = PLACE / "fault"
    how = file.read_text() if file.exists() else ""
    if how:
        with (PLACE / "done").open("ab") as done:
            done.write(b".")
    return how


async def do_harm(how: str) -> Any:
    """Do it where one may wait."""
    match how:
        case "hang":
            await asyncio.sleep(3600)
        case "cancel":
            raise asyncio.CancelledError
        case "rubbish":
            return 42
        case _:
            do_harm_at_once(how)
    return None


def do_harm_at_once(how: str) -> None:
    """Do it where one may not."""
    match how:
        case "raise":
            raise NoIdea("of what to do\n" * 3)
        case "exit":
            sys.exit(3)
        case "block":
            time.sleep(_BLOCKED_SECONDS)
        case "leak":
            LEAKED.append(bytes(_LEAKED_BYTES))
        case _:
            pass


class BadConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to configure."""


class BadBackend(RuntimeBackend[BadConfig]):
    """Does harm whatever it is asked, if it is told so."""

    name: ClassVar[str] = "bad"
    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.SURVIVES_RESTART})
    Config = BadConfig

    async def probe(self) -> Health:
        """Say that all is well."""
        return await do_harm(fault()) or Health(ok=True)

    def fences(self, asked: Spec | Order) -> Fences:
        """Say that nothing gets out."""
        del asked
        return Fences(isolation=Isolation.VM)

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        """Make nothing."""
        handle = await do_harm(fault()) or Handle(sandbox_id=order.sandbox_id, version=1)
        await save(handle)
        return handle

    async def inspect(self, handle: Handle) -> Report:
        """Know nothing of it."""
        del handle
        raise NoIdea(await do_harm(fault()))

    async def scan(self) -> Sequence[Found]:
        """List nothing."""
        found: Sequence[Found] = await do_harm(fault()) or []
        return found

    async def delete(self, handle: Handle) -> None:
        """Delete nothing."""
        del handle
        await do_harm(fault())

    async def logs(self, handle: Handle, *, tail: int, follow: bool) -> AsyncIterator[LogLine]:
        """Have none."""
        del handle, tail, follow
        await do_harm(fault())
        none: tuple[LogLine, ...] = ()
        for line in none:
            yield line


@hookimpl
def agentsvc_register_backends() -> Iterable[type[RuntimeBackend[Any]]]:
    """Offer it."""
    return [BadBackend]


@hookimpl
def agentsvc_register_specs() -> Iterable[Spec]:
    """Offer one spec of it."""
    return [Spec(id="bad", backend="bad", command=("agent",), ports=(Port(name="agent"),))]


@hookimpl
def agentsvc_on_event(event: Event) -> Awaitable[None] | None:
    """Do harm, at once or later."""
    how = fault()
    if event.subject_id[-1:] in "02468ace":
        do_harm_at_once(how)
    return do_harm(how)

"""Calls to backends: with a timeout, and with every exception mapped to an AgentsvcError."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from agentsvc.base import AgentsvcError, BackendBroken, BackendUnavailable, is_cancelled
from agentsvc.plugin import Handle, PartlyScanned, StillFetching
from agentsvc.sandboxes.plugin_loader import Backend
from agentsvc.sandboxes.registry import BackendRegistry

log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.2


class BackendCalls:
    """Gives access to backends under a timeout."""

    def __init__(self, registry: BackendRegistry, time_limit: float) -> None:
        self.registry = registry
        self._time_limit = time_limit

    @contextlib.asynccontextmanager
    async def to(self, name: str) -> AsyncIterator[Backend]:
        """Yield a backend; all calls inside the context share the time limit.

        Raises BackendUnavailable on timeout, because the outcome is unknown, and BackendBroken for
        an exception that the contract does not allow.
        """
        backend = self.registry.get(name)
        try:
            async with asyncio.timeout(self._time_limit):
                yield backend
        except AgentsvcError:
            raise
        except TimeoutError as exc:
            raise BackendUnavailable(
                f"The backend `{name}` gave no answer within {self._time_limit:g} s"
            ) from exc
        except asyncio.CancelledError as exc:
            if is_cancelled():
                raise
            raise _broken(name, exc) from exc
        except (Exception, SystemExit) as exc:
            # A plugin may raise anything, which must not affect other backends.
            raise _broken(name, exc) from exc

    async def retry_while_fetching[T](
        self, name: str, begin: Callable[[Backend], Awaitable[T]]
    ) -> T:
        """Repeat a call while it raises StillFetching; return its result."""
        while True:
            try:
                async with self.to(name) as backend:
                    return await begin(backend)
            except StillFetching:
                await asyncio.sleep(_POLL_SECONDS)

    async def read_log(self, name: str, handle: Handle, lines: int) -> list[str]:
        """Return the last log lines of a sandbox, oldest first."""
        async with self.to(name) as backend:
            found = backend.logs(handle, tail=lines, follow=False)
            return [line.text async for line in found]

    async def log_tail(self, name: str, handle: Handle | None, lines: int) -> str:
        """Return the last log lines of a sandbox, or an empty string if they cannot be read."""
        if handle is None:
            return ""
        try:
            return "\n".join(await self.read_log(name, handle, lines))
        except AgentsvcError:
            return ""

    async def give_way(self, name: str, handles: Sequence[Handle]) -> bool:
        """Set which sandboxes of a backend run at lower priority; return whether it succeeded."""
        try:
            async with self.to(name) as backend:
                await backend.give_way(handles)
        except AgentsvcError as exc:
            log.info(
                "priority of sandboxes cannot be changed",
                extra={"backend": name, "reason": str(exc)},
            )
            return False
        return True


def _broken(name: str, exc: BaseException) -> BackendBroken:
    return BackendBroken(
        f"The backend `{name}` raised an unexpected error",
        detail=f"{type(exc).__name__}: {exc}",
    )


async def find_handle(backend: Backend, sandbox_id: str) -> Handle | None:
    """Scan for the handle of a sandbox whose record has none; return None if it does not exist.

    Raises BackendUnavailable if the scan failed, or if the sandbox may be on an unreachable host.
    """
    try:
        found = await backend.scan()
    except PartlyScanned as exc:
        for item in exc.found:
            if item.handle.sandbox_id == sandbox_id:
                return item.handle
        if exc.unknown is not None and sandbox_id not in exc.unknown:
            return None
        raise
    return next((item.handle for item in found if item.handle.sandbox_id == sandbox_id), None)

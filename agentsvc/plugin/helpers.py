"""Helpers for backends: handles, ports, paths, uncancellable work and background tasks."""

import asyncio
import contextlib
import posixpath
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

import agentsvc
from agentsvc.base import BackendUnavailable, HandleTooNew, OrderRejected
from agentsvc.plugin.backend import Handle, Port, StillFetching

PACKAGE_DIR: Final = Path(agentsvc.__file__).parent
"""The directory of the server's package, for backends that expose it to their sandboxes."""

AGENT_OUTPUT: Final = {
    # The agent server wraps its log lines at this width, and may block for seconds to print
    # a coloured traceback.
    "COLUMNS": "200",
    "LOG_RICH_TRACEBACKS": "false",
}
"""Environment variables for the output of every agent server."""

_KNOWN_PORTS: Final = {"agent": 8000, "vscode": 8001, "worker_1": 8011, "worker_2": 8012}
_FIRST_PORT: Final = 8100
_LONGEST_CALL_SECONDS: Final = 1.0


async def finish[T](work: Coroutine[Any, Any, T]) -> T:
    """Await work that must not be interrupted; a cancellation is raised once it is done."""
    inner = asyncio.gather(work)
    try:
        [result] = await asyncio.shield(inner)
    except asyncio.CancelledError:
        await asyncio.wait([inner])
        with contextlib.suppress(asyncio.CancelledError):
            inner.exception()  # marks it as retrieved, or asyncio logs it
        raise
    return result


class LongTasks:
    """Background tasks for sandboxes, by name, that outlive the calls that wait for them."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tasks and not self._tasks[name].done()

    async def go_on[T](
        self,
        name: str,
        begin: Callable[[], Coroutine[Any, Any, T]],
        *,
        wait_seconds: float = _LONGEST_CALL_SECONDS,
        message: str = "The files are being copied",
    ) -> T:
        """Start a background task or wait for the running one; raises StillFetching on timeout.

        Raises BackendUnavailable if the task is abandoned meanwhile.
        """
        if (task := self._tasks.get(name)) is None:
            loop = asyncio.get_running_loop()
            task = self._tasks[name] = loop.create_task(begin(), name=f"work for {name}")
        await asyncio.wait([task], timeout=wait_seconds)
        if not task.done():
            raise StillFetching(message)
        self._tasks.pop(name, None)
        if task.cancelled():
            # The caller itself was not cancelled, so a CancelledError would end it silently.
            raise BackendUnavailable("The work for the sandbox was cancelled")
        done: T = task.result()
        return done

    async def abandon(self, name: str) -> None:
        """Cancel the task of that name, if there is one, and wait for it."""
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # marks it as retrieved, or asyncio logs it

    async def close(self) -> None:
        """Cancel all tasks and wait for them."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


def check_handle(handle: Handle, version: int, maker: str) -> None:
    """Raise HandleTooNew for a handle whose format is newer than `version`."""
    if handle.version > version:
        raise HandleTooNew(
            f"The sandbox was made by a newer version of the {maker}",
            detail=f"handle version {handle.version}",
        )


def choose_ports(ports: Iterable[Port]) -> dict[str, int]:
    """Return the number of each port inside a network namespace of the sandbox's own.

    Raises OrderRejected if two have the same name or number.
    """
    wanted = [port for port in ports if port.number]
    free = [port for port in ports if not port.number]
    used = {port.number for port in wanted}
    found = {port.name: port.number for port in wanted}
    following = _FIRST_PORT
    for port in free:
        number = _KNOWN_PORTS.get(port.name, 0)
        while not number or number in used:
            number, following = following, following + 1
        used.add(number)
        found[port.name] = number
    if len(found) != len(wanted) + len(free) or len(used) != len(found):
        raise OrderRejected("Two ports have the same name or number")
    return found


def working_dir(asked: str, workspace: str) -> str:
    """Return the command's directory; raises OrderRejected unless it is in the workspace."""
    top = posixpath.normpath(workspace)
    path = posixpath.normpath(posixpath.join(top, asked))
    if not is_below(path, top):
        raise OrderRejected(
            f"The working directory must be below {top}; the option `workspace` moves that"
        )
    return path


def is_below(path: str, top: str) -> bool:
    """Return whether a path is `top` or below it; both must be normalized by `normpath`."""
    return path == top or path.startswith(top.rstrip("/") + "/")

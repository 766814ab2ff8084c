"""Helpers for backends: handles, port numbers, paths, tasks that are finished, and tasks that take long."""

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
"""The directory of the server's own package, for backends that show it to what they run."""

AGENT_OUTPUT: Final = {
    # The agent server breaks its log lines at this width, and may stop for seconds to print
    # a coloured traceback.
    "COLUMNS": "200",
    "LOG_RICH_TRACEBACKS": "false",
}
"""What every agent server is told of its output."""

_KNOWN_PORTS: Final = {"agent": 8000, "vscode": 8001, "worker_1": 8011, "worker_2": 8012}
_FIRST_PORT: Final = 8100
_LONGEST_CALL_SECONDS: Final = 1.0


async def finish[T](work: Coroutine[Any, Any, T]) -> T:
    """Await what must not end half-way; if cancelled, be so when it is done."""
    inner = asyncio.gather(work)
    try:
        [result] = await asyncio.shield(inner)
    except asyncio.CancelledError:
        await asyncio.wait([inner])
        with contextlib.suppress(asyncio.CancelledError):
            inner.exception()  # so that nobody complains of an error that nobody saw
        raise
    return result


class LongTasks:
    """Work for sandboxes that goes on beside the calls that ask for it, each by its name."""

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
        """Begin something long, or go on with it; raises StillFetching if it is not over soon.

        Raises BackendUnavailable where it is abandoned meanwhile.
        """
        if (task := self._tasks.get(name)) is None:
            loop = asyncio.get_running_loop()
            task = self._tasks[name] = loop.create_task(begin(), name=f"work for {name}")
        await asyncio.wait([task], timeout=wait_seconds)
        if not task.done():
            raise StillFetching(message)
        self._tasks.pop(name, None)
        if task.cancelled():
            # Whoever waits for it was not: nobody would hear of an end of theirs.
            raise BackendUnavailable("What was being done for the sandbox was broken off")
        done: T = task.result()
        return done

    async def abandon(self, name: str) -> None:
        """End what goes on under a name, if anything does."""
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # so that nobody complains of an error that nobody saw

    async def close(self) -> None:
        """End everything."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


def check_handle(handle: Handle, version: int, maker: str) -> None:
    """Raise HandleTooNew for one of a later version than this, which the same maker has then made."""
    if handle.version > version:
        raise HandleTooNew(
            f"The sandbox was made by a newer version of the {maker}",
            detail=f"handle version {handle.version}",
        )


def choose_ports(ports: Iterable[Port]) -> dict[str, int]:
    """Return each port's number in a network of its own.

    Raises OrderRejected where two have the same name or number.
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
    """Return where the command starts; raises OrderRejected unless it is in the workspace."""
    top = posixpath.normpath(workspace)
    path = posixpath.normpath(posixpath.join(top, asked))
    if not is_below(path, top):
        raise OrderRejected(
            f"The working directory must be below {top}; the option `workspace` moves that"
        )
    return path


def is_below(path: str, top: str) -> bool:
    """Say whether a path is that directory or in it; both are as `normpath` leaves them."""
    return path == top or path.startswith(top.rstrip("/") + "/")

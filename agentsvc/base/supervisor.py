"""Named background tasks and loops: start, watch, restart with back-off, stop.

Nothing else starts a background task of the server, but `storage.database` for its own transactions and
`plugin.helpers.LongTasks` for backends. What a task does is decided by whoever starts it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from agentsvc.base.errors import AgentsvcError

log = logging.getLogger(__name__)

LONGEST_BACK_OFF_SECONDS: Final = 60.0
"""What the wait of a failing loop doubles up to; loops slower than this keep their own pace."""

_SHORTEST_BACK_OFF_SECONDS: Final = 0.01


class Supervisor:
    """Owns every background task of one app, by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}
        self._is_stopping = False

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a one-shot task; a name that already runs is left alone.

        A failure is logged with the name and goes no further. After `stop` nothing is started.
        """
        if self.is_running(name):
            return
        if self._is_stopping:
            log.debug("task not started, the server is stopping", extra={"task": name})
            return
        task = asyncio.create_task(_guard(name, work), name=name)
        self._tasks[name] = task
        task.add_done_callback(lambda ended: self._forget(name, ended))

    def loop(self, name: str, body: Callable[[], Awaitable[None]], *, every_seconds: float) -> None:
        """Run the body now and again after each wait, until `stop`.

        A failure is logged with the name; the waits then double, up to 60 seconds, until the
        body succeeds. A name that already runs is left alone.
        """

        async def counted() -> bool:
            is_good = await _succeeds(name, body)
            self._failures[name] = 0 if is_good else self._failures.get(name, 0) + 1
            return is_good

        self.spawn(name, lambda: _repeat(counted, every_seconds))

    def loop_failures(self) -> dict[str, int]:
        """Return how often in a row each loop has failed, 0 for one whose last run was good."""
        return dict(self._failures)

    def is_running(self, name: str) -> bool:
        """Tell whether a task of this name has started and not ended."""
        task = self._tasks.get(name)
        return task is not None and not task.done()

    async def join(self, name: str) -> None:
        """Wait until the task of this name has ended; return at once if there is none.

        How it ended does not matter here, and cancelling the wait leaves the task alone.
        """
        if task := self._tasks.get(name):
            await asyncio.wait([task])

    async def stop(self, grace_seconds: float) -> list[str]:
        """Cancel every task, wait for them, and return the names of those that did not stop.

        Safe to call twice.
        """
        self._is_stopping = True
        tasks = dict(self._tasks)
        for task in tasks.values():
            task.cancel()
        if tasks:
            await asyncio.wait(tasks.values(), timeout=grace_seconds)
        left = sorted(name for name, task in tasks.items() if not task.done())
        if left:
            log.warning("tasks did not stop in time", extra={"tasks": left})
        return left

    def _forget(self, name: str, ended: asyncio.Task[None]) -> None:
        # A new task of this name may have been started since this one ended.
        if self._tasks.get(name) is ended:
            del self._tasks[name]


async def _guard(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await work()
    except AgentsvcError as exc:
        _tell("task failed", name, exc)
    except Exception:
        log.exception("task failed", extra={"task": name})


def _tell(what: str, name: str, error: AgentsvcError) -> None:
    """Log a failure that names its cause: where it was raised would say no more."""
    log.error(what, extra={"task": name, "reason": error.log_text})


async def _repeat(succeeds: Callable[[], Awaitable[bool]], every_seconds: float) -> None:
    wait_seconds = every_seconds
    while True:
        is_good = await succeeds()
        wait_seconds = every_seconds if is_good else back_off(wait_seconds, every_seconds)
        await asyncio.sleep(wait_seconds)


async def wait_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, or for so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def back_off(wait_seconds: float, every_seconds: float) -> float:
    """Return how long a loop waits after a failure, given how long it waited before it."""
    longest = max(LONGEST_BACK_OFF_SECONDS, every_seconds)
    return min(longest, max(wait_seconds * 2, _SHORTEST_BACK_OFF_SECONDS))


def is_cancelled() -> bool:
    """Whether somebody cancels the task that asks, and not only something it waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _succeeds(name: str, body: Callable[[], Awaitable[None]]) -> bool:
    try:
        await body()
    except asyncio.CancelledError:
        # A body may also leak the cancellation of something it waited for; that is a failure
        # like any other, unless it is this loop that somebody cancels.
        if is_cancelled():
            raise
        log.warning("background loop cancelled itself, restarting it", extra={"task": name})
        return False
    except AgentsvcError as exc:
        _tell("background loop failed, restarting it", name, exc)
        return False
    except Exception:
        log.exception("background loop failed, restarting it", extra={"task": name})
        return False
    return True

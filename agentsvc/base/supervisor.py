"""Named background tasks and loops: start, watch, restart with back-off, stop.

No other module starts background tasks, except `storage.database` for its own transactions and
`plugin.helpers.LongTasks` for backends.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from agentsvc.base.errors import AgentsvcError

log = logging.getLogger(__name__)

LONGEST_BACK_OFF_SECONDS: Final = 60.0
"""The maximum wait of a failing loop; loops with a longer interval keep that."""

_SHORTEST_BACK_OFF_SECONDS: Final = 0.01


class Supervisor:
    """Owns every background task of an app, by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}
        self._is_stopping = False

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a one-shot task, unless one of that name is running.

        An exception is logged with the name and not propagated. No-op after `stop`.
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

        An exception is logged with the name; the waits then double, up to 60 seconds, until the
        body succeeds. No-op if a task of that name is running.
        """

        async def counted() -> bool:
            is_good = await _succeeds(name, body)
            self._failures[name] = 0 if is_good else self._failures.get(name, 0) + 1
            return is_good

        self.spawn(name, lambda: _repeat(counted, every_seconds))

    def loop_failures(self) -> dict[str, int]:
        """Return the number of consecutive failures of each loop."""
        return dict(self._failures)

    def is_running(self, name: str) -> bool:
        """Return whether a task of this name was started and has not ended."""
        task = self._tasks.get(name)
        return task is not None and not task.done()

    async def join(self, name: str) -> None:
        """Wait until the task of this name has ended; return at once if there is none.

        Its exceptions are ignored, and cancelling the wait does not cancel the task.
        """
        if task := self._tasks.get(name):
            await asyncio.wait([task])

    async def stop(self, grace_seconds: float) -> list[str]:
        """Cancel every task, wait for them, and return the names of those that did not stop.

        Idempotent.
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
        # A new task of this name may have been started meanwhile.
        if self._tasks.get(name) is ended:
            del self._tasks[name]


async def _guard(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await work()
    except AgentsvcError as exc:
        _log_failure("task failed", name, exc)
    except Exception:
        log.exception("task failed", extra={"task": name})


def _log_failure(what: str, name: str, error: AgentsvcError) -> None:
    """Log an expected error by its reason; a traceback would add nothing."""
    log.error(what, extra={"task": name, "reason": error.log_text})


async def _repeat(succeeds: Callable[[], Awaitable[bool]], every_seconds: float) -> None:
    wait_seconds = every_seconds
    while True:
        is_good = await succeeds()
        wait_seconds = every_seconds if is_good else back_off(wait_seconds, every_seconds)
        await asyncio.sleep(wait_seconds)


async def wait_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most so many seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def back_off(wait_seconds: float, every_seconds: float) -> float:
    """Return the wait of a loop after a failure, from its previous wait."""
    longest = max(LONGEST_BACK_OFF_SECONDS, every_seconds)
    return min(longest, max(wait_seconds * 2, _SHORTEST_BACK_OFF_SECONDS))


def is_cancelled() -> bool:
    """Return whether the current task itself is being cancelled, not only something it awaits."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _succeeds(name: str, body: Callable[[], Awaitable[None]]) -> bool:
    try:
        await body()
    except asyncio.CancelledError:
        # A body may leak the CancelledError of something it awaited; that counts as a failure, unless
        # the loop itself is being cancelled.
        if is_cancelled():
            raise
        log.warning("background loop cancelled itself, restarting it", extra={"task": name})
        return False
    except AgentsvcError as exc:
        _log_failure("background loop failed, restarting it", name, exc)
        return False
    except Exception:
        log.exception("background loop failed, restarting it", extra={"task": name})
        return False
    return True

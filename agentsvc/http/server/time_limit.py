"""A time limit for requests that share one timer: one per request costs more than most requests."""

import asyncio
from typing import Any

from agentsvc.base import TimedOut, monotonic


class TimeLimit:
    """Context manager that raises TimedOut if its block takes longer than `seconds`.

    All blocks have the same limit, so they expire in the order in which they began.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[asyncio.Task[Any] | None, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._due[asyncio.current_task()] = monotonic() + self._seconds
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._cancel_due)

    def __exit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> None:
        task = asyncio.current_task()
        if self._due.pop(task, None) is not None or task is None:
            return
        # The timer has cancelled the task; a cancellation from elsewhere takes precedence.
        if not task.uncancel() and isinstance(exc, asyncio.CancelledError):
            raise TimedOut("The request took too long") from exc

    def _cancel_due(self) -> None:
        self._timer = None
        for task, due in tuple(self._due.items()):
            left = due - monotonic()
            if left > 0:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(left, self._cancel_due)
                return
            del self._due[task]
            if task is not None:
                task.cancel()

"""Blocking work of the process backend: runs it in threads and translates its errors."""

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Final

from agentsvc.base import AgentsvcError, BackendUnavailable, CapacityExceeded, monotonic
from agentsvc.plugin import finish as complete

FULL: Final = frozenset(
    {errno.EAGAIN, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC}
)
"""Errors that mean no room now, and possibly room later."""

_POLL_SECONDS: Final = 0.02


async def reach[T](work: Callable[[], T]) -> T:
    """Run blocking work in a thread; translate OSError to a domain error."""
    try:
        return await asyncio.to_thread(work)
    except OSError as exc:
        raise to_error(exc) from exc


def to_error(exc: OSError) -> AgentsvcError:
    """Return the domain error for an error of the operating system."""
    if exc.errno in FULL:
        text = f"This machine is full: {os.strerror(exc.errno or 0)}"
        return CapacityExceeded(text, detail=str(exc))
    text = "The files of the process backend cannot be reached"
    return BackendUnavailable(text, detail=str(exc))


async def finish[T](work: Callable[[], T]) -> T:
    """Run blocking work in a thread to its end, even if the caller is cancelled meanwhile."""
    return await complete(reach(work))


async def until_none(remain: Callable[[], bool], time_limit: float) -> bool:
    """Poll until `remain` returns False; return whether that happened in time."""
    deadline = monotonic() + time_limit
    while await reach(remain):
        if monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True

"""The time limit of requests, which share one timer."""

import asyncio
import contextlib

import pytest

from agentsvc.base import TimedOut
from agentsvc.http.server.time_limit import TimeLimit


async def _work(limit: TimeLimit, seconds: float) -> str:
    with limit:
        await asyncio.sleep(seconds)
    return "done"


async def test_each_may_take_as_long_whenever_it_began() -> None:
    limit = TimeLimit(0.2)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(_work(limit, 0.1))
        await asyncio.sleep(0.15)
        second = group.create_task(_work(limit, 0.15))
        third = group.create_task(_timed_out(limit))
    assert (first.result(), second.result(), third.result()) == ("done", "done", True)


async def _timed_out(limit: TimeLimit) -> bool:
    with pytest.raises(TimedOut):
        await _work(limit, 60)
    return not _task().cancelling()


def _task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def test_what_somebody_else_cancels_is_cancelled() -> None:
    limit = TimeLimit(0.01)
    task = asyncio.get_running_loop().create_task(_stubborn(limit))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _stubborn(limit: TimeLimit) -> None:
    with limit:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)


async def test_an_end_that_comes_late_counts() -> None:
    limit = TimeLimit(0.01)
    with limit, contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    assert not _task().cancelling()

"""WebSockets that show their key later wait at the doorstep, and not too many of them."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from agentsvc.errors import CapacityExceeded
from agentsvc.http.doorstep import Doorstep

PLACES = 8
AT_ONCE = 2


async def test_the_first_have_a_place_at_once_and_those_in_a_crowd_a_little_later() -> None:
    doorstep = Doorstep(time_limit=10, most=PLACES)
    came = 0

    async def come(opened: AsyncExitStack) -> None:
        nonlocal came
        await opened.enter_async_context(doorstep.place())
        came += 1

    async with AsyncExitStack() as opened, asyncio.TaskGroup() as group:
        for _ in range(PLACES):
            group.create_task(come(opened))
        await asyncio.sleep(0)
        assert came == AT_ONCE
        with pytest.raises(CapacityExceeded):
            await come(opened)
    assert came == PLACES
    async with doorstep.place():
        pass

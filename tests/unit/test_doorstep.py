"""WebSockets that show their key later wait at the doorstep, and not too many of them."""

from contextlib import AsyncExitStack

import pytest

from agentsvc.errors import CapacityExceeded
from agentsvc.http.doorstep import Doorstep

PLACES = 8
AT_ONCE = 2


async def test_the_first_have_a_place_at_once_and_those_in_a_crowd_a_little_later() -> None:
    doorstep = Doorstep(time_limit=10, most=PLACES)
    delays = []
    async with AsyncExitStack() as opened:
        for _ in range(PLACES):
            await opened.enter_async_context(doorstep.place())
            delays.append(doorstep.delay())
        with pytest.raises(CapacityExceeded):
            await opened.enter_async_context(doorstep.place())
    assert delays[:AT_ONCE] == [0.0] * AT_ONCE
    others = delays[AT_ONCE:]
    assert len(set(others)) == len(others)
    assert 0 < min(others) < max(others) <= 1
    async with doorstep.place():
        assert doorstep.delay() == 0

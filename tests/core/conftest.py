"""Fixtures of the core: the whole server on a fake backend and agent that can be troubled."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.core.troubles import TroubledAgent, TroubledWorld


@pytest.fixture
async def fake_agent() -> AsyncIterator[TroubledAgent]:
    async with TroubledAgent() as agent:
        yield agent
        agent.let_go()


@pytest.fixture
def fake_world(fake_agent: TroubledAgent) -> Iterator[TroubledWorld]:
    world = TroubledWorld()
    world.on_create = fake_agent.on_create
    yield world
    world.close()

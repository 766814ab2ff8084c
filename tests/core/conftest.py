"""Fixtures of the core: a server on a fake backend and agent that can be troubled, and a bench."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentsvc.storage.database import Database
from tests.core.bench import CoreRig, core_rig
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


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    database = await Database.open(tmp_path / "agentsvc.db")
    try:
        yield database
    finally:
        await database.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[CoreRig]:
    async with core_rig(tmp_path) as bench:
        yield bench

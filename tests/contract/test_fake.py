"""The fake backend keeps the contract, so that tests which use it prove something."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agentsvc.plugin.backend import RuntimeBackend
from agentsvc.testing import FakeConfig, FakeWorld, KitOptions, backend_contract

WORLD = FakeWorld()


@asynccontextmanager
async def unreachable(_backend: RuntimeBackend[Any]) -> AsyncIterator[None]:
    WORLD.unreachable = True
    try:
        yield
    finally:
        WORLD.unreachable = False


TestFakeBackend = backend_contract(
    WORLD.backend_type(), FakeConfig(), KitOptions(unreachable=unreachable, quiet_seconds=0.3)
)

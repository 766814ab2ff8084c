"""A browser, and the console in it."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest_asyncio
from playwright.async_api import Browser

from tests.conftest import FAST
from tests.live.browser import Console, chromium
from tests.live.client import PATIENCE, LiveClient
from tests.live.console.reports import user_of
from tests.live.console.users import new_user, usual_settings
from tests.live.installation import Installation
from tests.plugin_loading import load_plugins
from tests.service import Service
from tests.troubles import TroubledAgent, TroubledWorld

PATIENT = msgspec.structs.replace(
    FAST,
    sandboxes=msgspec.structs.replace(
        FAST.sandboxes, start_seconds=PATIENCE, call_seconds=PATIENCE
    ),
    conversations=msgspec.structs.replace(
        FAST.conversations, agent_seconds=PATIENCE, start_seconds=PATIENCE
    ),
)
"""As fast, but it gives up no sooner than its clients: it has a browser beside it, on few processors."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def somebody(shared: Installation) -> LiveClient:
    """Return a client of a user whose conversations live in one sandbox, which runs."""
    client = await new_user(shared)
    await usual_settings(client)
    answer = await client.post("/api/v1/sandboxes")
    # It may be the first of all, which takes longest.
    await client.wait_for_sandbox(answer.json()["id"], "RUNNING", time_limit=2 * PATIENCE)
    return client


@pytest_asyncio.fixture(loop_scope="session")
async def console(browser: Browser, somebody: LiveClient) -> AsyncIterator[Console]:
    await usual_settings(somebody)
    async with Console.opened(browser, somebody) as console:
        yield console


@pytest_asyncio.fixture(loop_scope="session")
async def own_console(browser: Browser, shared: Installation) -> AsyncIterator[Console]:
    """Return the console of a user of the test's own, who has nothing that another try has left."""
    client = await new_user(shared)
    await usual_settings(client)
    async with Console.opened(browser, client) as console:
        yield console


@pytest_asyncio.fixture(loop_scope="session")
async def agent() -> AsyncIterator[TroubledAgent]:
    async with TroubledAgent() as agent:
        yield agent
        agent.let_go()


@pytest_asyncio.fixture(loop_scope="session")
async def quick(tmp_path: Path, agent: TroubledAgent) -> AsyncIterator[Service]:
    """Return a server whose sandboxes and agents are fakes."""
    world = TroubledWorld()
    world.on_create = agent.on_create
    service = Service(tmp_path / "data", PATIENT, lambda: load_plugins(fake=world.plugin()))
    await service.start()
    yield service
    await service.close()
    world.close()


@pytest_asyncio.fixture(loop_scope="session")
async def quick_console(browser: Browser, quick: Service) -> AsyncIterator[Console]:
    client = await user_of(quick)
    try:
        async with Console.opened(browser, client) as console:
            yield console
    finally:
        await client.close()

"""Fixtures that most tests share: a whole server on a fake backend with a fake agent."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import coverage
import pytest

from agentsvc.config.conversations import ConversationsConfig, ModelsConfig
from agentsvc.config.sandboxes import SandboxesConfig
from agentsvc.config.schema import Config, GitConfig, LimitsConfig
from agentsvc.storage.database import Database
from agentsvc.testing.backend import FakeWorld
from tests.new_data import write_database
from tests.plugin_loading import load_plugins
from tests.service import Client, Service
from tests.troubles import TroubledAgent, TroubledWorld

FAST = Config(
    sandboxes=SandboxesConfig(
        default_backend="fake", sweep_seconds=0.2, start_seconds=15, call_seconds=10
    ),
    conversations=ConversationsConfig(
        agent_seconds=10,
        start_seconds=20,
        first_answer_seconds=0.5,
        hand_over_seconds=0.6,
        title_wait_seconds=0.1,
        webhook_flush_seconds=0.05,
        sync_seconds=0.3,
    ),
    # No test may depend on what a real git hosting service says.
    git=GitConfig(check_tokens=False, api_seconds=3),
    extensions={
        name: {"enabled": True}
        for name in ("runtime_api", "sharing", "mcp_server", "sign_in", "acp_agent")
    },
    # What agents get is looked at as it was asked for; `test_model_proxy` turns it on.
    models=ModelsConfig(proxy=False),
    # Tests show bad keys without a pause; `test_limits` looks at what comes of that.
    limits=LimitsConfig(refused_per_minute=0),
    backends={"fake": {}},
)
"""A configuration in which nothing takes longer than a test may."""


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the tests and their modules out of what garbage collection walks through from now on."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Save what coverage has seen so far: xdist kills a worker that takes long to end."""
    if measured := coverage.Coverage.current():
        measured.save()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which versions of published clients were tested."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    tested = {
        value for report in reports for name, value in report.user_properties if name == "client"
    }
    if tested:
        terminalreporter.write_sep("-", "published clients")
        terminalreporter.write_line("\n".join(sorted(tested)))


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
async def service(tmp_path: Path, fake_world: FakeWorld) -> AsyncIterator[Service]:
    service = Service(tmp_path / "data", FAST, lambda: load_plugins(fake=fake_world.plugin()))
    await service.start()
    yield service
    await service.close()


@pytest.fixture
async def client(service: Service) -> Client:
    """Return a client of an admin who has saved settings."""
    client = await service.make_client()
    await client.save_settings()
    return client


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    path = tmp_path / "agentsvc.db"
    await asyncio.to_thread(write_database, path)
    database = await Database.open(path)
    try:
        yield database
    finally:
        await database.close()

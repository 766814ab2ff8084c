"""A server whose sandboxes all are one small server of the test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.config.schema import GatewayConfig
from agentsvc.testing.backend import FakeWorld
from tests.http.gateway.steps import Box, make_gate
from tests.http.gateway.upstream import Upstream
from tests.service import Service


class StartGate(Protocol):
    """Starts a server with a gateway; `server` replaces values of the server section."""

    async def __call__(self, gateway: GatewayConfig, **server: Any) -> Service: ...


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    await upstream.start()
    yield upstream
    await upstream.stop()


@pytest.fixture
def world(upstream: Upstream) -> Iterator[FakeWorld]:
    world = FakeWorld()
    world.on_create = upstream.on_create
    yield world
    world.close()


@pytest.fixture
async def start_gate(tmp_path: Path, world: FakeWorld) -> AsyncIterator[StartGate]:
    """Return a function that starts a server with a gateway of some configuration."""
    services: list[Service] = []

    async def start(gateway: GatewayConfig, **server: Any) -> Service:
        service = make_gate(tmp_path / "data", world, gateway, **server)
        services.append(service)
        await service.start()
        return service

    yield start
    for service in services:
        await service.close()


@pytest.fixture
async def gate(start_gate: StartGate) -> Service:
    return await start_gate(GatewayConfig(start_seconds=10, connect_seconds=10))


@pytest.fixture
async def box(gate: Service, upstream: Upstream) -> Box:
    """Return a sandbox of a user, running."""
    return await Box.start(gate, upstream, await gate.make_client("owner", Role.MEMBER))

"""Conversations in sandboxes that another server runs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.config.sandboxes import SandboxesConfig
from agentsvc.config.schema import Config
from agentsvc.sandboxes.plugin_loader import PluginHost
from tests.conftest import FAST
from tests.service import Client, Service

type StartNear = Callable[..., Awaitable[Client]]

NEVER = 3600.0


@pytest.fixture
async def start_near(service: Service, tmp_path: Path) -> AsyncIterator[StartNear]:
    """Return a function that starts a server whose sandboxes are all at the other one."""
    services: list[Service] = []

    async def start(*, poll_seconds: float, **more: Any) -> Client:
        tenant = await service.make_client("tenant", Role.MEMBER)
        config = Config(
            sandboxes=SandboxesConfig(
                default_backend="agentsvc", sweep_seconds=0.2, start_seconds=20, call_seconds=10
            ),
            conversations=msgspec.structs.replace(
                FAST.conversations,
                poll_seconds=poll_seconds,
                sync_seconds=NEVER,
                agent_seconds=20,
                start_seconds=30,
            ),
            backends={"agentsvc": {"url": service.url, "api_key": tenant.key, **more}},
        )
        near = Service(tmp_path / "near", config, PluginHost.load)
        services.append(near)
        await near.start()
        client = await near.make_client()
        await client.save_settings()
        return client

    yield start
    for near in services:
        await near.close()


async def test_events_are_fetched_where_they_cannot_be_delivered(start_near: StartNear) -> None:
    client = await start_near(poll_seconds=0.1)
    name = await client.start_conversation("please work")
    await client.wait_for_execution(name, "finished")
    kinds = [event["kind"] for event in await client.events(name)]
    assert "MessageEvent" in kinds
    sandbox_id = (await client.conversation(name))["sandbox_id"]
    sandbox = await client.sandbox(sandbox_id)
    assert sandbox is not None
    assert sandbox["facts"]["callbacks"] == "none"


async def test_a_sandbox_that_reaches_this_server_delivers_its_events(
    start_near: StartNear,
) -> None:
    client = await start_near(poll_seconds=NEVER, calls_back=True)
    name = await client.start_conversation("please work")
    await client.wait_for_execution(name, "finished")
    assert "MessageEvent" in [event["kind"] for event in await client.events(name)]


async def test_a_conversation_goes_on_after_a_pause(start_near: StartNear) -> None:
    client = await start_near(poll_seconds=0.1)
    name = await client.start_conversation("please work")
    await client.wait_for_execution(name, "finished")
    sandbox_id = (await client.conversation(name))["sandbox_id"]
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/resume")
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    body = {"content": [{"type": "text", "text": "go on"}]}
    answer = await client.post(f"/api/v1/app-conversations/{name}/send-message", json=body)
    assert answer.status == 200, answer.text


async def test_a_conversation_that_is_deleted_takes_its_sandbox_there_along(
    start_near: StartNear, service: Service
) -> None:
    client = await start_near(poll_seconds=0.1)
    name = await client.start_conversation("please work")
    assert (await client.delete(f"/api/v1/app-conversations/{name}")).status == 200
    tenant = await service.make_client("tenant", Role.MEMBER)
    async with asyncio.timeout(tenant.patience):
        while True:
            if (await tenant.get("/api/v1/sandboxes/search")).json()["items"] == []:
                return
            await asyncio.sleep(0.05)

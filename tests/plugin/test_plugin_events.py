"""Every kind of event that plugins are promised is told, once it is stored."""

import asyncio
from types import ModuleType
from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.plugin.hookspecs import EVENT_KINDS, Event, hookimpl
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.testing import FakeWorld
from tests.plugin_loading import load_plugins
from tests.service import Service


class Heard:
    """A plugin that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.plugin = ModuleType("listener")
        events = self.events

        @hookimpl
        def agentsvc_on_event(event: Event) -> None:
            events.append(event)

        vars(self.plugin)["agentsvc_on_event"] = agentsvc_on_event

    async def wait_for(self, kind: str, subject_id: str | None = None) -> list[dict[str, Any]]:
        async with asyncio.timeout(10):
            while True:
                found = [
                    one.data
                    for one in self.events
                    if one.kind == kind and subject_id in (None, one.subject_id)
                ]
                if found:
                    return found
                await asyncio.sleep(0.02)


@pytest.fixture
async def heard(service: Service, fake_world: FakeWorld) -> Heard:
    heard = Heard()

    def make_plugins() -> PluginHost:
        return load_plugins(fake=fake_world.plugin(), listener=heard.plugin)

    service.make_plugins = make_plugins
    await service.restart()
    return heard


async def test_every_kind_of_event_is_told(service: Service, heard: Heard) -> None:
    client = await service.make_client()
    await client.save_settings()
    conversation_id = await client.start_conversation()
    [started] = await heard.wait_for("conversation.started", conversation_id)
    seen = await heard.wait_for("sandbox.changed", started["sandbox_id"])
    assert {"status": "RUNNING", "backend": "fake", "spec_id": "fake"} in seen
    assert (await heard.wait_for("conversation.events", conversation_id))[0]["seq"] > 0

    path = f"/api/v1/app-conversations/{conversation_id}"
    assert (await client.patch(path, json={"title": "Another"})).status == 200
    await heard.wait_for("conversation.changed", conversation_id)
    assert (await client.delete(path)).status == 200
    await heard.wait_for("conversation.deleted", conversation_id)

    stranger = await service.make_client("bob", Role.MEMBER)
    failed = await stranger.end_of_start((await stranger.start_task())["id"])
    assert await heard.wait_for("conversation.start_failed") == [{"reason": failed["detail"]}]
    assert {one.kind for one in heard.events} == set(EVENT_KINDS)

"""A sandbox that dies is told along the table of the page about the event flow."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from agentsvc.base.bus import Notice, Subject
from agentsvc.http.keys import DATABASE, EVENT_BUS, KEYRING
from agentsvc.plugin.hookspecs import Event, hookimpl
from tests.conftest import FAST
from tests.plugin_loading import load_plugins
from tests.service import Service
from tests.troubles import TroubledWorld

NOBODY = "http://127.0.0.1:9/hook"
"""Where nothing listens: deliveries stay in their queue."""

type Heard = tuple[str, str]


class Hears:
    """A plugin that notes what it is told of sandboxes."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.of_death = asyncio.Event()

    @hookimpl
    def agentsvc_on_event(self, event: Event) -> None:
        if event.kind == "sandbox.changed":
            self.heard.append(("plugin", event.data["status"]))
            if event.data["status"] == "ERROR":
                self.of_death.set()


@pytest.fixture
def hears() -> Hears:
    return Hears()


@pytest.fixture
async def telling(
    tmp_path: Path, fake_world: TroubledWorld, hears: Hears
) -> AsyncIterator[Service]:
    config = msgspec.structs.replace(FAST, extensions={"webhooks": {"allow_private": True}})
    service = Service(
        tmp_path / "data",
        config,
        lambda: load_plugins(fake=fake_world.plugin(), hears=hears),
    )
    await service.start()
    yield service
    await service.close()


def stored(file: Path, sandbox_id: str) -> tuple[str, int]:
    """Return what others can read of a sandbox now: its phase, and how many deliveries tell of it."""
    reader = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        [phase] = reader.execute(
            "SELECT phase FROM sandboxes WHERE id = ?", (sandbox_id,)
        ).fetchone()
        [told] = reader.execute(
            "SELECT count(*) FROM webhook_deliveries WHERE type = 'sandbox.changed'"
            " AND json_extract(data, '$.phase') = 'failed'"
        ).fetchone()
    finally:
        reader.close()
    return phase, told


async def test_a_death_is_durable_with_its_deliveries_then_on_the_bus_then_told_to_plugins(
    telling: Service, fake_world: TroubledWorld, hears: Hears
) -> None:
    client = await telling.make_client()
    await client.save_settings()
    body = {"url": NOBODY, "changes": ["sandbox"]}
    answer = await client.post("/api/v1/webhook-subscriptions", json=body)
    assert answer.status == 201, answer.text
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    sandbox_id = (await client.conversation(conversation_id))["sandbox_id"]
    file = telling.app[DATABASE].path
    at_bus: list[tuple[str, int]] = []

    def tell(news: Notice) -> None:
        if (news.subject, news.id) == (Subject.SANDBOX, sandbox_id):
            at_bus.append(stored(file, sandbox_id))
            hears.heard.append(("bus", at_bus[-1][0]))

    user_id = await telling.app[KEYRING].find_user("admin")
    assert user_id is not None
    end = telling.app[EVENT_BUS].watch(user_id, tell)
    try:
        fake_world.end(sandbox_id)
        async with asyncio.timeout(20):
            await hears.of_death.wait()
    finally:
        end()
    assert ("failed", 1) in at_bus
    assert hears.heard.index(("bus", "failed")) < hears.heard.index(("plugin", "ERROR"))

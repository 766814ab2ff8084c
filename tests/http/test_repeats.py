"""Requests with an `Idempotency-Key`: done once, answered the same however often they come."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentsvc.accounts.idempotency import (
    LARGEST_ANSWER_BYTES,
    IdempotencySlot,
    IdempotencyStore,
    StoredAnswer,
)
from agentsvc.accounts.keys import KeyRing, Role
from agentsvc.agentserver.responses import CommandResult
from agentsvc.base.errors import Conflict, IdempotencyKeyReused, TooManyRequests
from agentsvc.config.data_directory import DataDirectory
from agentsvc.config.schema import IdempotencyConfig
from agentsvc.storage.database import Database
from agentsvc.storage.installation import Installation
from agentsvc.testing.backend import FakeWorld
from tests.conftest import FAST
from tests.fake_agent import FakeAgent
from tests.plugin_loading import load_plugins
from tests.service import Answer, Client, Service

HEADER = "Idempotency-Key"
V1 = "/api/v1/app-conversations"
HOOKS = "/api/v1/webhook-subscriptions"
TEXT = {"content": [{"type": "text", "text": "say it once"}]}
SLOW = CommandResult(exit_code=0, stdout="", stderr="")

CREATES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a start": (V1, {"initial_message": TEXT}, f"{V1}/start-tasks/count"),
    "a start of V0": ("/api/conversations", {"initial_user_msg": "go"}, f"{V1}/start-tasks/count"),
    "a sandbox": ("/api/v1/sandboxes", {}, "/api/v1/sandboxes/search"),
    "a key": ("/api/keys", {"name": "ci"}, "/api/keys"),
    "a user": ("/api/v1/users", {"name": "bob"}, "/api/v1/users"),
    "a webhook": (HOOKS, {"url": "https://example.org/hook"}, HOOKS),
    "a secret of V0": ("/api/secrets", {"name": "A", "value": "1"}, "/api/secrets"),
    "a profile": ("/api/v1/settings/profiles/fast", {}, "/api/v1/settings/profiles"),
}
"""What makes something: where it is posted, what is sent, and where is seen how much there is."""


async def send(client: Client, path: str, body: Any, key: str = "one") -> Answer:
    return await client.post(path, json=body, headers={HEADER: key})


async def amount(client: Client, path: str) -> int:
    found = (await client.get(path)).json()
    if isinstance(found, int):
        return found
    listed = found if isinstance(found, list) else next(iter(found.values()))
    return len(listed)


async def wait_for_a_start(client: Client) -> None:
    async with asyncio.timeout(client.patience):
        number = 0
        while number == 0:
            number = await amount(client, f"{V1}/start-tasks/count")
            await asyncio.sleep(0.01)


async def said(client: Client, conversation_id: str) -> list[str]:
    return [
        event["llm_message"]["content"][0]["text"]
        for event in await client.events(conversation_id)
        if event["kind"] == "MessageEvent" and event["source"] == "user"
    ]


def assert_same(first: Answer, again: Answer) -> None:
    assert first.status in (200, 201), first.text
    assert (again.status, again.body) == (first.status, first.body)
    assert again.headers["Content-Type"] == first.headers["Content-Type"]
    assert HEADER.replace("Key", "Replayed") not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"


async def test_what_makes_something_makes_it_once_also_over_a_restart(
    client: Client, service: Service
) -> None:
    firsts: dict[str, tuple[Answer, int]] = {}
    for name, (path, body, listed) in CREATES.items():
        first = await send(client, path, body)
        assert_same(first, await send(client, path, body))
        firsts[name] = first, await amount(client, listed)
    await service.restart()
    for name, (path, body, listed) in CREATES.items():
        first, number = firsts[name]
        assert_same(first, await send(client, path, body))
        if "start" not in name:
            assert await amount(client, listed) == number, name
    assert await amount(client, f"{V1}/start-tasks/count") == 2


async def test_without_room_for_the_answer_nothing_is_made(
    tmp_path: Path, fake_world: FakeWorld
) -> None:
    config = msgspec.structs.replace(FAST, idempotency=IdempotencyConfig(max_keys_per_user=0))
    service = Service(tmp_path / "data", config, lambda: load_plugins(fake=fake_world.plugin()))
    await service.start()
    try:
        client = await service.make_client()
        await client.save_settings()
        for path, body, listed in CREATES.values():
            before = await amount(client, listed)
            refused = await send(client, path, body)
            assert (refused.status, refused.json()["code"]) == (429, "too_many_requests")
            assert await amount(client, listed) == before, path
    finally:
        await service.close()


async def test_a_message_is_said_once(client: Client) -> None:
    conversation_id = await client.start_conversation("please work")
    path = f"{V1}/{conversation_id}/send-message"
    first = await send(client, path, TEXT)
    assert_same(first, await send(client, path, TEXT))
    older = f"/api/conversations/{conversation_id}/message"
    assert_same(
        await send(client, older, {"message": "and more"}),
        await send(client, older, {"message": "and more"}),
    )
    pending = f"/api/v1/conversations/{conversation_id}/pending-messages"
    last = {"content": [{"type": "text", "text": "at last"}]}
    assert_same(await send(client, pending, last), await send(client, pending, last))
    texts: list[str] = []
    async with asyncio.timeout(client.patience):
        while "at last" not in texts:
            await asyncio.sleep(0.05)
            texts = await said(client, conversation_id)
    assert texts == ["please work", "say it once", "and more", "at last"]


async def test_a_message_that_cannot_be_taken_is_refused_as_without_a_key(client: Client) -> None:
    conversation_id = await client.start_conversation()
    sandbox_id = (await client.conversation(conversation_id))["sandbox_id"]
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    path = f"{V1}/{conversation_id}/send-message"
    for _ in range(2):
        refused = await send(client, path, TEXT)
        assert (refused.status, refused.json()["code"]) == (409, "conflict")
        assert "Idempotency-Replayed" not in refused.headers


async def test_another_request_with_the_same_key_is_refused(client: Client) -> None:
    path, body, listed = CREATES["a key"]
    await send(client, path, body)
    number = await amount(client, listed)
    for other in ({"name": "other"}, {"name": "ci", "scope": "read"}):
        refused = await send(client, path, other)
        assert (refused.status, refused.json()["code"]) == (422, "idempotency_key_reused")
    query = await send(client, f"{path}?x=1", body)
    assert query.status == 422
    assert await amount(client, listed) == number
    assert (await send(client, "/api/v1/secrets", {"name": "A", "value": "1"})).status == 201


async def test_keys_of_users_are_their_own(client: Client, service: Service) -> None:
    path, body, _ = CREATES["a key"]
    bob = await service.make_client("bob", Role.ADMIN)
    first, second = await send(client, path, body), await send(bob, path, body)
    assert first.status == second.status == 200
    assert first.body != second.body


@pytest.mark.parametrize("key", ["", " ", '""', "x" * 256, "sch\xf6n", '"open', '"a"b"', "a\tb"])
async def test_what_is_no_key_is_refused(client: Client, key: str) -> None:
    path, body, _ = CREATES["a key"]
    refused = await send(client, path, body, key)
    assert (refused.status, refused.json()["code"]) == (400, "bad_request")


async def test_two_keys_in_one_request_are_refused(client: Client) -> None:
    path, body, _ = CREATES["a key"]
    twice = [("Content-Type", "application/json"), (HEADER, "a"), (HEADER, "b")]
    refused = await client.post(path, data=msgspec.json.encode(body), headers=twice)
    assert refused.status == 400


async def test_a_key_may_be_quoted(client: Client) -> None:
    path, body, _ = CREATES["a key"]
    first = await send(client, path, body, r'"a \"key\" of 255"')
    assert_same(first, await send(client, path, body, 'a "key" of 255'))


async def test_what_was_refused_may_be_sent_again(client: Client) -> None:
    for _ in range(2):
        refused = await send(client, HOOKS, {"url": "nonsense"})
        assert (refused.status, refused.json()["code"]) == (422, "invalid_request")
    assert (await send(client, HOOKS, {"url": "https://example.org/hook"})).status == 201


async def test_requests_that_change_nothing_anew_take_keys_and_other_methods_ignore_them(
    client: Client,
) -> None:
    body = {"language": "de"}
    assert_same(
        await send(client, "/api/settings", body), await send(client, "/api/settings", body)
    )
    first = await client.get("/api/keys", headers={HEADER: ""})
    assert first.status == 200


async def test_a_stream_is_answered_with_its_end_and_409_until_then(
    client: Client, fake_agent: FakeAgent
) -> None:
    fake_agent.on_command("git init", SLOW, seconds=0.8)
    body = {"initial_message": TEXT}
    path = f"{V1}/stream-start"
    async with asyncio.TaskGroup() as group:
        running = group.create_task(send(client, path, body))
        await wait_for_a_start(client)
        meanwhile = await send(client, path, body)
    assert (meanwhile.status, meanwhile.json()["code"]) == (409, "request_in_progress")
    assert "Retry-After" in meanwhile.headers
    tasks = running.result().json()
    assert tasks[-1]["status"] == "READY"
    again = await send(client, path, body)
    assert again.json() == tasks[-1:]
    assert await amount(client, f"{V1}/start-tasks/count") == 1


async def test_a_stream_that_broke_off_goes_on(
    client: Client, fake_agent: FakeAgent, service: Service
) -> None:
    fake_agent.on_command("git init", SLOW, seconds=0.8)
    body = {"initial_message": TEXT}
    path = f"{V1}/stream-start"
    async with asyncio.TaskGroup() as group:
        running = group.create_task(send(client, path, body))
        await wait_for_a_start(client)
        running.cancel()
    await service.restart()
    again = await send(client, path, body)
    assert again.json()[-1]["status"] == "READY"
    assert await amount(client, f"{V1}/start-tasks/count") == 1
    assert (await send(client, path, body)).json() == again.json()[-1:]


async def test_no_secret_is_stored_in_the_clear(client: Client, service: Service) -> None:
    path, body, _ = CREATES["a key"]
    made = await send(client, path, body)
    hook = await send(client, HOOKS, CREATES["a webhook"][1])
    await service.stop()
    stored = b"".join(file.read_bytes() for file in service.data_dir.glob("*.db*"))
    assert stored
    for secret in (made.json()["key"], hook.json()["secret"]):
        assert secret.encode() not in stored


# The store


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    places = DataDirectory(path=tmp_path / "data")
    places.prepare()
    opened = await Installation.open(places)
    yield opened
    await opened.close()


async def slot_of(database: Database, key: bytes = b"key", print_: bytes = b"x") -> IdempotencySlot:
    keys = KeyRing(database)
    user_id = await keys.find_user("ann") or await keys.create_user("ann", Role.MEMBER)
    return IdempotencySlot(user_id=user_id, operation="POST /x", key_hash=key, fingerprint=print_)


def kept(body: bytes = b"{}") -> StoredAnswer:
    return StoredAnswer(status=200, media="application/json", body=body)


async def test_an_answer_is_forgotten_in_time(installation: Installation) -> None:
    slot = await slot_of(installation.database)
    lasting = IdempotencyStore(installation.database, installation.vault, IdempotencyConfig())
    brief = IdempotencyStore(
        installation.database, installation.vault, IdempotencyConfig(keep_seconds=0)
    )
    await lasting.keep(slot, kept())
    assert await brief.find(slot) is None
    await lasting.forget_old()
    assert await lasting.find(slot) == kept()
    await brief.forget_old()
    assert await lasting.find(slot) is None


async def test_answers_are_bounded_in_bytes(installation: Installation) -> None:
    database, vault = installation.database, installation.vault
    repeats = IdempotencyStore(database, vault, IdempotencyConfig(max_bytes_per_user=100))
    await repeats.keep(await slot_of(database, b"1"), kept(b"x" * 60))
    with pytest.raises(TooManyRequests):
        await repeats.keep(await slot_of(database, b"2"), kept(b"x" * 60))
    await repeats.keep(await slot_of(database, b"1"), kept(b"y" * 90))


async def test_a_large_answer_is_not_kept(installation: Installation) -> None:
    slot = await slot_of(installation.database)
    repeats = IdempotencyStore(installation.database, installation.vault, IdempotencyConfig())
    await repeats.keep(slot, kept(b"x" * (LARGEST_ANSWER_BYTES + 1)))
    with pytest.raises(Conflict, match="too large"):
        await repeats.find(slot)
    with pytest.raises(IdempotencyKeyReused):
        await repeats.find(msgspec.structs.replace(slot, fingerprint=b"y"))

"""Outgoing webhooks of a user, through the socket, to a real receiver."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.base.bus import EventBus
from agentsvc.base.errors import Conflict
from agentsvc.config.data_directory import DataDirectory
from agentsvc.conversations.event_log import EventLog
from agentsvc.http.keys import DATABASE, EVENTS, KEYRING
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.storage.database import Transaction
from agentsvc.storage.installation import Installation
from agentsvc.testing import FakeWorld
from tests.conftest import FAST
from tests.http.v1.streaming import Feeder, events, feeder
from tests.plugin_loading import load_plugins, part
from tests.receivers import WAIT_SECONDS, Received, Receiver
from tests.service import Client, Service

if TYPE_CHECKING:
    from webhooks.config import WebhooksConfig
    from webhooks.model import WebhookOrder
    from webhooks.routes import DELIVERY_WORKER
    from webhooks.service import Webhooks
else:
    WebhookOrder = part("webhooks.model").WebhookOrder
    DELIVERY_WORKER = part("webhooks.routes").DELIVERY_WORKER
    Webhooks = part("webhooks.service").Webhooks
    WebhooksConfig = part("webhooks.config").WebhooksConfig

HOOKS = "/api/v1/webhook-subscriptions"
MEMBERS = {
    "id",
    "url",
    "description",
    "event_kinds",
    "changes",
    "is_enabled",
    "disabled_reason",
    "quiet_until",
    "former_secret_until",
    "created_at",
    "updated_at",
}
CONFIG = WebhooksConfig(
    allow_private=True, send_seconds=5, first_retry_seconds=0.05, longest_retry_seconds=0.2
)


async def configure(service: Service, **keys: Any) -> None:
    config = msgspec.structs.replace(CONFIG, **keys)
    extensions = {**service.config.extensions, "webhooks": msgspec.to_builtins(config)}
    service.config = msgspec.structs.replace(service.config, extensions=extensions)
    await service.restart()


@pytest.fixture
async def receiver(service: Service) -> AsyncIterator[Receiver]:
    await configure(service)
    async with Receiver() as receiver:
        yield receiver


@pytest.fixture
async def feed(receiver: Receiver, client: Client, service: Service) -> Feeder:
    """Return what sends events of a conversation that was there before any webhook."""
    return await feeder(client, service)


async def subscribe(client: Client, url: str, **order: Any) -> dict[str, Any]:
    answer = await client.post(HOOKS, json={"url": url, "changes": [], **order})
    assert answer.status == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def deliveries(client: Client, made: dict[str, Any], query: str = "") -> list[dict[str, Any]]:
    answer = await client.get(f"{HOOKS}/{made['id']}/deliveries{query}")
    assert answer.status == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def wait_for(
    client: Client,
    made: dict[str, Any],
    is_enough: Callable[[list[dict[str, Any]]], bool],
    query: str = "",
) -> list[dict[str, Any]]:
    """Return the deliveries once they are as they shall be."""
    seen: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                seen = await deliveries(client, made, query)
                if is_enough(seen):
                    return seen
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"the deliveries stayed like this: {seen}") from None


async def test_events_are_delivered_signed_and_in_order(
    client: Client, receiver: Receiver, feed: Feeder
) -> None:
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await feed.send(events(20))
    await receiver.wait_for(lambda: len(receiver.taken) == 20)
    numbers = receiver.events()
    assert numbers == list(range(numbers[0], numbers[0] + 20))
    assert all(one.is_signed_with(made["secret"]) for one in receiver.received)
    assert len({one.id for one in receiver.received}) == 20
    first = receiver.taken[0].json()
    assert set(first) == {"type", "timestamp", "data"}
    assert first["type"] == "conversation.event"
    assert first["data"]["conversation_id"] == feed.conversation_id.replace("-", "")
    assert first["data"]["event"] == events(1)[0]
    assert receiver.taken[0].headers["Content-Type"] == "application/json"


async def test_what_fails_is_tried_again_and_nothing_overtakes_it(
    client: Client, receiver: Receiver, feed: Feeder
) -> None:
    refused: list[str] = []

    def answer(one: Received) -> int:
        if len(refused) < 4:
            refused.append(one.id)
            return 503
        return 200

    receiver.answer = answer
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await feed.send(events(5))
    await receiver.wait_for(lambda: len(receiver.taken) == 5)
    assert receiver.events() == sorted(receiver.events())
    assert len(set(refused)) == 1
    assert receiver.taken[0].id == refused[0]
    found = await wait_for(client, made, lambda seen: seen[0]["state"] == "delivered")
    first = found[-1]
    assert (first["id"], first["state"], first["attempts"]) == (refused[0], "delivered", 5)


async def test_what_a_wrong_clock_has_put_off_is_delivered_once_it_is_right(
    client: Client, service: Service, receiver: Receiver, feed: Feeder
) -> None:
    await configure(service, first_retry_seconds=60, longest_retry_seconds=60)
    receiver.answer = lambda _: 500
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await feed.send(events(1))
    await wait_for(client, made, lambda seen: any(one["attempts"] for one in seen))
    receiver.answer = lambda _: 200
    then = {"then": "2099-01-01T00:00:00.000000Z"}
    for name in ("webhook_deliveries SET due_at", "webhook_subscriptions SET quiet_until"):
        sql = f"UPDATE {name} = :then"
        await service.app[DATABASE].write(partial(Transaction.run, sql=sql, params=then))
    await feed.send(events(2, first=2))
    await receiver.wait_for(lambda: len(receiver.taken) == 3)
    assert receiver.events() == sorted(receiver.events())


async def test_one_conversation_that_fails_holds_up_no_other(
    client: Client, service: Service, receiver: Receiver, feed: Feeder
) -> None:
    other = await feeder(client, service)
    stuck = feed.conversation_id.replace("-", "")
    receiver.answer = lambda one: 500 if one.json()["data"]["conversation_id"] == stuck else 200
    await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await feed.send(events(3))
    await other.send(events(3))
    await receiver.wait_for(lambda: len(receiver.taken) == 3)
    receiver.answer = lambda _: 200
    await receiver.wait_for(lambda: len(receiver.taken) == 6)


async def test_what_was_stored_is_delivered_after_a_restart(
    client: Client, service: Service, receiver: Receiver, feed: Feeder
) -> None:
    receiver.answer = lambda _: 500
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await feed.send(events(3))
    await receiver.wait_for(lambda: bool(receiver.received))
    await service.stop()
    receiver.answer = lambda _: 200
    await service.start()
    await receiver.wait_for(lambda: len(receiver.taken) >= 3)
    assert list(dict.fromkeys(receiver.events())) == sorted(set(receiver.events()))
    assert all(one.is_signed_with(made["secret"]) for one in receiver.received)


async def test_a_delivery_that_a_stop_breaks_off_counts_as_none(
    client: Client, service: Service, receiver: Receiver, feed: Feeder
) -> None:
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    receiver.may_answer.clear()
    await feed.send(events(1))
    await receiver.wait_for(lambda: bool(receiver.received))
    await service.stop()
    receiver.may_answer.set()
    await service.start()
    [told] = await wait_for(client, made, lambda seen: seen[0]["state"] == "delivered")
    assert told["attempts"] == 1


async def test_what_is_stored_while_nobody_delivers_is_delivered_by_the_next_start(
    client: Client, service: Service, receiver: Receiver, feed: Feeder
) -> None:
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await service.stop()
    installation = await Installation.open(DataDirectory(path=service.data_dir))
    log = EventLog(installation.database, EventBus(), store_deltas=False)
    told = [msgspec.json.encode(one) for one in events(2)]
    conversation_id = feed.conversation_id.replace("-", "")
    try:
        await installation.database.write(lambda tx: log.append(tx, conversation_id, told))
    finally:
        await installation.close()
    await service.start()
    await receiver.wait_for(lambda: len(receiver.taken) == 2)
    assert [one.json()["data"]["event"] for one in receiver.taken] == events(2)
    assert all(one.is_signed_with(made["secret"]) for one in receiver.received)


async def test_an_event_that_is_not_stored_is_not_told(
    client: Client, service: Service, receiver: Receiver, feed: Feeder
) -> None:
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    conversation_id = feed.conversation_id.replace("-", "")

    async def fail(tx: Transaction) -> None:
        told = [msgspec.json.encode(one) for one in events(1)]
        assert await service.app[EVENTS].append(tx, conversation_id, told)
        raise Conflict("undone")

    with pytest.raises(Conflict):
        await service.app[DATABASE].write(fail)
    assert await deliveries(client, made) == []


async def test_a_delivery_that_the_shutdown_cuts_off_is_made_again(
    client: Client, service: Service, receiver: Receiver, feed: Feeder
) -> None:
    receiver.may_answer.clear()
    await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await feed.send(events(1))
    await receiver.wait_for(lambda: len(receiver.received) == 1)
    await service.stop()
    receiver.may_answer.set()
    await service.start()
    await receiver.wait_for(lambda: len(receiver.received) == 2)
    assert receiver.received[0].id == receiver.received[1].id


async def test_a_webhook_made_by_another_process_is_noticed(
    client: Client, service: Service, receiver: Receiver, feed: Feeder
) -> None:
    user_id = await service.app[KEYRING].find_user("admin")
    assert user_id is not None
    installation = await Installation.open(DataDirectory(path=service.data_dir))
    try:
        webhooks = Webhooks(installation.database, installation.vault, CONFIG)
        order = WebhookOrder(url=receiver.url, event_kinds=["MessageEvent"])
        _, secret = await webhooks.add(user_id, order)
    finally:
        await installation.close()
    await feed.send(events(1))
    await receiver.wait_for(lambda: bool(receiver.taken))
    assert receiver.taken[0].is_signed_with(secret.reveal())


async def test_old_deliveries_are_forgotten(
    client: Client, service: Service, receiver: Receiver, feed: Feeder
) -> None:
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await feed.send(events(2))
    await wait_for(client, made, lambda seen: {one["state"] for one in seen} == {"delivered"})
    await service.app[DELIVERY_WORKER].forget_settled()
    assert len(await deliveries(client, made)) == 2
    await configure(service, keep_seconds=0)
    await wait_for(client, made, lambda seen: seen == [])


@pytest.mark.parametrize("how", ["deleted", "forgotten"])
async def test_others_write_while_many_deliveries_go(
    client: Client, service: Service, receiver: Receiver, how: str
) -> None:
    made = await subscribe(client, receiver.url)
    database, named = service.app[DATABASE], {"id": made["id"]}
    old = """
        WITH RECURSIVE numbers (value) AS (
            SELECT 1 UNION ALL SELECT value + 1 FROM numbers WHERE value < 5000
        )
        INSERT INTO webhook_deliveries (subscription_id, lane, type, seq, state, settled_at)
        SELECT :id, 'c', 'event', value, 'delivered', '2020-01-01T00:00:00.000000Z' FROM numbers
    """
    await database.write(lambda tx: tx.run(old, named))

    async def count(tx: Transaction) -> int:
        sql = "SELECT COUNT(*) FROM webhook_deliveries WHERE subscription_id = :id"
        return int(await tx.value(sql, named) or 0)

    async def remove() -> None:
        if how == "forgotten":
            await service.app[DELIVERY_WORKER].forget_settled()
        else:
            assert (await client.delete(f"{HOOKS}/{made['id']}")).status == 200

    seen = set()
    async with asyncio.TaskGroup() as group:
        removing = group.create_task(remove())
        while not removing.done():
            seen.add(await database.write(count))
    assert await database.write(count) == 0
    assert len(seen - {5000, 0}) > 1


async def test_a_receiver_that_was_down_gets_everything(
    client: Client, receiver: Receiver, feed: Feeder
) -> None:
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await receiver.__aexit__()
    await feed.send(events(3))
    tried = await wait_for(client, made, lambda seen: any(one["attempts"] for one in seen))
    assert "cannot be reached" in tried[-1]["reason"]
    await receiver.__aenter__()
    await receiver.wait_for(lambda: len(receiver.taken) == 3)


async def test_what_is_given_up_says_so_and_can_be_replayed(
    client: Client, service: Service, receiver: Receiver, feed: Feeder
) -> None:
    await configure(service, give_up_seconds=0)
    receiver.answer = lambda _: 500
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await feed.send(events(2))
    failed = await wait_for(client, made, lambda seen: len(seen) == 2, "?state=failed")
    assert [(one["attempts"], one["status"], one["reason"]) for one in failed] == [
        (0, None, "failed with an earlier one: the receiver answered 500"),
        (1, 500, "the receiver answered 500"),
    ]
    assert len(receiver.received) == 1
    assert all(one["settled_at"] and not one["next_attempt_at"] for one in failed)
    receiver.answer = lambda _: 200
    answer = await client.post(f"{HOOKS}/{made['id']}/replay-failed")
    assert (answer.status, answer.json()) == (200, {"replayed": 2})
    await receiver.wait_for(lambda: len(receiver.taken) == 2)
    assert [one.id for one in receiver.taken] == [one["id"] for one in reversed(failed)]


async def test_a_delivery_is_replayed_with_the_same_id(
    client: Client, receiver: Receiver, feed: Feeder
) -> None:
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await feed.send(events(1))
    await receiver.wait_for(lambda: len(receiver.taken) == 1)
    await wait_for(client, made, lambda seen: seen[0]["state"] == "delivered")
    path = f"{HOOKS}/{made['id']}/deliveries/{receiver.taken[0].id}/replay"
    answer = await client.post(path)
    assert (answer.status, answer.json()["state"]) == (200, "pending")
    await receiver.wait_for(lambda: len(receiver.taken) == 2)
    assert receiver.taken[0].id == receiver.taken[1].id
    assert receiver.taken[0].body == receiver.taken[1].body


async def test_changes_are_told_from_the_start_to_the_end(
    client: Client, receiver: Receiver
) -> None:
    await subscribe(
        client, receiver.url, event_kinds=[], changes=["conversation", "sandbox", "start_task"]
    )
    conversation_id = await client.start_conversation()
    found = await client.wait_for_execution(conversation_id, "finished")
    path = f"/api/v1/app-conversations/{conversation_id}"
    await client.patch(path, json={"title": "a new title"})
    assert (await client.delete(path)).status == 200
    await receiver.wait_for(lambda: bool(receiver.of_type("conversation.deleted")))
    await receiver.wait_for(lambda: bool(receiver.of_type("sandbox.deleted")))
    tasks = receiver.of_type("start_task.changed")
    assert tasks[-1]["status"] == "READY"
    assert tasks[-1]["sandbox_id"] == found["sandbox_id"]
    assert {"STARTING", "RUNNING"} <= {one["status"] for one in receiver.of_type("sandbox.changed")}
    assert "a new title" in [one["title"] for one in receiver.of_type("conversation.changed")]
    assert receiver.events() == []


async def test_only_wanted_kinds_are_told(client: Client, receiver: Receiver, feed: Feeder) -> None:
    await subscribe(client, receiver.url, event_kinds=["ErrorEvent"])
    await feed.send(events(2))
    await feed.send([{**one, "kind": "ErrorEvent"} for one in events(1, first=50)])
    await receiver.wait_for(lambda: bool(receiver.taken))
    assert [one.json()["data"]["event"]["kind"] for one in receiver.received] == ["ErrorEvent"]


async def test_what_is_anothers_is_neither_told_nor_seen(
    client: Client, service: Service, receiver: Receiver, feed: Feeder
) -> None:
    bob = await service.make_client("bob", Role.ADMIN)
    theirs = await subscribe(bob, receiver.url)
    mine = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await feed.send(events(2))
    await receiver.wait_for(lambda: len(receiver.taken) == 2)
    assert all(one.is_signed_with(mine["secret"]) for one in receiver.received)
    assert await deliveries(bob, theirs) == []
    assert [one["id"] for one in (await client.get(HOOKS)).json()] == [mine["id"]]
    for method, path in (
        ("GET", f"{HOOKS}/{theirs['id']}"),
        ("PATCH", f"{HOOKS}/{theirs['id']}"),
        ("DELETE", f"{HOOKS}/{theirs['id']}"),
        ("GET", f"{HOOKS}/{theirs['id']}/deliveries"),
        ("POST", f"{HOOKS}/{theirs['id']}/replay-failed"),
        ("POST", f"{HOOKS}/{theirs['id']}/rotate-secret"),
        ("POST", f"{HOOKS}/{theirs['id']}/deliveries/x/replay"),
        ("POST", f"{HOOKS}/{mine['id']}/deliveries/x/replay"),
    ):
        options: dict[str, Any] = {"json": {}} if method == "PATCH" else {}
        assert (await client.request(method, path, **options)).status == 404, path


async def test_a_redirect_is_not_followed(client: Client, receiver: Receiver, feed: Feeder) -> None:
    receiver.answer = lambda one: 307
    receiver.location = "/elsewhere"
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await feed.send(events(1))
    found = await wait_for(client, made, lambda seen: bool(seen) and seen[0]["attempts"] > 0)
    assert found[0]["reason"] == "the receiver answered 307; redirects are not followed"
    assert {one.id for one in receiver.received} == {found[0]["id"]}


async def test_of_a_long_answer_little_is_read(
    client: Client, receiver: Receiver, feed: Feeder
) -> None:
    receiver.answer_bytes = b"x" * 1_000_000
    await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await feed.send(events(3))
    await receiver.wait_for(lambda: len(receiver.taken) == 3)
    assert len(receiver.received) == 3


async def test_the_event_of_a_deleted_conversation_is_given_up(
    client: Client, receiver: Receiver, feed: Feeder
) -> None:
    receiver.answer = lambda _: 500
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await feed.send(events(1))
    await receiver.wait_for(lambda: bool(receiver.received))
    await client.delete(f"/api/v1/app-conversations/{feed.conversation_id}")
    failed = await wait_for(client, made, bool, "?state=failed")
    assert failed[0]["reason"] == "the event was deleted"


async def test_a_disabled_webhook_tells_nothing_until_it_is_enabled(
    client: Client, receiver: Receiver, feed: Feeder
) -> None:
    made = await subscribe(client, receiver.url, is_enabled=False, event_kinds=["MessageEvent"])
    await feed.send(events(1))
    answer = await client.patch(
        f"{HOOKS}/{made['id']}", json={"is_enabled": True, "description": "on"}
    )
    assert answer.status == 200
    assert (answer.json()["is_enabled"], answer.json()["description"]) == (True, "on")
    await feed.send(events(1, first=2))
    await receiver.wait_for(lambda: bool(receiver.taken))
    assert [one.json()["data"]["event"]["id"][-1] for one in receiver.received] == ["2"]


async def test_a_secret_is_shown_once(client: Client, receiver: Receiver) -> None:
    made = await subscribe(client, receiver.url)
    assert set(made) == MEMBERS | {"secret"}
    assert made["secret"].startswith("whsec_")
    one = await client.get(f"{HOOKS}/{made['id']}")
    assert set(one.json()) == MEMBERS
    assert (await client.get(HOOKS)).json() == [one.json()]


async def test_a_removed_webhook_is_gone(client: Client, receiver: Receiver, feed: Feeder) -> None:
    made = await subscribe(client, receiver.url)
    assert (await client.delete(f"{HOOKS}/{made['id']}")).json() == {"success": True}
    await feed.send(events(1))
    assert (await client.get(f"{HOOKS}/{made['id']}")).status == 404
    assert (await client.get(HOOKS)).json() == []
    assert receiver.received == []


async def test_deliveries_come_in_pages(client: Client, receiver: Receiver, feed: Feeder) -> None:
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await feed.send(events(5))
    path = f"{HOOKS}/{made['id']}/deliveries?limit=2"
    seen: list[int] = []
    page = (await client.get(path)).json()
    while page["next_page_id"]:
        seen += [one["seq"] for one in page["items"]]
        page = (await client.get(f"{path}&page_id={page['next_page_id']}")).json()
    seen += [one["seq"] for one in page["items"]]
    assert len(seen) == 5
    assert seen == sorted(seen, reverse=True)
    assert (await client.get(f"{path}&page_id=x")).status == 422


async def test_a_user_has_so_many_and_no_more(client: Client, receiver: Receiver) -> None:
    for _ in range(50):
        await subscribe(client, receiver.url)
    answer = await client.post(HOOKS, json={"url": receiver.url})
    assert (answer.status, answer.json()["code"]) == (409, "conflict")


@pytest.mark.parametrize(
    ("order", "field"),
    [
        ({}, "url"),
        ({"url": "https://ann:pw@example.com/"}, "url"),
        ({"url": "https://receiver.example/", "changes": ["weather"]}, "changes"),
        ({"url": "https://receiver.example/", "event_kinds": "MessageEvent"}, "event_kinds"),
        ({"url": "https://receiver.example/", "description": "x" * 256}, "description"),
    ],
)
async def test_an_order_that_does_not_fit_is_refused_at_its_field(
    client: Client, order: dict[str, Any], field: str
) -> None:
    answer = await client.post(HOOKS, json=order)
    assert answer.status == 422, answer.text
    assert answer.json()["detail"][0]["loc"][:2] == ["body", field]


async def test_a_url_is_checked_when_it_is_changed(client: Client) -> None:
    made = await subscribe(client, "https://receiver.example/")
    path = f"{HOOKS}/{made['id']}"
    assert (await client.patch(path, json={"url": "http://a b/"})).status == 422
    for answer in (
        await client.patch(path, json={"url": "http://10.0.0.1/"}),
        await client.post(HOOKS, json={"url": "http://127.0.0.1/"}),
    ):
        assert (answer.status, answer.json()["code"]) == (403, "not_allowed")
        assert "the operator allows no other" in answer.json()["detail"]
    assert (await client.get(path)).json()["url"] == "https://receiver.example/"
    changed = await client.patch(path, json={"event_kinds": None, "changes": ["sandbox"]})
    assert changed.status == 200
    everything = await client.patch(path, json={"changes": None})
    assert everything.json()["changes"] == ["conversation", "sandbox", "start_task"]
    assert (changed.json()["event_kinds"], changed.json()["changes"]) == (None, ["sandbox"])


async def test_what_is_no_longer_allowed_is_not_sent(
    client: Client, service: Service, receiver: Receiver, feed: Feeder
) -> None:
    made = await subscribe(client, receiver.url, event_kinds=["MessageEvent"])
    await configure(service, allow_private=False)
    await feed.send(events(1))
    found = await wait_for(client, made, lambda seen: bool(seen) and seen[0]["attempts"] > 0)
    assert found[0]["reason"].startswith("The host should be a public address")
    assert receiver.received == []


async def test_without_the_plugin_there_are_no_webhooks(
    tmp_path: Path, fake_world: FakeWorld
) -> None:
    def make_plugins() -> PluginHost:
        return load_plugins(["webhooks"], fake=fake_world.plugin())

    service = Service(tmp_path / "data", FAST, make_plugins)
    await service.start()
    try:
        client = await service.make_client()
        assert (await client.get(HOOKS)).status == 404
        assert HOOKS not in (await client.get("/openapi.json")).json()["paths"]
        await client.save_settings()
        await client.start_conversation()
    finally:
        await service.close()

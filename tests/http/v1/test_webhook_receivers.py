"""What receivers ask for: nothing more, some time, or a new secret."""

import asyncio
from typing import TYPE_CHECKING

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from agentsvc.accounts.keys import Role
from agentsvc.base.values import now, parse_time, to_stored
from agentsvc.http.keys import DATABASE
from tests.http.v1.streaming import Feeder, events, feeder
from tests.http.v1.test_webhook_subscriptions import (
    HOOKS,
    configure,
    deliveries,
    feed,
    receiver,
    subscribe,
    wait_for,
)
from tests.plugin_loading import part
from tests.receivers import Received, Receiver
from tests.service import Client, Service

if TYPE_CHECKING:
    from webhooks.routes import DELIVERY_WORKER
else:
    DELIVERY_WORKER = part("webhooks.routes").DELIVERY_WORKER

__all__ = ["feed", "receiver"]
KINDS = {"event_kinds": ["MessageEvent"]}


def verify(one: Received, secret: str) -> bool:
    """Check a delivery as a receiver's program does, with the published library."""
    try:
        Webhook(secret).verify(one.body, dict(one.headers))
    except WebhookVerificationError:
        return False
    return True


async def test_a_receiver_that_is_gone_has_its_webhook_disabled(
    client: Client, receiver: Receiver, feed: Feeder, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answer = lambda _: 410
    made = await subscribe(client, receiver.url, **KINDS)
    await feed.send(events(2))
    found = await wait_for(client, made, lambda seen: any(one["attempts"] for one in seen))
    assert [(one["state"], one["status"]) for one in found] == [("pending", None), ("pending", 410)]
    shown = (await client.get(f"{HOOKS}/{made['id']}")).json()
    assert (shown["is_enabled"], shown["disabled_reason"]) == (
        False,
        "the receiver answered 410 Gone",
    )
    assert "webhook disabled, its receiver answered 410 Gone" in caplog.messages
    assert len(receiver.received) == 1
    # Nothing more is told until somebody enables it, and then what was left comes first.
    await feed.send(events(1, first=3))
    assert len(await deliveries(client, made)) == 2
    receiver.answer = lambda _: 200
    path = f"{HOOKS}/{made['id']}"
    still = (await client.patch(path, json={"description": "gone"})).json()
    assert (still["is_enabled"], still["disabled_reason"]) == (False, shown["disabled_reason"])
    assert any(one["attempts"] for one in await deliveries(client, made))
    again = (await client.patch(path, json={"is_enabled": True})).json()
    assert (again["is_enabled"], again["disabled_reason"]) == (True, "")
    await receiver.wait_for(lambda: len(receiver.taken) == 2)
    assert [one.id for one in receiver.taken] == [one["id"] for one in reversed(found)]


@pytest.mark.parametrize("status", [429, 503])
async def test_a_receiver_that_asks_for_time_is_left_alone(
    client: Client, service: Service, receiver: Receiver, feed: Feeder, status: int
) -> None:
    await configure(service, longest_retry_seconds=3600)
    other = await feeder(client, service)
    receiver.answer = lambda _: status
    receiver.retry_after = "1800"
    made = await subscribe(client, receiver.url, **KINDS)
    await feed.send(events(1))
    found = await wait_for(client, made, lambda seen: any(one["attempts"] for one in seen))
    wait = parse_time(found[0]["next_attempt_at"])
    assert wait is not None
    assert 1000 < (wait - now()).total_seconds() <= 1800
    shown = (await client.get(f"{HOOKS}/{made['id']}")).json()
    quiet = parse_time(shown["quiet_until"])
    assert quiet is not None
    assert 1000 < (quiet - now()).total_seconds() <= 1800
    # It is left alone with other conversations, too, until it is at another address.
    await other.send(events(1))
    assert len(await deliveries(client, made)) == 2
    service.app[DELIVERY_WORKER].wake()
    receiver.answer = lambda _: 200
    assert len(receiver.received) == 1
    moved = await client.patch(f"{HOOKS}/{made['id']}", json={"url": f"{receiver.url}/moved"})
    assert moved.json()["quiet_until"] is None
    # There, what was put off comes at once, too.
    await receiver.wait_for(lambda: len(receiver.taken) == 2)
    told = {one.json()["data"]["conversation_id"] for one in receiver.taken}
    assert told == {one.conversation_id.replace("-", "") for one in (feed, other)}


async def test_what_a_receiver_asks_for_has_a_bound(
    client: Client, receiver: Receiver, feed: Feeder
) -> None:
    answers = iter([503])
    receiver.answer = lambda _: next(answers, 200)
    receiver.retry_after = "999999"
    await subscribe(client, receiver.url, **KINDS)
    await feed.send(events(1))
    # No longer than webhooks.longest_retry_seconds, which are few here.
    await receiver.wait_for(lambda: len(receiver.taken) == 1)
    assert len(receiver.received) == 2


async def test_two_secrets_sign_after_a_rotation(
    client: Client, service: Service, receiver: Receiver, feed: Feeder
) -> None:
    made = await subscribe(client, receiver.url, **KINDS)
    answer = await client.post(f"{HOOKS}/{made['id']}/rotate-secret")
    changed = answer.json()
    assert (answer.status, changed["secret"] != made["secret"]) == (200, True)
    assert changed["former_secret_until"] is not None
    await feed.send(events(1))
    await receiver.wait_for(lambda: len(receiver.taken) == 1)
    first = receiver.taken[0]
    assert len(first.headers["webhook-signature"].split(" ")) == 2
    assert verify(first, made["secret"])
    assert verify(first, changed["secret"])
    # Another rotation leaves the one before it only.
    newest = (await client.post(f"{HOOKS}/{made['id']}/rotate-secret")).json()
    await feed.send(events(1, first=2))
    await receiver.wait_for(lambda: len(receiver.taken) == 2)
    good = [verify(receiver.taken[1], one["secret"]) for one in (made, changed, newest)]
    assert good == [False, True, True]
    # When the time is over the former one signs no more, and is forgotten.
    over = {"then": to_stored(now())}
    sql = "UPDATE webhook_subscriptions SET former_until = :then"
    await service.app[DATABASE].write(lambda tx: tx.run(sql, over))
    await feed.send(events(1, first=3))
    await receiver.wait_for(lambda: len(receiver.taken) == 3)
    assert [verify(receiver.taken[2], one["secret"]) for one in (changed, newest)] == [False, True]
    await service.app[DELIVERY_WORKER].forget_settled()
    row = await service.app[DATABASE].one("SELECT former_sealed FROM webhook_subscriptions")
    assert row is not None
    assert row["former_sealed"] is None
    assert (await client.get(f"{HOOKS}/{made['id']}")).json()["former_secret_until"] is None


async def test_slow_receivers_of_one_user_leave_places_for_others(
    client: Client, service: Service
) -> None:
    await configure(service, concurrency=2, send_seconds=300)
    feed = await feeder(client, service)
    ann = await service.make_client("ann", Role.MEMBER)
    await ann.save_settings()
    theirs = await feeder(ann, service)
    async with Receiver() as slow, Receiver() as quick:
        slow.may_answer.clear()
        for _ in range(3):
            await subscribe(client, slow.url, **KINDS)
        await subscribe(ann, quick.url, **KINDS)
        await feed.send(events(1))
        await slow.wait_for(lambda: len(slow.received) > 0)
        await theirs.send(events(1))
        try:
            await quick.wait_for(lambda: len(quick.taken) == 1)
        finally:
            slow.may_answer.set()
        await slow.wait_for(lambda: len(slow.taken) == 3)


async def test_what_is_asked_for_again_during_its_last_try_is_made_again(
    client: Client, service: Service, receiver: Receiver, feed: Feeder
) -> None:
    await configure(service, give_up_seconds=2)
    answers = iter([500])
    receiver.answer = lambda _: next(answers, 200)
    receiver.may_answer.clear()
    made = await subscribe(client, receiver.url, **KINDS)
    await feed.send(events(1))
    await receiver.wait_for(lambda: bool(receiver.received))
    [waiting] = await deliveries(client, made)
    await asyncio.sleep(2)
    answer = await client.post(f"{HOOKS}/{made['id']}/deliveries/{waiting['id']}/replay")
    assert answer.status == 200, answer.text
    receiver.may_answer.set()
    [told] = await wait_for(client, made, lambda seen: seen[0]["state"] != "pending")
    assert (told["id"], told["state"]) == (waiting["id"], "delivered")

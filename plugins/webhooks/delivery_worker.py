"""Sends pending deliveries: the first of each lane, a few lanes at a time, with retries.

Notices and due times wake it. It also polls, because the command line may have changed
subscriptions.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from agentsvc.base import Secret, Supervisor, values, wait_within
from agentsvc.extension.server import Notice, Server, Subject
from agentsvc.extension.storage import Transaction

from .config import WebhooksConfig
from .model import Delivery, DeliveryState, Subscription
from .payload import make_body
from .sender import DeliveryResult, Sender
from .service import context_of
from .signing import sign
from .table import DeliveryTable, SubscriptionTable

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 5.0
"""Maximum time until a change by another process is seen."""

_LANES: Final = 4
"""Maximum number of concurrent lanes per subscription, so that one receiver does not take all slots."""

_JITTER: Final = 0.5


class DeliveryWorker:
    """Delivers for every subscription, each in its own task while deliveries are due."""

    def __init__(self, server: Server, sender: Sender, config: WebhooksConfig) -> None:
        self._db = server.database
        self._vault = server.vault
        self._events = server.events
        self._supervisor = Supervisor()
        self._sender = sender
        self._config = config
        self._slots = asyncio.Semaphore(config.concurrency)
        self._user_slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """The slots of each user with running deliveries: half of all slots, so that others get some."""
        self._wake = asyncio.Event()
        self._subscribers: set[str] = set()
        """Ids of the users with an enabled subscription."""

    async def stop(self, grace_seconds: float) -> None:
        """Cancel running deliveries, which the next start repeats; start no others."""
        await self._supervisor.stop(grace_seconds)

    def wake(self) -> None:
        """Check at once for due deliveries, because subscriptions or deliveries have changed."""
        self._wake.set()

    def on_notice(self, notice: Notice) -> None:
        """Wake up if the notice is about a user with a subscription."""
        if notice.user_id in self._subscribers and notice.subject is not Subject.DELTA:
            self._wake.set()

    async def deliver_due(self) -> None:
        """Start due deliveries, then wait until more may be due; to be called in a loop."""
        self._wake.clear()
        active = [one for one in await SubscriptionTable.listed(self._db) if one.is_enabled]
        self._subscribers = {one.user_id for one in active}
        wait_seconds = POLL_SECONDS
        for subscription in active:
            name = f"webhook {subscription.id}"
            if self._supervisor.is_running(name):
                continue
            due_seconds = await self._due_seconds(subscription)
            if due_seconds <= 0:
                self._supervisor.spawn(name, partial(self._deliver_all, subscription.id))
            wait_seconds = min(wait_seconds, due_seconds) if due_seconds > 0 else wait_seconds
        await wait_within(self._wake, wait_seconds)

    async def forget_settled(self) -> None:
        """Delete old deliveries, and former secrets that have expired."""
        now = values.now()
        before = now - timedelta(seconds=self._config.keep_seconds)
        await self._db.write(partial(SubscriptionTable.drop_former, now=now))
        # In batches, so that other writes are not blocked.
        while await self._db.write(partial(DeliveryTable.delete_settled, before=before)):
            pass

    async def _due_seconds(self, subscription: Subscription) -> float:
        now = values.now()
        latest = latest_wait(self._config, now)
        heads = await DeliveryTable.heads(self._db, subscription.id, 1, latest)
        if not heads:
            return POLL_SECONDS
        moments = (heads[0].due_at, subscription.quiet_until or now)
        return max((one - now).total_seconds() if one <= latest else 0 for one in moments)

    async def _deliver_all(self, subscription_id: str) -> None:
        """Deliver until nothing is due."""
        while await self._deliver_batch(subscription_id):
            pass
        self._wake.set()

    async def _deliver_batch(self, subscription_id: str) -> bool:
        now = values.now()
        subscription = await SubscriptionTable.find(self._db, subscription_id)
        sealed = await SubscriptionTable.find_sealed(self._db, subscription_id, now)
        latest = latest_wait(self._config, now)
        if subscription is None or not sealed or not may_send(subscription, now, latest):
            return False
        heads = await DeliveryTable.heads(self._db, subscription_id, _LANES, latest)
        due = [head for head in heads if not now < head.due_at <= latest]
        if not due:
            return False
        context = context_of(subscription_id)
        secrets = [Secret(self._vault.unseal(one, context).decode()) for one in sealed]
        async with asyncio.TaskGroup() as tries:
            for head in due:
                tries.create_task(self._deliver(subscription, secrets, head))
        return True

    async def _deliver(
        self, subscription: Subscription, secrets: Sequence[Secret], head: Delivery
    ) -> None:
        own = asyncio.Semaphore((self._config.concurrency + 1) // 2)
        async with self._user_slots.setdefault(subscription.user_id, own), self._slots:
            body = await make_body(head, self._events)
            if body is None:
                await self._store_result(event_deleted(head, values.now()), ends_lane=False)
                return
            headers = sign(secrets, message_id=head.id, moment=values.now(), body=body)
            outcome = await self._sender.send(subscription.url, body, headers)
        await self._honor_response(subscription, outcome)
        jitter = int.from_bytes(values.new_bytes(2)) / 0xFFFF
        tried = after_try(head, outcome, self._config, values.now(), jitter)
        await self._store_result(tried, ends_lane=True)

    async def _honor_response(self, sent_to: Subscription, outcome: DeliveryResult) -> None:
        """Disable a subscription after a 410, or pause it as the response requests."""
        now = values.now()
        change = partial(SubscriptionTable.change, sent_to=sent_to)
        if outcome.is_gone:
            reason = "the receiver answered 410 Gone"
            gone = {"is_enabled": False, "disabled_reason": reason, "updated_at": now}
            if await self._db.write(partial(change, **gone)):
                extra = {"subscription_id": sent_to.id, "reason": reason}
                log.warning("webhook disabled, its receiver answered 410 Gone", extra=extra)
        elif outcome.wait_seconds > 0:
            maximum = self._config.longest_retry_seconds
            until = now + timedelta(seconds=min(outcome.wait_seconds, maximum))
            await self._db.write(partial(change, quiet_until=until))

    async def _store_result(self, tried: Delivery, *, ends_lane: bool) -> None:
        """Store the result of an attempt; if a delivery fails for good, so may old ones of its lane."""
        cutoff = values.now() - timedelta(seconds=self._config.give_up_seconds)

        async def body(tx: Transaction) -> int:
            is_stored = await DeliveryTable.store_result(tx, tried)
            if not is_stored or tried.state is not DeliveryState.FAILED:
                return 0
            if not ends_lane:
                return 1
            return 1 + await DeliveryTable.give_up(tx, tried, cutoff, values.now())

        if given_up := await self._db.write(body):
            log.warning(
                "webhook deliveries failed, attempts exhausted",
                extra={
                    "subscription_id": tried.subscription_id,
                    "delivery_id": tried.id,
                    "deliveries": given_up,
                    "attempts": tried.attempts,
                    "reason": tried.reason,
                },
            )


def latest_wait(config: WebhooksConfig, now: datetime) -> datetime:
    """Return the latest plausible due time; later ones were stored while the clock was wrong."""
    return now + timedelta(seconds=config.longest_retry_seconds)


def may_send(subscription: Subscription, now: datetime, latest: datetime) -> bool:
    """Return whether deliveries of a subscription may be sent now."""
    quiet_until = subscription.quiet_until
    is_quiet = quiet_until is not None and now < quiet_until <= latest
    return subscription.is_enabled and not is_quiet


def after_try(
    delivery: Delivery,
    outcome: DeliveryResult,
    config: WebhooksConfig,
    now: datetime,
    jitter: float,
) -> Delivery:
    """Return a delivery updated with the result of an attempt; `jitter` is between 0 and 1."""
    tried = msgspec.structs.replace(
        delivery,
        attempts=delivery.attempts + 1,
        status=outcome.status,
        reason=outcome.reason,
    )
    if outcome.is_delivered:
        return msgspec.structs.replace(tried, state=DeliveryState.DELIVERED, settled_at=now)
    if now - delivery.begun_at >= timedelta(seconds=config.give_up_seconds):
        return msgspec.structs.replace(tried, state=DeliveryState.FAILED, settled_at=now)
    requested = min(outcome.wait_seconds, config.longest_retry_seconds)
    wait = max(requested, back_off(delivery.attempts, config, jitter))
    return msgspec.structs.replace(tried, due_at=now + timedelta(seconds=wait))


def event_deleted(delivery: Delivery, now: datetime) -> Delivery:
    """Return a delivery as failed because its event was deleted."""
    return msgspec.structs.replace(
        delivery,
        state=DeliveryState.FAILED,
        reason="the event was deleted",
        settled_at=now,
    )


def back_off(attempts: int, config: WebhooksConfig, jitter: float) -> float:
    """Return the seconds until the next attempt, after a number of earlier failures."""
    doubled: float = config.first_retry_seconds * 2.0 ** min(attempts, 40)
    maximum = min(config.longest_retry_seconds, doubled)
    return maximum * (1 - _JITTER * jitter)

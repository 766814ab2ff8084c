"""Delivers what waits: the first of each lane, a few lanes at a time, until the receiver takes it.

News wake it, and what is due; without a subscription it only looks now and then whether there is
one, since the command line may have made it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec

from agentsvc.base import Secret, values
from agentsvc.extension.server import EventBus, EventLog, Notice, Subject, Supervisor
from agentsvc.extension.storage import Database, Transaction, Vault

from .config import WebhooksConfig
from .model import Delivery, DeliveryState, Subscription
from .payload import make_body
from .sender import DeliveryResult, Sender
from .service import context_of
from .signing import sign
from .table import DeliveryTable, SubscriptionTable

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 5.0
"""How long it takes at most to see what another process has changed."""

_LANES: Final = 4
"""How many lanes of one subscription are served at a time: one receiver takes not all places."""

_JITTER: Final = 0.5


class DeliveryWorker:
    """Delivers for every subscription, each in a task of its own while there is something to do."""

    def __init__(
        self,
        *,
        db: Database,
        vault: Vault,
        events: EventLog,
        event_bus: EventBus,
        supervisor: Supervisor,
        sender: Sender,
        config: WebhooksConfig,
    ) -> None:
        self._db = db
        self._vault = vault
        self._events = events
        self._event_bus = event_bus
        self._supervisor = supervisor
        self._sender = sender
        self._config = config
        self._places = asyncio.Semaphore(config.concurrency)
        self._wake = asyncio.Event()
        self._watched: dict[str, Callable[[], None]] = {}

    def wake(self) -> None:
        """Have it look at once: a subscription has changed, or there is something to deliver."""
        self._wake.set()

    async def deliver_due(self) -> None:
        """Start what is due, then wait until there may be more to do; call it again and again."""
        self._wake.clear()
        active = [one for one in await SubscriptionTable.all(self._db) if one.is_enabled]
        self._listen({one.user_id for one in active})
        wait_seconds = POLL_SECONDS
        for subscription in active:
            name = f"webhook {subscription.id}"
            if self._supervisor.is_running(name):
                continue
            due_seconds = await self._due_seconds(subscription)
            if due_seconds <= 0:
                self._supervisor.spawn(name, partial(self._serve, subscription.id))
            wait_seconds = min(wait_seconds, due_seconds) if due_seconds > 0 else wait_seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                await self._wake.wait()

    async def forget_settled(self) -> None:
        """Delete what nobody asks for any more: old deliveries, and former secrets."""
        now = values.now()
        before = now - timedelta(seconds=self._config.keep_seconds)

        async def body(tx: Transaction) -> None:
            await SubscriptionTable.drop_former(tx, now)
            await DeliveryTable.delete_settled(tx, before)

        await self._db.write(body)

    def close(self) -> None:
        """Listen to no more news."""
        self._listen(set())

    def _listen(self, users: set[str]) -> None:
        for user_id in self._watched.keys() - users:
            self._watched.pop(user_id)()
        for user_id in users - self._watched.keys():
            self._watched[user_id] = self._event_bus.watch(user_id, self._hear)

    def _hear(self, news: Notice) -> None:
        """Wake up for what is in the queue by now."""
        if news.subject is not Subject.DELTA:
            self._wake.set()

    async def _due_seconds(self, subscription: Subscription) -> float:
        heads = await DeliveryTable.heads(self._db, subscription.id, 1)
        if not heads:
            return POLL_SECONDS
        due_at = max(heads[0].due_at, subscription.quiet_until or heads[0].due_at)
        return (due_at - values.now()).total_seconds()

    async def _serve(self, subscription_id: str) -> None:
        """Deliver what is due until nothing is."""
        while await self._serve_some(subscription_id):
            pass
        self._wake.set()

    async def _serve_some(self, subscription_id: str) -> bool:
        now = values.now()
        subscription = await SubscriptionTable.find(self._db, subscription_id)
        sealed = await SubscriptionTable.find_sealed(self._db, subscription_id, now)
        if subscription is None or not sealed or not may_send(subscription, now):
            return False
        heads = await DeliveryTable.heads(self._db, subscription_id, _LANES)
        due = [head for head in heads if head.due_at <= now]
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
        async with self._places:
            body = await make_body(head, self._events)
            if body is None:
                await self._note(gone(head, values.now()), ends_lane=False)
                return
            headers = sign(secrets, message_id=head.id, moment=values.now(), body=body)
            outcome = await self._sender.send(subscription.url, body, headers)
        await self._heed(subscription, outcome)
        jitter = int.from_bytes(values.new_bytes(2)) / 0xFFFF
        noted = after_try(head, outcome, self._config, values.now(), jitter)
        await self._note(noted, ends_lane=True)

    async def _heed(self, told: Subscription, outcome: DeliveryResult) -> None:
        """Leave a receiver alone that asks for it, for some time or for good."""
        now = values.now()
        if outcome.is_gone:
            reason = "the receiver answered 410 Gone"
            if await self._db.write(lambda tx: SubscriptionTable.disable(tx, told, reason, now)):
                extra = {"subscription_id": told.id, "reason": reason}
                log.warning("webhook disabled, its receiver answered 410 Gone", extra=extra)
        elif outcome.wait_seconds > 0:
            longest = self._config.longest_retry_seconds
            until = now + timedelta(seconds=min(outcome.wait_seconds, longest))
            await self._db.write(lambda tx: SubscriptionTable.put_off(tx, told, until))

    async def _note(self, noted: Delivery, *, ends_lane: bool) -> None:
        """Store how a try ended; one that is given up may end all of its lane that is as old."""
        cutoff = values.now() - timedelta(seconds=self._config.give_up_seconds)

        async def body(tx: Transaction) -> int:
            count = await DeliveryTable.note(tx, noted)
            if noted.state is not DeliveryState.FAILED:
                return 0
            if not ends_lane:
                return count
            return count + await DeliveryTable.give_up(tx, noted, cutoff, values.now())

        if given_up := await self._db.write(body):
            log.warning(
                "webhook deliveries failed, attempts exhausted",
                extra={
                    "subscription_id": noted.subscription_id,
                    "delivery_id": noted.id,
                    "deliveries": given_up,
                    "attempts": noted.attempts,
                    "reason": noted.reason,
                },
            )


def may_send(subscription: Subscription, now: datetime) -> bool:
    """Tell whether anything may be sent now."""
    is_quiet = subscription.quiet_until is not None and subscription.quiet_until > now
    return subscription.is_enabled and not is_quiet


def after_try(
    delivery: Delivery,
    outcome: DeliveryResult,
    config: WebhooksConfig,
    now: datetime,
    jitter: float,
) -> Delivery:
    """Return what a delivery is after a try; `jitter` is between 0 and 1."""
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
    asked = min(outcome.wait_seconds, config.longest_retry_seconds)
    wait = max(asked, back_off(delivery.attempts, config, jitter))
    return msgspec.structs.replace(tried, due_at=now + timedelta(seconds=wait))


def gone(delivery: Delivery, now: datetime) -> Delivery:
    """Return a delivery whose event is no longer there."""
    return msgspec.structs.replace(
        delivery,
        state=DeliveryState.FAILED,
        reason="the event was deleted",
        settled_at=now,
    )


def back_off(attempts: int, config: WebhooksConfig, jitter: float) -> float:
    """Return how long to wait after a failed try that so many others came before."""
    doubled: float = config.first_retry_seconds * 2.0 ** min(attempts, 40)
    longest = min(config.longest_retry_seconds, doubled)
    return longest * (1 - _JITTER * jitter)

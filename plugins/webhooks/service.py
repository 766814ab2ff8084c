"""Subscriptions and their deliveries, as their owner sees them."""

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

import msgspec

from agentsvc.base import Conflict, NotFound, Secret, values
from agentsvc.extension.signatures import new_secret
from agentsvc.extension.storage import Database, Transaction, Vault, cut, note_effect

from .config import WebhooksConfig
from .model import ChangeKind, Delivery, DeliveryState, Subscription, WebhookOrder
from .table import GIVEN_UP, OF_ID, PUT_OFF, DeliveryTable, SubscriptionTable
from .targets import check_url

MAX_SUBSCRIPTIONS: Final = 50
"""How many subscriptions a user may have; each costs something with every event."""


class Webhooks:
    """Every subscription; what one user does is about what is theirs."""

    def __init__(self, db: Database, vault: Vault, config: WebhooksConfig) -> None:
        self._db = db
        self._vault = vault
        self._allows_private = config.allow_private
        self._overlap_seconds = config.rotation_seconds

    async def add(self, user_id: str, order: WebhookOrder) -> tuple[Subscription, Secret]:
        """Make a subscription; its secret can be seen now and never again.

        Raises InvalidRequest for a URL that may not be used, Conflict for one too many.
        """
        now, secret = values.now(), new_secret()
        made = Subscription(
            id=values.new_id(),
            user_id=user_id,
            created_at=now,
            updated_at=now,
            **_to_stored(msgspec.structs.asdict(order)),
        )
        check_url(made.url, allows_private=self._allows_private)
        sealed = self._vault.seal(secret.reveal().encode(), context_of(made.id))

        async def body(tx: Transaction) -> None:
            if len(await SubscriptionTable.listed(tx, user_id)) >= MAX_SUBSCRIPTIONS:
                raise Conflict(f"a user has at most {MAX_SUBSCRIPTIONS} webhook subscriptions")
            await SubscriptionTable.insert(tx, made, sealed=sealed)
            await note_effect(tx, (made, secret))

        await self._db.write(body)
        return made, secret

    async def update(
        self, user_id: str, subscription_id: str, wanted: Mapping[str, Any]
    ) -> Subscription:
        """Change what was sent; raises NotFound or InvalidRequest.

        What was put off goes to a new URL, or to one that is enabled again, at once, as if it were
        not tried yet; what a disabled subscription misses is not made up for.
        """

        async def body(tx: Transaction) -> Subscription:
            found = await SubscriptionTable.find(tx, subscription_id)
            before = _owned(found, user_id)
            changed = self._changed(before, wanted)
            await SubscriptionTable.update(tx, changed)
            if changed.url != before.url or changed.is_enabled > before.is_enabled:
                await DeliveryTable.replay(tx, subscription_id, PUT_OFF, changed.updated_at)
            return changed

        return await self._db.write(body)

    async def rotate(self, user_id: str, subscription_id: str) -> tuple[Subscription, Secret]:
        """Give a subscription a new secret, which can be seen now and never again.

        What is delivered is signed with the former one, too, for some time. Raises NotFound.
        """
        secret = new_secret()
        sealed = self._vault.seal(secret.reveal().encode(), context_of(subscription_id))

        async def body(tx: Transaction) -> tuple[Subscription, Secret]:
            found, now = await SubscriptionTable.find(tx, subscription_id), values.now()
            until = now + timedelta(seconds=self._overlap_seconds)
            changed = msgspec.structs.replace(
                _owned(found, user_id), former_until=until, updated_at=now
            )
            await SubscriptionTable.rotate(tx, changed, sealed)
            await note_effect(tx, (changed, secret))
            return changed, secret

        return await self._db.write(body)

    async def remove(self, user_id: str, subscription_id: str) -> None:
        """Delete a subscription and all of its deliveries; raises NotFound.

        What is settled goes before, in pieces between which others write.
        """
        await self.get(user_id, subscription_id)
        settled = partial(DeliveryTable.delete_settled_of, subscription_id=subscription_id)
        while await self._db.write(settled):
            pass

        async def body(tx: Transaction) -> None:
            _owned(await SubscriptionTable.find(tx, subscription_id), user_id)
            await SubscriptionTable.delete(tx, subscription_id)

        await self._db.write(body)

    async def get(self, user_id: str, subscription_id: str) -> Subscription:
        """Return a subscription; raises NotFound."""
        return _owned(await SubscriptionTable.find(self._db, subscription_id), user_id)

    async def list_of(self, user_id: str | None) -> list[Subscription]:
        """Return a user's subscriptions in the order they were made; everybody's for who operates the server."""
        return await SubscriptionTable.listed(self._db, user_id)

    async def find(self, subscription_id: str) -> Subscription | None:
        """Return a subscription, whoever owns it, for who operates the server."""
        return await SubscriptionTable.find(self._db, subscription_id)

    async def deliveries(
        self,
        user_id: str,
        subscription_id: str,
        *,
        state: DeliveryState | None,
        page_id: str | None,
        limit: int,
    ) -> tuple[list[Delivery], str | None]:
        """Return a page of deliveries, newest first, and the id of the next page.

        Raises NotFound, or InvalidRequest for a page id that this server did not give.
        """
        before = values.MAX_INT if page_id is None else values.decode_cursor(page_id, int)[0]
        await self.get(user_id, subscription_id)
        found = await DeliveryTable.search(
            self._db, subscription_id, state=state, before=before, limit=limit + 1
        )
        return cut(found, limit, lambda one: (one.number,))

    async def replay(self, user_id: str, subscription_id: str, delivery_id: str) -> Delivery:
        """Make a delivery again, or at once if it is pending; raises NotFound."""
        await self.get(user_id, subscription_id)

        async def body(tx: Transaction) -> Delivery:
            await DeliveryTable.replay(tx, subscription_id, OF_ID, values.now(), one=delivery_id)
            found = await DeliveryTable.find_of(tx, subscription_id, delivery_id)
            if found is None:
                raise NotFound("no such delivery")
            await note_effect(tx, found)
            return found

        return await self._db.write(body)

    async def replay_failed(self, user_id: str, subscription_id: str) -> int:
        """Make every delivery again that was given up, and return how many; raises NotFound."""
        await self.get(user_id, subscription_id)

        async def body(tx: Transaction) -> int:
            count = await DeliveryTable.replay(tx, subscription_id, GIVEN_UP, values.now())
            await note_effect(tx, count)
            return count

        return await self._db.write(body)

    def _changed(self, subscription: Subscription, wanted: Mapping[str, Any]) -> Subscription:
        given = _to_stored(wanted)
        changed = msgspec.structs.replace(subscription, **given, updated_at=values.now())
        if changed.is_enabled:
            changed = msgspec.structs.replace(changed, disabled_reason="")
        if changed.url != subscription.url or not subscription.is_enabled:
            changed = msgspec.structs.replace(changed, quiet_until=None)
        if changed.url != subscription.url:
            check_url(changed.url, allows_private=self._allows_private)
        return changed


def _to_stored(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was sent, as it is stored."""
    given = dict(sent)
    if "changes" in given:
        wants_all = given["changes"] is None
        given["changes"] = tuple(dict.fromkeys(ChangeKind if wants_all else given["changes"]))
    if given.get("event_kinds") is not None:
        given["event_kinds"] = tuple(given["event_kinds"])
    return given


def context_of(subscription_id: str) -> str:
    """Return the context in which the secret of a subscription is sealed."""
    return f"webhook subscription {subscription_id}"


def _owned(found: Subscription | None, user_id: str) -> Subscription:
    if found is None or found.user_id != user_id:
        raise NotFound("no such webhook subscription")
    return found

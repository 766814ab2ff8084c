"""Operations of users on webhook subscriptions and deliveries."""

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
"""Maximum number of subscriptions per user; each adds work to every event."""


class Webhooks:
    """All subscriptions; users see and change only their own."""

    def __init__(self, db: Database, vault: Vault, config: WebhooksConfig) -> None:
        self._db = db
        self._vault = vault
        self._allows_private = config.allow_private
        self._overlap_seconds = config.rotation_seconds

    async def add(self, user_id: str, order: WebhookOrder) -> tuple[Subscription, Secret]:
        """Create a subscription; its secret is returned only here.

        Raises InvalidRequest or NotAllowed for the URL, and Conflict if the user has too many.
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
        """Change a subscription; raises NotFound, InvalidRequest or NotAllowed.

        If the URL changes or the subscription is enabled again, postponed deliveries are due at once with
        a new count of attempts; what happened while it was disabled is not delivered later.
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
        """Replace the secret of a subscription; the new one is returned only here.

        Deliveries are also signed with the former one for some time. Raises NotFound.
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

        Settled deliveries are deleted first, in batches, so that other writes are not blocked.
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
        """Return the subscriptions of a user, or of all for None, in the order of creation."""
        return await SubscriptionTable.listed(self._db, user_id)

    async def find(self, subscription_id: str) -> Subscription | None:
        """Return a subscription of any user, for operators."""
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

        Raises NotFound, or InvalidRequest for an invalid page id.
        """
        before = values.MAX_INT if page_id is None else values.decode_cursor(page_id, int)[0]
        await self.get(user_id, subscription_id)
        found = await DeliveryTable.search(
            self._db, subscription_id, state=state, before=before, limit=limit + 1
        )
        return cut(found, limit, lambda one: (one.number,))

    async def replay(self, user_id: str, subscription_id: str, delivery_id: str) -> Delivery:
        """Repeat a delivery, or send a pending one at once; raises NotFound."""
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
        """Repeat all failed deliveries, and return their number; raises NotFound."""
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
    """Convert the sent fields to their stored form."""
    given = dict(sent)
    if "changes" in given:
        wants_all = given["changes"] is None
        given["changes"] = tuple(dict.fromkeys(ChangeKind if wants_all else given["changes"]))
    if given.get("event_kinds") is not None:
        given["event_kinds"] = tuple(given["event_kinds"])
    return given


def context_of(subscription_id: str) -> str:
    """Return the sealing context of a subscription's secret."""
    return f"webhook subscription {subscription_id}"


def _owned(found: Subscription | None, user_id: str) -> Subscription:
    if found is None or found.user_id != user_id:
        raise NotFound("no such webhook subscription")
    return found

"""The SQL of subscriptions and deliveries. Triggers insert deliveries: see the migration."""

from datetime import datetime
from typing import Any, Final

import msgspec

from agentsvc.base import to_stored
from agentsvc.extension.storage import Queryable, Records, Transaction, record_of

from .model import Delivery, DeliveryState, Subscription

_BATCH: Final = 1000
PUT_OFF: Final = "state = 'pending' AND due_at > :now"
GIVEN_UP: Final = "state = 'failed'"
OF_ID: Final = "id = :id"
"""Conditions of `DeliveryTable.replay`."""


class SubscriptionTable(Records[Subscription], table="webhook_subscriptions"):
    """The SQL of subscriptions."""

    @classmethod
    async def rotate(cls, tx: Transaction, changed: Subscription, sealed: bytes) -> None:
        """Store a new secret; the former one also signs until `former_until`."""
        await cls.update(tx, changed)
        sql = """
            UPDATE webhook_subscriptions
            SET former_sealed = sealed, sealed = :sealed
            WHERE id = :id
        """
        await tx.run(sql, {"id": changed.id, "sealed": sealed})

    @staticmethod
    async def drop_former(tx: Transaction, now: datetime) -> int:
        """Delete former secrets that have expired."""
        sql = """
            UPDATE webhook_subscriptions
            SET former_sealed = NULL, former_until = NULL
            WHERE former_until <= :now
        """
        return await tx.run(sql, {"now": to_stored(now)})

    @classmethod
    async def change(cls, tx: Transaction, sent_to: Subscription, **changes: Any) -> bool:
        """Update a subscription, unless it is disabled or its URL has changed."""
        found = await cls.find(tx, sent_to.id)
        if found is None or found.url != sent_to.url or not found.is_enabled:
            return False
        return await cls.update(tx, msgspec.structs.replace(found, **changes))

    @staticmethod
    async def find_sealed(source: Queryable, subscription_id: str, now: datetime) -> list[bytes]:
        """Return the sealed secrets of a subscription that sign deliveries, the newest first."""
        sql = """
            SELECT sealed, CASE WHEN former_until > :now THEN former_sealed END AS former_sealed
            FROM webhook_subscriptions
            WHERE id = :id
        """
        row = await source.one(sql, {"id": subscription_id, "now": to_stored(now)})
        return [] if row is None else [one for one in (row["sealed"], row["former_sealed"]) if one]

    @classmethod
    async def listed(cls, source: Queryable, user_id: str | None = None) -> list[Subscription]:
        """Return the subscriptions of a user, or of all, in the order of creation."""
        where = "" if user_id is None else "WHERE t.user_id = :user_id"
        return await cls.select(source, f"{where} ORDER BY t.created_at, t.id", user_id=user_id)


class DeliveryTable(Records[Delivery], table="webhook_deliveries"):
    """The SQL of deliveries."""

    @staticmethod
    async def heads(
        source: Queryable, subscription_id: str, limit: int, latest: datetime
    ) -> list[Delivery]:
        """Return the first pending delivery of each lane by due time, implausibly late ones first."""
        params = {"subscription_id": subscription_id, "limit": limit, "latest": to_stored(latest)}
        rows = await source.all(_HEADS, params)
        return [record_of(row, Delivery) for row in rows]

    @classmethod
    async def store_result(cls, tx: Transaction, delivery: Delivery) -> bool:
        """Store the result of an attempt, unless the delivery has changed since."""
        where = "AND state = 'pending' AND begun_at = :begun_at"
        return await cls.update(tx, delivery, where, but="number")

    @staticmethod
    async def give_up(tx: Transaction, failed: Delivery, cutoff: datetime, now: datetime) -> int:
        """Mark old pending deliveries behind a failed one as failed; return how many."""
        sql = """
            UPDATE webhook_deliveries
            SET state = 'failed', reason = :reason, settled_at = :now
            WHERE subscription_id = :subscription_id
              AND lane = :lane
              AND state = 'pending'
              AND begun_at <= :cutoff
        """
        params = {
            "subscription_id": failed.subscription_id,
            "lane": failed.lane,
            "cutoff": to_stored(cutoff),
            "reason": f"failed with an earlier one: {failed.reason}",
            "now": to_stored(now),
        }
        return await tx.run(sql, params)

    @staticmethod
    async def replay(
        tx: Transaction, subscription_id: str, where: str, now: datetime, *, one: str | None = None
    ) -> int:
        """Make deliveries due with a new count of attempts; return how many."""
        sql = """
            UPDATE webhook_deliveries
            SET state = 'pending', attempts = 0, reason = '', status = NULL, begun_at = :now,
                due_at = :now, settled_at = NULL
            WHERE subscription_id = :subscription_id AND
        """
        params = {"subscription_id": subscription_id, "id": one, "now": to_stored(now)}
        return await tx.run(f"{sql} {where}", params)

    @classmethod
    async def find_of(
        cls, source: Queryable, subscription_id: str, delivery_id: str
    ) -> Delivery | None:
        """Return a delivery of a subscription, or None."""
        tail = "WHERE t.id = :id AND t.subscription_id = :of"
        return await cls.first(source, tail, id=delivery_id, of=subscription_id)

    @classmethod
    async def search(
        cls,
        source: Queryable,
        subscription_id: str,
        *,
        state: DeliveryState | None,
        before: int,
        limit: int,
    ) -> list[Delivery]:
        """Return a page of deliveries before a number, newest first."""
        where = "" if state is None else "AND t.state = :state"
        return await cls.select(
            source,
            f"WHERE t.subscription_id = :of AND t.number < :before {where}"
            " ORDER BY t.number DESC LIMIT :limit",
            of=subscription_id,
            state=state,
            before=before,
            limit=limit,
        )

    @staticmethod
    async def delete_settled(tx: Transaction, before: datetime) -> int:
        """Delete a batch of deliveries settled before a moment; return how many."""
        sql = """
            DELETE FROM webhook_deliveries
            WHERE number IN (
                SELECT number FROM webhook_deliveries WHERE settled_at < :before LIMIT :most
            )
        """
        return await tx.run(sql, {"before": to_stored(before), "most": _BATCH})

    @staticmethod
    async def delete_settled_of(tx: Transaction, subscription_id: str) -> int:
        """Delete a batch of a subscription's settled deliveries; return how many."""
        sql = """
            DELETE FROM webhook_deliveries
            WHERE number IN (
                SELECT number FROM webhook_deliveries
                WHERE subscription_id = :id AND settled_at IS NOT NULL
                LIMIT :most
            )
        """
        return await tx.run(sql, {"id": subscription_id, "most": _BATCH})


# Skips from lane to lane along the index, so that only the first delivery of each lane is read.
_HEADS = """
    WITH RECURSIVE lanes (lane) AS (
        SELECT MIN(lane)
        FROM webhook_deliveries
        WHERE subscription_id = :subscription_id
          AND state = 'pending'
        UNION ALL
        SELECT (
            SELECT MIN(next.lane)
            FROM webhook_deliveries AS next
            WHERE next.subscription_id = :subscription_id
              AND next.state = 'pending'
              AND next.lane > lanes.lane
        )
        FROM lanes
        WHERE lanes.lane IS NOT NULL
    )
    SELECT d.*
    FROM lanes
    JOIN webhook_deliveries AS d ON d.number = (
        SELECT MIN(first.number)
        FROM webhook_deliveries AS first
        WHERE first.subscription_id = :subscription_id
          AND first.state = 'pending'
          AND first.lane = lanes.lane
    )
    ORDER BY d.due_at <= :latest, d.due_at, d.number
    LIMIT :limit
"""
